"""A run of fine-tuning: tables, a recipe and a starting checkpoint in; a task's checkpoint out."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from accelerate import Accelerator
from tokenizers import Tokenizer

from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.trackers import require_trackers
from vlmill.runtime.settings.plain_fields import to_plain
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import load_checkpoint
from vlmill.train.devices.setup import make_accelerator
from vlmill.train.loading.store.files import Preparation
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.run.inputs import Inputs, Sources, open_examples
from vlmill.train.run.job import carry_out, describe_finished, prepare_once
from vlmill.train.run.pair_learning import PairRunner, make_pair_runner
from vlmill.train.run.planning import plan_stages, trained_images
from vlmill.train.run.preparing import prepare
from vlmill.train.run.runner import RunSetup
from vlmill.train.run.saving import PREPARED
from vlmill.train.run.settings import collect_run_settings
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.finetuning.learning import FineTuning
from vlmill.train.tasks.finetuning.start import check_start, first_task_model, task_config
from vlmill.train.tasks.registry import TASKS
from vlmill.train.tasks.task import LearntTask


@dataclass(frozen=True, kw_only=True)
class TaskInputs:
    """The tables and files of a run, as given on the command line."""

    examples: str
    regions: str | None = None
    annotated_regions: str | None = None
    images: str | None = None
    negatives: str | None = None  # the table of negatives that the task draws from
    missing: Literal["error", "skip"] = "skip"  # what becomes of examples without their image
    init: str | None = None
    vocab: str | None = None
    labels: Path | None = None  # what the task's head tells apart


def finetune(
    recipe: TaskRecipe,
    inputs: TaskInputs,
    output: Path,
    *,
    fresh: bool = False,
    force: bool = False,
) -> str:
    """Run ``recipe``, or what is left of it, and return a sentence on what ``output`` holds now.

    As `vlmill.train.run.job.pretrain`, with whose loop it trains.
    """
    accelerator = make_accelerator(recipe)
    require_trackers(recipe.trackers)
    task, sources = open_task(recipe, inputs, speaks=accelerator.is_main_process)
    settings = collect_run_settings(recipe, sources) | {"labels": compute_labels_digest(task)}
    preparation = prepare_once(
        accelerator,
        lambda: prepare_examples(recipe, sources, task, output, settings, fresh=fresh),
    )
    if preparation is None:
        return describe_finished(output)
    words = Tokenizer.from_str(preparation.tokenizer)
    runner = open_task_runner(
        recipe, sources, output, words, task.with_vocabulary(words), accelerator
    )
    return carry_out(runner, preparation, settings, force=force)


def open_task(
    recipe: TaskRecipe, inputs: TaskInputs, *, speaks: bool
) -> tuple[LearntTask, Sources]:
    """The recipe's task on its examples, and its tables and checkpoint, opened and measured.

    ``speaks``: tells what the recipe has to do without. Raises InputError for inputs that do not
    fit together.
    """
    init = load_checkpoint(inputs.init, "--init") if inputs.init else None
    check_start(recipe, init)
    if init is None and recipe.starts_from and speaks:
        print_status(
            f"warning: {recipe.name} needs --init (see `train-vl recipes`); weights are random"
        )
    if speaks:
        _say_what_is_not_read(recipe, inputs)
    task = TASKS[recipe.task].make(recipe, inputs.examples, inputs.labels, init)
    run_inputs = Inputs(
        examples=task.examples(inputs.examples),
        regions=inputs.regions,
        annotated_regions=inputs.annotated_regions,
        images=inputs.images,
        neighbours=check_negatives(task, recipe, inputs.negatives),
        missing=inputs.missing,
        init=inputs.init,
        vocab=inputs.vocab,
    )
    return task, open_examples(run_inputs, recipe, init)


def _say_what_is_not_read(recipe: TaskRecipe, inputs: TaskInputs) -> None:
    """Tells which tables are given and have no use."""
    feeds = [stage.feeding for stage in recipe.stages]
    tables = {
        "--regions": (inputs.regions, lambda f: f.reads_regions and f.boxes != "annotated"),
        "--annotated-regions": (
            inputs.annotated_regions,
            lambda f: f.reads_regions and f.boxes != "detected",
        ),
        "--images": (inputs.images, lambda f: f.reads_images),
    }
    for flag, (table, reads) in tables.items():
        if table is not None and not any(map(reads, feeds)):
            print_status(f"note: {flag} is not read; {recipe.name} has no use for it")


def prepare_examples(
    recipe: TaskRecipe,
    sources: Sources,
    task: LearntTask,
    output: Path,
    settings: dict[str, Any],
    *,
    fresh: bool,
) -> Preparation | None:
    """Makes the task's examples ready to be read; None if the run has finished before."""
    return prepare(
        recipe,
        sources,
        output,
        settings,
        fresh=fresh,
        make_form=lambda words: task.with_vocabulary(words).form,
    )


def check_negatives(task: LearntTask, recipe: TaskRecipe, negatives: str | None) -> str | None:
    """The table of negatives, where the task reads it. Raises InputError if it needs one and has
    none.
    """
    if task.negatives and negatives is None:
        raise InputError(f"--negatives is missing: {task.negatives}")
    if negatives is not None and not task.negatives:
        print_status(f"note: --negatives is not read; {recipe.name} has no use for it")
        return None
    return negatives


def open_task_runner(
    recipe: TaskRecipe,
    sources: Sources,
    output: Path,
    words: Tokenizer,
    task: LearntTask,
    accelerator: Accelerator,
) -> PairRunner:
    """The run on the samples that were prepared, its model sized by the checkpoint and the data."""
    config = task_config(recipe, sources, words.get_vocab_size(), task.sizes)
    recipe = dataclasses.replace(recipe, model=config)
    table = SampleTable(output / PREPARED)
    setup = RunSetup(
        recipe=recipe,
        output=output,
        stages=plan_stages(recipe, table, sources.splits, "--examples"),
        accelerator=accelerator,
    )
    images = trained_images(recipe, table, sources.splits)
    return make_pair_runner(
        setup,
        sources,
        words,
        FineTuning(task=task, blind=recipe.blind),
        partial(first_task_model, recipe, sources, task.label_pieces(words), images),
        dataclasses.replace(task.record, blind=recipe.blind, settings=to_plain(recipe.settings)),
    )


def compute_labels_digest(task: LearntTask) -> str:
    """What a task's labels are, for the settings that decide a run's output."""
    record = json.dumps(to_plain(task.record)).encode()
    return hashlib.sha256(record).hexdigest()[:16]
