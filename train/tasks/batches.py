"""Builds batches of a task's examples, in training's order or in the table's, and predicts them.

``train-vl evaluate`` and ``vlmill.load`` compute predictions by :class:`TaskModel` alone: the one
of the rows of a table, the other of raw images and texts.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vlmill.runtime.readers.images import Images
from vlmill.runtime.readers.regions import RegionReader, RegionRow, Regions
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import LoadedCheckpoint
from vlmill.train.loading.arrays import Arrays, Ids
from vlmill.train.loading.batch import HostBatch
from vlmill.train.loading.collate import collate
from vlmill.train.loading.features import read_features
from vlmill.train.loading.images.boxed import hidden_image
from vlmill.train.loading.images.crop import DecodePixels, evaluation_image
from vlmill.train.loading.joined_regions import joined_regions
from vlmill.train.loading.masking.regions import MaskedRegions
from vlmill.train.loading.masking.words import MaskedTokens
from vlmill.train.loading.order import Visit, stage_rows
from vlmill.train.loading.random import Uniforms
from vlmill.train.loading.sample import (
    Sample,
    SampledRegions,
    placed_boxes,
    take_regions,
    unread_features,
)
from vlmill.train.loading.stage_batches import Rows, StageBatches
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.loading.undecodable import Undecodable
from vlmill.train.settings.spec import TrainingStage
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.task import LearntTask, Prediction, Task

NOBODY: Ids = np.empty(0, dtype=np.int64)


@dataclass(kw_only=True)
class TaskBatches(StageBatches):
    """Builds the batches of a task.

    In ``training`` images are mirrored, cropped and augmented as the stage's feeding specifies;
    else they are used whole, as ``decode`` returns them. A ``blind`` model is shown nothing of an
    image.
    """

    task: LearntTask
    training: bool
    blind: bool = False
    decode: DecodePixels = evaluation_image

    def in_turns(self, rows: Ids) -> Sequence[Ids]:
        """Returns the groups of rows among which the task's steps alternate."""
        return self.task.in_turns(self.table, rows)

    def make_samples(self, visits: Sequence[Visit]) -> list[Rows | Undecodable]:
        """Returns the samples of each visit, as the task builds them."""
        visit_draws = self.draws(visits, self.stage_number)
        return [
            self.task.samples(self, visit, draws)
            for visit, draws in zip(visits, visit_draws, strict=True)
        ]

    def collate_samples(self, index: int, samples: list[Sample]) -> HostBatch:
        """Returns a batch of these samples with the task's labels."""
        batch = collate(
            samples,
            self.stage.feeding,
            pad_to=self.stage.loading.pad_to,
            global_features=self.global_features,
        )
        more = self.task.make_label_tensors(self.table, samples)
        return dataclasses.replace(batch, tensors=batch.tensors | dict(more))

    def example(
        self,
        row: int,
        draws: Uniforms,
        text: MaskedTokens | None = None,
        *,
        second: bool = False,
    ) -> Sample | Undecodable:
        """Returns a row's text, or the given one, with the row's image, or its ``second`` image."""
        sample = Sample(
            text=self.text(row) if text is None else text,
            pair_id=self.table.pair_id(row),
            source=self.table.source(row),
            row=row,
        )
        return self.imaged(sample, row, draws, second=second)

    def text(self, row: int) -> MaskedTokens:
        """Returns the unmasked text of a row."""
        tokens = self.table.tokens(row)
        return MaskedTokens(
            original=tokens, tokens=tokens, masked=np.zeros(len(tokens), dtype=np.bool_)
        )

    def rows(self) -> Ids:
        """Returns the rows of the stage, each once: int64 [N]."""
        return stage_rows(self.table, self.stage, self.splits)

    def make_batch(
        self, rows: Sequence[int], among: Ids = NOBODY
    ) -> tuple[HostBatch | None, tuple[Undecodable, ...]]:
        """Returns a batch of these rows as they are, with its features, and the missing images;
        None without rows.

        ``among`` are all rows that are measured with them.
        """
        results = self.make_samples([self.make_visit(row, among) for row in rows])
        lacking = tuple(result for result in results if isinstance(result, Undecodable))
        samples = [
            sample for result in results if not isinstance(result, Undecodable) for sample in result
        ]
        if not samples:
            return None, lacking
        return read_features(self.collate_samples(0, samples), self.regions), lacking

    def match_rows(
        self, batch: HostBatch, rows: Sequence[int], values: Iterable[Any]
    ) -> list[Prediction]:
        """Returns the values predicted for a batch of ``rows`` with their rows: those whose images
        could be decoded.
        """
        rows_by_id = {self.table.pair_id(row): row for row in rows}
        examples = zip(dict.fromkeys(batch.pair_ids), values, strict=True)
        return [Prediction(row=rows_by_id[pair_id], value=value) for pair_id, value in examples]

    @staticmethod
    def make_visit(row: int, among: Ids = NOBODY) -> Visit:
        """Returns a visit of a row outside of training's order."""
        return Visit(epoch=0, row=row, near=among)

    def _regions(self, image_row: int, draws: Uniforms) -> SampledRegions:
        assert self.regions is not None
        feeding = self.stage.feeding
        mirrored = self._mirrors(draws)
        if feeding.boxes in ("joined", "joined-in-training"):
            assert isinstance(self.regions, RegionReader)
            regions = joined_regions(
                self.regions,
                image_row,
                feeding,
                with_annotated=self.training or feeding.boxes == "joined",
                mirrored=mirrored,
            )
        else:
            table = self.regions.locate_row(image_row)
            regions = take_regions(*table, feeding, self.columns, mirrored=mirrored)
        return self.task.hide_regions(regions) if self.blind else regions

    def _example_regions(self, row: int, size: tuple[int, int], draws: Uniforms) -> SampledRegions:
        feeding = self.stage.feeding
        boxes = self.task.read_boxes(self.table, row)[: feeding.max_regions]
        mirrored = self._mirrors(draws)
        regions = SampledRegions(
            row=RegionRow(
                image_id=self.table.image_id(row), width=size[0], height=size[1], boxes=boxes
            ),
            features=unread_features(len(boxes)),
            boxes=placed_boxes(boxes, size, feeding, mirrored=mirrored),
            masks=MaskedRegions.none(len(boxes)),
            num_shown=len(boxes),
            mirrored=mirrored,
        )
        return self.task.hide_regions(regions) if self.blind else regions

    def _mirrors(self, draws: Uniforms) -> bool:
        """Returns whether an image is mirrored: at random, in training only."""
        flip = self.stage.feeding.flip
        return self.training and bool(flip) and draws.random() < flip

    def _boxed(self, image: Image.Image, regions: SampledRegions) -> Arrays:
        boxed = super()._boxed(image, regions)
        if not self.blind:
            return boxed
        return boxed | {"picture": hidden_image(boxed["picture"])}

    def _pixels(self, image_row: int, image_id: str, draws: Uniforms) -> Arrays:
        size = self.stage.feeding.image_size
        if self.blind:
            return {"pixels": np.full((3, size, size), 128, dtype=np.uint8)}
        if self.training:
            return super()._pixels(image_row, image_id, draws)
        assert self.images is not None
        return {"pixels": self.decode(self.images.read_bytes(image_row), image_id, size)}


@dataclass(frozen=True, kw_only=True)
class TaskModel:
    """Holds a checkpoint's model with its task, on a device, fed by ``recipe`` as in training, but
    nothing is random or omitted.
    """

    device: torch.device
    loaded: LoadedCheckpoint
    recipe: TaskRecipe
    task: Task

    @property
    def stage(self) -> TrainingStage:
        """Returns how examples are fed."""
        return self.recipe.stages[0]

    @cached_property
    def max_tokens(self) -> int:
        """Returns the largest number of tokens of a text."""
        longest: int = self.loaded.body.max_text_tokens
        return min(self.stage.feeding.max_tokens or longest, longest)

    def make_batches(
        self,
        samples: Path | SampleTable,
        regions: Regions | None,
        images: Images | None,
        decode: DecodePixels = evaluation_image,
    ) -> TaskBatches:
        """Returns the batches of prepared examples."""
        return TaskBatches(
            samples=samples,
            stage=self.stage,
            stage_number=0,
            seed=0,
            regions=regions,
            images=images,
            global_features=self.loaded.takes_global_features,
            asking="--examples",
            task=self.task,
            training=False,
            blind=self.loaded.task is not None and self.loaded.task.blind,
            decode=decode,
        )

    @torch.no_grad()
    def predict(
        self, batches: TaskBatches, rows: Sequence[int]
    ) -> tuple[list[Prediction], tuple[Undecodable, ...]]:
        """Returns the predictions for some rows, and the images that cannot be decoded.

        Raises InputError if the rows do not fit into the device's memory together.
        """
        host, undecodable = batches.make_batch(rows)
        if host is None:
            return [], undecodable
        try:
            batch = host.to(self.device)
            values = self.task.predict(self.task.outputs(self.loaded.model, batch), batch)
        except torch.OutOfMemoryError:
            raise InputError(
                f"--batch-size {len(rows)} does not fit into the memory of --device {self.device}; "
                "give a smaller batch size"
            ) from None
        return batches.match_rows(host, rows, values), undecodable


def in_parts(rows: list[int], size: int) -> list[list[int]]:
    """Returns the rows in their order, in parts of ``size`` rows."""
    return [rows[first : first + size] for first in range(0, len(rows), size)]
