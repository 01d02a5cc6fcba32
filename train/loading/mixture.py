"""Counts how often an epoch visits each pair, where a stage mixes its sources. N pairs of a source.

The visits of an epoch are a pure function of (seed, stage, epoch, pair). Every epoch visits the
same number of pairs of each source, so a step's number determines its epoch and its pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from vlmill.runtime.readers.row_index import ABSENT
from vlmill.train.loading.arrays import Flags, Ids, Keys
from vlmill.train.loading.random import ALL_BITS, FACTOR, KEYS_AT_ONCE, scramble, stream_starts
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.settings.parts import MixedSource

MIXTURE_STAGE = 1 << 20  # separate from the stages of pairs' orders, masks and negatives
ROUND_EPOCH = 1 << 32  # separate from the epochs of other rounds

Counts = npt.NDArray[np.uint16]


@dataclass(frozen=True, kw_only=True)
class SourcePairs:
    """Holds the pairs of a source that a stage mixes with others.

    ``positions`` int64 [N] are the pairs' positions among the stage's rows, ascending, ``keys`` [N]
    the hashes of their ids. ``images`` int64 [N] are grouped by image.
    """

    rule: MixedSource
    positions: Ids
    keys: Keys
    images: Ids

    @cached_property
    def round_visits(self) -> int:
        """Returns the visits of a round: each pair, or the rule's number of captions per image."""
        max_captions = self.rule.captions_per_picture
        if max_captions is None:
            return len(self.positions)
        first = first_of_each(self.images)
        return int(np.minimum(np.diff(first, append=len(self.images)), max_captions).sum())

    @cached_property
    def last_round_visits(self) -> int:
        """Returns the visits of ``weight``'s last, partial round; a source has at least one."""
        visits = round(self.rule.weight % 1 * self.round_visits)
        return max(visits, 1) if self.rule.weight < 1 else visits

    @property
    def epoch_visits(self) -> int:
        """Returns the visits of an epoch."""
        return int(self.rule.weight) * self.round_visits + self.last_round_visits

    def visits(self, seed: int, stage: int, epoch: int) -> Counts:
        """Counts how often an epoch visits each pair: uint16 [N]."""
        num_full_rounds, max_captions = int(self.rule.weight), self.rule.captions_per_picture
        counts = np.full(
            len(self.positions), num_full_rounds if max_captions is None else 0, dtype=np.uint16
        )
        first_drawn = num_full_rounds if max_captions is None else 0
        for number in range(first_drawn, num_full_rounds + (self.last_round_visits > 0)):
            drawn = _Draws(
                keys=self.keys, seed=seed, stage=stage, epoch=epoch + number * ROUND_EPOCH
            )
            positions = np.arange(len(self.positions))
            if max_captions is not None:
                positions = np.flatnonzero(
                    select_captions(self.images, drawn.numbers(0), max_captions)
                )
            if number == num_full_rounds:
                # With other numbers: the minimum over many captions is smaller than over few.
                draws = drawn.numbers(1)[positions]
                positions = positions[
                    np.argpartition(draws, self.last_round_visits - 1)[: self.last_round_visits]
                ]
            counts[positions] += 1
        return counts


@dataclass(frozen=True, kw_only=True)
class _Draws:
    """Holds the random numbers of pairs [N] in a round of an epoch."""

    keys: Keys
    seed: int
    stage: int
    epoch: int

    def numbers(self, which: int) -> Keys:
        """Returns the pairs' numbers at index ``which``, counted from 0: uint64 [N]."""
        drawn = np.empty(len(self.keys), dtype=np.uint64)
        step = np.uint64((which + 1) * FACTOR & ALL_BITS)
        for first in range(0, len(drawn), KEYS_AT_ONCE):
            keys = self.keys[first : first + KEYS_AT_ONCE]
            starts = stream_starts(self.seed, self.stage + MIXTURE_STAGE, self.epoch, keys)
            drawn[first : first + len(keys)] = scramble(starts + step)
        return drawn


def first_of_each(images: Ids) -> Ids:
    """Returns the positions at which each image of ``images`` [N], grouped by image, begins."""
    return np.flatnonzero(np.diff(images, prepend=images[:1] - 1))


def select_captions(images: Ids, draws: Keys, max_captions: int) -> Flags:
    """Flags the ``max_captions`` pairs with the smallest random numbers of each image: bool [N].

    The images are numbered. Image number, random number and position within the image are sorted as
    one value; the random number keeps the remaining bits (34 for 10 million images of up to 64
    captions).
    """
    first = first_of_each(images)
    counts = np.diff(first, append=len(images))
    begins = np.repeat(first, counts)
    within = np.arange(len(images)) - begins
    below = max(int(counts.max(initial=1)) - 1, 1).bit_length()
    above = max(len(first) - 1, 1).bit_length()
    mask = np.uint64((1 << below) - 1)
    values = np.repeat(np.arange(len(first), dtype=np.uint64) << np.uint64(64 - above), counts)
    values |= draws >> np.uint64(above) & ~mask | within.astype(np.uint64)
    values.sort()  # each image's values stay within its positions
    chosen = within < max_captions
    flags = np.zeros(len(images), dtype=np.bool_)
    flags[begins[chosen] + (values[chosen] & mask).astype(np.int64)] = True
    return flags


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Holds the visits of a stage's epochs to ``rows``: one each, except for ``sources``."""

    rows: Ids
    sources: tuple[SourcePairs, ...]

    @cached_property
    def epoch_visits(self) -> int:
        """Returns the visits of an epoch."""
        mixed = sum(source.epoch_visits for source in self.sources)
        return len(self.rows) - sum(len(source.positions) for source in self.sources) + mixed

    def epoch(self, seed: int, stage: int, number: int) -> tuple[Ids, Counts]:
        """Returns the rows that an epoch visits, int64, in the order of ``rows``, and the index of
        each visit among the visits of its pair in that epoch, counted from 0: uint16.
        """
        counts = np.ones(len(self.rows), dtype=np.uint16)
        for source in self.sources:
            counts[source.positions] = source.visits(seed, stage, number)
        rows = np.repeat(self.rows, counts)
        if counts.max(initial=0) <= 1:
            return rows, np.zeros(len(rows), dtype=np.uint16)
        first = np.cumsum(counts, dtype=np.int64) - counts
        visits = np.arange(len(rows)) - np.repeat(first, counts)
        return rows, visits.astype(np.uint16)


def make_mixture(table: SampleTable, rows: Ids, rules: Sequence[MixedSource]) -> Mixture | None:
    """Returns the mixture of a stage's ``rows`` by these rules; None without their sources."""
    sources = collect_source_pairs(table, rows, rules)
    return Mixture(rows=rows, sources=sources) if sources else None


def collect_source_pairs(
    table: SampleTable, rows: Ids, rules: Sequence[MixedSource]
) -> tuple[SourcePairs, ...]:
    """Returns the pairs among ``rows`` of each rule; rules without pairs are omitted."""
    sources = (_source_pairs(table, rows, rule) for rule in rules)
    return tuple(source for source in sources if len(source.positions))


def _source_pairs(table: SampleTable, rows: Ids, rule: MixedSource) -> SourcePairs:
    positions = np.flatnonzero(table.has_source(rule.source)[rows])
    images = table.image_rows[rows[positions]]
    if (images == ABSENT).all():  # texts without images
        rule = replace(rule, captions_per_picture=None)
    keys = table.pair_keys[rows[positions]]
    return SourcePairs(rule=rule, positions=positions, keys=keys, images=images)
