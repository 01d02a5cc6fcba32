"""Finds the captions of images in search results, from a table of pairs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from vlmill.runtime.files.reading import iter_batches
from vlmill.runtime.readers.row_index import ABSENT, IdIndex
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import PAIRS

BATCH_ROWS = 65_536


class Captions:
    """Holds the captions of a table of pairs by image: their bytes, the ids, and 16 bytes a pair.

    Raises InputError for a table without a caption of an image.
    """

    def __init__(self, pairs: str | Path, flag: str = "--pairs") -> None:
        ids, texts = list[pa.Array](), list[pa.Array]()
        columns = ["image_id", "text"]
        for batch in iter_batches(pairs, PAIRS, columns=columns, batch_rows=BATCH_ROWS, flag=flag):
            rows = batch.filter(pc.is_valid(batch.column("image_id")))
            ids.append(rows.column("image_id").cast(pa.large_string()))
            texts.append(rows.column("text").cast(pa.large_string()))
        if not sum(map(len, ids)):
            raise InputError(f"{flag} {pairs}: no row has an image; give a table of pairs")
        self._index, self._texts = IdIndex(pa.concat_arrays(ids)), pa.concat_arrays(texts)

    def add_to(self, answers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Returns rows of search results with a ``caption`` if they have an image and no text.

        An image with several captions gets the first one of the table.
        """
        ids = [str(row.get("image_id", "")) for row in answers]
        numbers = self._index.find(ids)
        return [
            {**row, "caption": self._texts[int(number)].as_py()}
            if number != ABSENT and "text" not in row
            else dict(row)
            for row, number in zip(answers, numbers, strict=True)
        ]
