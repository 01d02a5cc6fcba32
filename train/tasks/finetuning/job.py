"""Runs a fine-tuning: reads tables, a recipe and a starting checkpoint; writes a task's checkpoint.

`task_config` and `first_task_model` give a task's model its sizes and its first weights.
"""

import dataclasses
import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator
from tokenizers import Tokenizer
from torch import nn

from vlmill.models.registry import get_variant
from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.trackers import require_trackers
from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.mirror import push, restore_paths
from vlmill.runtime.settings.plain_fields import flatten, to_plain
from vlmill.schemas.errors import InputError, with_article
from vlmill.train.checkpoints.files import LoadedCheckpoint, load_checkpoint, publish, read_record
from vlmill.train.checkpoints.folders import find_checkpoint
from vlmill.train.devices.setup import make_accelerator
from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.store.files import Preparation
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.recipes import get_training
from vlmill.train.run.inputs import Inputs, Sources, open_examples
from vlmill.train.run.job import carry_out, describe_finished, prepare_once
from vlmill.train.run.model import (
    OF_DATA,
    WITHOUT_WEIGHTS,
    feature_statistics,
    refuse_random_constants,
)
from vlmill.train.run.pair_learning import PairRunner, make_pair_runner
from vlmill.train.run.planning import plan_stages, trained_images
from vlmill.train.run.preparing import prepare
from vlmill.train.run.runner import RunSetup
from vlmill.train.run.saving import PREPARED
from vlmill.train.run.settings import collect_run_settings
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.finetuning.learning import FineTuning
from vlmill.train.tasks.registry import TASKS, task_recipes
from vlmill.train.tasks.task import LearntTask


def check_start(recipe: TaskRecipe, init: LoadedCheckpoint | None) -> None:
    """Raises InputError for a checkpoint that the recipe does not start from: another model's, or
    of another task where the whole model is taken.
    """
    if init is None:
        return
    if init.variant not in recipe.starts_from:
        raise InputError(
            f"--init {init.path} is {with_article(init.variant)}; {recipe.name} starts from "
            f"{' or '.join(recipe.starts_from) or 'random weights: remove --init'}"
        )
    variant, trunk = get_variant(recipe.variant), init.body
    recipe_body = variant.get_body(recipe.model)
    if init.variant not in variant.starts_from and type(trunk) is not type(recipe_body):
        raise InputError(
            f"--init {init.path} is {with_article(init.variant)} over {type(trunk).__name__}, "
            f"{recipe.name} expects {type(recipe_body).__name__}; use the recipe of that model"
        )


def task_config(
    recipe: TaskRecipe, sources: Sources, vocab_size: int, sizes: Mapping[str, int]
) -> Any:
    """Returns the recipe's model with the sizes of ``--init`` or, without it, of the data;
    ``sizes`` are the task's (its number of answers).

    Raises InputError for changes of the recipe that the checkpoint's weights do not allow.
    """
    variant, init = get_variant(recipe.variant), sources.init
    recipe_body, model = variant.get_body(recipe.model), recipe.model
    # A model has the sizes of its checkpoint; one that starts from another variant has its own.
    if init is None or init.variant in variant.starts_from:
        data_sizes = {"vocab_size": vocab_size}
        if sources.regions is not None and not variant.makes_features:
            data_sizes["region_width"] = sources.reader.feature_dim
        body = dataclasses.replace(recipe_body, **data_sizes)
    else:
        body = make_checkpoint_body(recipe, recipe_body, init)
        if variant.makes_features:
            model = dataclasses.replace(model, cnn=network_of_checkpoint(recipe, init))
        else:
            check_regions(body, sources)
    return dataclasses.replace(variant.with_body(model, body), **sizes)


def make_checkpoint_body(recipe: TaskRecipe, recipe_body: Any, init: LoadedCheckpoint) -> Any:
    """Returns the body of ``--init``; fields that no weight depends on are the recipe's."""
    variant = get_variant(recipe.variant)
    names = [field.name for field in dataclasses.fields(recipe_body)]
    free = [name for name in names if any(part in name for part in WITHOUT_WEIGHTS)]
    body = dataclasses.replace(
        variant.fit_body(init.body, recipe_body),
        **{name: getattr(recipe_body, name) for name in (*free, *variant.task_sizes)},
    )
    refuse_changes(recipe, variant.body, body, init)
    return body


def network_of_checkpoint(recipe: TaskRecipe, init: LoadedCheckpoint) -> Any:
    """Returns the network of ``--init`` that computes the regions' features; the recipe determines
    how much of it is trained.
    """
    network = dataclasses.replace(init.config.cnn, frozen_stages=recipe.model.cnn.frozen_stages)
    refuse_changes(recipe, "cnn", network, init)
    return network


def refuse_changes(recipe: TaskRecipe, part: str, config: Any, init: LoadedCheckpoint) -> None:
    """Raises InputError for fields of a part of the model that the user has changed and that differ
    from the checkpoint's ``config``.
    """
    known = task_recipes().get(recipe.name)
    if known is None:
        return
    flat = flatten(to_plain(config))
    recipe_values, default_values = (
        flatten(to_plain(attrgetter(part)(model) if part else model))
        for model in (recipe.model, known().model)
    )
    for name, value in recipe_values.items():
        changed = default_values.get(name) != value and name.rpartition(".")[2] not in OF_DATA
        if changed and flat.get(name) != value:
            field = f"model.{part}.{name}" if part else f"model.{name}"
            raise InputError(
                f"{field}={value}: --init {init.path} has {flat.get(name)}; "
                "leave it as the checkpoint has it"
            )


def check_regions(body: Any, sources: Sources) -> None:
    """Raises InputError for features whose width differs from the model's."""
    width = getattr(body, "region_width", None)
    if sources.regions is not None and width != sources.reader.feature_dim:
        raise InputError(
            f"--init takes features of {width}, --regions has {sources.reader.feature_dim}; use "
            "its detector's regions"
        )


def first_task_model(
    recipe: TaskRecipe, sources: Sources, labels: Sequence[Sequence[int]], trained_images: Ids
) -> nn.Module:
    """Returns the model of a run's first step. ``labels``: the word-piece ids of the head's
    classes. ``trained_images``: the rows of the regions of all images that are trained on.

    Raises InputError for a checkpoint that does not fit.
    """
    refuse_random_constants(recipe, sources.init)
    torch.manual_seed(recipe.seed)
    variant, init = get_variant(recipe.variant), sources.init
    training = get_training(recipe.variant)
    fresh: nn.Module = variant.build(recipe.model)
    starts_anew = init is None or init.variant in variant.starts_from
    if recipe.standardise_features and starts_anew:
        variant.get_body(fresh).standardise_regions(
            *feature_statistics(sources.reader, trained_images)
        )
    if init is None:
        return fresh
    try:
        if starts_anew:
            training.start(fresh, init)
        else:
            training.start_task(fresh, init, labels)
    except InputError:
        raise
    except (ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"--init {init.path} does not fit {recipe.name}: {reason}") from None
    return fresh


@dataclass(frozen=True, kw_only=True)
class TaskInputs:
    """Holds the tables and files of a run, as given on the command line."""

    examples: str
    regions: str | None = None
    annotated_regions: str | None = None
    images: str | None = None
    negatives: str | None = None  # the table that the task samples negatives from
    missing: Literal["error", "skip"] = "skip"  # how examples without their image are handled
    init: str | None = None
    vocab: str | None = None
    labels: Path | None = None  # the classes of the task's head


def finetune(
    recipe: TaskRecipe,
    inputs: TaskInputs,
    output: Path,
    *,
    fresh: bool = False,
    force: bool = False,
) -> str:
    """Runs ``recipe``, or its remaining steps, and returns a sentence on the content of ``output``.

    It works as `vlmill.train.run.job.pretrain`, and trains with the same loop.
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
    """Opens and measures the recipe's task on its examples, its tables and its checkpoint.

    ``speaks``: whether to print which inputs the recipe lacks. Raises InputError for inputs that do
    not fit together.
    """
    init = load_checkpoint(inputs.init, "--init") if inputs.init else None
    check_start(recipe, init)
    if init is None and recipe.starts_from and speaks:
        print_status(
            f"warning: {recipe.name} needs --init (see `train-vl recipes`); weights are random"
        )
    if speaks:
        _say_what_is_not_read(recipe, inputs)
    row = TASKS[recipe.task]
    # The head is new: its classes come from the examples, or of a given list.
    keeps_labels = row.keeps_labels and inputs.labels is None
    labelled_by = init if init is None or keeps_labels else dataclasses.replace(init, task=None)
    task = row.make(recipe, inputs.examples, inputs.labels, labelled_by)
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
    """Prints which of the given tables are not used."""
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
            print_status(f"note: {flag} is not read; {recipe.name} does not use it")


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
    """Returns the table of negatives, where the task reads it. Raises InputError if the task needs
    one and has none.
    """
    if task.negatives and negatives is None:
        raise InputError(f"--negatives is missing: {task.negatives}")
    if negatives is not None and not task.negatives:
        print_status(f"note: --negatives is not read; {recipe.name} does not use it")
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
    """Opens the run on the samples that were prepared, with its model sized by the checkpoint and
    the data.
    """
    config = task_config(recipe, sources, words.get_vocab_size(), task.sizes)
    recipe = dataclasses.replace(recipe, model=config)
    table = SampleTable.open(output / PREPARED)
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
        dataclasses.replace(
            task.record,
            blind=recipe.blind,
            settings=task.record.settings or to_plain(recipe.settings),
        ),
    )


def compute_labels_digest(task: LearntTask) -> str:
    """Returns a digest of a task's labels, for the settings that decide a run's output."""
    record = json.dumps(to_plain(task.record)).encode()
    return hashlib.sha256(record).hexdigest()[:16]


SEEDS = "seeds.json"


def finetune_seeds(
    recipe: TaskRecipe, inputs: TaskInputs, output: Path, *, fresh: bool, force: bool
) -> str:
    """Runs ``recipe`` once, or once for each of its ``seeds``. Each seed has a separate folder,
    which is continued like any run. The best seed's checkpoint is at the top, with ``seeds.json``.

    Returns a sentence on the result.
    """
    if not recipe.seeds:
        return finetune(recipe, inputs, output, fresh=fresh, force=force)
    folders = {seed: output / f"seed-{seed}" for seed in recipe.seeds}
    for seed, folder in folders.items():
        seed_recipe = dataclasses.replace(recipe, seed=seed, seeds=())
        message = finetune(seed_recipe, inputs, folder, fresh=fresh, force=force)
        if message:
            print_status(restore_paths(message))
        push(output)
    if not message:  # one of several processes that leave the files to the first
        return ""
    values = {
        seed: read_record(find_checkpoint(folder)).validation for seed, folder in folders.items()
    }
    measured = {seed: value for seed, value in values.items() if value is not None}
    summary = compute_spread(measured)
    best = max(measured, key=measured.__getitem__) if measured else recipe.seeds[0]
    publish(output, find_checkpoint(folders[best]))
    write_json(output / SEEDS, {"seeds": values, "best": best, **summary})
    summary_text = (
        f"mean {summary['mean']:.4f}, standard deviation {summary['std']:.4f}"
        if summary
        else "none was validated"
    )
    return f"{output}: {len(folders)} seeds, {summary_text}; the best is {best}"


def compute_spread(values: dict[int, float]) -> dict[str, Any]:
    """Returns mean, sample standard deviation and range; empty without values."""
    numbers = list(values.values())
    if not numbers:
        return {}
    deviation = statistics.stdev(numbers) if len(numbers) > 1 else 0.0
    return {
        "mean": statistics.fmean(numbers),
        "std": deviation,
        "lowest": min(numbers),
        "highest": max(numbers),
    }
