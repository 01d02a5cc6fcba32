"""Checks the rows of tables beyond their columns' types, by reading all of them."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from vlmill.runtime.files.manifest import read_manifest
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.reading import iter_batches
from vlmill.runtime.files.shards import Shard
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import IMAGES, NEGATIVES, NEIGHBOURS, PAIRS, REJECTS, Table

Row = Mapping[str, Any]
MOST_TOLD = 20  # problems reported per table; otherwise a foreign folder would list every row


def content_problems(folder: str | Path) -> list[str]:
    """Returns the problems in the rows of a finished folder's tables, one line each.

    Ids are unique. Images have the bytes of their SHA-256. Pairs refer to images of the folder, if
    it has a table of images. Negatives have one similarity each and do not include the pair itself.
    Neighbours are other images in order. Reasons are from the closed list. Rows of ``regions`` are
    checked by their reader. Memory: the ids of a table, about 100 bytes each, and a batch of rows.
    Raises InputError for a folder whose run has not finished.
    """
    folder = to_path(folder)
    shards: Sequence[Shard] = read_manifest(folder)["shards"]
    there = {shard.table for shard in shards}
    image_ids = set(_values(folder, IMAGES, "image_id")) if IMAGES.name in there else None
    checks: dict[str, tuple[Table, str | None, Callable[[Row], str | None]]] = {
        IMAGES.name: (IMAGES, "image_id", _wrong_image),
        PAIRS.name: (PAIRS, "pair_id", lambda row: _wrong_pair(row, image_ids)),
        NEGATIVES.name: (NEGATIVES, "pair_id", _wrong_negatives),
        NEIGHBOURS.name: (NEIGHBOURS, "image_id", _wrong_neighbours),
        REJECTS.name: (REJECTS, None, _wrong_reject),
    }
    problems: list[str] = []
    for name in sorted(there & checks.keys()):
        table, key, wrong = checks[name]
        table_problems = list(_find_problems(_rows(folder, table), key, wrong))
        problems += [f"{folder}, {name}: {line}" for line in table_problems[:MOST_TOLD]]
        if len(table_problems) > MOST_TOLD:
            problems.append(f"{folder}, {name}: {len(table_problems) - MOST_TOLD} more problems")
    return problems


def _values(folder: Path, table: Table, column: str) -> Iterator[str]:
    for batch in iter_batches(folder, table, columns=[column]):
        yield from batch.column(0).to_pylist()


def _rows(folder: Path, table: Table) -> Iterator[Row]:
    for batch in iter_batches(folder, table, batch_rows=64):  # images of up to 32 MiB
        yield from batch.to_pylist()


def _find_problems(
    rows: Iterable[Row], key: str | None, wrong: Callable[[Row], str | None]
) -> Iterator[str]:
    seen_keys: set[str] = set()
    for row in rows:
        if key is not None and row[key] in seen_keys:
            yield f"{key} {row[key]} comes twice"
        if key is not None:
            seen_keys.add(row[key])
        if problem := wrong(row):
            yield problem


def _wrong_image(row: Row) -> str | None:
    if row["bytes"] is None or row["sha256"] is None:
        return None
    if hashlib.sha256(row["bytes"]).hexdigest() == row["sha256"]:
        return None
    return f"{row['image_id']}: its bytes do not match its sha256"


def _wrong_pair(row: Row, image_ids: set[str] | None) -> str | None:
    if row["image_id"] is None or image_ids is None or row["image_id"] in image_ids:
        return None
    return f"{row['pair_id']}: its image_id {row['image_id']} is not an image of this folder"


def _wrong_negatives(row: Row) -> str | None:
    ids, similarities = row["negative_pair_ids"], row["similarities"]
    if len(ids) != len(similarities):
        return f"{row['pair_id']}: {len(ids)} negatives and {len(similarities)} similarities"
    if row["pair_id"] in ids or len(set(ids)) < len(ids):
        return f"{row['pair_id']}: its list of negatives has the pair itself, or one pair twice"
    return None


def _wrong_neighbours(row: Row) -> str | None:
    ids, distances = row["neighbour_ids"], row["distances"]
    if row["image_id"] in ids or len(set(ids)) < len(ids):
        return f"{row['image_id']}: its list of neighbours has the image itself, or one image twice"
    if distances is None:
        return None
    if len(ids) != len(distances):
        return f"{row['image_id']}: {len(ids)} neighbours and {len(distances)} distances"
    neighbours = list(zip(distances, ids, strict=True))
    if any(before >= after for before, after in pairwise(neighbours)):
        return f"{row['image_id']}: its neighbours are not in order of distance and id"
    return None


def _wrong_reject(row: Row) -> str | None:
    if row["reason"] in set(Reason):
        return None
    return f"{row['key']}: no such reason: {row['reason']}"
