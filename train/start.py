"""The model that a run begins with, and how what comes from elsewhere is trained."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from vlmill.models import VARIANTS, Vlmo
from vlmill.models.bert_sources import BERT_SOURCES
from vlmill.models.initialise_vlmo import initialise_from_beit
from vlmill.models.reference import export_reference
from vlmill.models.vlmo_transfer import start_from
from vlmill.schemas.commands import InputError
from vlmill.train.checkpoint import LoadedCheckpoint
from vlmill.train.config import flatten, to_plain
from vlmill.train.recipes import RECIPES, Optimizer, Recipe
from vlmill.train.sources import Inputs, Sources, feature_statistics, say

MISSING = object()
OF_DATA = ("vocab_size", "region_width", "num_region_classes", "num_visual_tokens")
# Fields that no weight depends on, by what their names hold.
WITHOUT_WEIGHTS = ("dropout", "drop_path", "frozen", "init_std")
# What VLMo's stages and its BEiT have in common; lengths, resolutions, heads, experts may differ.
OF_VLMO = (
    *("width", "num_layers", "num_heads", "intermediate_width", "patch_size"),
    *("relative_text_span", "relative_positions", "absolute_positions"),
)


def allowed_changes(recipe: Recipe, init: LoadedCheckpoint | None) -> dict[str, Any]:
    """The user's changes to the model of ``--init``, by dotted names; none without.

    A checkpoint's weights mean what they mean in its model: dropout and the like may be changed,
    and with VLMo what its stages differ in. Raises InputError for other changes.
    """
    if init is None:
        return {}
    held = flatten(to_plain(init.config))
    if recipe.variant in ("vlmo", "beit"):
        names = {name for name in OF_VLMO if name in held}
        if init.variant != recipe.variant:
            names -= {"relative_positions", "absolute_positions"}
        asked = flatten(to_plain(recipe.model))
        _refuse_others({name: asked[name] for name in names if name in asked}, held, init)
        return {}  # the configuration is the recipe's
    changes = _changes(recipe)
    free = {k: v for k, v in changes.items() if any(part in k for part in WITHOUT_WEIGHTS)}
    _refuse_others({k: v for k, v in changes.items() if k not in free}, held, init)
    return free


def _changes(recipe: Recipe) -> dict[str, Any]:
    """The model's fields that are not as in the recipe of that name; of one's own recipe, all."""
    asked = flatten(to_plain(recipe.model))
    known = RECIPES.get(recipe.name)
    usual = {} if known is None else flatten(to_plain(known().model))
    return {
        name: value
        for name, value in asked.items()
        if usual.get(name, MISSING) != value and name.rpartition(".")[2] not in OF_DATA
    }


def _refuse_others(
    asked: Mapping[str, Any], held: Mapping[str, Any], init: LoadedCheckpoint
) -> None:
    for name, value in asked.items():
        if held.get(name, MISSING) != value:
            has = f"has {held[name]}" if name in held else "has no such field"
            raise InputError(
                f"model.{name}={value}: --init {init.path} {has}; leave it as the checkpoint has "
                "it, or start from another one"
            )


def first_model(recipe: Recipe, sources: Sources) -> nn.Module:
    """The model of a run's first step: new weights, or those of ``--init``.

    Raises InputError for a checkpoint that does not fit the recipe's model.
    """
    torch.manual_seed(recipe.seed)
    fresh: nn.Module = VARIANTS[recipe.variant].model(recipe.model)
    init = sources.init
    if init is None:
        if recipe.standardise_features:
            fresh.standardise_regions(*feature_statistics(sources))  # type: ignore[operator]
        return fresh
    try:
        _take(fresh, init, recipe)
    except InputError:
        raise
    except (ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"--init {init.path} does not fit {recipe.name}: {reason}") from None
    return fresh


def _take(fresh: nn.Module, init: LoadedCheckpoint, recipe: Recipe) -> None:
    if not isinstance(fresh, Vlmo):
        fresh.load_state_dict(init.model.state_dict())
    elif init.variant == "beit":
        initialise_from_beit(fresh, export_reference("beit", init.model))
    elif new := start_from(fresh, init.model.state_dict(), recipe.model):
        say(f"new, as --init lacks it: {', '.join(sorted(new)[:6])}")


def say_what_is_missing(recipe: Recipe, inputs: Inputs) -> None:
    """Warn of what a recipe needs and can do without, and of what is given and not read."""
    feeds = [stage.feeding for stage in recipe.stages]
    for flag, given in (("--init", inputs.init), ("--negatives", inputs.negatives)):
        if given is None and flag in recipe.needs:
            instead = "weights are random" if flag == "--init" else "negatives are drawn at random"
            say(f"warning: {recipe.name} needs {flag} (see `train-vl recipes`); without, {instead}")
    read = {
        "--regions": (inputs.regions, any(feed.reads_regions for feed in feeds)),
        "--images": (inputs.images, any(feed.reads_pictures for feed in feeds)),
        "--negatives": (inputs.negatives, _draws_hard_negatives(recipe)),
    }
    for flag, (given, used) in read.items():
        if given is not None and not used:
            say(f"note: {flag} is not read; {recipe.name} has no use for it")


def _draws_hard_negatives(recipe: Recipe) -> bool:
    return any(stage.negative_share and stage.hard_negative_share for stage in recipe.stages)


def started(settings: Optimizer, from_checkpoint: bool) -> Optimizer:
    """The settings, without what scripts do to what has started from BERT where nothing has."""
    if from_checkpoint:
        return settings
    decay = "matrices" if settings.decay == "inverted" else settings.decay
    return dataclasses.replace(settings, bert_rate=1.0, decay=decay)


def names_from_bert(model: nn.Module) -> set[str]:
    """The parameters that a BERT checkpoint has, too. Raises InputError for a variant without."""
    links = BERT_SOURCES.get(type(model))
    if links is None:
        raise InputError(f"optimizer.bert_rate: {type(model).__name__} takes nothing from BERT")
    return {link.ours for link in links(model, {})}
