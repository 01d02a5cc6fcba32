"""`Learning` of pretraining and tasks: batches of pairs or examples, and their objective."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from accelerate import Accelerator
from tokenizers import Tokenizer
from torch import nn

from vlmill.models.registry import get_variant
from vlmill.runtime.console.command import print_status
from vlmill.runtime.readers.row_index import ABSENT
from vlmill.train.checkpoints.files import NO_KEYS, TaskRecord
from vlmill.train.loading.arrays import Keys
from vlmill.train.loading.batch import HostBatch
from vlmill.train.loading.features import get_global_widths
from vlmill.train.loading.loader import batch_loader
from vlmill.train.loading.order import stage_rows, text_rows
from vlmill.train.loading.stage_batches import StageBatches
from vlmill.train.loading.store.pairs import get_flag
from vlmill.train.loading.store.splits import Splits
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.loading.undecodable import Tolerance
from vlmill.train.optim.groups import make_optimizer, names_from_bert, settings_of_start
from vlmill.train.optim.schedule import learning_rate
from vlmill.train.recipes import RunSettings
from vlmill.train.recipes.describe import step_bytes
from vlmill.train.run.inputs import Sources
from vlmill.train.run.learning import Criterion
from vlmill.train.run.loop import StageRun
from vlmill.train.run.runner import Runner, RunSetup
from vlmill.train.run.saving import HELD_OUT, PREPARED, SavedRun, Saving
from vlmill.train.run.step import CountLabels, explain_divergence
from vlmill.train.run.updates import Update, clip_whole


class Objective(Protocol):
    """Gives `PairLearning` the batches, losses and scores of pretraining or of a task."""

    @property
    def criterion(self) -> Criterion:
        """Returns the metric that chooses the best checkpoint."""
        ...

    def batches(self, run: StageRun, *, training: bool, **common: Any) -> StageBatches:
        """Returns the batches of a stage, or the held-out ones as it reads them; ``common`` are the
        fields of `StageBatches`.
        """
        ...

    def step(
        self, model: nn.Module, run: StageRun, device: torch.device, *, blank: bool = False
    ) -> nn.Module:
        """Implements `Learning.step`."""
        ...

    def count_labels(self, run: StageRun) -> CountLabels:
        """Implements `Learning.count_labels`."""
        ...

    def measure(
        self, module: nn.Module, batches: StageBatches, examples: int, accelerator: Accelerator
    ) -> dict[str, float]:
        """Implements `Learning.measure`, for the first ``examples`` of held-out batches."""
        ...


@dataclass(frozen=True, kw_only=True)
class PairLearning:
    """Trains an objective on the samples prepared in ``output``; implements `Learning`."""

    recipe: RunSettings
    sources: Sources
    output: Path
    objective: Objective
    accelerator: Accelerator
    explain = staticmethod(explain_divergence)

    @property
    def criterion(self) -> Criterion:
        """Returns the objective's criterion."""
        return self.objective.criterion

    def reads_images(self, run: StageRun) -> bool:
        """Returns whether the stage reads images."""
        return bool(run.stage.feeding.reads_images)

    def step(
        self, model: nn.Module, run: StageRun, device: torch.device, *, blank: bool = False
    ) -> nn.Module:
        """Returns the objective's step."""
        return self.objective.step(model, run, device, blank=blank)

    def count_labels(self, run: StageRun) -> CountLabels:
        """Returns the objective's label counter."""
        return self.objective.count_labels(run)

    def update(self, model: nn.Module, run: StageRun) -> Update:
        """Returns the recipe's optimiser, schedule and clip."""
        settings = settings_of_start(
            run.stage.optimizer, from_checkpoint=self.sources.init is not None
        )
        from_bert = names_from_bert(model) if settings.bert_rate != 1 else set()
        return Update(
            optimizer=make_optimizer(model.named_parameters(), settings, from_bert),
            rate=partial(
                learning_rate,
                steps=run.steps,
                settings=run.stage.optimizer,
                epoch_steps=run.epoch_steps,
            ),
            clip_gradients=partial(clip_whole, largest=settings.clip),
        )

    def training_parts(self, run: StageRun, done: int) -> Iterator[HostBatch]:
        """Yields this process's parts of the stage's steps after ``done``, in order."""
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

    def estimate_bytes(self, stages: tuple[Any, ...]) -> int:
        """Returns the estimated memory of a step, of the largest of ``stages``."""
        return step_bytes(dataclasses.replace(self.recipe, stages=stages))

    def validates_every(self, run: StageRun) -> int:
        """Returns the recipe's interval; 0 with a warning if the stage has no validation pair."""
        every = self.recipe.validate_every
        if every and not self._num_held_out(run):
            if self.accelerator.is_main_process:
                print_status(f"warning: stage {run.stage.name} has no pair to validate on")
            return 0
        return every

    def measure(self, run: StageRun, step: int, module: nn.Module) -> dict[str, float]:
        """Returns the objective's metrics of the held-out pairs as the stage reads them, without
        random changes to images.
        """
        plain = dataclasses.replace(run, stage=run.stage.as_measured())
        splits = self.sources.splits.validation
        batches = self._make_batches(plain, HELD_OUT, splits, training=False)
        pairs = min(self._num_held_out(run), self.recipe.validation_pairs)
        return self.objective.measure(module, batches, pairs, self.accelerator)

    def _num_held_out(self, run: StageRun) -> int:
        table, splits = SampleTable.open(self.output / HELD_OUT), self.sources.splits.validation
        return len(stage_rows(table, run.stage.as_measured(), splits[run.number]))

    def collect_keys(self, run: StageRun) -> tuple[Keys, Keys]:
        """Returns the hashes of the pairs and of the images that the stage's epochs visit; no pairs
        for a stage of images alone.
        """
        stage, table = run.stage, SampleTable.open(self.output / PREPARED)
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
        """Returns how many training images may be undecodable."""
        rows = SampleTable.open(self.output / PREPARED).image_rows
        count = len(np.unique(rows[rows != ABSENT])) if self.sources.images is not None else 0
        return Tolerance(images=count, share=self.recipe.max_bad)

    def _make_batches(
        self, run: StageRun, folder: str, splits: Sequence[Splits], *, training: bool
    ) -> StageBatches:
        body = get_variant(self.recipe.variant).get_body(self.recipe.model)
        return self.objective.batches(
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


PairRunner = Runner[PairLearning, Saving]


def make_pair_runner(
    setup: RunSetup,
    sources: Sources,
    tokenizer: Tokenizer,
    objective: Objective,
    first_model: Callable[[], nn.Module],
    task: TaskRecord | None = None,
) -> PairRunner:
    """Returns the run of an objective on prepared samples; its checkpoints record ``task``."""
    learning = PairLearning(
        recipe=setup.recipe,
        sources=sources,
        output=setup.output,
        objective=objective,
        accelerator=setup.accelerator,
    )
    saved = SavedRun(
        recipe=setup.recipe,
        sources=sources,
        output=setup.output,
        tokenizer=tokenizer,
        stages=setup.stages,
        accelerator=setup.accelerator,
        criterion=objective.criterion,
        collect_keys=learning.collect_keys,
        task=task,
    )
    return Runner(setup, learning, Saving(saved), first_model)
