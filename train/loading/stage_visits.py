"""Defines the order of a stage's visits to its pairs, and the random numbers of each visit."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.mixture import ROUND_EPOCH, make_mixture
from vlmill.train.loading.order import TURN_STAGES, AlternatingOrder, PairOrder, Visit
from vlmill.train.loading.random import Uniforms, streams
from vlmill.train.loading.store.splits import Splits
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.loading.visited_pairs import StagePairs, stage_rows
from vlmill.train.settings.spec import TrainingStage


@dataclass(kw_only=True)
class StageVisits:
    """Orders a stage's visits to its pairs; a pure function of the tables and the seed.

    Steps are cut into ``accumulation`` times ``processes`` batches. The pairs of all epochs form
    one endless list: an epoch's last batch is completed with pairs of the next epoch.
    """

    samples: Path
    stage: TrainingStage
    stage_number: int
    seed: int
    splits: Splits | None = None  # of the samples; None: rows of all splits
    processes: int = 1

    @cached_property
    def table(self) -> SampleTable:
        """Returns the prepared pairs."""
        return SampleTable(self.samples)

    @property
    def size(self) -> int:
        """Returns the number of pairs in a batch."""
        return self.stage.batch_size // self._parts

    @property
    def _parts(self) -> int:
        """Returns the number of batches in a step."""
        return self.stage.accumulation * self.processes

    @cached_property
    def order(self) -> PairOrder | AlternatingOrder:
        """Returns the order in which the stage visits its pairs."""
        rows = stage_rows(self.table, self.stage, self.splits)
        turns = [group for group in self.in_turns(rows) if len(group)]
        if len(turns) < 2:
            return self._make_order(rows, self.stage_number)
        orders = [
            self._make_order(group, self.stage_number + number * TURN_STAGES)
            for number, group in enumerate(turns)
        ]
        return AlternatingOrder(orders=tuple(orders), parts=self._parts)

    def in_turns(self, rows: Ids) -> Sequence[Ids]:
        """Returns the groups of rows that steps alternate between; one, unless a subclass has
        more.
        """
        return (rows,)

    def _make_order(self, rows: Ids, stage: int) -> PairOrder:
        loading, lengths = self.stage.loading, None
        if loading.bucket > 1:
            regions = np.minimum(self.table.num_regions, self.stage.feeding.max_regions)
            lengths = regions.astype(np.int64) * (1 << 20) + self.table.num_tokens
        return PairOrder(
            rows=rows,
            mixture=make_mixture(self.table, rows, self.stage.mixture),
            lengths=lengths,
            loading=loading,
            seed=self.seed,
            stage=stage,
            size=self.size,
            parts=self.stage.accumulation * self.processes,
        )

    @cached_property
    def pairs(self) -> StagePairs:
        """Returns the stage's pairs, from which negatives are sampled."""
        visited = np.zeros(len(self.table), dtype=np.bool_)
        visited[self.order.rows] = True
        return StagePairs(table=self.table, visited=visited)

    def _draws(self, visits: Sequence[Visit], stage: int) -> list[Uniforms]:
        """Returns random numbers for each visit."""
        keys = self.table.pair_keys[[visit.row for visit in visits]]
        epochs = [visit.epoch + visit.repeat * ROUND_EPOCH for visit in visits]
        return streams(self.seed, stage, epochs, keys)
