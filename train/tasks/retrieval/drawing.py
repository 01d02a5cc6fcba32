"""Draws what a pair is told from: its candidates, of which the pair itself is the first."""

from collections.abc import Set
from typing import NamedTuple

import numpy as np

from vlmill.schemas.errors import InputError
from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.pairing import draw_row
from vlmill.train.loading.random import Draws
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.loading.visited_pairs import StagePairs
from vlmill.train.tasks.retrieval.settings import RetrievalSettings

TEXT, IMAGE, NEAR_TEXT = "text", "picture", "near text"


class Candidate(NamedTuple):
    """The rows whose text and whose image are paired."""

    text_row: int
    image_row: int


def draw_candidates(
    row: int, pool: Ids, pairs: StagePairs, draws: Draws, settings: RetrievalSettings
) -> list[Candidate]:
    """A row's own pair and its negatives, as many as the settings say, from the rows of ``pool``.

    No negative is a caption of its image, and none comes twice. Raises InputError where there are
    too few.
    """
    candidates, texts, images = [Candidate(row, row)], {row}, {row}
    for kind in choose_negative_kinds(settings, draws):
        near = pairs.near_caption(row, draws) if kind == NEAR_TEXT else None
        met = images if kind == IMAGE else texts
        other = near if near is not None else _other(row, pool, pairs, draws, met, kind)
        if other is None:
            raise InputError(
                f"--examples: {pairs.table.pair_id(row)} finds {len(candidates) - 1} of the "
                f"{settings.num_candidates - 1} negatives of settings.num_candidates="
                f"{settings.num_candidates} among {len(pool)} pairs; give captions of more "
                "images, or fewer candidates"
            )
        met.add(other)
        candidates.append(Candidate(row, other) if kind == IMAGE else Candidate(other, row))
    return candidates


def choose_negative_kinds(settings: RetrievalSettings, draws: Draws) -> list[str]:
    """What each of a sample's negatives replaces."""
    if settings.negatives == "alignment":
        # The near one first: what is drawn from all is then another.
        return [NEAR_TEXT if settings.nearest else TEXT, TEXT, IMAGE]
    kind = TEXT if settings.negatives == "texts" else IMAGE
    if settings.negatives == "both":
        kind = TEXT if draws.random() < 0.5 else IMAGE
    return [kind] * (settings.num_candidates - 1)


def _other(
    row: int, pool: Ids, pairs: StagePairs, draws: Draws, met: Set[int], kind: str
) -> int | None:
    """Another row of the pool that is no match, by chance; if that meets none, the first of all."""
    table = pairs.table
    keys = {get_key(table, used_row, kind) for used_row in met}

    def is_negative(other: int) -> bool:
        if get_key(table, other, kind) in keys:
            return False
        return not (pairs.matches(row, other) if kind == IMAGE else pairs.matches(other, row))

    drawn = draw_row(pool, draws, is_negative)
    if drawn is None:
        drawn = next((other for other in np.unique(pool).tolist() if is_negative(other)), None)
    return drawn


def get_key(table: SampleTable, row: int, kind: str) -> int:
    """What two negatives of a sample may not have in common: the image, or the words."""
    return int(table.image_keys[row] if kind == IMAGE else table.text_keys[row])
