"""The batches that a run's stages are trained and validated on."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from accelerate import Accelerator

from vlmill.models.registry import get_variant
from vlmill.runtime.readers.row_index import ABSENT
from vlmill.train.checkpoints.trained_on import NO_KEYS
from vlmill.train.loading.arrays import Keys
from vlmill.train.loading.batch import HostBatch
from vlmill.train.loading.features import get_global_widths
from vlmill.train.loading.loader import batch_loader
from vlmill.train.loading.stage_batches import StageBatches
from vlmill.train.loading.store.pairs import get_flag
from vlmill.train.loading.store.splits import Splits
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.loading.undecodable import Tolerance
from vlmill.train.loading.visited_pairs import stage_rows, text_rows
from vlmill.train.recipes import RunSettings
from vlmill.train.run.inputs import Sources
from vlmill.train.run.learning import Learning
from vlmill.train.run.loop import StageRun
from vlmill.train.run.saving import HELD_OUT, PREPARED
from vlmill.train.run.validation import as_measured


@dataclass(frozen=True, kw_only=True)
class RunBatches:
    """Makes batches of the samples that were prepared under ``output``."""

    recipe: RunSettings
    sources: Sources
    output: Path
    learning: Learning
    accelerator: Accelerator

    def training_batches(self, run: StageRun, done: int) -> Iterator[HostBatch]:
        """This process's parts of the stage's steps after ``done``, in order."""
        parts = run.stage.accumulation * self.accelerator.num_processes
        return iter(
            batch_loader(
                self._make_batches(run, PREPARED, self.sources.splits.training, training=True),
                done * parts + self.accelerator.process_index,
                run.steps * parts,
                workers=self.recipe.workers,
                device=self.accelerator.device,
                every=self.accelerator.num_processes,
            )
        )

    def validation_batches(self, run: StageRun) -> StageBatches:
        """The held-out pairs as the stage reads them, but for random changes to images."""
        plain = dataclasses.replace(run, stage=as_measured(run.stage))
        return self._make_batches(plain, HELD_OUT, self.sources.splits.validation, training=False)

    def num_held_out(self, run: StageRun) -> int:
        """How many pairs the stage can be validated on; 0 where the recipe never validates."""
        if not self.recipe.validate_every:
            return 0
        table, splits = SampleTable(self.output / HELD_OUT), self.sources.splits.validation
        return len(stage_rows(table, as_measured(run.stage), splits[run.number]))

    def collect_keys(self, run: StageRun) -> tuple[Keys, Keys]:
        """The hashes of the pairs and of the images that the stage is trained on, all that its
        epochs visit; of a stage of images alone no pairs.
        """
        stage, table = run.stage, SampleTable(self.output / PREPARED)
        splits = self.sources.splits.training[run.number]
        rows = stage_rows(table, stage, splits)
        images = table.image_keys[rows[table.image_rows[rows] != ABSENT]]
        if stage.feeding.kind == "pictures":
            return NO_KEYS, images
        if stage.feeding.text_rows:
            rows = np.concatenate([rows, text_rows(table, stage, splits)])
        return table.pair_keys[rows], images

    @cached_property
    def tolerance(self) -> Tolerance:
        """How many of the images that are trained on may be undecodable."""
        rows = SampleTable(self.output / PREPARED).image_rows
        count = len(np.unique(rows[rows != ABSENT])) if self.sources.images is not None else 0
        return Tolerance(images=count, share=self.recipe.max_bad)

    def _make_batches(
        self, run: StageRun, folder: str, splits: Sequence[Splits], *, training: bool
    ) -> StageBatches:
        body = get_variant(self.recipe.variant).get_body(self.recipe.model)
        return self.learning.batches(
            run,
            training=training,
            samples=self.output / folder,
            splits=splits[run.number],
            regions=self.sources.regions,
            images=self.sources.images,
            stage_number=run.number,
            seed=self.recipe.seed,
            processes=self.accelerator.num_processes,
            longest=self.recipe.max_text_tokens,
            global_features=bool(get_global_widths(body)),
            tolerance=self.tolerance if training else None,
            asking=get_flag(self.sources.inputs.visited),
        )
