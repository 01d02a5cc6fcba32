"""A run begins with this model: its sizes, its weights and its tokenizer."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from vlmill.models import VARIANTS, Vlmo
from vlmill.models.from_beit import initialise_from_beit
from vlmill.models.published import export_reference
from vlmill.models.vlbert.config import VlBertEndToEndConfig
from vlmill.models.vlmo.stages import start_from
from vlmill.schemas.console.command import say
from vlmill.schemas.console.progress import Progress
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import LoadedCheckpoint
from vlmill.train.loading.features import features_of
from vlmill.train.loading.store.pairs import pair_rows
from vlmill.train.loading.store.splits import FOR_TRAINING, Rows
from vlmill.train.loading.vocabulary import read_vocabulary, train_vocabulary
from vlmill.train.recipes import RECIPES, Recipe
from vlmill.train.recipes.plain import flatten, to_plain
from vlmill.train.recipes.variants import named, training_of
from vlmill.train.run.inputs import Sources, same_words

PICTURES_MEASURED, MAX_REGIONS = 1000, 100


MISSING = object()
OF_DATA = ("vocab_size", "region_width", "num_region_classes", "num_visual_tokens")
# Fields that no weight depends on, by what their names hold.
WITHOUT_WEIGHTS = ("dropout", "drop_path", "frozen", "init_std")


def allowed_changes(recipe: Recipe, init: LoadedCheckpoint | None) -> dict[str, Any]:
    """The user's changes to the model of ``--init``, by dotted names; none without.

    A checkpoint's weights mean what they mean in its model: dropout and the like may be changed,
    and with VLMo what its stages differ in. Raises InputError for other changes.
    """
    if init is None:
        return {}
    theirs = flatten(to_plain(init.config))
    if shared := training_of(recipe.variant).shared_sizes:
        names = {name for name in shared if name in theirs}
        if init.variant != recipe.variant:
            names -= {"relative_positions", "absolute_positions"}
        asked = flatten(to_plain(recipe.model))
        _refuse_others({name: asked[name] for name in names if name in asked}, theirs, init)
        return {}  # the configuration is the recipe's
    changes = _changes(recipe)
    free = {k: v for k, v in changes.items() if any(part in k for part in WITHOUT_WEIGHTS)}
    _refuse_others({k: v for k, v in changes.items() if k not in free}, theirs, init)
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
    asked: Mapping[str, Any], theirs: Mapping[str, Any], init: LoadedCheckpoint
) -> None:
    for name, value in asked.items():
        if theirs.get(name, MISSING) != value:
            has = f"has {theirs[name]}" if name in theirs else "has no such field"
            raise InputError(
                f"model.{name}={value}: --init {init.path} {has}; leave it as the checkpoint has "
                "it, or start from another one"
            )


def first_model(recipe: Recipe, sources: Sources) -> nn.Module:
    """The model of a run's first step: new weights, or those of ``--init``.

    Raises InputError for a checkpoint that does not fit the recipe's model.
    """
    refuse_random_constants(recipe, sources.init)
    torch.manual_seed(recipe.seed)
    fresh: nn.Module = VARIANTS[recipe.variant].model(recipe.model)
    init = sources.init
    if init is None:
        if recipe.standardise_features:
            fresh.standardise_regions(*feature_statistics(sources))  # type: ignore[operator]
        return fresh
    try:
        named(training_of(recipe.variant).start)(fresh, init)
    except InputError:
        raise
    except (ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"--init {init.path} does not fit {recipe.name}: {reason}") from None
    return fresh


def refuse_random_constants(recipe: Recipe, init: LoadedCheckpoint | None) -> None:
    """Raises InputError where stages of a region network would keep their random weights."""
    if init is not None or not isinstance(recipe.model, VlBertEndToEndConfig):
        return
    if stages := recipe.model.cnn.frozen_stages:
        raise InputError(
            f"model.cnn.frozen_stages={stages}: they are never trained, and random without --init; "
            "give --init from train-vl convert --as vl-bert-*-end-to-end --backbone FILE, or set "
            "model.cnn.frozen_stages=0"
        )


def copy_weights(fresh: nn.Module, init: LoadedCheckpoint) -> None:
    """The same model again: all weights, by their names."""
    fresh.load_state_dict(init.model.state_dict())


def start_vlmo(fresh: Vlmo, init: LoadedCheckpoint) -> None:
    """VLMo's next stage, from a stage before or from BEiT."""
    if init.variant == "beit":
        initialise_from_beit(fresh, export_reference("beit", init.model))
    elif new := start_from(fresh, init.model.state_dict(), fresh.config):
        say(f"new, as --init lacks it: {', '.join(sorted(new)[:6])}")


def make_tokenizer(recipe: Recipe, sources: Sources, chosen: Rows = FOR_TRAINING) -> Tokenizer:
    """``--init``'s, ``--vocab``'s, or one trained on the captions of the ``chosen`` pairs."""
    if sources.init is not None and same_words(sources.init, recipe):
        return sources.init.tokenizer
    if sources.inputs.vocab is not None:
        return read_vocabulary(sources.inputs.vocab)

    def texts() -> Iterator[str]:
        with Progress(total=sources.pairs.count, unit="pair", label="vocabulary") as progress:
            for rows in pair_rows(sources.inputs.pairs):
                progress.advance(len(rows))
                yield from (row["text"] for row in rows if chosen.has(row))

    return train_vocabulary(texts(), recipe.vocabulary_size)


def feature_statistics(sources: Sources) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation by dimension, float32 [D], over the first pictures with boxes.

    A dimension that hardly varies gets a twentieth of the mean deviation, lest it be blown up.
    """
    pictures = (i for i in sources.reader.image_ids if i not in sources.facts.empty)
    count, total, squares = 0, np.float64(0), np.float64(0)
    for image_id in islice(pictures, PICTURES_MEASURED):
        features = features_of(sources.reader[image_id], MAX_REGIONS).astype(np.float64)
        count += len(features)
        total, squares = total + features.sum(0), squares + (features**2).sum(0)
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    std = np.maximum(std, 0.05 * std.mean()) if std.any() else np.ones_like(std)
    return torch.tensor(mean, dtype=torch.float32), torch.tensor(std, dtype=torch.float32)
