"""A pretraining run: tables and a recipe in, checkpoints, log and report out."""

import dataclasses
import math
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from tokenizers import Tokenizer

from vlmill.models import VARIANTS, ImageBert
from vlmill.schemas.atomic import write_text
from vlmill.schemas.commands import InputError
from vlmill.schemas.manifest import write_manifest
from vlmill.schemas.outputs import PLAN, State, prepare_output
from vlmill.schemas.progress import Progress
from vlmill.schemas.shards import Shard, ShardWriter
from vlmill.schemas.tables import REJECTS
from vlmill.train.batches import PretrainBatches, batch_loader
from vlmill.train.checkpoint import (
    CHECKPOINTS,
    MODEL,
    SETTINGS,
    VOCABULARY,
    LoadedCheckpoint,
    TrainingRecord,
    keep_last,
    load_checkpoint,
    load_training_state,
    publish,
    remove_partial,
    save_checkpoint,
    saved_steps,
    step_folder,
)
from vlmill.train.config import to_yaml
from vlmill.train.data import Wanted, prepare_samples, require_pictures
from vlmill.train.log import Log
from vlmill.train.loop import StageRun, run_stage
from vlmill.train.optim import make_optimizer, restore_training_state, training_state
from vlmill.train.recipes import Recipe
from vlmill.train.report import write_report
from vlmill.train.sample_table import SampleTable
from vlmill.train.samples import Lexicon
from vlmill.train.sources import (
    Inputs,
    Sources,
    feature_statistics,
    make_tokenizer,
    model_config,
    open_sources,
    say,
    settings_of,
)

JOB = "train-vl pretrain"
LOG, RECIPE = "log.jsonl", "recipe.yaml"
PREPARED = "prepared"  # a folder; made anew by each start, gone at the end


def pretrain(recipe: Recipe, inputs: Inputs, output: Path, *, fresh: bool = False) -> str:
    """Run ``recipe``, or what is left of it, and return a sentence on what ``output`` holds now.

    Memory is bounded by the batch, some 40 bytes for each pair, and the regions' index. Raises
    InputError for inputs that do not fit together or an output that holds another run.
    """
    sources = open_sources(inputs, recipe)
    settings = settings_of(recipe, sources)
    if fresh:
        _remove_run(output)
    state = prepare_output(output, job=JOB, settings=settings, fresh=fresh)
    if state is State.FINISHED:
        return f"{output} holds this run, finished at step {max(saved_steps(output))}"
    tokenizer = make_tokenizer(recipe, sources)
    rejects = ShardWriter(output, REJECTS, 0, 1, producer={"job": JOB})
    with rejects:
        counts = prepare_samples(
            output / PREPARED,
            pairs=inputs.pairs,
            pictures=sources.pictures,
            negatives=inputs.negatives,
            tokenizer=tokenizer,
            wanted=_wanted(recipe),
            rejects=rejects,
            total=sources.num_pairs,
        )
    assert rejects.shard is not None
    require_pictures(counts, inputs.missing)
    table = SampleTable(output / PREPARED)
    _require_pairs(counts)
    recipe = dataclasses.replace(recipe, model=model_config(recipe, tokenizer, sources))
    write_text(output / RECIPE, to_yaml(recipe))
    run = _Run(recipe, sources, output, tokenizer, plan_stages(recipe, table))
    run.train()
    write_report(output, recipe, table, tokenizer, counts)
    return run.finish(rejects.shard, settings, counts)


def _remove_run(output: Path) -> None:
    """Delete a run's own files; the plan and the tables are deleted by ``prepare_output``."""
    if not (output / PLAN).exists():
        return
    shutil.rmtree(output / CHECKPOINTS, ignore_errors=True)
    shutil.rmtree(output / PREPARED, ignore_errors=True)
    for name in (LOG, RECIPE, SETTINGS, MODEL, VOCABULARY):
        (output / name).unlink(missing_ok=True)


def _wanted(recipe: Recipe) -> Wanted:
    """What the stages together read."""
    feeds = [stage.feeding for stage in recipe.stages]
    lengths = [feed.max_tokens or recipe.model.max_text_tokens for feed in feeds]
    return Wanted(
        max_tokens=max(lengths),
        pairs=any(feed.kind != "text" for feed in feeds),
        texts=any(feed.kind == "text" or feed.text_rows for feed in feeds),
    )


def _require_pairs(counts: Counter[str]) -> None:
    if counts["kept"]:
        return
    reasons = ", ".join(f"{n} {reason}" for reason, n in sorted(counts.items()) if n)
    raise InputError(
        f"--pairs has no pair to train on ({reasons or 'it is empty'}); give pairs whose pictures "
        "are in --regions"
    )


def plan_stages(recipe: Recipe, table: SampleTable) -> list[StageRun]:
    """The stages' lengths in steps. Raises InputError for a stage without pairs."""
    runs: list[StageRun] = []
    for number, stage in enumerate(recipe.stages):
        count = len(table.rows_of(stage.sources, stage.feeding.kind))
        steps = stage.steps
        if steps is None:
            assert stage.epochs is not None
            steps = math.ceil(stage.epochs * count / stage.batch_size)
        if not count and (steps or stage.steps is None):
            found = ", ".join(f"{source} {n}" for source, n in table.sources().items())
            raise InputError(
                f"--pairs has no pair of source {', '.join(stage.sources)} for stage {stage.name} "
                f"(there are: {found}); set stages.{number}.sources=[] to use all"
            )
        offset = runs[-1].last if runs else 0
        runs.append(StageRun(stage=stage, number=number, offset=offset, steps=steps))
    return runs


class _Run:
    """A run with its model and its place: what stages share and checkpoints hold."""

    def __init__(
        self,
        recipe: Recipe,
        sources: Sources,
        output: Path,
        tokenizer: Tokenizer,
        stages: list[StageRun],
    ) -> None:
        self.recipe, self.sources, self.output = recipe, sources, output
        self.tokenizer, self.stages = tokenizer, stages
        self.accelerator = Accelerator(mixed_precision=recipe.precision)
        if self.accelerator.num_processes > 1:
            raise InputError("train-vl runs in one process; start it without a launcher")
        self.resumed: LoadedCheckpoint | None = None
        remove_partial(output)
        if saved := saved_steps(output):
            self.resumed = load_checkpoint(saved[max(saved)], "--output")
        self.done = self.resumed.training.step if self.resumed else 0
        self.model: ImageBert = self.accelerator.prepare(self._model())

    def _model(self) -> ImageBert:
        if started := self.resumed or self.sources.init:
            model: ImageBert = started.model
            return model
        torch.manual_seed(self.recipe.seed)
        fresh: ImageBert = VARIANTS[self.recipe.variant].model(self.recipe.model)
        if self.recipe.standardise_features:
            fresh.standardise_regions(*feature_statistics(self.sources))
        return fresh

    def train(self) -> None:
        """All stages from where the last checkpoint left them."""
        total = self.stages[-1].last
        if self.resumed:
            say(f"continues {self.output} after step {self.done} of {total}")
        progress = Progress(total=total, unit="step", label="pretrain", done=self.done)
        with Log(self.output / LOG, after=self.done) as log, progress:
            if total == 0 and not self.resumed:
                optimizer = make_optimizer(self.model, self.recipe.stages[0].optimizer)
                self._save(self.stages[0], optimizer, 0)
            for run in self.stages:
                if self.done < run.last:
                    self._train_stage(run, log, progress)

    def _train_stage(self, run: StageRun, log: Log, progress: Progress) -> None:
        done = self.done - run.offset
        optimizer = make_optimizer(self.model, run.stage.optimizer)
        torch.manual_seed(self.recipe.seed + run.number)
        if done:
            assert self.resumed is not None
            restore_training_state(self.model, optimizer, load_training_state(self.resumed.path))
        parts = run.stage.accumulation
        loader = batch_loader(
            self._batches(run),
            done * parts,
            run.steps * parts,
            workers=self.recipe.workers,
            pin_memory=self.accelerator.device.type == "cuda",
        )
        run_stage(
            run,
            iter(loader),
            self.model,
            optimizer,
            self.accelerator,
            done=done,
            log=log,
            log_every=self.recipe.log_every,
            save=lambda step: self._save(run, optimizer, step),
            save_every=self.recipe.save_every,
            progress=progress,
        )

    def _batches(self, run: StageRun) -> PretrainBatches:
        return PretrainBatches(
            samples=self.output / PREPARED,
            regions=self.sources.regions,
            images=self.sources.images,
            stage=run.stage,
            stage_number=run.number,
            seed=self.recipe.seed,
            lexicon=Lexicon.of(self.tokenizer),
            longest=self.recipe.model.max_text_tokens,
        )

    def _save(self, run: StageRun, optimizer: torch.optim.AdamW, step: int) -> None:
        save_checkpoint(
            step_folder(self.output, step),
            variant=self.recipe.variant,
            model=self.model,
            tokenizer=self.tokenizer,
            detector_fingerprint=self.sources.fingerprint,
            training=TrainingRecord(
                recipe=self.recipe.name,
                stage=run.stage.name,
                step=step,
                num_pairs=self.sources.num_pairs,
                pairs_digest=self.sources.pairs_digest,
            ),
            state=training_state(self.model, optimizer),
        )
        keep_last(self.output, self.recipe.keep_checkpoints)
        self.done = step

    def finish(self, rejects: Shard, settings: dict[str, Any], counts: Counter[str]) -> str:
        """Leave the last checkpoint at the top, and the manifest, which says that all is done."""
        last = self.stages[-1].last
        publish(self.output, step_folder(self.output, last))
        shutil.rmtree(self.output / PREPARED, ignore_errors=True)
        write_manifest(self.output, [rejects], job=JOB, settings=settings)
        rejected = f"; {rejects.rows} rejected" if rejects.rows else ""
        return (
            f"{self.recipe.name}: {last} steps on {counts['kept']} pairs{rejected}; "
            f"checkpoint {step_folder(self.output, last)}"
        )
