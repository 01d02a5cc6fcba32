"""The checkpoints of a run: when which is kept, which is the best, and what is left at the end."""

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from tokenizers import Tokenizer
from torch import Tensor, nn

from vlmill.runtime.files.checkpoints import keep_last, remove_partial, step_folder
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.mirror import push
from vlmill.runtime.files.shards import Shard
from vlmill.schemas.rejects import reason_counts
from vlmill.train.checkpoints.files import (
    LoadedCheckpoint,
    TaskRecord,
    TrainingRecord,
    load_checkpoint,
    load_training_state,
    publish,
    read_record,
    save_checkpoint,
)
from vlmill.train.checkpoints.folders import saved_steps
from vlmill.train.checkpoints.state import training_state, whole_weights
from vlmill.train.checkpoints.trained_on import TrainedOn
from vlmill.train.devices.gather import gather_tensor
from vlmill.train.optim.average import MovingAverage
from vlmill.train.recipes import RunSettings
from vlmill.train.run.inputs import Sources
from vlmill.train.run.learning import Criterion
from vlmill.train.run.lineage import detector_record, run_inputs
from vlmill.train.run.loop import StageRun

PREPARED, HELD_OUT = "prepared", "held-out"  # folders; made anew by each start, gone at the end
RAW = "weight."  # before a parameter's name: its own value beside the average's


class Saving:
    """Writes a run's checkpoints, reads the last one back, and knows what each was measured at."""

    def __init__(
        self,
        output: Path,
        recipe: RunSettings,
        sources: Sources,
        tokenizer: Tokenizer,
        stages: Sequence[StageRun],
        accelerator: Accelerator,
        criterion: Criterion,
        task: TaskRecord | None = None,
    ) -> None:
        self.criterion, self.task = criterion, task
        self.output, self.recipe, self.sources = output, recipe, sources
        self.tokenizer, self.stages, self.accelerator = tokenizer, stages, accelerator
        self.inputs: list[Input] = []
        self.detector: dict[str, Any] | None = None
        if accelerator.is_main_process:
            remove_partial(output)
            self.inputs = run_inputs(recipe, sources)
            self.detector = None if sources.regions is None else detector_record(sources.regions)
        accelerator.wait_for_everyone()
        self.saved = saved_steps(output)
        records = {step: read_record(folder) for step, folder in self.saved.items()}
        values = {step: record.validation for step, record in records.items()}
        self.measured = {step: value for step, value in values.items() if value is not None}

    @property
    def resumes(self) -> bool:
        """Whether the run began with a checkpoint of its own."""
        return bool(self.saved)

    def last_checkpoint(self) -> tuple[LoadedCheckpoint | None, dict[str, Tensor]]:
        """The checkpoint that the run continues from, with its training state; None and nothing."""
        if not self.saved:
            return None, {}
        last = load_checkpoint(self.saved[max(self.saved)], "--output")
        return last, load_training_state(last.path)

    @staticmethod
    def own_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The model's weights beside its average's, of a training state that :meth:`save` wrote."""
        return {k.removeprefix(RAW): value for k, value in state.items() if k.startswith(RAW)}

    def save(
        self,
        run: StageRun,
        step: int,
        model: nn.Module,
        average: MovingAverage | None,
        optimizer: torch.optim.Optimizer | None,
        trained_on: TrainedOn,
        measured: float | None,
    ) -> None:
        """Write the checkpoint after ``step``; all processes take part, the first one writes.

        ``trained_on`` is of this stage and all before; ``measured`` the criterion of the examples
        to validate on, where this step has measured it.
        """
        state = training_state(model, optimizer, self.accelerator)
        weights = whole_weights(model)
        if average is not None:
            state |= {f"{RAW}{name}": weights[name].clone() for name in average.shadow}
            weights |= {name: gather_tensor(value) for name, value in average.shadow.items()}
        if measured is not None:
            self.measured[step] = measured
        highest = self.criterion.highest
        if not self.accelerator.is_main_process:
            return
        save_checkpoint(
            step_folder(self.output, step),
            variant=self.recipe.variant,
            model=model,
            weights=weights,
            tokenizer=self.tokenizer,
            detector_fingerprint=self.sources.fingerprint,
            feeding=run.stage.feeding,
            trained_on=trained_on,
            detector=self.detector,
            inputs=self.inputs,
            training=TrainingRecord(
                recipe=self.recipe.name,
                stage=run.stage.name,
                step=step,
                num_pairs=self.sources.pairs.count,
                pairs_digest=self.sources.pairs.digest,
                validation_loss=None if highest else measured,
                validation_score=measured if highest else None,
            ),
            task=self.task,
            state=state,
        )
        keep_last(saved_steps(self.output), self.recipe.keep_checkpoints, also=self.best(step))
        push(self.output)

    def best(self, done: int) -> int | None:
        """The step that was measured best in the stage that step ``done`` is in."""
        offset = max(run.offset for run in self.stages if run.offset <= done)
        ranks = {s: self.criterion.rank(v) for s, v in self.measured.items() if s > offset}
        return min(ranks, key=lambda step: (ranks[step], step)) if ranks else None

    def finish(
        self,
        last: int,
        rejects: Shard,
        settings: dict[str, Any],
        counts: Counter[str],
        pairs: str,
    ) -> str:
        """Leaves the best checkpoint at the top, and the manifest, which says that all is done
        after step ``last``. Returns a sentence on the run; ``pairs`` is how many were trained on.
        """
        best = self.best(last)
        chosen = step_folder(self.output, last if best is None else best)
        publish(self.output, chosen)
        for name in (PREPARED, HELD_OUT):
            shutil.rmtree(self.output / name, ignore_errors=True)
        write_manifest(
            self.output, [rejects], job=self.recipe.job, settings=settings, inputs=self.inputs
        )
        rejected = f"; {rejects.rows} rejected ({reason_counts(counts)})" if rejects.rows else ""
        which = "" if best is None else f" (best of the validated ones, {self.measured[best]:.4f})"
        return (
            f"{self.recipe.name}: {last} steps on {pairs} pairs{rejected}; "
            f"checkpoint {chosen}{which}"
        )
