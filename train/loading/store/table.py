"""Reads the prepared samples of a run, mapped into memory."""

from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from vlmill.runtime.readers.row_index import ABSENT
from vlmill.train.loading.arrays import Flags, Ids
from vlmill.train.loading.random import mix
from vlmill.train.loading.store.files import (
    DERIVED,
    NUMBERS,
    ROWS,
    SAMPLES,
    Numbers,
    PreparedPair,
    derive_numbers,
    make_numbers,
    map_numbers,
)
from vlmill.train.loading.store.near import NEAR, NearImages

NO_SOURCE = "null"  # of pairs whose source is missing


class SampleTable:
    """Reads the prepared samples; rows are counted from 0.

    ``samples`` are the data of each row, ``hard`` the rows that have hard negatives, and ``folder``
    may have the nearest images.
    """

    def __init__(
        self,
        samples: pa.Table,
        numbers: Numbers,
        hard: Sequence[pa.RecordBatch] = (),
        folder: Path | None = None,
    ) -> None:
        self._columns = {name: samples.column(name).chunks for name in samples.column_names}
        self.pair_keys = numbers["pair_key"]
        self.image_rows: Ids = numbers["image_row"]
        self.num_tokens, self.num_regions = numbers["num_tokens"], numbers["num_regions"]
        self.text_keys, self.image_keys = numbers["text_key"], numbers["image_key"]
        self._known, self._tokens = numbers["known"], numbers["tokens"]
        self._ends, self._hard, self._folder = numbers["token_ends"], hard, folder

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Maps the files of a folder into memory, which all processes share."""
        samples, hard = _map_table(folder / "samples.arrow"), folder / "hard.arrow"
        negatives = _map_table(hard).to_batches() if hard.exists() else ()
        return cls(samples, map_numbers(folder, (*NUMBERS, *DERIVED)), negatives, folder)

    @classmethod
    def from_pairs(cls, pairs: Sequence[PreparedPair], labels: pa.Schema) -> Self:
        """Returns at most :data:`ROWS` pairs, in memory, with a task's ``labels``."""
        samples = pa.Table.from_pylist(
            [row for row, *_ in pairs], schema=pa.schema([*SAMPLES, *labels])
        )
        numbers = make_numbers(pairs)
        return cls(samples, numbers | derive_numbers(numbers))

    def __len__(self) -> int:
        return len(self.pair_keys)

    def value(self, name: str, row: int) -> Any:
        """Returns a row's value of a column, which may be a task's label."""
        return self._columns[name][row // ROWS][row % ROWS].as_py()

    def pair_id(self, row: int) -> str:
        """Returns the pair's id."""
        return str(self.value("pair_id", row))

    def image_id(self, row: int) -> str:
        """Returns the pair's image; empty for a text without an image."""
        return self.value("image_id", row) or ""

    def image_key(self, row: int) -> int:
        """Returns 64 bits that an image's pairs share; unique for a text without an image."""
        has_image = self.image_rows[row] != ABSENT
        return int(self.image_keys[row] if has_image else self.pair_keys[row])

    def tokens(self, row: int) -> Ids:
        """Returns the text's token ids with [CLS] and [SEP]."""
        end = int(self._ends[row])
        tokens: Ids = self._tokens[end - int(self.num_tokens[row]) : end].astype(np.int64)
        return tokens

    def matches(self, text_row: int, image_row: int) -> bool:
        """Returns whether the text of one row is a caption of the image of another."""
        key = mix(int(self.text_keys[text_row]), int(self.image_keys[image_row]))
        position = int(np.searchsorted(self._known, key))
        return position < len(self._known) and bool(self._known[position] == key)

    @cached_property
    def near(self) -> NearImages | None:
        """Returns each image's nearest images; None if no table of neighbours was given."""
        folder = self._folder
        return None if folder is None or not (folder / NEAR).exists() else NearImages(folder)

    @cached_property
    def _hard_rows(self) -> tuple[Ids, Ids]:
        """Returns the rows that have hard negatives, ascending, and their positions in the file."""
        parts = [batch.column("row").to_numpy() for batch in self._hard]
        rows = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        order = np.argsort(rows, kind="stable")
        return rows[order], order

    def hard_negatives(self, row: int) -> Ids:
        """Returns the rows of the pair's hard negatives, possibly empty."""
        rows, positions = self._hard_rows
        index = int(np.searchsorted(rows, row))
        if index == len(rows) or rows[index] != row:
            return np.empty(0, dtype=np.int64)
        position = int(positions[index])
        values = self._hard[position // ROWS].column("negatives")[position % ROWS].values
        return np.asarray(values, dtype=np.int64)

    def select_rows(
        self,
        sources: tuple[str, ...],
        kind: str = "regions",
        splits: Collection[str | None] | None = None,
    ) -> Ids:
        """Returns the rows with one of these sources (all if empty), in the order of their images.

        The default is rows with an image. ``kind`` "text" selects rows without an image, and
        "images" one row per image. With ``splits`` only rows of these are returned.
        """
        rows = np.flatnonzero((self.image_rows == ABSENT) == (kind == "text"))
        if sources:
            rows = rows[self.has_source(*sources)[rows]]
        if splits is not None:
            rows = rows[self.is_among("split", splits)[rows]]
        if kind == "pictures":
            return rows[np.unique(self.image_rows[rows], return_index=True)[1]]
        return rows[np.argsort(self.image_rows[rows], kind="stable")]

    def has_source(self, *sources: str) -> Flags:
        """Returns whether each row's source is one of these; ``null`` means a missing one: bool
        [N].
        """
        missing = (None,) if NO_SOURCE in sources else ()
        return self.is_among("source", (*sources, *missing))

    def is_among(self, name: str, values: Collection[str | None]) -> Flags:
        """Returns whether each row's value of a text column is one of these, which may include
        null: bool [N].
        """
        expected = pa.array(values, pa.string())
        flags = [pa.compute.is_in(column, value_set=expected) for column in self._columns[name]]
        among: Flags = pa.chunked_array(flags, pa.bool_()).to_numpy()
        return among

    def source(self, row: int) -> str:
        """Returns the pair's source; ``null`` for a missing one."""
        return self.value("source", row) or NO_SOURCE

    def sources(self, rows: Ids | None = None) -> dict[str, int]:
        """Returns the number of pairs per source, of ``rows`` or of all; a missing source counts as
        ``null``.
        """
        column = pa.chunked_array(self._columns["source"], pa.string()).fill_null(NO_SOURCE)
        if rows is not None:
            column = column.take(pa.array(rows))
        counts = {entry["values"]: entry["counts"] for entry in column.value_counts().to_pylist()}
        return dict(sorted(counts.items()))


def _map_table(path: Path) -> pa.Table:
    """Maps an Arrow file into memory; its chunks are the file's batches."""
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
