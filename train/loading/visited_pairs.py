"""Selects the pairs that a stage visits: by source and split, or a share of them by a hash."""

from collections.abc import Collection

import numpy as np

from vlmill.train.loading.arrays import Ids, Keys
from vlmill.train.loading.random import scramble, stream_starts
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.settings.spec import TrainingStage

SHARE_STAGE = 1 << 19  # separate from the stages of pairs' orders, masks and negatives
ALL = 1 << 64  # the number of hashes


def stage_rows(
    table: SampleTable, stage: TrainingStage, splits: Collection[str | None] | None
) -> Ids:
    """Returns the rows of ``table`` that a stage visits, in the order of their images, int64 [N].

    Whether a pair belongs to a stage's share depends on its id only (without texts: on the image's
    id), not on the seed, the stage or the other rows of the table, and a smaller share is a part of
    every larger one.
    """
    rows = table.select_rows(stage.sources, stage.feeding.kind, splits)
    keys = table.image_keys if stage.feeding.kind == "pictures" else table.pair_keys
    return rows[select_share(keys, rows, stage.share, stage.max_pairs)]


def text_rows(
    table: SampleTable, stage: TrainingStage, splits: Collection[str | None] | None
) -> Ids:
    """Returns the rows of the texts that accompany the pairs of a stage: int64 [N], ascending."""
    return table.select_rows(stage.sources, "text", splits)


def select_share(keys: Keys, rows: Ids, share: float, max_count: int | None) -> Ids:
    """Returns the positions in ``rows`` whose hashes of ``keys`` are below ``share`` of all hashes,
    limited to the ``max_count`` smallest hashes: int64 [N], ascending.
    """
    positions = np.arange(len(rows))
    if share == 1 and (max_count is None or max_count >= len(rows)):
        return positions
    hashes = scramble(stream_starts(0, SHARE_STAGE, 0, keys[rows]))
    if share < 1:
        positions = np.flatnonzero(hashes < np.uint64(int(share * ALL)))
    if max_count is not None and max_count < len(positions):
        positions = np.sort(positions[np.argpartition(hashes[positions], max_count)[:max_count]])
    return positions
