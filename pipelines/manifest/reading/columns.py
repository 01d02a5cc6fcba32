"""Columns of other people's Parquet files: guessed by their usual names, and read as a stream."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vlmill.pipelines.manifest.reading.sources import Source
from vlmill.schemas.errors import InputError
from vlmill.schemas.files.paths import readable

TEXTS = ("caption", "text", "txt", "sentence", "TEXT", "title")
PICTURES = ("image", "jpg", "png", "img", "image_path", "file_name")
BATCH_ROWS = 256


def guessed(
    names: Sequence[str], usual: Sequence[str], given: str | None, flag: str, said: str
) -> str:
    """Returns the column of texts or of pictures: ``given``, or the only one with a usual name.

    Raises InputError that lists the candidates, or the columns where there is none.
    """
    if given is not None:
        if given not in names:
            raise InputError(f"{flag} {given}: {said} has only {', '.join(names)[:300]}")
        return given
    candidates = [name for name in usual if name in names]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise InputError(f"{said} has the columns {', '.join(candidates)}; say which: {flag} NAME")
    raise InputError(f"{said} has none of {', '.join(usual)}; its own are {', '.join(names)[:300]}")


def schema_of(source: Source) -> pa.Schema:
    """The schema of a Parquet file. Raises InputError if it is none."""
    try:
        return pq.read_schema(readable(source.path))
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{source.said} is no readable Parquet file: {reason}") from None


def num_rows(source: Source) -> int:
    """The rows that the file's footer counts."""
    return int(pq.read_metadata(readable(source.path)).num_rows)


def parquet_rows(source: Source, columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yields the rows of a Parquet file as dicts of these columns. Memory: a batch of rows."""
    number = 0
    with pq.ParquetFile(readable(source.path)) as file:
        try:
            for batch in file.iter_batches(BATCH_ROWS, columns=list(columns)):
                for row in batch.to_pylist():
                    number += 1
                    yield row
        except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"{source.said} is damaged after row {number}: {reason}") from None
