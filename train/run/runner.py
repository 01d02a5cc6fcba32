"""Trains a run's stages one after the other, from its last checkpoint on."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
from accelerate import Accelerator
from torch import nn

from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.log import Log, read_log
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.console.stopping import StopRequest, reduce_flags
from vlmill.runtime.settings.plain_fields import flatten, to_plain
from vlmill.schemas.errors import InputError
from vlmill.train.devices.casts import WeightCasts
from vlmill.train.devices.setup import (
    COMPUTED_IN,
    compile_blocks,
    compile_step,
    recompute_activations,
    use_attention_kernel,
    use_half_norms,
    use_residual_kernel,
    wrap_module,
)
from vlmill.train.devices.throughput import Throughput, without_values
from vlmill.train.optim.average import MovingAverage
from vlmill.train.optim.groups import is_trained, require_parts
from vlmill.train.run.device_batch import divide_stage, name_remedy, try_step
from vlmill.train.run.learning import Learning
from vlmill.train.run.loop import Events, StageRun, run_stage
from vlmill.train.run.rejecting import RejectCollector
from vlmill.train.run.snapshot import Checkpoints, Snapshot, num_processes, restore_training_state
from vlmill.train.run.step import Training, with_graph, with_uploads

LOG = "log.jsonl"
C = TypeVar("C", bound=Checkpoints)
L = TypeVar("L", bound=Learning)


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """Holds the fields of a recipe that the runner reads; a detector lacks the optional ones.

    `RunSettings` documents them.
    """

    command: str
    seed: int
    save_every: int
    log_every: int
    trackers: Sequence[str]
    precision: str
    patience: int
    average: float
    compile: Literal[False, True, "blocks"]
    shard: bool
    checkpoint_activations: bool = False
    device_batch: int | Literal["auto"] = 0
    half_norms: bool = False
    attention_kernel: bool = False
    residual_kernel: bool = False
    cuda_graph: bool = False
    run_ahead: bool = False

    @classmethod
    def from_recipe(cls, recipe: Any) -> "LoopOptions":
        """Reads the fields from a recipe."""
        names = [f.name for f in dataclasses.fields(cls) if hasattr(recipe, f.name)]
        return cls(**{name: getattr(recipe, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class RunSetup:
    """Holds a run's recipe, with the fields of `LoopOptions`, its output, stages and devices."""

    recipe: Any
    output: Path
    stages: Sequence[StageRun]
    accelerator: Accelerator


class Runner(Generic[L, C]):
    """Runs the stages of a recipe; owns the model, and resumes it.

    ``done`` is the run's last step that a checkpoint holds, 0 for none.
    """

    def __init__(
        self, setup: RunSetup, learning: L, saving: C, first_model: Callable[[], nn.Module]
    ) -> None:
        """Builds or resumes the model; ``first_model`` makes the model of a new run."""
        self.recipe, self.output = setup.recipe, setup.output
        self.options = options = LoopOptions.from_recipe(setup.recipe)
        self.stages, self.accelerator = setup.stages, setup.accelerator
        self.processes = setup.accelerator.num_processes
        self.learning, self.saving = learning, saving
        self.resumed = last = saving.last()
        self.done = 0 if last is None else last.step
        self.rejecting = RejectCollector(
            self.output,
            after=self.done,
            tolerance=learning.tolerance,
            accelerator=self.accelerator,
            command=options.command,
        )
        self.model: nn.Module = first_model() if last is None else last.model
        # Made before the model is divided among processes, when it can still be copied.
        self.valueless = without_values(self.model)
        self.trainable = {name for name, p in self.model.named_parameters() if p.requires_grad}
        for run in self.stages:
            require_parts(self.trainable, getattr(run.stage, "freeze", ()))
        self.measured = [
            (line["stage"], learning.criterion.get_value(line))
            for line in read_log(self.output / LOG)
            if line["step"] <= self.done and f"validation/{learning.criterion.name}" in line
        ]
        self.average = self._moving_average() if options.average else None
        if options.checkpoint_activations:
            recompute_activations(self.model)
        if options.half_norms:
            use_half_norms(self.model)
        if options.attention_kernel:
            use_attention_kernel(self.model, self.accelerator.device)
        if options.residual_kernel:
            use_residual_kernel(self.model, self.accelerator.device)

    def _moving_average(self) -> MovingAverage:
        """Returns the average, which is a checkpoint's weights; the model's own are stored
        alongside them and restored here.
        """
        names = {n for n in self.trainable if any(is_trained(n, run.stage) for run in self.stages)}
        average = MovingAverage(self.model, self.options.average, names)
        if self.resumed is not None:
            self.model.load_state_dict(self.resumed.own_weights(), strict=False)
        return average

    def train(self) -> None:
        """Trains all stages. Raises Stopped when the run was asked to stop and has saved."""
        self.require_length()
        total, is_first = self.stages[-1].last, self.accelerator.is_main_process
        if self.resumed is not None and is_first:
            print_status(f"continues {self.output} after step {self.done} of {total}")
            self._warn_of_other_processes(self.resumed.state)
        with (
            Progress(
                total=total,
                unit="step",
                label=self.options.command,
                done=self.done,
                visible=is_first,
            ) as progress,
            Log(
                self.output / LOG,
                after=self.done,
                active=is_first,
                trackers=self.options.trackers,
                settings=flatten(to_plain(self.recipe)),
            ) as log,
            StopRequest(partial(reduce_flags, self.accelerator)) as stop,
        ):
            if total == 0 and self.resumed is None:
                self.save(self.stages[0], 0)
            for run in self.stages:
                if run.steps:
                    self.saving.begin(run)
                if self.done < run.last and not self.enough(run):
                    self._train_stage(run, log, progress, stop)

    def require_length(self) -> None:
        """Raises InputError if the run's last checkpoint is beyond the end of its stages."""
        total = self.stages[-1].last
        if self.done > total:
            raise InputError(
                f"steps: --output {self.output} is at step {self.done}, the recipe ends at "
                f"{total}; give more steps, or --fresh to start over"
            )

    def _warn_of_other_processes(self, state: Mapping[str, torch.Tensor]) -> None:
        before, now = num_processes(state), self.accelerator.num_processes
        if before and before != now:
            print_status(
                f"warning: --output was trained by {before} "
                f"process{'' if before == 1 else 'es'} and continues with {now}: steps "
                "have the same pairs and rates, but each process samples its own "
                "dropout, so losses can differ slightly"
            )

    def _train_stage(self, run: StageRun, log: Log, progress: Progress, stop: StopRequest) -> None:
        done = self.done - run.offset
        training = self.build_training(run)
        process = self.accelerator.process_index
        # With ``done``: a process without a random state in the checkpoint repeats no random
        # numbers.
        torch.manual_seed(self.options.seed + run.number + (process << 16) + (done << 32))
        if done and self.resumed is not None:
            state = self.resumed.state
            restore_training_state(self.model, training.optimizer, state, self.accelerator)
            if self.accelerator.is_main_process:
                rate = training.update.rate(done + 1)
                print_status(f"stage {run.stage.name}: learning rate {rate:.3g} at step {done + 1}")
        run = self.divide(run, training, done)

        def save(step: int, numbers: Mapping[str, float]) -> None:
            measured = self.learning.criterion.get_value(numbers) if numbers else None
            self.save(run, step, training.optimizer, measured)

        events = Events(
            log=log,
            progress=progress,
            throughput=self.throughput(run),
            log_every=self.options.log_every,
            save=save,
            save_every=self.options.save_every,
            after_step=self.after_step,
            validate=lambda step: self.validate(run, step, training.step_module),
            validate_every=self.learning.validates_every(run),
            enough=partial(self.enough, run),
            reject=self.noting(run),
            stopping=stop.is_requested,
        )
        batches = self.learning.training_parts(run, done)
        with name_remedy(run, self.processes):
            run_stage(run, batches, training, events, done=done)

    def divide(self, run: StageRun, training: Training, done: int) -> StageRun:
        """Returns the stage with its steps divided as ``device_batch`` requires."""

        def fits(trial: StageRun) -> bool:
            stages = [r.stage if r.number != run.number else trial.stage for r in self.stages]
            size = self.learning.estimate_bytes(tuple(stages))
            return try_step(trial, training, self.learning.training_parts(trial, done), size)

        return divide_stage(run, self.options.device_batch, self.processes, fits)

    def noting(self, run: StageRun) -> Callable[[int, Any], int]:
        """Returns the function that records the undecodable images of the stage's steps."""
        return self.rejecting.note if self.learning.reads_images(run) else lambda step, parts: 0

    def build_training(self, run: StageRun) -> Training:
        """Returns the model wrapped for the devices, with the stage's optimiser."""
        accelerator, options = self.accelerator, self.options
        self._train_parts(self.model, run)
        module = self.learning.step(self.model, run, accelerator.device)
        assert module is not None
        accelerator.free_memory()  # an earlier stage's optimiser would unscale gradients too
        module = wrap_module(module, accelerator, shard=options.shard)
        if self.average is not None:
            self.average.follow(self.model)
        if options.compile == "blocks":
            compile_blocks(self.model)
        elif options.compile:
            module = compile_step(module)
        update = self.learning.update(self.model, run)
        if accelerator.scaler is not None:  # float16: it removes the gradients' scale
            optimizer = accelerator.prepare(update.optimizer)
            update = dataclasses.replace(update, optimizer=optimizer)
        training = Training(
            step_module=module,
            count_labels=self.learning.count_labels(run),
            update=update,
            accelerator=accelerator,
            seed=options.seed,
            sources=run.sources,
            cast_weights=self._make_casts(module),
            explain=self.learning.explain,
        )
        training = with_graph(training) if options.cuda_graph else training
        return with_uploads(training) if options.run_ahead else training

    def _make_casts(self, module: nn.Module) -> Callable[[], AbstractContextManager[None]]:
        """Returns the context that casts a step's weights, where one process trains in half
        precision.

        Several processes add gradients up while others are still computed: there each weight is
        cast where it is used. So it is where the whole step is compiled.
        """
        dtype = COMPUTED_IN.get(self.options.precision)
        if dtype is None or self.accelerator.num_processes > 1 or self.options.compile is True:
            return contextlib.nullcontext
        return WeightCasts(module, dtype).applied

    def throughput(self, run: StageRun) -> Throughput:
        """Returns a counter of a step's products, for the copy of the model without values."""
        device = self.accelerator.device
        dtype = COMPUTED_IN.get(self.options.precision, torch.float32)
        self._train_parts(self.valueless, run)
        step = self.learning.step(self.valueless, run, device, blank=True)
        return Throughput(device, dtype, step if step is None else step.train())

    def _train_parts(self, model: nn.Module, run: StageRun) -> None:
        """Lets ``model`` train the parts that the stage names."""
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in self.trainable and is_trained(name, run.stage))

    def after_step(self) -> None:
        """Adds the weights of a step to the average, if the run has one."""
        if self.average is not None:
            self.average.update(self.model)

    def validate(self, run: StageRun, step: int, module: nn.Module) -> dict[str, float]:
        """Measures the held-out examples by the averaged weights where there is an average."""
        average = self.average
        with contextlib.nullcontext() if average is None else average.applied(self.model):
            numbers = self.learning.measure(run, step, module)
        self.measured.append((run.stage.name, self.learning.criterion.get_value(numbers)))
        return numbers

    def enough(self, run: StageRun) -> bool:
        """Returns whether the stage's validations have not improved for as long as it may wait."""
        patience, rank = self.options.patience, self.learning.criterion.rank
        ranks = [rank(value) for stage, value in self.measured if stage == run.stage.name]
        since_best = len(ranks) - 1 - ranks.index(min(ranks)) if ranks else 0
        return bool(patience) and since_best >= patience

    def save(
        self,
        run: StageRun,
        step: int,
        optimizer: torch.optim.Optimizer | None = None,
        measured: float | None = None,
    ) -> None:
        """Writes a checkpoint of the run after ``step``; ``measured`` as in `Snapshot`."""
        self.done = step
        snapshot = Snapshot(
            run=run,
            step=step,
            model=self.model,
            average=self.average,
            optimizer=optimizer,
            measured=measured,
        )
        self.saving.save(snapshot)
