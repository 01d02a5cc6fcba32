"""Batches by number: batch ``i`` of a stage is a pure function of the tables and the seed."""

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from torch.utils.data import Dataset, get_worker_info

from vlmill.schemas.errors import InputError
from vlmill.schemas.readers.images import ImageReader
from vlmill.schemas.readers.joining import Join
from vlmill.schemas.readers.regions import RegionReader
from vlmill.train.loading.arrays import Arrays, Ids
from vlmill.train.loading.batch import HostBatch
from vlmill.train.loading.chosen import StagePairs, stage_rows, text_rows
from vlmill.train.loading.collate import collate
from vlmill.train.loading.features import read_features
from vlmill.train.loading.masking.patches import BlockMasking
from vlmill.train.loading.masking.words import Lexicon, MaskedTokens, mask_texts
from vlmill.train.loading.mixture import ROUND_EPOCH, mixture_of
from vlmill.train.loading.order import PairOrder, Visit
from vlmill.train.loading.pairing import choose_pairing
from vlmill.train.loading.pictures.boxed import boxed_picture
from vlmill.train.loading.pictures.crop import UndecodablePicture, training_pictures
from vlmill.train.loading.random import Uniforms, streams
from vlmill.train.loading.sample import (
    Sample,
    SampledRegions,
    columns_of,
    cut_tokens,
    fit_together,
    joined_texts,
    sample_regions,
)
from vlmill.train.loading.store.splits import Splits
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.loading.undecodable import Tolerance, Undecodable
from vlmill.train.recipes.spec import Stage

TEXT_STAGE = 1 << 16  # apart from the stages whose pairs are visited
PATCH_SIZE = 16
PAIRED = ("regions", "pixels", "picture-regions")  # kinds whose texts and pictures may not match


@dataclass(kw_only=True)
class PretrainBatches(Dataset[HostBatch]):
    """The batches of a stage, counted from 0, each of ``batch_size / parts`` pairs.

    ``parts`` is the number of batches that one step is computed in (the stage's accumulation, times
    the processes). The pairs of all epochs form one endless list, cut into batches: an epoch's last
    batch is filled up from the next epoch. ``batches[i]`` plans a batch; :meth:`assembled` reads
    its features too. Files are opened where a batch is first asked for, so that the object can be
    sent to worker processes.
    """

    samples: Path
    stage: Stage
    stage_number: int
    seed: int
    lexicon: Lexicon
    splits: Splits | None = None  # of the samples; all without
    regions: RegionReader | None = None
    images: ImageReader | None = None
    processes: int = 1
    longest: int = 512  # tokens that the model takes
    global_features: bool = False  # whether it takes those of whole pictures
    tolerance: Tolerance | None = None  # for undecodable pictures; None: any number

    def __getstate__(self) -> dict[str, object]:
        opened = ("table", "order", "texts", "_pairs", "_block_masking", "_columns", "_join")
        return {name: value for name, value in self.__dict__.items() if name not in opened}

    @cached_property
    def table(self) -> SampleTable:
        """The prepared pairs."""
        return SampleTable(self.samples)

    @property
    def size(self) -> int:
        """Pairs in a batch."""
        return self.stage.batch_size // self.stage.accumulation // self.processes

    @cached_property
    def order(self) -> PairOrder:
        """In which order the stage visits its pairs."""
        loading, lengths = self.stage.loading, None
        if loading.bucket > 1:
            regions = np.minimum(self.table.num_regions, self.stage.feeding.max_regions)
            lengths = regions.astype(np.int64) * (1 << 20) + self.table.num_tokens
        rows = stage_rows(self.table, self.stage, self.splits)
        return PairOrder(
            rows=rows,
            mixture=mixture_of(self.table, rows, self.stage.mixture),
            lengths=lengths,
            loading=loading,
            seed=self.seed,
            stage=self.stage_number,
            size=self.size,
        )

    @cached_property
    def texts(self) -> PairOrder:
        """In which order it visits the texts that come along with its pairs."""
        rows = text_rows(self.table, self.stage, self.splits)
        return PairOrder(
            rows=rows,
            mixture=mixture_of(self.table, rows, self.stage.mixture),
            lengths=None,
            loading=self.stage.loading,
            seed=self.seed,
            stage=self.stage_number + TEXT_STAGE,
            size=self._texts_of_a_batch,
        )

    @property
    def _texts_of_a_batch(self) -> int:
        return self.stage.feeding.text_rows // self.stage.accumulation // self.processes

    @cached_property
    def _pairs(self) -> StagePairs:
        visited = np.zeros(len(self.table), dtype=np.bool_)
        visited[self.order.rows] = True
        return StagePairs(table=self.table, visited=visited)

    @cached_property
    def _block_masking(self) -> BlockMasking:
        return BlockMasking.of_grid(self.stage.feeding.image_size // PATCH_SIZE)

    @cached_property
    def _columns(self) -> tuple[str, ...]:
        return columns_of(self.stage.feeding, global_features=self.global_features)

    @property
    def _longest(self) -> int:
        return min(self.stage.feeding.max_tokens or self.longest, self.longest)

    def __getitem__(self, index: int) -> HostBatch:
        """Batch number ``index`` of the stage, its features left in their files."""
        masking = self.stage.masking
        samples, undecodable = self._readable(index)
        if self._texts_of_a_batch and len(self.texts.rows):
            samples += self._texts_alone(self.texts.batch(index))
        batch = collate(
            samples,
            self.stage.feeding,
            mismatched_words=masking.mismatched_words,
            mismatched_regions=masking.mismatched_regions,
            pad_to=self.stage.loading.pad_to,
            num_classes=self._num_classes(),
            global_features=self.global_features,
        )
        self._read_ahead(batch)
        return dataclasses.replace(batch, undecodable=undecodable) if undecodable else batch

    def _readable(self, index: int) -> tuple[list[Sample], tuple[Undecodable, ...]]:
        """The samples of batch ``index``, others in the places of those that cannot be decoded.

        Which ones follows from the order and the pictures alone, for any number of workers and in
        a run that is resumed. Raises InputError for more than the ``tolerance``, and where no
        picture is left.
        """
        samples, undecodable = list[Sample](), list[Undecodable]()
        parts = self.stage.accumulation * self.processes
        for slot, sample in enumerate(self.sampled(self.order.batch(index))):
            spares = self.order.spares(index, slot, parts)
            while isinstance(sample, Undecodable):
                undecodable.append(sample)
                if self.tolerance is not None:
                    self.tolerance.check({one.image_id: None for one in undecodable})
                spare = next(spares, None)
                if spare is None:
                    raise InputError(
                        f"--images: no picture of stage {self.stage.name} can be decoded "
                        f"({sample.image_id}: {sample.why}); give other pictures"
                    )
                (sample,) = self.sampled([spare])
            samples.append(sample)
        return samples, tuple(undecodable)

    def assembled(self, index: int) -> HostBatch:
        """Batch number ``index`` with its features.

        Raises InputError, naming the pictures, if those are not finite: nothing later would tell.
        """
        return read_features(self[index], self.regions).checked()

    def _num_classes(self) -> int | None:
        about = {} if self.regions is None else self.regions.arrays.get("class_probs", {})
        return about.get("of")

    def _read_ahead(self, batch: HostBatch) -> None:
        """Have the system read the features while this and other batches are planned.

        Only in worker processes: elsewhere they are read at once.
        """
        if self.regions is not None and get_worker_info() is not None:
            for stored in batch.stored:
                if stored.place is not None:
                    self.regions.read_ahead(*stored.place)

    def _draws(self, visits: Sequence[Visit], stage: int) -> list[Uniforms]:
        """Each visit's own random numbers."""
        keys = self.table.pair_keys[[visit.row for visit in visits]]
        epochs = [visit.epoch + visit.repeat * ROUND_EPOCH for visit in visits]
        return streams(self.seed, stage, epochs, keys)

    def sampled(self, visits: Sequence[Visit]) -> list[Sample | Undecodable]:
        """The samples of visits, or the pictures that they lack."""
        draws_of = self._draws(visits, self.stage_number)
        pairings = [self._pairing(v, draws) for v, draws in zip(visits, draws_of, strict=True)]
        texts = [cut_tokens(self.table.tokens(row), self._longest) for row, _, _ in pairings]
        masked = self._masked(texts, draws_of)
        return [
            self._sample(visit, text, pairing, draws)
            for visit, text, pairing, draws in zip(visits, masked, pairings, draws_of, strict=True)
        ]

    def _pairing(self, visit: Visit, draws: Uniforms) -> tuple[int, int, bool]:
        if not self.stage.negative_share or self.stage.feeding.kind not in PAIRED:
            return visit.row, visit.row, True
        return choose_pairing(
            visit.row,
            visit.near,
            self._pairs,
            draws,
            negative_share=self.stage.negative_share,
            hard_share=self.stage.hard_negative_share,
            text_share=self.stage.negative_text_share,
        )

    def _sample(
        self, visit: Visit, text: MaskedTokens, pairing: tuple[int, int, bool], draws: Uniforms
    ) -> Sample | Undecodable:
        """A masked text with the picture that it is paired with, if that can be decoded."""
        _, image_row, matching = pairing
        at, kind = int(self.table.image_rows[image_row]), self.stage.feeding.kind
        regions, pixels = None, Arrays()
        if kind in ("regions", "picture-regions"):
            text, regions = self._regions(text, at, draws)
        try:
            if kind == "picture-regions":
                assert regions is not None
                pixels = self._boxed(regions, image_row)
            elif kind in ("pixels", "pictures"):
                pixels = self._pixels(at, image_row, draws)
        except UndecodablePicture as error:
            return Undecodable(
                pair_id=self.table.pair_id(image_row),
                image_id=error.image_id,
                reason=error.cause.reason,
                why=error.cause.detail,
            )
        return Sample(
            pair_id=self.table.pair_id(visit.row),
            source=self.table.source(visit.row),
            text=text,
            regions=regions,
            pixels=pixels,
            matching=matching,
            picture_key=self.table.picture_key(image_row),
        )

    def _texts_alone(self, visits: Sequence[Visit]) -> list[Sample]:
        draws_of = self._draws(visits, self.stage_number + TEXT_STAGE)
        texts = [self._lengthened(visit.row) for visit in visits]
        masked = self._masked(texts, draws_of, specials=False)
        return [
            Sample(
                pair_id=self.table.pair_id(visit.row),
                source=self.table.source(visit.row),
                text=text,
                picture_key=self.table.picture_key(visit.row),
            )
            for visit, text in zip(visits, masked, strict=True)
        ]

    def _lengthened(self, row: int) -> Ids:
        """A row of text without [CLS] and [SEP], with the texts after it (VL-BERT)."""
        rows = self.texts.rows
        first = int(np.searchsorted(rows, row))
        following = (self.table.tokens(int(rows[at % len(rows)])) for at in itertools.count(first))
        return joined_texts(following, self.stage.feeding.text_row_tokens)

    def _masked(
        self, texts: Sequence[Ids], draws: Sequence[Uniforms], *, specials: bool = True
    ) -> list[MaskedTokens]:
        return mask_texts(
            texts,
            draws,
            self.stage.masking,
            self.lexicon,
            longest=self._longest,
            specials=specials,
        )

    def _regions(
        self, text: MaskedTokens, at: int, draws: Uniforms
    ) -> tuple[MaskedTokens, SampledRegions]:
        """A picture's regions beside a text, both cut to the room that they have together."""
        assert self.regions is not None
        regions = sample_regions(
            *self.regions.located(at),
            draws,
            self.stage.feeding,
            self.stage.masking,
            self._columns,
        )
        return fit_together(text, regions, self.stage.feeding)

    @cached_property
    def _join(self) -> Join:
        assert self.images is not None
        return Join(self.images.index, asking="--pairs", holding="--images")

    def _boxed(self, regions: SampledRegions, row: int) -> Arrays:
        assert self.images is not None
        (at,) = self._join.find([self.table.image_id(row)])
        return boxed_picture(self.images.bytes_of(int(at)), regions, self.stage.feeding)

    def _pixels(self, at: int, row: int, draws: Uniforms) -> Arrays:
        assert self.images is not None
        content = self.images.bytes_of(at)
        image_id, feeding = self.table.image_id(row), self.stage.feeding
        pixels, small = training_pictures(content, image_id, draws, feeding)
        if small is None:
            return {"pixels": pixels}
        mask = self._block_masking.draw(draws)
        return {"pixels": pixels, "token_pixels": small, "patch_mask": mask}
