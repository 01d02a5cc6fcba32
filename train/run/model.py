"""Builds the model that a run begins with: its sizes, its weights and its tokenizer."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from vlmill.models import VARIANTS
from vlmill.models.registry import get_variant
from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.readers.regions import RegionReader
from vlmill.runtime.settings.plain_fields import flatten, to_plain
from vlmill.schemas.errors import InputError, with_article
from vlmill.train.checkpoints.files import LoadedCheckpoint
from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.features import load_features
from vlmill.train.loading.store.pairs import ImagesAlone, pair_rows
from vlmill.train.loading.store.splits import FOR_TRAINING, Rows
from vlmill.train.loading.vocabulary import read_vocabulary, train_vocabulary
from vlmill.train.recipes import RECIPES, Recipe, RunSettings, get_training
from vlmill.train.run.inputs import Sources, same_words

IMAGES_MEASURED, MAX_REGIONS = 1000, 100


MISSING = object()
OF_DATA = ("vocab_size", "region_width", "num_region_classes", "num_visual_tokens")
# Fields that no weight depends on, by what their names hold.
WITHOUT_WEIGHTS = ("dropout", "drop_path", "frozen", "init_std")
# Of a model that starts from BERT: BERT's weights are valid only for equal values of these.
OF_BERT = ("width", "num_heads", "intermediate_width", "act")


def allowed_changes(recipe: Recipe, init: LoadedCheckpoint | None) -> dict[str, Any]:
    """Returns the user's changes to the model of ``--init``, by dotted names; none without it.

    A checkpoint's weights are valid only in its model: dropout and the like may be changed, with
    VLMo the differences between its stages, and with BERT the fields that BERT lacks. Raises
    InputError for other changes, and for a checkpoint that the recipe's model does not start from.
    """
    if init is None:
        return {}
    variant, init_fields = get_variant(recipe.variant), flatten(to_plain(init.config))
    if init.variant not in (recipe.variant, *variant.starts_from):
        raise InputError(
            f"--init is {with_article(init.variant)}, the recipe's is {recipe.variant}"
        )
    if init.variant in variant.starts_from and not variant.shared_sizes:
        body = flatten(to_plain(variant.get_body(recipe.model)))
        _refuse_differences(
            {name: body[name] for name in OF_BERT if name in body}, init_fields, init
        )
        return {}  # the configuration is the recipe's
    if shared := variant.shared_sizes:
        names = {name for name in shared if name in init_fields}
        if init.variant != recipe.variant:
            names -= {"relative_positions", "absolute_positions"}
        recipe_fields = flatten(to_plain(recipe.model))
        _refuse_differences(
            {name: recipe_fields[name] for name in names if name in recipe_fields},
            init_fields,
            init,
        )
        return {}  # the configuration is the recipe's
    changes = _changes(recipe)
    free = {k: v for k, v in changes.items() if any(part in k for part in WITHOUT_WEIGHTS)}
    _refuse_differences({k: v for k, v in changes.items() if k not in free}, init_fields, init)
    return free


def _changes(recipe: Recipe) -> dict[str, Any]:
    """Returns the model's fields that differ from the named recipe; all of a custom one."""
    recipe_fields = flatten(to_plain(recipe.model))
    known = RECIPES.get(recipe.name)
    usual = {} if known is None else flatten(to_plain(known().model))
    return {
        name: value
        for name, value in recipe_fields.items()
        if usual.get(name, MISSING) != value and name.rpartition(".")[2] not in OF_DATA
    }


def _refuse_differences(
    recipe_fields: Mapping[str, Any], init_fields: Mapping[str, Any], init: LoadedCheckpoint
) -> None:
    for name, value in recipe_fields.items():
        if init_fields.get(name, MISSING) != value:
            has = f"has {init_fields[name]}" if name in init_fields else "has no such field"
            raise InputError(
                f"model.{name}={value}: --init {init.path} {has}; leave it as the checkpoint has "
                "it, or start from another one"
            )


def first_model(recipe: Recipe, sources: Sources, trained_images: Ids) -> nn.Module:
    """Returns the model of a run's first step: new weights, or the weights of ``--init``.

    ``trained_images`` are the rows of the regions of all images that are trained on. Raises
    InputError for a checkpoint that does not fit the recipe's model.
    """
    refuse_random_constants(recipe, sources.init)
    torch.manual_seed(recipe.seed)
    fresh: nn.Module = VARIANTS[recipe.variant].model(recipe.model)
    init = sources.init
    if recipe.standardise_features and (init is None or init.variant != recipe.variant):
        statistics = feature_statistics(sources.reader, trained_images)
        fresh.standardise_regions(*statistics)  # type: ignore[operator]
    if init is None:
        return fresh
    try:
        get_training(recipe.variant).start(fresh, init)
        renumber_classes(fresh, recipe, init)
    except InputError:
        raise
    except (ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"--init {init.path} does not fit {recipe.name}: {reason}") from None
    return fresh


def renumber_classes(fresh: nn.Module, recipe: Recipe, init: LoadedCheckpoint) -> None:
    """Moves the rows of a head that numbers the detector's classes differently from ``recipe``.

    With distributions class 0 is background and the others follow it; without, they begin at 0 and
    the last row is free. The one that is moved across the end was free, or is background's.
    """
    recipe_targets = {s.feeding.region_targets for s in recipe.stages if s.feeding.reads_regions}
    init_target = _class_targets(init)
    if not recipe_targets or init_target is None or recipe_targets == {init_target}:
        return
    decoder: nn.Linear | None = get_variant(recipe.variant).get_body(fresh).class_decoder
    if decoder is None:
        return
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(parameter.roll(-1 if init_target == "distribution" else 1, 0))
    print_status(
        "note: --init numbers the detector's classes differently by one; the head's "
        "rows were shifted"
    )


def _class_targets(init: LoadedCheckpoint) -> str | None:
    """Returns the checkpoint's targets for its class head; None for a model whose head is new."""
    feeding = init.feeding
    if feeding is None and not init.training.stage:  # published: `convert` names a preset's stage
        feeding = get_training(init.variant).feeding()
    if feeding is None or not feeding.reads_regions:
        return None
    return str(feeding.region_targets)


def refuse_random_constants(recipe: RunSettings, init: LoadedCheckpoint | None) -> None:
    """Raises InputError where stages of a region network would keep their random weights."""
    if not get_variant(recipe.variant).makes_features:
        return
    if init is not None and get_variant(init.variant).makes_features:
        return
    if stages := recipe.model.cnn.frozen_stages:
        raise InputError(
            f"model.cnn.frozen_stages={stages}: they are never trained, and stay random "
            "without an --init that contains them; give --init from train-vl convert "
            "--as vl-bert-*-end-to-end --backbone FILE, or set model.cnn.frozen_stages=0"
        )


def make_tokenizer(recipe: RunSettings, sources: Sources, chosen: Rows = FOR_TRAINING) -> Tokenizer:
    """Returns the tokenizer of ``--init`` or ``--vocab``, or trains one on the ``chosen`` pairs."""
    if sources.init is not None and same_words(sources.init, recipe):
        return sources.init.tokenizer
    if sources.inputs.vocab is not None:
        return read_vocabulary(sources.inputs.vocab)

    pairs = sources.inputs.visited
    if isinstance(pairs, ImagesAlone):  # no texts are read
        return train_vocabulary([], recipe.vocabulary_size)

    def texts() -> Iterator[str]:
        with Progress(total=sources.pairs.count, unit="pair", label="vocabulary") as progress:
            for rows in pair_rows(pairs):
                progress.advance(len(rows))
                yield from (row["text"] for row in rows if chosen.has(row))

    return train_vocabulary(texts(), recipe.vocabulary_size)


def feature_statistics(reader: RegionReader, rows: Ids) -> tuple[Tensor, Tensor]:
    """Returns mean and standard deviation by dimension, float32 [D], over the regions of the first
    images that are trained on and have a box: ``rows`` of the table, rising.

    A dimension that hardly varies gets a twentieth of the mean deviation, so that it is not scaled
    up too far. Without any box, mean 0 and deviation 1.
    """
    with_boxes = rows[reader.box_counts()[rows] > 0]
    count, total, squares = 0, np.zeros(reader.feature_dim), np.zeros(reader.feature_dim)
    for row in with_boxes[:IMAGES_MEASURED].tolist():
        features = load_features(reader.row(row), MAX_REGIONS).astype(np.float64)
        count += len(features)
        total, squares = total + features.sum(0), squares + (features**2).sum(0)
    if not count:
        return torch.zeros(reader.feature_dim), torch.ones(reader.feature_dim)
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    std = np.maximum(std, 0.05 * std.mean()) if std.any() else np.ones_like(std)
    return torch.tensor(mean, dtype=torch.float32), torch.tensor(std, dtype=torch.float32)
