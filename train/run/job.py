"""A pretraining run: tables and a recipe in, checkpoints, log and report out."""

import dataclasses
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from tokenizers import Tokenizer

from vlmill.schemas.console.command import say
from vlmill.schemas.console.cost import require_room
from vlmill.schemas.errors import InputError
from vlmill.schemas.files.atomic import write_text
from vlmill.schemas.files.outputs import PLAN, State, prepare_output
from vlmill.schemas.files.shards import Shard, ShardWriter
from vlmill.schemas.readers.row_index import ABSENT
from vlmill.schemas.rejects import Reason, reason_counts
from vlmill.schemas.tables import REJECTS
from vlmill.train.checkpoints.files import PUBLISHED
from vlmill.train.checkpoints.folders import CHECKPOINTS, saved_steps
from vlmill.train.devices.setup import make_accelerator
from vlmill.train.loading.chosen import stage_rows, text_rows
from vlmill.train.loading.mixture import sources_of
from vlmill.train.loading.store.files import Preparation, remember, remembered
from vlmill.train.loading.store.pairs import PicturesAlone
from vlmill.train.loading.store.prepare import (
    WhatToPrepare,
    WhichPairs,
    prepare_samples,
    require_pictures,
    sample_ids,
    unit_keys,
)
from vlmill.train.loading.store.splits import Rows, SplitPlan, Splits, drawn_below, said_of
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.optim.schedule import learning_rate
from vlmill.train.recipes import Recipe, Stage
from vlmill.train.recipes.plain import replaced, to_yaml
from vlmill.train.run.cost import checkpoints_bytes
from vlmill.train.run.inputs import Inputs, Sources, open_sources, say_what_is_missing
from vlmill.train.run.loop import StageRun, Stopped
from vlmill.train.run.model import allowed_changes, make_tokenizer
from vlmill.train.run.rejecting import UNDECODABLE
from vlmill.train.run.report import write_report
from vlmill.train.run.runner import LOG, Runner
from vlmill.train.run.saving import HELD_OUT, JOB, PREPARED
from vlmill.train.run.settings import settings_of
from vlmill.train.run.sizes import model_config
from vlmill.train.run.trackers import MLFLOW, STATE, TENSORBOARD, WANDB, require_trackers

RECIPE = "recipe.yaml"
NO_ROWS = np.empty(0, dtype=np.int64)


def pretrain(
    recipe: Recipe, inputs: Inputs, output: Path, *, fresh: bool = False, force: bool = False
) -> str:
    """Run ``recipe``, or what is left of it, and return a sentence on what ``output`` holds now.

    Under a launcher (torchrun, accelerate launch) every process calls this; the first one prepares
    and writes. Memory is bounded by the batch, some 60 bytes for each pair, and the regions' index.
    Raises InputError for inputs that do not fit together, an output that holds another run, and a
    disk that is too small for the checkpoints unless ``force`` is set; Stopped, once it has saved,
    if it was asked to stop (`loader.STOP_SIGNALS`).
    """
    accelerator = make_accelerator(recipe)
    require_trackers(recipe.trackers)
    if accelerator.is_main_process:
        say_what_is_missing(recipe, inputs)
    sources = open_sources(inputs, recipe)
    allowed_changes(recipe, sources.init)  # refused before anything is written
    settings = settings_of(recipe, sources)
    prepared: list[Any] = [None]
    if accelerator.is_main_process:
        prepared = [prepare(recipe, sources, output, settings, fresh=fresh)]
    prepared = broadcast_object_list(prepared)
    if prepared[0] is None:
        return f"{output} holds this run, finished at step {max(saved_steps(output))}"
    rejects, counts, text = prepared[0]
    runner = open_runner(recipe, sources, output, text, accelerator)
    if accelerator.is_main_process:
        say_what_never_peaks(runner.stages)
        require_room(checkpoints_bytes(runner), output, force=force)
        write_text(output / RECIPE, to_yaml(runner.recipe))
        for run in runner.stages:
            if run.stage.mixture:
                say(f"stage {run.stage.name}: an epoch visits {_said(run.visits)}")
    try:
        runner.train()
    except Stopped:
        raise Stopped(
            f"{output}: stopped at step {runner.done}, saved; the same command continues"
        ) from None
    said = ""
    if accelerator.is_main_process:
        rejects, met = runner.rejecting.add_to(rejects), runner.rejecting.met.values()
        counts = counts - Counter(kept=len(met)) + Counter(one.reason.value for one in met)
        table, tokenizer = SampleTable(output / PREPARED), Tokenizer.from_str(text)
        write_report(output, runner.recipe, table, tokenizer, counts)
        said = runner.saving.finish(rejects, settings, counts)
        runner.rejecting.forget()
    accelerator.wait_for_everyone()
    return said


def open_runner(
    recipe: Recipe, sources: Sources, output: Path, tokenizer: str, accelerator: Accelerator
) -> Runner:
    """The run on the samples that :func:`prepare` has left, its model sized by the data.

    ``tokenizer`` is its JSON.
    """
    words = Tokenizer.from_str(tokenizer)
    changes = allowed_changes(recipe, sources.init)
    config = replaced(model_config(recipe, words, sources), changes.items(), "model")
    recipe = dataclasses.replace(recipe, model=config)
    stages = plan_stages(recipe, SampleTable(output / PREPARED), sources.splits)
    return Runner(recipe, sources, output, words, stages, accelerator)


def prepare(
    recipe: Recipe, sources: Sources, output: Path, settings: dict[str, Any], *, fresh: bool
) -> tuple[Shard, Counter[str], str] | None:
    """Makes the samples ready to be read: their rejects, counts and the tokenizer's JSON.

    None if the run has finished before.
    """
    if fresh:
        _remove_run(output)
    state = prepare_output(output, job=JOB, settings=settings, fresh=fresh)
    if state is State.FINISHED:
        return None
    if before := remembered(output / PREPARED, output):
        return before.rejects, before.counts, before.tokenizer
    learnt, measured = _chosen_rows(recipe, sources)
    tokenizer = make_tokenizer(recipe, sources, learnt)
    what = _what_to_prepare(recipe, sources, learnt, tokenizer)
    rejects = ShardWriter(output, REJECTS, 0, 1, producer={"job": JOB})
    with rejects:
        counts = prepare_samples(output / PREPARED, what, rejects)
    assert rejects.shard is not None
    require_pictures(counts, sources.inputs.missing)
    _require_pairs(counts, what)
    if recipe.validate_every:
        for_validation = dataclasses.replace(what, rows=measured, negatives=None)
        prepare_samples(output / HELD_OUT, for_validation)
        learnt_table, held_out = SampleTable(output / PREPARED), SampleTable(output / HELD_OUT)
        _compare(learnt_table, held_out, drawn=sources.splits.draws)
    made = Preparation(counts=counts, rejects=rejects.shard, tokenizer=tokenizer.to_str())
    remember(output / PREPARED, made)
    return made.rejects, made.counts, made.tokenizer


def _chosen_rows(recipe: Recipe, sources: Sources) -> tuple[Rows, Rows]:
    """The rows to train on and those to validate on, told to the user."""
    plan, splits = sources.splits, sources.pairs.splits
    if set(splits) - {None}:
        say(said_of(plan, splits))
    learnt = Rows(splits=plan.trained)
    if not plan.draws:
        return learnt, Rows(splits=plan.validated)
    below = drawn_below(unit_keys(_which_pairs(recipe, sources, learnt)))
    return Rows(splits=plan.trained, first=below), Rows(splits=plan.trained, end=below)


def _compare(learnt: SampleTable, measured: SampleTable, *, drawn: bool) -> None:
    """Tells what there is to validate on, and whether its pictures are trained on as well."""
    pictures = np.unique(measured.image_keys[measured.image_rows != ABSENT])
    why = "; there is no validation split: held out by the hash of their ids" if drawn else ""
    say(f"validates on {len(measured)} pairs of {len(pictures)} pictures{why}")
    if both := np.intersect1d(learnt.image_keys, pictures).size:
        say(
            f"warning: {both} of the {len(pictures)} pictures that are validated on are trained on "
            "with other captions"
        )


def _remove_run(output: Path) -> None:
    """Delete a run's own files; the plan and the tables are deleted by ``prepare_output``."""
    if not (output / PLAN).exists():
        return
    for folder in (CHECKPOINTS, PREPARED, HELD_OUT, TENSORBOARD, WANDB, MLFLOW):
        shutil.rmtree(output / folder, ignore_errors=True)
    for name in (LOG, RECIPE, STATE, UNDECODABLE, *PUBLISHED):
        (output / name).unlink(missing_ok=True)


def _what_to_prepare(
    recipe: Recipe, sources: Sources, rows: Rows, tokenizer: Tokenizer
) -> WhatToPrepare:
    """What the stages together read."""
    feeds = [stage.feeding for stage in recipe.stages]
    return WhatToPrepare(
        **vars(_which_pairs(recipe, sources, rows)),
        tokenizer=tokenizer,
        max_tokens=max(feed.max_tokens or recipe.max_text_tokens for feed in feeds),
        max_tokens_alone=longest_alone(recipe),
        negatives=sources.inputs.negatives,
    )


def longest_alone(recipe: Recipe) -> int | None:
    """Tokens of a text without a picture: [CLS] and [SEP] are no part of a row of joined ones."""
    rows = [
        feed.text_row_tokens + 2 if feed.text_rows else feed.max_tokens or recipe.max_text_tokens
        for feed in (stage.feeding for stage in recipe.stages)
        if feed.text_rows or feed.kind == "text"
    ]
    return max(rows, default=None)


def _which_pairs(recipe: Recipe, sources: Sources, rows: Rows) -> WhichPairs:
    """The pairs among ``rows`` that any stage takes."""
    feeds = [stage.feeding for stage in recipe.stages]
    return WhichPairs(
        pairs=sources.inputs.visited,
        rows=rows,
        pictures=sources.pictures,
        images=None if sources.regions is None else sources.images,
        takes_pairs=any(feed.kind != "text" for feed in feeds),
        takes_texts=any(feed.kind == "text" or feed.text_rows for feed in feeds),
        needs_words=any(feed.kind != "pictures" for feed in feeds),
        total=sources.pairs.count,
    )


def _require_pairs(counts: Counter[str], what: WhatToPrepare) -> None:
    if counts["kept"]:
        return
    if isinstance(what.pairs, PicturesAlone):
        raise InputError(f"--images {what.pairs.images} has no picture to train on")
    ids = f": {sample_ids(what)}" if counts[Reason.NO_REGIONS] or counts[Reason.NO_PICTURE] else ""
    raise InputError(
        f"--pairs has no pair to train on ({reason_counts(counts) or 'it is empty'}){ids}; give "
        "pairs whose pictures are in --regions"
    )


def say_what_never_peaks(stages: Sequence[StageRun]) -> None:
    """Warns of stages that end before their warm-up, which published runs give in steps."""
    for run in stages:
        rising = run.stage.optimizer.warmup_steps or 0
        if run.steps and rising >= run.steps:
            last = learning_rate(run.steps, steps=run.steps, settings=run.stage.optimizer)
            say(
                f"warning: stage {run.stage.name} has {run.steps} steps and warms up for {rising}: "
                f"its rate ends at {last:.2g} of {run.stage.optimizer.lr:g}; set "
                f"stages.{run.number}.optimizer.warmup_steps=null for a share of the steps "
                f"(optimizer.warmup, {run.stage.optimizer.warmup:g})"
            )


def plan_stages(recipe: Recipe, table: SampleTable, plan: SplitPlan) -> list[StageRun]:
    """The stages' lengths in steps. Raises InputError for a stage without pairs."""
    runs: list[StageRun] = []
    for number, stage in enumerate(recipe.stages):
        visits, texts = visits_of(table, stage, plan.training[number])
        count = sum(visits.values())
        steps = stage.length(count)
        if not count and (steps or stage.steps is None):
            _refuse_without_pairs(table, stage, number, plan.training[number])
        for at, mixed in enumerate(stage.mixture):
            if mixed.source not in visits.keys() | texts.keys():
                raise InputError(
                    f"stages.{number}.mixture.{at}.source={mixed.source}: stage {stage.name} has "
                    f"no pair of it in --pairs (there are: {_said(visits | texts)}); name one of "
                    "those"
                )
        runs.append(
            StageRun(
                stage=stage,
                number=number,
                offset=runs[-1].last if runs else 0,
                steps=steps,
                visits=visits,
                sources=tuple(sorted(visits.keys() | texts.keys())),
            )
        )
    return runs


def visits_of(
    table: SampleTable, stage: Stage, splits: Splits
) -> tuple[dict[str, int], dict[str, int]]:
    """How many pairs of each source an epoch of ``stage`` visits, and how many texts come beside
    pairs in an epoch of texts.
    """
    texts = text_rows(table, stage, splits) if stage.feeding.text_rows else NO_ROWS
    pairs, beside = (
        table.sources(rows)
        | {
            source.rule.source: source.in_an_epoch
            for source in sources_of(table, rows, stage.mixture)
        }
        for rows in (stage_rows(table, stage, splits), texts)
    )
    return pairs, beside


def _refuse_without_pairs(table: SampleTable, stage: Stage, number: int, splits: Splits) -> None:
    if table.rows_of(stage.sources, stage.feeding.kind, splits).size:
        raise InputError(
            f"stages.{number}.share={stage.share} leaves no pair of --pairs for stage "
            f"{stage.name}; give a larger share"
        )
    raise InputError(
        f"--pairs has no pair of source {', '.join(stage.sources)} for stage {stage.name} "
        f"(there are: {_said(table.sources())}); set stages.{number}.sources=[] to use all"
    )


def _said(visits: Mapping[str, int]) -> str:
    return ", ".join(f"{source} {count}" for source, count in visits.items())
