"""Which pairs a stage visits: those of its sources and splits, or a share of them by a hash."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from vlmill.train.loading.arrays import Flags, Ids, Keys
from vlmill.train.loading.pairing import draw_row
from vlmill.train.loading.random import Draws, scramble, stream_starts
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.settings.spec import TrainingStage

SHARE_STAGE = 1 << 19  # apart from the stages whose pairs draw orders, masks and negatives
ALL = 1 << 64  # hashes that there are


@dataclass(frozen=True, kw_only=True)
class StagePairs:
    """The pairs that a stage chooses negatives from: ``visited`` says of every row of the table
    whether the stage visits it, and hard negatives are among those alone.
    """

    table: SampleTable
    visited: Flags

    def matches(self, text_row: int, image_row: int) -> bool:
        """Says whether the text of one row is a caption of the image of another."""
        return self.table.matches(text_row, image_row)

    def hard_negatives(self, row: int) -> Ids:
        """Returns the rows of the pair's hard negatives that the stage visits, maybe none."""
        rows = self.table.hard_negatives(row)
        return rows[self.visited[rows]]

    def near_caption(self, row: int, draws: Draws) -> int | None:
        """Draws one of the images near the row's own, and one of its captions that the stage
        visits and that is no caption of the row's; None where that image has none.
        """
        near = self.table.near
        images = near.find_neighbours(int(self.table.image_rows[row])) if near is not None else ()
        if near is None or not len(images):
            return None
        captions = near.captions(int(images[draws.integers(0, len(images))]))
        captions = captions[self.visited[captions]]
        return draw_row(captions, draws, lambda other: not self.matches(other, row))


def stage_rows(
    table: SampleTable, stage: TrainingStage, splits: Collection[str | None] | None
) -> Ids:
    """Returns the rows of ``table`` that a stage visits, in the order of their images, int64 [N].

    Whether a pair belongs to a stage's share depends on its id alone (of images alone: on the
    image's), not on the seed, the stage or what else the table holds, and a smaller share is a
    part of every larger one.
    """
    rows = table.select_rows(stage.sources, stage.feeding.kind, splits)
    keys = table.image_keys if stage.feeding.kind == "pictures" else table.pair_keys
    return rows[select_share(keys, rows, stage.share, stage.max_pairs)]


def text_rows(
    table: SampleTable, stage: TrainingStage, splits: Collection[str | None] | None
) -> Ids:
    """Returns the rows of the texts that come beside the pairs of a stage: int64 [N], rising."""
    return table.select_rows(stage.sources, "text", splits)


def select_share(keys: Keys, rows: Ids, share: float, max_count: int | None) -> Ids:
    """Returns the places in ``rows`` whose hashes of ``keys`` are below ``share`` of all hashes,
    of these the ``max_count`` smallest: int64 [N], rising.
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
