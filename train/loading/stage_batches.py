"""Batches by number: batch ``i`` of a stage is a pure function of the tables and the seed."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset, get_worker_info

from vlmill.schemas.readers.images import ImageReader
from vlmill.schemas.readers.regions import RegionReader
from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.batch import PlannedBatch, Source, StoredBatch
from vlmill.train.loading.collate import plan
from vlmill.train.loading.features import assemble, source_of
from vlmill.train.loading.masking.patches import BlockMasking
from vlmill.train.loading.masking.words import Lexicon, MaskedTokens, mask_texts
from vlmill.train.loading.order import PairOrder, Visit
from vlmill.train.loading.pairing import choose_pairing
from vlmill.train.loading.pictures.boxed import boxed_picture
from vlmill.train.loading.pictures.crop import training_pictures
from vlmill.train.loading.random import Uniforms, streams
from vlmill.train.loading.sample import Sample, columns_of, cut_tokens, joined_texts, sample_regions
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.recipes.spec import Stage

TEXT_STAGE = 1 << 16  # apart from the stages whose pairs are visited
PATCH_SIZE = 16
PAIRED = ("regions", "pixels", "picture-regions")  # kinds whose texts and pictures may not match
Made = tuple[Sample, Source | None, dict[str, npt.NDArray[Any]]]


@dataclass(kw_only=True)
class PretrainBatches(Dataset[PlannedBatch]):
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
    regions: RegionReader | None = None
    images: ImageReader | None = None
    processes: int = 1
    longest: int = 512  # tokens that the model takes
    global_features: bool = False  # whether it takes those of whole pictures

    def __getstate__(self) -> dict[str, object]:
        opened = ("table", "order", "texts", "_block_masking")
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
        return PairOrder(
            rows=self.table.rows_of(self.stage.sources, self.stage.feeding.kind),
            lengths=lengths,
            loading=loading,
            seed=self.seed,
            stage=self.stage_number,
            size=self.size,
        )

    @cached_property
    def texts(self) -> PairOrder:
        """In which order it visits the texts that come along with its pairs."""
        return PairOrder(
            rows=self.table.rows_of(self.stage.sources, "text"),
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
    def _block_masking(self) -> BlockMasking:
        return BlockMasking.of_grid(self.stage.feeding.image_size // PATCH_SIZE)

    @property
    def _longest(self) -> int:
        return min(self.stage.feeding.max_tokens or self.longest, self.longest)

    def __getitem__(self, index: int) -> PlannedBatch:
        """Batch number ``index`` of the stage, its features left in their files."""
        feeding, masking = self.stage.feeding, self.stage.masking
        made = self.sampled(self.order.batch(index))
        texts: list[Sample] = []
        if self._texts_of_a_batch and len(self.texts.rows):
            texts = self._texts_alone(self.texts.batch(index))
        planned = plan(
            [sample for sample, _, _ in made] + texts,
            [source for _, source, _ in made if source is not None],
            feeding,
            mismatched_words=masking.mismatched_words,
            mismatched_regions=masking.mismatched_regions,
            pad_to=self.stage.loading.pad_to,
            pixels=[pixels for _, _, pixels in made if pixels],
            num_classes=self._num_classes(),
            global_features=self.global_features,
        )
        self._read_ahead(planned)
        return planned

    def assembled(self, index: int) -> StoredBatch:
        """Batch number ``index`` with its features.

        Raises InputError, naming the pictures, if those are not finite: nothing later would tell.
        """
        return assemble(self[index], self.regions).checked()

    def _num_classes(self) -> int | None:
        about = {} if self.regions is None else self.regions.arrays.get("class_probs", {})
        return about.get("of")

    def _read_ahead(self, planned: PlannedBatch) -> None:
        """Have the system read the features while this and other batches are planned.

        Only in worker processes: elsewhere they are read at once.
        """
        if self.regions is not None and get_worker_info() is not None:
            for source in planned.sources:
                if source.place is not None:
                    self.regions.read_ahead(*source.place)

    def _draws(self, visits: Sequence[Visit], stage: int) -> list[Uniforms]:
        """Each visit's own random numbers."""
        keys = self.table.pair_keys[[visit.row for visit in visits]]
        return streams(self.seed, stage, [visit.epoch for visit in visits], keys)

    def sampled(self, visits: Sequence[Visit]) -> list[Made]:
        """The samples of visits, where their features lie, and their pixels."""
        every = self._draws(visits, self.stage_number)
        pairings = [self._pairing(visit, draws) for visit, draws in zip(visits, every, strict=True)]
        texts = [cut_tokens(self.table.tokens(row), self._longest) for row, _, _ in pairings]
        masked = self._masked(texts, every)
        made = []
        for number, (visit, draws) in enumerate(zip(visits, every, strict=True)):
            _, image_row, matching = pairings[number]
            text = Sample(
                pair_id=self.table.pair_id(visit.row),
                original=texts[number],
                tokens=masked[number],
                regions=None,
                matching=matching,
            )
            made.append(self._made(text, image_row, draws))
        return made

    def _pairing(self, visit: Visit, draws: Uniforms) -> tuple[int, int, bool]:
        if not self.stage.negative_share or self.stage.feeding.kind not in PAIRED:
            return visit.row, visit.row, True
        return choose_pairing(
            visit.row,
            visit.near,
            self.table,
            draws,
            negative_share=self.stage.negative_share,
            hard_share=self.stage.hard_negative_share,
            text_share=self.stage.negative_text_share,
        )

    def _made(self, text: Sample, image_row: int, draws: Uniforms) -> Made:
        """A masked text with the picture of a row."""
        at = int(self.table.image_rows[image_row])
        match self.stage.feeding.kind:
            case "regions":
                return *self._with_regions(text, at, draws), {}
            case "picture-regions":
                shown, source = self._with_regions(text, at, draws)
                return shown, source, self._boxed(shown)
            case "text":
                return text, None, {}
        return text, None, self._pixels(at, image_row, draws)

    def _texts_alone(self, visits: Sequence[Visit]) -> list[Sample]:
        every = self._draws(visits, self.stage_number + TEXT_STAGE)
        texts = [self._lengthened(visit.row) for visit in visits]
        masked = self._masked(texts, every, specials=False)
        return [
            Sample(
                pair_id=self.table.pair_id(visit.row),
                original=text,
                tokens=tokens,
                regions=None,
                matching=True,
            )
            for visit, text, tokens in zip(visits, texts, masked, strict=True)
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

    def _with_regions(self, text: Sample, at: int, draws: Uniforms) -> tuple[Sample, Source]:
        assert self.regions is not None
        group, within = self.regions.located(at)
        stage = self.stage
        columns = columns_of(stage.feeding, global_features=self.global_features)
        row = group.row(within, columns)
        regions, words = sample_regions(row, text.tokens, draws, stage.feeding, stage.masking)
        source = source_of(group, within, regions.count, regions.order)
        return text.with_regions(regions, words), source

    def _boxed(self, sample: Sample) -> dict[str, npt.NDArray[Any]]:
        assert self.images is not None and sample.regions is not None
        (at,) = self.images.find([sample.regions.row.image_id])
        return boxed_picture(self.images.bytes_of(int(at)), sample.regions, self.stage.feeding)

    def _pixels(self, at: int, row: int, draws: Uniforms) -> dict[str, npt.NDArray[Any]]:
        assert self.images is not None
        data = self.images.bytes_of(at)
        pixels, small = training_pictures(data, self.table.image_id(row), draws, self.stage.feeding)
        if small is None:
            return {"pixels": pixels}
        mask = self._block_masking.draw(draws)
        return {"pixels": pixels, "token_pixels": small, "patch_mask": mask}
