"""A run's stages are trained one after the other, from where its last checkpoint left them."""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from accelerate import Accelerator
from tokenizers import Tokenizer
from torch import nn

from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.log import Log, read_log
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.console.stopping import StopRequest, reduce_flags
from vlmill.runtime.settings.plain_fields import flatten, to_plain
from vlmill.train.checkpoints.files import TaskRecord
from vlmill.train.checkpoints.state import num_processes, restore_training_state
from vlmill.train.checkpoints.trained_on import TrainedOn
from vlmill.train.devices.casts import WeightCasts
from vlmill.train.devices.setup import (
    COMPUTED_IN,
    compile_blocks,
    compiled,
    recompute_activations,
    use_attention_kernel,
    use_half_norms,
    use_residual_kernel,
    wrapped,
)
from vlmill.train.devices.throughput import Throughput, without_values
from vlmill.train.optim.average import MovingAverage
from vlmill.train.optim.groups import is_trained, make_optimizer, names_from_bert, settings_of_start
from vlmill.train.recipes import RunSettings
from vlmill.train.run.batches import RunBatches
from vlmill.train.run.inputs import Sources
from vlmill.train.run.learning import Learning
from vlmill.train.run.loop import Events, StageRun, Training, run_stage, with_graph
from vlmill.train.run.rejecting import Rejecting
from vlmill.train.run.saving import Saving

LOG = "log.jsonl"


class Runner:
    """Runs the stages of a recipe; owns model, checkpoints and resume.

    ``done`` is the run's last step that a checkpoint holds, 0 for none.
    """

    def __init__(
        self,
        recipe: RunSettings,
        sources: Sources,
        output: Path,
        tokenizer: Tokenizer,
        stages: Sequence[StageRun],
        accelerator: Accelerator,
        learning: Learning,
        first_model: Callable[[], nn.Module],
        task: TaskRecord | None = None,
    ) -> None:
        """``first_model`` makes the model that a new run begins with; ``task`` is what checkpoints
        say of the task that they are of.
        """
        self.recipe, self.sources, self.output = recipe, sources, output
        self.stages, self.accelerator, self.learning = stages, accelerator, learning
        self.saving = Saving(
            output, recipe, sources, tokenizer, stages, accelerator, learning.criterion, task
        )
        self.batches = RunBatches(
            recipe=recipe,
            sources=sources,
            output=output,
            learning=learning,
            accelerator=accelerator,
        )
        last, self.state = self.saving.last_checkpoint()
        self.done = 0 if last is None else last.training.step
        self.rejecting = Rejecting(
            output,
            after=self.done,
            tolerance=self.batches.tolerance,
            accelerator=accelerator,
            command=recipe.command,
        )
        self.trained_on = TrainedOn()
        if sources.init is not None:
            self.trained_on = sources.init.trained_on or TrainedOn(complete=False)
        self.model: nn.Module = first_model() if last is None else last.model
        # Made before the model is divided among processes, when it can still be copied.
        self.valueless = without_values(self.model)
        self.trainable = {name for name, p in self.model.named_parameters() if p.requires_grad}
        self.measured = [
            (line["stage"], learning.criterion.get_value(line))
            for line in read_log(output / LOG)
            if line["step"] <= self.done and f"validation/{learning.criterion.name}" in line
        ]
        self.average = self._moving_average() if recipe.average else None
        if recipe.checkpoint_activations:
            recompute_activations(self.model)
        if recipe.half_norms:
            use_half_norms(self.model)
        if recipe.attention_kernel:
            use_attention_kernel(self.model, accelerator.device)
        if recipe.residual_kernel:
            use_residual_kernel(self.model, accelerator.device)

    def _moving_average(self) -> MovingAverage:
        """A checkpoint's weights are the average; the model's own lie beside and are put back."""
        parts = [run.stage.trained for run in self.stages]
        names = {name for name in self.trainable if any(is_trained(name, p) for p in parts)}
        average = MovingAverage(self.model, self.recipe.average, names)
        self.model.load_state_dict(self.saving.own_weights(self.state), strict=False)
        return average

    def train(self) -> None:
        """Train all stages. Raises Stopped when the run was asked to stop and has saved."""
        total, is_first = self.stages[-1].last, self.accelerator.is_main_process
        if self.saving.resumes and is_first:
            print_status(f"continues {self.output} after step {self.done} of {total}")
            self._warn_of_other_processes()
        with (
            Progress(
                total=total,
                unit="step",
                label=self.recipe.command,
                done=self.done,
                visible=is_first,
            ) as progress,
            Log(
                self.output / LOG,
                after=self.done,
                active=is_first,
                trackers=self.recipe.trackers,
                settings=flatten(to_plain(self.recipe)),
            ) as log,
            StopRequest(partial(reduce_flags, self.accelerator)) as stop,
        ):
            if total == 0 and not self.saving.resumes:
                self._save(self.stages[0], None, 0, None)
            for run in self.stages:
                if run.steps and is_first:
                    self.trained_on = self.trained_on.and_also(*self.batches.collect_keys(run))
                if self.done < run.last and not self.enough(run):
                    self._train_stage(run, log, progress, stop)

    def _warn_of_other_processes(self) -> None:
        before, now = num_processes(self.state), self.accelerator.num_processes
        if before != now:
            print_status(
                f"warning: --output was trained by {before} process{'' if before == 1 else 'es'} "
                f"and continues with {now}: steps have the same pairs and rates, but each process "
                "draws its own dropout, so losses differ as far as that goes"
            )

    def _train_stage(self, run: StageRun, log: Log, progress: Progress, stop: StopRequest) -> None:
        done = self.done - run.offset
        training = self.build_training(run)
        process = self.accelerator.process_index
        # With ``done``: a process that the checkpoint does not know draws no numbers again.
        torch.manual_seed(self.recipe.seed + run.number + (process << 16) + (done << 32))
        if done:
            restore_training_state(self.model, training.optimizer, self.state, self.accelerator)
        held_out = self.batches.num_held_out(run)
        if self.recipe.validate_every and not held_out and self.accelerator.is_main_process:
            print_status(f"warning: stage {run.stage.name} has no pair to validate on")
        values: list[float] = []  # of validation, at the step at hand

        def validate() -> dict[str, float]:
            numbers = self._validate(run, training.step_module, held_out)
            values.append(self.learning.criterion.get_value(numbers))
            self.measured.append((run.stage.name, values[0]))
            return numbers

        def save(step: int) -> None:
            log.flush()
            self._save(run, training.optimizer, step, values.pop() if values else None)

        events = Events(
            log=log,
            progress=progress,
            throughput=self.throughput(run),
            log_every=self.recipe.log_every,
            save=save,
            save_every=self.recipe.save_every,
            after_step=self.after_step,
            validate=validate,
            validate_every=self.recipe.validate_every if held_out else 0,
            enough=partial(self.enough, run),
            reject=self.rejecting.note,
            stopping=stop.is_requested,
        )
        run_stage(run, self.batches.training_batches(run, done), training, events, done=done)

    def build_training(self, run: StageRun) -> Training:
        """Returns the model wrapped for the devices, with the stage's optimiser."""
        accelerator = self.accelerator
        self._train_parts(self.model, run)
        module = self.learning.step(self.model, run, accelerator.device)
        settings = settings_of_start(
            run.stage.optimizer, from_checkpoint=self.sources.init is not None
        )
        from_bert = names_from_bert(self.model) if settings.bert_rate != 1 else set()
        accelerator.free_memory()  # an earlier stage's optimiser would unscale gradients too
        module = wrapped(module, accelerator, shard=self.recipe.shard)
        if self.average is not None:
            self.average.follow(self.model)
        if self.recipe.compile == "blocks":
            compile_blocks(self.model)
        elif self.recipe.compile:
            module = compiled(module)
        optimizer = make_optimizer(self.model.named_parameters(), settings, from_bert)
        if accelerator.scaler is not None:  # float16: it takes the gradients' scale away
            optimizer = accelerator.prepare(optimizer)
        training = Training(
            step_module=module,
            count_labels=self.learning.count_labels(run),
            optimizer=optimizer,
            accelerator=accelerator,
            seed=self.recipe.seed,
            sources=run.sources,
            casts=self._make_casts(module),
        )
        return with_graph(training) if self.recipe.cuda_graph else training

    def _make_casts(self, module: nn.Module) -> WeightCasts | None:
        """Returns the casts of a step's weights, where one process trains in half precision.

        Several processes add gradients up while others are still computed: there each weight is
        cast where it is used. So it is where the whole step is compiled.
        """
        dtype = COMPUTED_IN.get(self.recipe.precision)
        if dtype is None or self.accelerator.num_processes > 1 or self.recipe.compile is True:
            return None
        return WeightCasts(module, dtype)

    def throughput(self, run: StageRun) -> Throughput:
        """A step's products are counted on the copy of the model that has no values."""
        dtype, device = (
            COMPUTED_IN.get(self.recipe.precision, torch.float32),
            self.accelerator.device,
        )
        self._train_parts(self.valueless, run)
        step = self.learning.step(self.valueless, run, device, blank=True).train()
        return Throughput(device, dtype, step)

    def _train_parts(self, model: nn.Module, run: StageRun) -> None:
        """Lets ``model`` train what the stage names."""
        for name, parameter in model.named_parameters():
            trained = name in self.trainable and is_trained(name, run.stage.trained)
            parameter.requires_grad_(trained)

    def after_step(self) -> None:
        """Take the weights of a step into the average, where there is one."""
        if self.average is not None:
            self.average.update(self.model)

    def _validate(self, run: StageRun, module: nn.Module, held_out: int) -> dict[str, float]:
        """Each loss over the held-out pairs, by the averaged weights where there is an average."""
        batches = self.batches.validation_batches(run)
        pairs = min(held_out, self.recipe.validation_pairs)
        averaged = (
            contextlib.nullcontext() if self.average is None else self.average.applied(self.model)
        )
        with averaged:
            return self.learning.measure(module, batches, pairs, self.accelerator)

    def enough(self, run: StageRun) -> bool:
        """Whether the stage's validations have got no better for as long as the recipe waits."""
        patience, rank = self.recipe.patience, self.learning.criterion.rank
        ranks = [rank(value) for stage, value in self.measured if stage == run.stage.name]
        return bool(patience) and len(ranks) - _first_best(ranks) >= patience

    def _save(
        self,
        run: StageRun,
        optimizer: torch.optim.Optimizer | None,
        step: int,
        measured: float | None,
    ) -> None:
        self.done = step
        self.saving.save(run, step, self.model, self.average, optimizer, self.trained_on, measured)


def _first_best(ranks: Sequence[float]) -> int:
    """Returns the number, from 1, of the first of the lowest; 0 of none."""
    return ranks.index(min(ranks)) + 1 if ranks else 0
