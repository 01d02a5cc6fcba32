"""Chooses the rows to keep: pure functions of a row, or of the results of an earlier pass."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from vlmill.pipelines.tables.conditions import Condition
from vlmill.pipelines.tables.inputs import IDS, TableInput
from vlmill.runtime.files.paths import readable
from vlmill.runtime.files.reading import read_group
from vlmill.runtime.readers.trained_on import Keys, known_keys
from vlmill.schemas.ids import key64
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import Table

Bools = npt.NDArray[np.bool_]
Dropped = Mapping[Reason, Bools]
"""By reason, which rows go: bool [rows] each, no row in two of them."""
Choose = Callable[[Table, pa.Table], Dropped]
NO_KEYS: Keys = np.empty(0, np.uint64)


def groups(entry: TableInput, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yields columns of a table's row groups, in order. Raises InputError for a damaged file."""
    for path in entry.paths:
        with pq.ParquetFile(readable(path)) as file:
            for group in range(file.num_row_groups):
                yield read_group(file, path, group, entry.table, columns)


def compute_keys(column: pa.ChunkedArray) -> Keys:
    """Returns 64-bit keys of strings: uint64 [rows], 0 for a null."""
    values = column.to_pylist()
    return np.fromiter((0 if v is None else key64(v) for v in values), np.uint64, len(values))


def as_mask(values: object) -> Bools:
    """Returns an Arrow array of booleans as a numpy array."""
    mask: Bools = np.asarray(values, dtype=np.bool_)
    return mask


# filter, sample


@dataclass(frozen=True, kw_only=True)
class ConditionFilter:
    """Drops rows of the main table that do not satisfy a condition."""

    condition: Condition

    def __call__(self, table: Table, rows: pa.Table) -> Dropped:
        """Returns the rows to drop, which do not satisfy the condition."""
        return {Reason.EXCLUDED: ~as_mask(self.condition.mask(rows))}


@dataclass(frozen=True, kw_only=True)
class ScoreFilter:
    """Drops rows of the main table with a lower score, or without one."""

    min_score: float

    def __call__(self, table: Table, rows: pa.Table) -> Dropped:
        """Returns the rows to drop."""
        scores = rows.column("score").to_numpy()
        return {Reason.LOW_SCORE: ~(np.asarray(scores, dtype=np.float64) >= self.min_score)}


@dataclass(frozen=True, kw_only=True)
class SampleFilter:
    """Drops rows of the main table whose id's hash with the seed is above a limit.

    The kept rows depend on neither the order nor the number of shards.
    """

    seed: int
    limit: int  # 0..2**64 - 1

    def __call__(self, table: Table, rows: pa.Table) -> Dropped:
        """Returns the rows to drop, which are not sampled."""
        hashes = hash_ids(self.seed, rows.column(IDS[table.name]))
        return {Reason.EXCLUDED: hashes > np.uint64(self.limit)}


def hash_ids(seed: int, ids: pa.ChunkedArray) -> Keys:
    """Returns a hash of each id, uint64 [rows]; equal ids have equal hashes."""
    return np.fromiter((key64(f"{seed}\0{name}") for name in ids.to_pylist()), np.uint64)


def find_limit(seed: int, entry: TableInput, rows: int) -> int:
    """Returns the limit with exactly ``rows`` ids below it, or with all ids if fewer exist."""
    name = IDS[entry.table.name]
    parts = [hash_ids(seed, group.column(name)) for group in groups(entry, [name])]
    hashes = np.concatenate([NO_KEYS, *parts])
    if rows >= len(hashes):
        return (1 << 64) - 1
    return int(np.partition(hashes, rows - 1)[rows - 1])


# Related tables


@dataclass(frozen=True, kw_only=True)
class RelatedFilter:
    """Drops rows that refer to neither a kept image nor a kept pair, given as sorted keys.

    ``pairs`` None: the main table is not pairs, so negatives are kept.
    """

    images: Keys
    pairs: Keys | None

    def __call__(self, table: Table, rows: pa.Table) -> Dropped:
        """Returns the rows to drop, which are not about kept images and pairs."""
        stays = np.ones(rows.num_rows, dtype=np.bool_)
        if table.name == "negatives" and self.pairs is not None:
            stays = known_keys(compute_keys(rows.column("pair_id")), self.pairs)
        elif "image_id" in table.fields:
            stays = known_keys(compute_keys(rows.column("image_id")), self.images)
        return {Reason.EXCLUDED: ~stays}


def make_related_filter(entry: TableInput, choose: Choose) -> RelatedFilter:
    """Returns a filter by the images and pairs of the main table's kept rows, 8 bytes each."""
    images, pairs = [NO_KEYS], [NO_KEYS]
    columns = [name for name in entry.table.schema.names if name not in _LARGE]
    for group in groups(entry, columns):
        stays = group.filter(pa.array(~merge_masks(choose(entry.table, group), group.num_rows)))
        images.append(np.unique(image_keys(stays)))
        if "pair_id" in columns:
            pairs.append(compute_keys(stays.column("pair_id")))
    return RelatedFilter(
        images=np.unique(np.concatenate(images)),
        pairs=np.unique(np.concatenate(pairs)) if "pair_id" in columns else None,
    )


# Columns that a condition cannot use: arrays and images.
_LARGE = frozenset(("bytes", "features", "class_probs", "class_prob_ids", "global_feature"))


def merge_masks(dropped: Dropped, rows: int) -> Bools:
    """Returns a mask of all rows to drop, for any reason."""
    mask = np.zeros(rows, dtype=np.bool_)
    for reason_mask in dropped.values():
        mask |= reason_mask
    return mask


def image_keys(rows: pa.Table) -> Keys:
    """Returns 64-bit keys of the images that rows name, in one column or in lists."""
    if "image_ids" in rows.schema.names:
        lists = rows.column("image_ids").combine_chunks()
        return compute_keys(pa.chunked_array([lists.flatten()]))
    return compute_keys(rows.column("image_id"))
