"""Decides which checkpoints of a run are kept, which is the best, and which files remain."""

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from tokenizers import Tokenizer

from vlmill.runtime.files.checkpoints import keep_last, remove_partial, step_folder
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.mirror import push
from vlmill.runtime.files.shards import Shard
from vlmill.schemas.rejects import reason_counts
from vlmill.train.checkpoints.files import (
    CheckpointRecord,
    TaskRecord,
    TrainedOn,
    TrainingRecord,
    load_checkpoint,
    load_training_state,
    publish,
    read_record,
    save_checkpoint,
)
from vlmill.train.checkpoints.folders import saved_steps
from vlmill.train.loading.arrays import Keys
from vlmill.train.recipes import RunSettings
from vlmill.train.run.inputs import Sources
from vlmill.train.run.learning import Criterion
from vlmill.train.run.lineage import detector_record, run_inputs
from vlmill.train.run.loop import StageRun
from vlmill.train.run.snapshot import Resumed, Snapshot

PREPARED, HELD_OUT = "prepared", "held-out"  # folders; created at each start, removed at the end


@dataclass(frozen=True, kw_only=True)
class SavedRun:
    """Holds the shared records of all checkpoints of a run of pretraining or of a task.

    ``collect_keys`` returns the hashes of the pairs and images of a stage. Pretraining has no
    ``task``.
    """

    output: Path
    recipe: RunSettings
    sources: Sources
    tokenizer: Tokenizer
    stages: Sequence[StageRun]
    accelerator: Accelerator
    criterion: Criterion
    collect_keys: Callable[[StageRun], tuple[Keys, Keys]]
    task: TaskRecord | None = None


class Saving:
    """Writes a run's checkpoints, reads the last one back, and holds each one's measurement."""

    def __init__(self, run: SavedRun) -> None:
        self.run = run
        self.inputs: list[Input] = []
        self.detector: dict[str, Any] | None = None
        self.trained_on = TrainedOn()
        if run.sources.init is not None:
            self.trained_on = run.sources.init.trained_on or TrainedOn(complete=False)
        if run.accelerator.is_main_process:
            remove_partial(run.output)
            self.inputs = run_inputs(run.recipe, run.sources)
            regions = run.sources.regions
            self.detector = None if regions is None else detector_record(regions)
        run.accelerator.wait_for_everyone()
        self.saved = saved_steps(run.output)
        records = {step: read_record(folder) for step, folder in self.saved.items()}
        values = {step: record.validation for step, record in records.items()}
        self.measured = {step: value for step, value in values.items() if value is not None}

    def last(self) -> Resumed | None:
        """Reads the checkpoint that the run continues from; None for a new run."""
        if not self.saved:
            return None
        last = load_checkpoint(self.saved[max(self.saved)], "--output")
        return Resumed(
            step=last.training.step, model=last.model, state=load_training_state(last.path)
        )

    def begin(self, run: StageRun) -> None:
        """Adds the pairs and images of a stage to the training data of the weights."""
        if self.run.accelerator.is_main_process:
            self.trained_on = self.trained_on.and_also(*self.run.collect_keys(run))

    def save(self, snapshot: Snapshot) -> None:
        """Writes the checkpoint of all stages that have begun; all processes take part, the first
        one writes.
        """
        run, step, measured = self.run, snapshot.step, snapshot.measured
        weights, state = snapshot.gather(run.accelerator)
        if measured is not None:
            self.measured[step] = measured
        if not run.accelerator.is_main_process:
            return
        highest = run.criterion.highest
        save_checkpoint(
            step_folder(run.output, step),
            snapshot.model,
            CheckpointRecord(
                variant=run.recipe.variant,
                tokenizer=run.tokenizer,
                detector_fingerprint=run.sources.fingerprint,
                feeding=snapshot.run.stage.feeding,
                trained_on=self.trained_on,
                detector=self.detector,
                training=TrainingRecord(
                    recipe=run.recipe.name,
                    stage=snapshot.run.stage.name,
                    step=step,
                    num_pairs=run.sources.pairs.count,
                    pairs_digest=run.sources.pairs.digest,
                    validation_loss=None if highest else measured,
                    validation_score=measured if highest else None,
                ),
                task=run.task,
            ),
            weights=weights,
            inputs=self.inputs,
            state=state,
        )
        keep_last(saved_steps(run.output), run.recipe.keep_checkpoints, also=self.best(step))
        push(run.output)

    def best(self, done: int) -> int | None:
        """Returns the step that was measured best in the stage that step ``done`` is in."""
        offset = max(run.offset for run in self.run.stages if run.offset <= done)
        ranks = {s: self.run.criterion.rank(v) for s, v in self.measured.items() if s > offset}
        return min(ranks, key=lambda step: (ranks[step], step)) if ranks else None

    def finish(
        self,
        last: int,
        rejects: Shard,
        settings: dict[str, Any],
        counts: Counter[str],
        pairs: str,
    ) -> str:
        """Puts the best checkpoint and the manifest, which records step ``last``, at the top.
        Returns a sentence on the run; ``pairs`` is how many were trained on.
        """
        best, output, recipe = self.best(last), self.run.output, self.run.recipe
        chosen = step_folder(output, last if best is None else best)
        publish(output, chosen)
        for name in (PREPARED, HELD_OUT):
            shutil.rmtree(output / name, ignore_errors=True)
        write_manifest(output, [rejects], job=recipe.job, settings=settings, inputs=self.inputs)
        rejected = f"; {rejects.rows} rejected ({reason_counts(counts)})" if rejects.rows else ""
        which = "" if best is None else f" (best of the validated ones, {self.measured[best]:.4f})"
        return f"{recipe.name}: {last} steps on {pairs} pairs{rejected}; checkpoint {chosen}{which}"
