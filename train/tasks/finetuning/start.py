"""A task's model: its sizes, and where its weights start."""

import dataclasses
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from vlmill.models.registry import get_variant
from vlmill.runtime.settings.plain_fields import flatten, to_plain
from vlmill.schemas.errors import InputError, with_article
from vlmill.train.checkpoints.files import LoadedCheckpoint
from vlmill.train.loading.arrays import Ids
from vlmill.train.recipes import get_training
from vlmill.train.recipes.rows import say_what_is_new
from vlmill.train.recipes.training import start_from_bert
from vlmill.train.run.inputs import Sources
from vlmill.train.run.model import (
    OF_DATA,
    WITHOUT_WEIGHTS,
    feature_statistics,
    refuse_random_constants,
)
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.registry import task_recipes


def check_start(recipe: TaskRecipe, init: LoadedCheckpoint | None) -> None:
    """Raises InputError for a checkpoint that the recipe does not start from: another model's, or
    of another task where the whole model is taken.
    """
    if init is None:
        return
    if init.variant not in recipe.starts_from:
        raise InputError(
            f"--init {init.path} is {with_article(init.variant)}; {recipe.name} starts from "
            f"{' or '.join(recipe.starts_from) or 'drawn weights: drop --init'}"
        )
    variant, trunk = get_variant(recipe.variant), get_body(init)
    recipe_body = variant.get_body(recipe.model)
    if init.variant not in variant.starts_from and type(trunk) is not type(recipe_body):
        raise InputError(
            f"--init {init.path} is {with_article(init.variant)} over {type(trunk).__name__}, "
            f"{recipe.name} wants {type(recipe_body).__name__}; take the recipe of that model"
        )


def get_body(init: LoadedCheckpoint) -> Any:
    """The configuration of what a checkpoint has of words and images."""
    return get_variant(init.variant).get_body(init.config)


def task_config(
    recipe: TaskRecipe, sources: Sources, vocab_size: int, sizes: Mapping[str, int]
) -> Any:
    """The recipe's model with the sizes of ``--init`` or, without, of the data; ``sizes`` are the
    task's own (its number of answers).

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
    """The body of ``--init``, but for what no weight depends on, which is the recipe's."""
    variant = get_variant(recipe.variant)
    names = [field.name for field in dataclasses.fields(recipe_body)]
    free = [name for name in names if any(part in name for part in WITHOUT_WEIGHTS)]
    body = dataclasses.replace(
        variant.fit_body(get_body(init), recipe_body),
        **{name: getattr(recipe_body, name) for name in (*free, *variant.task_sizes)},
    )
    refuse_changes(recipe, variant.body, body, init)
    return body


def network_of_checkpoint(recipe: TaskRecipe, init: LoadedCheckpoint) -> Any:
    """The network of ``--init`` that makes the regions' features; the recipe says how much of it is
    trained.
    """
    network = dataclasses.replace(init.config.cnn, frozen_stages=recipe.model.cnn.frozen_stages)
    refuse_changes(recipe, "cnn", network, init)
    return network


def refuse_changes(recipe: TaskRecipe, part: str, config: Any, init: LoadedCheckpoint) -> None:
    """Raises InputError for fields of a part of the model that the user has changed and the
    checkpoint, with this ``config``, has otherwise.
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
    """Raises InputError for features of another width than the model takes."""
    width = getattr(body, "region_width", None)
    if sources.regions is not None and width != sources.reader.feature_dim:
        raise InputError(
            f"--init takes features of {width}, --regions has {sources.reader.feature_dim}; use "
            "its detector's regions"
        )


def first_task_model(
    recipe: TaskRecipe, sources: Sources, labels: Sequence[Sequence[int]], trained_images: Ids
) -> nn.Module:
    """Returns the model of a run's first step. ``labels``: the word pieces of what the head tells
    apart. ``trained_images``: the rows of the regions of all images that are trained on.

    Raises InputError for a checkpoint that does not fit.
    """
    refuse_random_constants(recipe, sources.init)
    torch.manual_seed(recipe.seed)
    variant, init = get_variant(recipe.variant), sources.init
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
            say_what_is_new(start_from_bert(fresh, init)[0])
        else:
            get_training(recipe.variant).start_task(fresh, init, labels)
    except InputError:
        raise
    except (ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"--init {init.path} does not fit {recipe.name}: {reason}") from None
    return fresh
