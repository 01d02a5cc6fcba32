"""Makes batches of pretraining: masked pairs that may not match, and texts without images."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.batch import HostBatch
from vlmill.train.loading.collate import collate
from vlmill.train.loading.masking.words import Lexicon, cut_tokens, joined_texts, mask_texts
from vlmill.train.loading.mixture import make_mixture
from vlmill.train.loading.order import PairOrder, Visit, text_rows
from vlmill.train.loading.pairing import choose_pairing
from vlmill.train.loading.random import Uniforms
from vlmill.train.loading.sample import Sample, SampledRegions, sample_regions
from vlmill.train.loading.stage_batches import Rows, StageBatches
from vlmill.train.loading.undecodable import Undecodable
from vlmill.train.settings.spec import Stage

TEXT_STAGE = 1 << 16  # separate from the stages whose pairs are visited
PAIRED = ("regions", "pixels", "picture-regions")  # feedings whose texts and images may not match


@dataclass(kw_only=True)
class PretrainBatches(StageBatches):
    """Makes the batches of a stage of pretraining."""

    stage: Stage
    lexicon: Lexicon

    @cached_property
    def texts(self) -> PairOrder:
        """Returns the order of the texts that are added to its pairs."""
        rows = text_rows(self.table, self.stage, self.splits)
        return PairOrder(
            rows=rows,
            mixture=make_mixture(self.table, rows, self.stage.mixture),
            lengths=None,
            loading=self.stage.loading,
            seed=self.seed,
            stage=self.stage_number + TEXT_STAGE,
            size=self.texts_per_batch,
        )

    @cached_property
    def texts_per_batch(self) -> int:
        """Returns the number of texts without images that a batch has."""
        return self.stage.feeding.text_rows // self.parts

    def collate_samples(self, index: int, samples: list[Sample]) -> HostBatch:
        """Returns batch ``index`` of these samples, with the texts without images added."""
        masking = self.stage.masking
        if self.texts_per_batch and len(self.texts.rows):
            samples = samples + self._texts_alone(self.texts.batch(index))
        return collate(
            samples,
            self.stage.feeding,
            mismatched_words=masking.mismatched_words,
            mismatched_regions=masking.mismatched_regions,
            pad_to=self.stage.loading.pad_to,
            num_classes=self.num_classes,
            global_features=self.global_features,
        )

    @cached_property
    def num_classes(self) -> int | None:
        """Returns the size of a full distribution over the detector's classes, if it is known."""
        about = {} if self.regions is None else self.regions.arrays.get("class_probs", {})
        return about.get("of")

    def make_samples(self, visits: Sequence[Visit]) -> list[Rows | Undecodable]:
        """Returns the masked sample of each visit, or its undecodable image."""
        visit_draws = self.draws(visits, self.stage_number)
        pairings, stage = [(visit.row, visit.row, True) for visit in visits], self.stage
        if stage.negative_share and stage.feeding.kind in PAIRED:
            pairings = [
                choose_pairing(
                    visit.row,
                    visit.near,
                    self.pairs,
                    draws,
                    negative_share=stage.negative_share,
                    hard_share=stage.hard_negative_share,
                    text_share=stage.negative_text_share,
                )
                for visit, draws in zip(visits, visit_draws, strict=True)
            ]
        texts = [cut_tokens(self.table.tokens(row), self.max_tokens) for row, _, _ in pairings]
        masked = mask_texts(
            texts, visit_draws, stage.masking, self.lexicon, longest=self.max_tokens
        )
        samples = list[Rows | Undecodable]()
        for visit, text, pairing, draws in zip(visits, masked, pairings, visit_draws, strict=True):
            _, image_row, matching = pairing
            pair_id, source = self.table.pair_id(visit.row), self.table.source(visit.row)
            sample = Sample(pair_id=pair_id, source=source, text=text, matching=matching)
            imaged = self.imaged(sample, image_row, draws)
            samples.append(imaged if isinstance(imaged, Undecodable) else (imaged,))
        return samples

    def _regions(self, row_number: int, draws: Uniforms) -> SampledRegions:
        assert self.regions is not None
        return sample_regions(
            *self.regions.locate_row(row_number),
            draws,
            self.stage.feeding,
            self.stage.masking,
            self.columns,
        )

    def _texts_alone(self, visits: Sequence[Visit]) -> list[Sample]:
        visit_draws = self.draws(visits, self.stage_number + TEXT_STAGE)
        texts = [self._lengthened(visit.row) for visit in visits]
        masked = mask_texts(
            texts,
            visit_draws,
            self.stage.masking,
            self.lexicon,
            longest=self.max_tokens,
            specials=False,
        )
        return [
            Sample(
                pair_id=self.table.pair_id(visit.row),
                source=self.table.source(visit.row),
                text=text,
                image_key=self.table.image_key(visit.row),
            )
            for visit, text in zip(visits, masked, strict=True)
        ]

    def _lengthened(self, row: int) -> Ids:
        """Returns a text row without [CLS] and [SEP], extended by the texts after it (VL-BERT)."""
        rows = self.texts.rows
        first = int(np.searchsorted(rows, row))
        following = (
            self.table.tokens(int(rows[index % len(rows)])) for index in itertools.count(first)
        )
        return joined_texts(following, self.stage.feeding.text_row_tokens)
