"""Batches by number: batch ``i`` of a stage is a pure function of the tables and the seed."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from vlmill.schemas.regions import RegionReader
from vlmill.train.collate import PretrainBatch, PretrainSample, collate, regions_of
from vlmill.train.data import SampleTable
from vlmill.train.masking import Replacement, mask_tokens
from vlmill.train.recipes.base import Stage
from vlmill.train.region_masking import mask_regions
from vlmill.train.sampling import Ids, choose_pairing, epoch_order, generator


@dataclass(kw_only=True)
class PretrainBatches(Dataset[PretrainBatch]):
    """The batches of a stage, counted from 0, each of ``batch_size / accumulation`` pairs.

    The pairs of all epochs form one endless list, cut into batches: an epoch's last batch is filled
    up from the next epoch. Files are opened where a batch is first asked for, so that the object
    can be sent to worker processes.
    """

    samples: Path
    regions: str
    stage: Stage
    stage_number: int
    seed: int
    mask_id: int
    vocab_size: int

    def __getstate__(self) -> dict[str, object]:
        opened = ("table", "reader", "rows", "_order")
        return {name: value for name, value in self.__dict__.items() if name not in opened}

    @cached_property
    def table(self) -> SampleTable:
        """The prepared pairs."""
        return SampleTable(self.samples)

    @cached_property
    def reader(self) -> RegionReader:
        """The pictures' regions."""
        return RegionReader(self.regions)

    @cached_property
    def rows(self) -> Ids:
        """The rows of the table that this stage uses."""
        return self.table.rows_of(self.stage.sources)

    @cached_property
    def _order(self) -> dict[int, Ids]:
        return {}  # of the epoch at hand

    @property
    def size(self) -> int:
        """Pairs in a batch."""
        return self.stage.batch_size // self.stage.accumulation

    def __getitem__(self, index: int) -> PretrainBatch:
        """Batch number ``index`` of the stage."""
        first = index * self.size
        return collate([self.sample(place) for place in range(first, first + self.size)])

    def sample(self, place: int) -> PretrainSample:
        """The sample at a place in the list of all epochs."""
        epoch, within = divmod(place, len(self.rows))
        if epoch not in self._order:
            self._order.clear()
            self._order[epoch] = epoch_order(self.seed, self.stage_number, epoch, len(self.rows))
        row = int(self.rows[self._order[epoch][within]])
        key = int(self.table.pair_keys[row])
        rng = generator(self.seed, self.stage_number, epoch, key)
        masking = self.stage.masking
        text_row, image_row, matching = choose_pairing(
            row,
            self.rows,
            self.table,
            rng,
            negative_share=self.stage.negative_share,
            hard_share=self.stage.hard_negative_share,
        )
        original = self.table.tokens(text_row)
        regions = regions_of(self.reader[self.table.image_id(image_row)], self.stage.max_regions)
        maskable = original >= 0
        maskable[[0, -1]] = False  # [CLS] and [SEP]
        # Mismatched pairs are masked like the others: matching must not show by the masks.
        return PretrainSample(
            pair_id=self.table.pair_id(row),
            original_tokens=original,
            tokens=mask_tokens(
                original,
                maskable,
                rng,
                share=masking.words,
                replacement=Replacement(
                    mask_id=self.mask_id,
                    vocab_size=self.vocab_size,
                    to_mask=masking.word_to_mask,
                    to_random=masking.word_to_random,
                ),
            ),
            regions=regions,
            region_masks=mask_regions(
                len(regions.features), rng, share=masking.regions, to_zero=masking.region_to_zero
            ),
            matching=matching,
        )


def batch_loader(
    batches: PretrainBatches, first: int, last: int, *, workers: int, pin_memory: bool
) -> DataLoader[PretrainBatch]:
    """Batches ``first`` up to but not including ``last``, in order, made by ``workers`` processes.

    Workers are spawned, not forked: Arrow's threads do not survive a fork.
    """
    return DataLoader(
        batches,
        batch_size=None,
        sampler=range(first, last),
        num_workers=workers,
        pin_memory=pin_memory,
        # Without one of its own the loader draws from the random numbers that dropout uses, and a
        # resumed run would have other ones than a run without a pause.
        generator=torch.Generator(),
        multiprocessing_context="spawn" if workers else None,
    )
