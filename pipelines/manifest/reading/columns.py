"""Guesses columns of third-party Parquet files by their usual names, and streams them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vlmill.pipelines.manifest.reading.sources import Source
from vlmill.runtime.files.paths import readable
from vlmill.runtime.files.text_sizes import limit_batch_rows, require_short_texts
from vlmill.schemas.errors import InputError

IMAGE_URLS = ("image_url", "img_url", "image_link", "url", "URL")
TEXTS = ("caption", "text", "txt", "sentence", "TEXT", "title", "captions", "sentences")
IMAGES = ("image", "jpg", "png", "img", "image_path", "file_name")
NUMBERED = re.compile(r"(.+?)[_.]?(\d{1,3})", re.ASCII)  # caption_0, caption1
BATCH_ROWS = 256


def guess_column(
    names: Sequence[str],
    usual: Sequence[str],
    requested: str | None,
    flag: str | None,
    display_name: str,
) -> str:
    """Returns the column of texts or of images: ``requested``, or the only one with a usual name.

    A guess that could be wrong is refused: raises InputError that lists the candidates, or all
    columns if no candidate exists, and names ``flag`` (None: there is none) as the remedy.
    """
    if requested is not None:
        if requested not in names:
            raise InputError(
                f"{flag} {requested}: {display_name} has only {', '.join(names)[:300]}"
            )
        return requested
    candidates = [name for name in usual if name in names]
    if len(candidates) == 1:
        return candidates[0]
    remedy = "rename one" if flag is None else f"name one with {flag} NAME"
    if candidates:
        raise InputError(f"{display_name} has the columns {', '.join(candidates)}; {remedy}")
    raise InputError(
        f"{display_name} has none of {', '.join(usual)}; {remedy}: {', '.join(names)[:300]}"
    )


def numbered_columns(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Returns columns that differ only in their number, by their common part: ``caption_0`` and
    ``caption_1`` under ``caption``, in the order of the numbers.
    """
    numbers: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        if match := NUMBERED.fullmatch(name):
            numbers.setdefault(match[1], []).append((int(match[2]), name))
    return {
        stem: tuple(name for _, name in sorted(columns))
        for stem, columns in numbers.items()
        if len(columns) > 1
    }


def text_columns(names: Sequence[str], requested: str | None, display_name: str) -> tuple[str, ...]:
    """Returns the column of texts, or the numbered columns: of ``requested``, or the only one with
    a usual name. Raises InputError like :func:`guess_column`.
    """
    numbered = {s: c for s, c in numbered_columns(names).items() if s not in names}
    column = guess_column([*names, *numbered], TEXTS, requested, "--text-column", display_name)
    return numbered.get(column, (column,))


def split_column(
    names: Sequence[str], requested: str | None, excluded: Sequence[str], display_name: str
) -> str | None:
    """Returns the column of splits: ``requested``, or the one named split in any case, unless it is
    one of ``excluded``; None if it does not exist.

    Raises InputError for a requested column that does not exist, and for several columns of that
    name.
    """
    if requested is not None:
        return guess_column(names, (), requested, "--split-column", display_name)
    matches = [name for name in names if name.lower() == "split" and name not in excluded]
    if len(matches) > 1:
        raise InputError(
            f"{display_name} has the columns {', '.join(matches)}; name one with "
            "--split-column NAME, or give --no-split-column"
        )
    return matches[0] if matches else None


def num_rows(source: Source) -> int:
    """Returns the number of rows in the file's footer."""
    return int(pq.read_metadata(readable(source.path)).num_rows)


def parquet_rows(source: Source, columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yields the rows of a Parquet file as dicts of these columns. Memory: a batch of rows."""
    number = 0
    with pq.ParquetFile(readable(source.path)) as file:
        try:
            limit = limit_batch_rows(source.path, BATCH_ROWS)
            for batch in file.iter_batches(limit, columns=list(columns)):
                require_short_texts(source.path, batch)
                for row in batch.to_pylist():
                    number += 1
                    yield row
        except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0]
            raise InputError(
                f"{source.display_name} is damaged after row {number}: {reason}"
            ) from None
