"""Pairs a text with its own image or another, by pure functions of (seed, stage, epoch, pair).

Nothing here depends on workers, devices or earlier random numbers, so any number of workers gives
the same batches, and a resumed run needs only the number of its next step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from vlmill.train.loading.arrays import Flags, Ids
from vlmill.train.loading.random import Draws
from vlmill.train.loading.store.table import SampleTable

MAX_DRAWS = 64


class PairsLike(Protocol):
    """Lists the methods of a table of pairs that choosing negatives needs."""

    def matches(self, text_row: int, image_row: int) -> bool:
        """Returns whether the text of one row is a caption of the image of another."""

    def hard_negatives(self, row: int) -> Ids:
        """Returns the rows of the pair's hard negatives, possibly empty."""


@dataclass(frozen=True, kw_only=True)
class StagePairs:
    """Restricts the choice of negatives to the pairs of a stage: ``visited`` marks the rows of the
    table that the stage visits, and hard negatives are chosen among these only.
    """

    table: SampleTable
    visited: Flags

    def matches(self, text_row: int, image_row: int) -> bool:
        """Returns whether the text of one row is a caption of the image of another."""
        return self.table.matches(text_row, image_row)

    def hard_negatives(self, row: int) -> Ids:
        """Returns the rows of the pair's hard negatives that the stage visits, possibly empty."""
        rows = self.table.hard_negatives(row)
        return rows[self.visited[rows]]

    def near_caption(self, row: int, draws: Draws) -> int | None:
        """Samples one of the row's nearest images, and one of its captions that the stage visits
        and that is not a caption of the row's image; None if the sampled image has none.
        """
        near = self.table.near
        images = near.find_neighbours(int(self.table.image_rows[row])) if near is not None else ()
        if near is None or not len(images):
            return None
        captions = near.captions(int(images[draws.integers(0, len(images))]))
        captions = captions[self.visited[captions]]
        return draw_row(captions, draws, lambda other: not self.matches(other, row))


def choose_pairing(
    row: int,
    rows: Ids,
    table: PairsLike,
    draws: Draws,
    *,
    negative_share: float,
    hard_share: float,
    text_share: float = 0.5,
) -> tuple[int, int, bool]:
    """Returns the rows of a sample's text and image, and whether these match.

    ImageBERT, sec. 3.3: with ``negative_share`` either the caption or the image (equal chance) is
    from another pair; the caption must not be a caption of this image. It is the caption with
    chance ``text_share``: always in the code of ViLBERT, VL-BERT and InterBERT. ``hard_share`` of
    them come from the pair's hard negatives, if it has any (0.2 in InterBERT's paper); the others
    from ``rows``. If there is no such pair (all captions are of one image) the pair stays
    unchanged.
    """
    if draws.random() >= negative_share:
        return row, row, True
    replaces_text, hard = draws.random() < text_share, draws.random() < hard_share

    def mismatches(other: int) -> bool:
        return not (table.matches(other, row) if replaces_text else table.matches(row, other))

    for pool in (table.hard_negatives(row), rows) if hard else (rows,):
        other = draw_row(pool, draws, mismatches)
        if other is not None:
            return (other, row, False) if replaces_text else (row, other, False)
    return row, row, True


def draw_row(pool: Ids, draws: Draws, is_right: Callable[[int], bool]) -> int | None:
    """Returns a random row of ``pool`` that ``is_right``; None after `MAX_DRAWS` attempts."""
    for _ in range(MAX_DRAWS if len(pool) else 0):
        row = int(pool[draws.integers(0, len(pool))])
        if is_right(row):
            return row
    return None
