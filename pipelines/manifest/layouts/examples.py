"""Makes entries of published examples: one record a row, with its images."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from vlmill.pipelines.manifest.cleaning import NamedClaims
from vlmill.pipelines.manifest.entries import Entry, ListedImage
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


def example_entries(
    source: Source,
    records: Iterable[tuple[int, Any]],
    make: Callable[[Any], Example | Drop],
    table: Table,
    claims: NamedClaims,
) -> Iterator[Entry]:
    """Yields an entry for each record; the first column of ``table`` is its id.

    A repeated id is a duplicate, or a conflict if its row differs.
    """
    column = table.schema.names[0]
    for number, record in records:
        made = record if isinstance(record, Drop) else make(record)
        key = f"{source.name}:{number}"
        if not isinstance(made, Drop):
            row, images = made
            repeated = claims.claim(row[column], json.dumps(row, sort_keys=True))
            if repeated is None:
                yield Entry(key=key, group=source.name, rows=((table, row),), images=images)
                continue
            made = repeated
        yield Entry(key=key, group=source.name, rows=made)
