"""Makes entries of published examples: one record a row, with its images."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from vlmill.pipelines.manifest.cleaning import NamedClaims
from vlmill.pipelines.manifest.entries import Entry, Expected, ListedImage
from vlmill.pipelines.manifest.reading.sources import Folder, Source
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.tables import Table

Example = tuple[dict[str, Any], tuple[ListedImage, ...]]
"""A table row, and the images that it names."""


def find_splits(folder: Folder, names: Mapping[str, tuple[str, ...]]) -> dict[str, Source]:
    """Returns the existing file of each split, by one of its names. Raises InputError for none."""
    found_files = {split: folder.find(*files) for split, files in names.items()}
    sources = {split: source for split, source in found_files.items() if source is not None}
    if not sources:
        raise folder.lacks(" or ".join(files[0] for files in names.values()))
    return sources


def expect_rows(
    splits: Iterable[tuple[str, Source]],
    rows: Mapping[str, int],
    origin: str,
    *,
    verified: bool = True,
) -> dict[str, Expected]:
    """Returns the published number of rows of each split's file, if ``rows`` has one."""
    return {
        source.name: Expected(rows=rows[split], source=origin, verified=verified)
        for split, source in splits
        if split in rows
    }


def example_entries(
    splits: Iterable[tuple[str, Source]],
    read: Callable[[Source], Iterable[tuple[int, Any]]],
    make: Callable[[Any, str], Example | Drop],
    table: Table,
) -> Iterator[Entry]:
    """Yields an entry for each record of the splits' files, which ``make`` converts.

    The first column of ``table`` is its id. A repeated id is a duplicate, or a conflict if its row
    differs.
    """
    column, claims = table.schema.names[0], NamedClaims()
    for split, source in splits:
        for number, record in read(source):
            made = record if isinstance(record, Drop) else make(record, split)
            key = f"{source.name}:{number}"
            if not isinstance(made, Drop):
                row, images = made
                repeated = claims.claim(row[column], json.dumps(row, sort_keys=True))
                if repeated is None:
                    yield Entry(key=key, group=source.name, rows=((table, row),), images=images)
                    continue
                made = repeated
            yield Entry(key=key, group=source.name, rows=made)
