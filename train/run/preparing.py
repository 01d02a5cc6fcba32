"""Prepares a run's samples from its tables, once for all of its processes."""

import dataclasses
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.log import read_log
from vlmill.runtime.console.trackers import MLFLOW, STATE, TENSORBOARD, WANDB
from vlmill.runtime.files.checkpoints import CHECKPOINTS
from vlmill.runtime.files.manifest import MANIFEST
from vlmill.runtime.files.outputs import PLAN, State, prepare_output
from vlmill.runtime.files.shards import ShardWriter
from vlmill.runtime.readers.row_index import ABSENT
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.plurals import format_count
from vlmill.schemas.rejects import Reason, reason_counts
from vlmill.schemas.tables import REJECTS
from vlmill.train.checkpoints.files import PUBLISHED
from vlmill.train.checkpoints.folders import saved_steps
from vlmill.train.loading.store.files import Preparation, read_preparation, write_preparation
from vlmill.train.loading.store.pairs import ImagesAlone, get_flag
from vlmill.train.loading.store.prepare import (
    AS_IT_IS,
    PreparationInputs,
    TextForm,
    prepare_samples,
)
from vlmill.train.loading.store.splits import Rows, describe_plan, holdout_threshold
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.loading.store.usable import PairSelection, require_images, sample_ids, unit_keys
from vlmill.train.recipes import Recipe, RunSettings
from vlmill.train.run.inputs import Sources
from vlmill.train.run.model import make_tokenizer
from vlmill.train.run.rejecting import UNDECODABLE
from vlmill.train.run.runner import LOG
from vlmill.train.run.saving import HELD_OUT, PREPARED
from vlmill.train.run.settings import list_changes
from vlmill.train.settings.tasks import TaskRecipe

RECIPE = "recipe.yaml"


def prepare(
    recipe: RunSettings,
    sources: Sources,
    output: Path,
    settings: dict[str, Any],
    *,
    fresh: bool,
    make_form: Callable[[Tokenizer], TextForm] = lambda _: AS_IT_IS,
) -> Preparation | None:
    """Prepares the samples, their texts in the form that a task has with the run's tokenizer.

    Returns None if the run has finished before.
    """
    state = _claim(output, recipe, settings, fresh=fresh)
    if state is State.FINISHED:
        return None
    if before := read_preparation(output / PREPARED, output):
        return before
    learnt, measured = _chosen_rows(recipe, sources)
    tokenizer = make_tokenizer(recipe, sources, learnt)
    what = _what_to_prepare(recipe, sources, learnt, tokenizer, make_form(tokenizer))
    rejects = ShardWriter(output, REJECTS, 0, 1, producer={"job": recipe.job})
    with rejects:
        counts = prepare_samples(output / PREPARED, what, rejects)
    assert rejects.shard is not None
    require_images(counts, sources.inputs.missing, get_flag(what.pairs))
    _require_pairs(counts, what)
    if recipe.validate_every:
        for_validation = dataclasses.replace(what, rows=measured, negatives=None, neighbours=None)
        unusable = prepare_samples(output / HELD_OUT, for_validation, label="prepare validation")
        del unusable[Reason.HELD_OUT]  # the pairs to train on
        learnt_table = SampleTable.open(output / PREPARED)
        held_out = SampleTable.open(output / HELD_OUT)
        _compare(learnt_table, held_out, reason_counts(unusable), drawn=sources.splits.draws)
    preparation = Preparation(counts=counts, rejects=rejects.shard, tokenizer=tokenizer.to_str())
    write_preparation(output / PREPARED, preparation)
    return preparation


def _chosen_rows(recipe: RunSettings, sources: Sources) -> tuple[Rows, Rows]:
    """Returns the rows to train on and the rows to validate on, and prints the plan."""
    plan, splits = sources.splits, sources.pairs.splits
    if set(splits) - {None}:
        print_status(describe_plan(plan, splits))
    learnt = Rows(splits=plan.trained)
    if not plan.draws:
        return learnt, Rows(splits=plan.validated)
    below = holdout_threshold(unit_keys(_which_pairs(recipe, sources, learnt)))
    return Rows(splits=plan.trained, first=below), Rows(splits=plan.trained, end=below)


def _compare(learnt: SampleTable, measured: SampleTable, unusable: str, *, drawn: bool) -> None:
    """Prints the pairs to validate on, the reasons why others of them are ``unusable``, and whether
    their images are trained on as well.
    """
    images = np.unique(measured.image_keys[measured.image_rows != ABSENT])
    why = (
        "; without a validation split, pairs are held out by the hash of their ids" if drawn else ""
    )
    omitted = f"; the others cannot be used: {unusable}" if unusable else ""
    print_status(
        f"validates on {format_count(len(measured), 'pair')} of "
        f"{format_count(len(images), 'image')}{why}{omitted}"
    )
    if both := np.intersect1d(learnt.image_keys, images).size:
        print_status(
            f"warning: {both} of the {len(images)} images that are validated on are trained on "
            "with other captions"
        )


def _claim(output: Path, recipe: RunSettings, settings: dict[str, Any], *, fresh: bool) -> State:
    """Makes ``output`` ready for the run. An earlier start that made no step is removed,
    regardless of its settings. A finished run that becomes longer is PARTIAL.

    Raises InputError as `prepare_output`.
    """
    if not fresh:
        changes = list_changes(output, recipe.job, settings, num_stages=len(recipe.stages))
        before = {change.name: change.before for change in changes}
        try:
            state = prepare_output(output, job=recipe.job, settings=settings | before)
        except InputError:
            if not _has_no_step(output):
                raise
        else:
            is_longer = any(change.is_length for change in changes)
            for change in changes if state is State.PARTIAL or is_longer else ():
                print_status(str(change))
            return State.PARTIAL if is_longer else state
    _remove_run(output)
    return prepare_output(output, job=recipe.job, settings=settings, fresh=True)


def _has_no_step(output: Path) -> bool:
    """Returns whether ``output`` holds only a start of training that ended in or before its first
    step: no step is logged and no checkpoint exists.
    """
    try:
        job = read_json(output / PLAN)["job"]
    except (OSError, ValueError, TypeError, KeyError):
        return False
    is_ours = job in {f"train-vl {kind.command}" for kind in (Recipe, TaskRecipe)}
    has_progress = (output / MANIFEST).exists() or saved_steps(output) or read_log(output / LOG)
    return is_ours and not has_progress


def _remove_run(output: Path) -> None:
    """Deletes a run's own files; the plan and the tables are deleted by ``prepare_output``."""
    if not (output / PLAN).exists():
        return
    for folder in (CHECKPOINTS, PREPARED, HELD_OUT, TENSORBOARD, WANDB, MLFLOW):
        shutil.rmtree(output / folder, ignore_errors=True)
    for name in (LOG, RECIPE, STATE, UNDECODABLE, *PUBLISHED):
        (output / name).unlink(missing_ok=True)


def _what_to_prepare(
    recipe: RunSettings, sources: Sources, rows: Rows, tokenizer: Tokenizer, form: TextForm
) -> PreparationInputs:
    """Returns the data that the stages together read."""
    feeds = [stage.feeding for stage in recipe.stages]
    return PreparationInputs(
        **vars(_which_pairs(recipe, sources, rows)),
        tokenizer=tokenizer,
        max_tokens=max(feed.max_tokens or recipe.max_text_tokens for feed in feeds),
        max_tokens_alone=longest_alone(recipe),
        negatives=sources.inputs.negatives,
        neighbours=sources.inputs.neighbours,
        form=form,
        stage=recipe.command,
    )


def longest_alone(recipe: RunSettings) -> int | None:
    """Returns the most tokens of a text without an image; rows of joined texts add [CLS], [SEP]."""
    rows = [
        feed.text_row_tokens + 2 if feed.text_rows else feed.max_tokens or recipe.max_text_tokens
        for feed in (stage.feeding for stage in recipe.stages)
        if feed.text_rows or feed.kind == "text"
    ]
    return max(rows, default=None)


def _which_pairs(recipe: RunSettings, sources: Sources, rows: Rows) -> PairSelection:
    """Returns the pairs among ``rows`` that any stage takes."""
    feeds = [stage.feeding for stage in recipe.stages]
    return PairSelection(
        pairs=sources.inputs.visited,
        rows=rows,
        images=sources.joined_images,
        other_tables=() if sources.regions is None else sources.other_tables,
        takes_pairs=any(feed.kind != "text" for feed in feeds),
        takes_texts=any(feed.kind == "text" or feed.text_rows for feed in feeds),
        needs_words=any(feed.kind != "pictures" for feed in feeds),
        total=sources.pairs.count,
    )


def _require_pairs(counts: Counter[str], what: PreparationInputs) -> None:
    if counts["kept"]:
        return
    if isinstance(what.pairs, ImagesAlone):
        raise InputError(f"--images {what.pairs.images} has no image to train on")
    ids = f": {sample_ids(what)}" if counts[Reason.NO_REGIONS] or counts[Reason.NO_IMAGE] else ""
    flag = get_flag(what.pairs)
    requirement = "whose images are in --regions" if what.takes_pairs else "that have a text"
    raise InputError(
        f"{flag} has no {flag[2:-1]} to train on ({reason_counts(counts) or 'it is empty'}){ids}; "
        f"give {flag[2:]} {requirement}"
    )
