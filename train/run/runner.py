"""A run with its model and its place in the stages: what the stages share."""

import contextlib
import dataclasses
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from tokenizers import Tokenizer
from torch import nn

from vlmill.models.vlmo.stages import frozen_on_text
from vlmill.schemas.console.command import say
from vlmill.schemas.console.progress import Progress
from vlmill.train.checkpoints.files import (
    LoadedCheckpoint,
    load_checkpoint,
    load_training_state,
    remove_partial,
    saved_steps,
)
from vlmill.train.checkpoints.state import restore_training_state
from vlmill.train.devices.setup import COMPUTED_IN, compiled, recompute_activations, wrapped
from vlmill.train.devices.throughput import Throughput, without_values
from vlmill.train.loading.loader import batch_loader
from vlmill.train.loading.masking.words import Lexicon
from vlmill.train.loading.pictures.tokenizer import blank_tokens
from vlmill.train.loading.stage_batches import PretrainBatches
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.objectives.pretraining import PretrainingStep
from vlmill.train.optim.average import MovingAverage
from vlmill.train.optim.groups import make_optimizer
from vlmill.train.recipes import Recipe
from vlmill.train.run.inputs import Sources
from vlmill.train.run.log import Log
from vlmill.train.run.loop import Events, StageRun, Training, run_stage
from vlmill.train.run.model import first_model, names_from_bert, started
from vlmill.train.run.saving import HELD_OUT, PREPARED, RAW, Saving
from vlmill.train.run.validation import held_out_losses, unaugmented

LOG = "log.jsonl"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a run reads and writes, and its stages."""

    recipe: Recipe
    sources: Sources
    output: Path
    tokenizer: Tokenizer
    stages: list[StageRun]
    accelerator: Accelerator

    @property
    def longest(self) -> int:
        """Tokens that the model takes."""
        return self.recipe.max_text_tokens


class Run:
    """Trains the stages from where the last checkpoint left them."""

    def __init__(self, place: Place) -> None:
        self.place, self.recipe = place, place.recipe
        self.accelerator, self.output = place.accelerator, place.output
        self.resumed: LoadedCheckpoint | None = None
        if self.accelerator.is_main_process:
            remove_partial(self.output)
        self.accelerator.wait_for_everyone()
        saved = saved_steps(self.output)
        if saved:
            self.resumed = load_checkpoint(saved[max(saved)], "--output")
        self.state = load_training_state(self.resumed.path) if self.resumed else {}
        self.done = self.resumed.training.step if self.resumed else 0
        self.saving = Saving(
            self.output, self.recipe, place.sources, place.tokenizer, place.stages, saved
        )
        self.model = self.resumed.model if self.resumed else first_model(self.recipe, place.sources)
        # Made before the model is divided among processes, when it can still be copied.
        self.valueless = without_values(self.model)
        self.trained = {name for name, p in self.model.named_parameters() if p.requires_grad}
        self.average = self._average()
        if self.recipe.checkpoint_activations:
            recompute_activations(self.model)
        self._stop = False

    def _average(self) -> MovingAverage | None:
        """The moving average; a checkpoint's weights are the average, and raw ones beside."""
        if not self.recipe.average:
            return None
        average = MovingAverage(self.model, self.recipe.average)
        held = (item for item in self.state.items() if item[0].startswith(RAW))
        raw = {name.removeprefix(RAW): weight for name, weight in held}
        self.model.load_state_dict(raw, strict=False)
        return average

    def train(self) -> None:
        """All stages. Raises Stopped when the run was asked to stop and has saved."""
        total, main = self.place.stages[-1].last, self.accelerator.is_main_process
        if self.resumed and main:
            say(f"continues {self.output} after step {self.done} of {total}")
        with (
            Progress(
                total=total, unit="step", label="pretrain", done=self.done, visible=main
            ) as progress,
            Log(self.output / LOG, after=self.done, active=main) as log,
            self._stoppable(),
        ):
            if total == 0 and not self.resumed:
                self._save(self.place.stages[0], None, 0, None)
            for run in self.place.stages:
                if self.done < run.last:
                    self._train_stage(run, log, progress)

    @contextlib.contextmanager
    def _stoppable(self) -> Iterator[None]:
        """While it lasts, SIGTERM asks the loop to save and leave."""

        def ask(number: int, frame: object) -> None:
            self._stop = True

        before = signal.signal(signal.SIGTERM, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _stopping(self) -> bool:
        if self.accelerator.num_processes == 1:
            return self._stop
        asked = torch.tensor([float(self._stop)], device=self.accelerator.device)
        return bool(self.accelerator.reduce(asked, reduction="sum").item())

    def _train_stage(self, run: StageRun, log: Log, progress: Progress) -> None:
        done = self.done - run.offset
        training = self._prepared(run)
        torch.manual_seed(self.recipe.seed + run.number + (self.accelerator.process_index << 16))
        if done:
            restore_training_state(self.model, training.optimizer, self.state, self.accelerator)
        losses: list[float] = []  # of validation, at the step at hand
        kind = COMPUTED_IN.get(self.recipe.precision, torch.float32)

        def validate() -> dict[str, float]:
            found = self._validate(run, training.step_module)
            losses.append(found["validation/loss"])
            return found

        def save(step: int) -> None:
            self._save(run, training.optimizer, step, losses.pop() if losses else None)

        events = Events(
            log=log,
            progress=progress,
            throughput=Throughput(self.accelerator.device, kind, self._valueless_step(run)),
            log_every=self.recipe.log_every,
            save=save,
            save_every=self.recipe.save_every,
            after_step=self._after_step,
            validate=validate,
            validate_every=self.recipe.validate_every if self._held_out(run) else 0,
            stopping=self._stopping,
        )
        run_stage(run, self._loader(run, done), training, events, done=done)

    def _prepared(self, run: StageRun) -> Training:
        """The model wrapped for the devices, with the stage's optimiser."""
        frozen = set(frozen_on_text(self.model)) if run.stage.frozen == "text-stage" else set()
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(name in self.trained and name not in frozen)
        tokenizer = self.place.sources.picture_tokenizer
        module: nn.Module = PretrainingStep(
            self.model,
            run.stage.objectives,
            None if tokenizer is None else tokenizer.reader(self.accelerator.device),
        )
        settings = started(run.stage.optimizer, self.place.sources.init is not None)
        from_bert = names_from_bert(self.model) if settings.bert_rate != 1 else set()
        self.accelerator.free_memory()  # an earlier stage's optimiser would unscale gradients too
        module = wrapped(module, self.accelerator, shard=self.recipe.shard)
        if self.average is not None:
            self.average.follow(self.model)
        if self.recipe.compile:
            module = compiled(module)
        optimizer = make_optimizer(self.model.named_parameters(), settings, from_bert)
        if self.accelerator.scaler is not None:  # float16: it takes the gradients' scale away
            optimizer = self.accelerator.prepare(optimizer)
        return Training(
            step_module=module,
            optimizer=optimizer,
            accelerator=self.accelerator,
            seed=self.recipe.seed,
        )

    def _valueless_step(self, run: StageRun) -> nn.Module:
        """The stage's step on the copy of the model that its products are counted on."""
        trained = {name for name, p in self.model.named_parameters() if p.requires_grad}
        for name, parameter in self.valueless.named_parameters():
            parameter.requires_grad_(name in trained)
        tokenizer = self.place.sources.picture_tokenizer
        tokens = None if tokenizer is None else partial(blank_tokens, stride=tokenizer.stride)
        return PretrainingStep(self.valueless, run.stage.objectives, tokens).train()

    def _loader(self, run: StageRun, done: int) -> Iterator[Any]:
        parts = run.stage.accumulation * self.accelerator.num_processes
        return iter(
            batch_loader(
                self._batches(run, PREPARED),
                done * parts + self.accelerator.process_index,
                run.steps * parts,
                workers=self.recipe.workers,
                device=self.accelerator.device,
                every=self.accelerator.num_processes,
            )
        )

    def _batches(self, run: StageRun, folder: str) -> PretrainBatches:
        return PretrainBatches(
            samples=self.output / folder,
            regions=self.place.sources.regions,
            images=self.place.sources.images,
            stage=run.stage,
            stage_number=run.number,
            seed=self.recipe.seed,
            lexicon=Lexicon.of(self.place.tokenizer),
            processes=self.accelerator.num_processes,
            longest=self.place.longest,
            global_features=bool(getattr(self.model.config, "global_widths", ())),
        )

    def _after_step(self) -> None:
        if self.average is not None:
            self.average.update(self.model)

    def _held_out(self, run: StageRun) -> int:
        """Pairs that the stage can be validated on."""
        if not self.recipe.validate_every:
            return 0
        table = SampleTable(self.output / HELD_OUT)
        return len(table.rows_of(run.stage.sources, run.stage.feeding.kind))

    def _validate(self, run: StageRun, module: nn.Module) -> dict[str, float]:
        """Each loss over the held-out pairs, by the averaged weights where there is an average."""
        batches = self._batches(dataclasses.replace(run, stage=unaugmented(run.stage)), HELD_OUT)
        pairs = min(self._held_out(run), self.recipe.validation_pairs)
        with self._averaged():
            return held_out_losses(module, batches, pairs, self.accelerator)

    def _averaged(self) -> contextlib.AbstractContextManager[None]:
        if self.average is None:
            return contextlib.nullcontext()
        return self.average.applied(self.model)

    def _save(
        self,
        run: StageRun,
        optimizer: torch.optim.Optimizer | None,
        step: int,
        loss: float | None,
    ) -> None:
        self.done = step
        self.saving.save(run, step, self.model, self.average, optimizer, self.accelerator, loss)
