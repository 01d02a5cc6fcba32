"""A task's model: its sizes, and where its weights start."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from vlmill.models import MODELS
from vlmill.models.bert.config import BertConfig
from vlmill.models.from_bert import initialise_from_bert
from vlmill.models.published import export_reference
from vlmill.models.vlbert.config import RegionCnnConfig, vlbert_for_task
from vlmill.models.vlmo.stages import start_from as start_vlmo
from vlmill.runtime.settings.plain_fields import flatten, to_plain
from vlmill.schemas.errors import InputError, with_article
from vlmill.train.checkpoints.files import LoadedCheckpoint
from vlmill.train.loading.arrays import Ids
from vlmill.train.recipes.tasks import TaskRecipe, task_recipes
from vlmill.train.recipes.variants import get_training
from vlmill.train.run.inputs import Sources
from vlmill.train.run.model import (
    OF_DATA,
    WITHOUT_WEIGHTS,
    feature_statistics,
    refuse_random_constants,
    say_what_is_new,
)

# Of VLMo's encoder: what a task may have otherwise than its pretraining.
VLMO_TASK = (
    *("image_size", "max_text_tokens", "num_images", "pooler"),
    *("contrast", "match", "mlm", "num_contrast_pairs"),
)


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
    trunk = get_body(init)
    recipe_body = get_training(recipe.variant).get_body(recipe.model)
    if init.variant != "bert" and type(trunk) is not type(recipe_body):
        raise InputError(
            f"--init {init.path} is {with_article(init.variant)} over {type(trunk).__name__}, "
            f"{recipe.name} wants {type(recipe_body).__name__}; take the recipe of that model"
        )


def get_body(init: LoadedCheckpoint) -> Any:
    """The configuration of what a checkpoint has of words and images."""
    return get_training(init.variant).get_body(init.config)


def task_config(
    recipe: TaskRecipe, sources: Sources, vocab_size: int, sizes: Mapping[str, int]
) -> Any:
    """The recipe's model with the sizes of ``--init`` or, without, of the data; ``sizes`` are the
    task's own (its number of answers).

    Raises InputError for changes of the recipe that the checkpoint's weights do not allow.
    """
    training, init = get_training(recipe.variant), sources.init
    recipe_body, model = training.get_body(recipe.model), recipe.model
    # A BERT has the sizes of its checkpoint, another model that starts from BERT its own.
    if init is None or (init.variant == "bert" and not isinstance(recipe_body, BertConfig)):
        data_sizes = {"vocab_size": vocab_size}
        if sources.regions is not None and not training.makes_features:
            data_sizes["region_width"] = sources.reader.feature_dim
        body = dataclasses.replace(recipe_body, **data_sizes)
    else:
        body = make_checkpoint_body(recipe, recipe_body, init)
        if training.makes_features:
            model = dataclasses.replace(model, cnn=network_of_checkpoint(recipe, init))
        else:
            check_regions(body, sources)
    return dataclasses.replace(training.with_body(model, body), **sizes)


def make_checkpoint_body(recipe: TaskRecipe, recipe_body: Any, init: LoadedCheckpoint) -> Any:
    """The body of ``--init``, but for what no weight depends on, which is the recipe's."""
    init_body = get_body(init)
    if recipe.variant.startswith("vl-bert"):
        init_body = vlbert_for_task(
            init_body, pooler=recipe_body.pooler, masked_region=recipe_body.masked_region
        )
    names = [field.name for field in dataclasses.fields(recipe_body)]
    free = [name for name in names if any(part in name for part in WITHOUT_WEIGHTS)]
    if recipe.variant.startswith("vlmo"):
        free += VLMO_TASK
    if recipe.variant == "vlmo-text":
        free.append("first_vl_layer")  # texts alone meet no image
    body = dataclasses.replace(init_body, **{name: getattr(recipe_body, name) for name in free})
    refuse_changes(recipe, get_training(recipe.variant).body, body, init)
    return body


def network_of_checkpoint(recipe: TaskRecipe, init: LoadedCheckpoint) -> RegionCnnConfig:
    """The network of ``--init`` that makes the regions' features; the recipe says how much of it is
    trained.
    """
    init_network: RegionCnnConfig = init.config.cnn
    network = dataclasses.replace(init_network, frozen_stages=recipe.model.cnn.frozen_stages)
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
    fresh: nn.Module = MODELS[recipe.variant].model(recipe.model)
    init, body = sources.init, get_training(recipe.variant).get_body(recipe.model)
    if recipe.standardise_features and (init is None or init.variant == "bert"):
        trunk = get_training(recipe.variant).get_body(fresh)
        trunk.standardise_regions(*feature_statistics(sources.reader, trained_images))
    if init is None:
        return fresh
    try:
        if init.variant == "bert" and not isinstance(get_body(init), type(body)):
            start_from_bert(fresh, init)
        else:
            STARTS[recipe.variant](fresh, init, labels)
    except InputError:
        raise
    except (ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"--init {init.path} does not fit {recipe.name}: {reason}") from None
    return fresh


def start_from_bert(fresh: nn.Module, init: LoadedCheckpoint) -> None:
    """BERT's weights where the model has such, all else new."""
    origins = initialise_from_bert(fresh, export_reference("bert", init.model))
    say_what_is_new(sorted(name for name, origin in origins.items() if not origin.names))


Labels = Sequence[Sequence[int]]


def start_trunk(fresh: Any, init: LoadedCheckpoint, labels: Labels) -> None:
    """Takes the trunk of a pretrained model, or of one that was fine-tuned; heads are new."""
    trunk = get_training(init.variant).get_body(init.model)
    fresh.trunk.load_state_dict(trunk.state_dict())
    say_what_is_new(sorted(n for n, _ in fresh.named_parameters() if not n.startswith("trunk.")))


def start_vlbert(fresh: Any, init: LoadedCheckpoint, labels: Labels) -> None:
    """VL-BERT's own way: transforms of pretraining's heads, answers' rows of their words."""
    if init.variant != "vl-bert":
        fresh.body.load_state_dict(init.model.body.state_dict())
        say_what_is_new(sorted(n for n, _ in fresh.named_parameters() if not n.startswith("body.")))
    elif labels:
        fresh.start_from(init.model, labels)
    else:
        fresh.start_from(init.model)


def start_vlbert_end_to_end(fresh: Any, init: LoadedCheckpoint, labels: Labels) -> None:
    """The network of regions as it is, and above it as from stored regions."""
    fresh.cnn.load_state_dict(init.model.cnn.state_dict())
    if init.variant == "vl-bert-end-to-end":
        fresh.model.start_from(init.model.model)
        return
    fresh.model.body.load_state_dict(init.model.model.body.state_dict())
    names = sorted(n for n, _ in fresh.model.named_parameters() if not n.startswith("body."))
    say_what_is_new([f"model.{name}" for name in names])


def start_vlmo_task(fresh: Any, init: LoadedCheckpoint, labels: Labels) -> None:
    """VLMo's encoder, its positions resized; the classifier is always new (the code)."""
    say_what_is_new(sorted(start_vlmo(fresh, init.model.state_dict(), fresh.config.encoder)))


def start_same(fresh: nn.Module, init: LoadedCheckpoint, labels: Labels) -> None:
    """Goes on with the whole model of pretraining, its heads included."""
    fresh.load_state_dict(get_training(init.variant).get_body(init.model).state_dict())


def start_vlmo_dual(fresh: Any, init: LoadedCheckpoint, labels: Labels) -> None:
    """VLMo with its first contrastive pair, its positions resized."""
    say_what_is_new(sorted(start_vlmo(fresh, init.model.state_dict(), fresh.config)))


def start_whole(fresh: nn.Module, init: LoadedCheckpoint, labels: Labels) -> None:
    """Goes on with a model of several tasks and all of its heads (12-in-1)."""
    fresh.load_state_dict(init.model.state_dict())


STARTS: dict[str, Callable[[Any, LoadedCheckpoint, Labels], None]] = {
    "bert-text": start_trunk,
    "imagebert-retrieval": start_trunk,
    "interbert-pictures": start_trunk,
    "interbert-tasks": start_trunk,
    "interbert-text": start_trunk,
    "vilbert": start_same,
    "vilbert-12in1-tasks": start_whole,
    "vilbert-classifier": start_trunk,
    "vilbert-tasks": start_trunk,
    "vl-bert-refcoco": start_vlbert,
    "vl-bert-refcoco-end-to-end": start_vlbert_end_to_end,
    "vl-bert-vcr": start_vlbert,
    "vl-bert-vcr-end-to-end": start_vlbert_end_to_end,
    "vl-bert-vqa": start_vlbert,
    "vlmo": start_vlmo_dual,
    "vlmo-nlvr2": start_vlmo_task,
    "vlmo-text": start_vlmo_task,
    "vlmo-vqa": start_vlmo_task,
}
