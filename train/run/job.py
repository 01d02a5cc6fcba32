"""A pretraining run: tables and a recipe in, checkpoints, log and report out."""

import dataclasses
import math
import shutil
from collections import Counter
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
from vlmill.train.loading.store.files import Preparation, remember, remembered
from vlmill.train.loading.store.prepare import (
    WhatToPrepare,
    WhichPairs,
    prepare_samples,
    require_pictures,
    sample_ids,
    unit_keys,
)
from vlmill.train.loading.store.splits import Rows, SplitPlan, drawn_below, said_of
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.recipes import Recipe
from vlmill.train.recipes.plain import replaced, to_yaml
from vlmill.train.run.cost import checkpoints_bytes
from vlmill.train.run.inputs import Inputs, Sources, open_sources, say_what_is_missing
from vlmill.train.run.log import CURVES
from vlmill.train.run.loop import StageRun, Stopped
from vlmill.train.run.model import allowed_changes, make_tokenizer
from vlmill.train.run.report import write_report
from vlmill.train.run.runner import LOG, Runner
from vlmill.train.run.saving import HELD_OUT, JOB, PREPARED
from vlmill.train.run.settings import settings_of
from vlmill.train.run.sizes import model_config

RECIPE = "recipe.yaml"


def pretrain(
    recipe: Recipe, inputs: Inputs, output: Path, *, fresh: bool = False, force: bool = False
) -> str:
    """Run ``recipe``, or what is left of it, and return a sentence on what ``output`` holds now.

    Under a launcher (torchrun, accelerate launch) every process calls this; the first one prepares
    and writes. Memory is bounded by the batch, some 40 bytes for each pair, and the regions' index.
    Raises InputError for inputs that do not fit together, an output that holds another run, and a
    disk that is too small for the checkpoints unless ``force`` is set.
    """
    accelerator = make_accelerator(recipe)
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
        require_room(checkpoints_bytes(runner), output, force=force)
        write_text(output / RECIPE, to_yaml(runner.recipe))
    try:
        runner.train()
    except Stopped:
        return f"{output}: stopped at step {runner.done}, saved; the same command continues"
    said = ""
    if accelerator.is_main_process:
        table, tokenizer = SampleTable(output / PREPARED), Tokenizer.from_str(text)
        write_report(output, runner.recipe, table, tokenizer, counts)
        said = runner.saving.finish(rejects, settings, counts)
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
    """Tells what there is to validate on. Raises InputError where a pair is trained on as well."""
    pictures = np.unique(measured.image_keys[measured.image_rows != ABSENT])
    why = "; --pairs has no validation split: held out by the hash of their ids" if drawn else ""
    say(f"validates on {len(measured)} pairs of {len(pictures)} pictures{why}")
    if both := np.intersect1d(learnt.pair_keys, measured.pair_keys).size:
        raise InputError(
            f"--pairs: {both} pair_ids stand in splits that are trained on and in splits that are "
            "validated on; give each pair one split"
        )
    if both := np.intersect1d(learnt.image_keys, pictures).size:
        say(
            f"warning: {both} of the {len(pictures)} pictures that are validated on are trained on "
            "with other captions"
        )


def _remove_run(output: Path) -> None:
    """Delete a run's own files; the plan and the tables are deleted by ``prepare_output``."""
    if not (output / PLAN).exists():
        return
    for folder in (CHECKPOINTS, PREPARED, HELD_OUT, CURVES):
        shutil.rmtree(output / folder, ignore_errors=True)
    for name in (LOG, RECIPE, *PUBLISHED):
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
        negatives=sources.inputs.negatives,
    )


def _which_pairs(recipe: Recipe, sources: Sources, rows: Rows) -> WhichPairs:
    """The pairs among ``rows`` that any stage takes."""
    feeds = [stage.feeding for stage in recipe.stages]
    return WhichPairs(
        pairs=sources.inputs.pairs,
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
    ids = f": {sample_ids(what)}" if counts[Reason.NO_REGIONS] or counts[Reason.NO_PICTURE] else ""
    raise InputError(
        f"--pairs has no pair to train on ({reason_counts(counts) or 'it is empty'}){ids}; give "
        "pairs whose pictures are in --regions"
    )


def plan_stages(recipe: Recipe, table: SampleTable, plan: SplitPlan) -> list[StageRun]:
    """The stages' lengths in steps. Raises InputError for a stage without pairs."""
    runs: list[StageRun] = []
    for number, stage in enumerate(recipe.stages):
        count = len(table.rows_of(stage.sources, stage.feeding.kind, plan.training[number]))
        steps = stage.steps
        if steps is None:
            assert stage.epochs is not None
            steps = math.ceil(stage.epochs * count / stage.batch_size)
        if not count and (steps or stage.steps is None):
            sources = ", ".join(f"{source} {n}" for source, n in table.sources().items())
            raise InputError(
                f"--pairs has no pair of source {', '.join(stage.sources)} for stage {stage.name} "
                f"(there are: {sources}); set stages.{number}.sources=[] to use all"
            )
        offset = runs[-1].last if runs else 0
        runs.append(StageRun(stage=stage, number=number, offset=offset, steps=steps))
    return runs
