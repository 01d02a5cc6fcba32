"""A run begins with this model: its sizes, its weights and its tokenizer."""

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from vlmill.models import VARIANTS, Vlmo
from vlmill.models.from_beit import initialise_from_beit
from vlmill.models.from_bert import BERT_SOURCES
from vlmill.models.published import export_reference
from vlmill.models.vlbert.config import VlBertEndToEndConfig
from vlmill.models.vlmo.stages import start_from
from vlmill.schemas.console.command import say
from vlmill.schemas.console.progress import Progress
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import LoadedCheckpoint
from vlmill.train.loading.features import check_global_features, features_of
from vlmill.train.loading.pictures.tokenizer import PictureTokenizer
from vlmill.train.loading.store.pairs import is_held_out, pair_rows
from vlmill.train.loading.vocabulary import read_vocabulary, train_vocabulary
from vlmill.train.recipes import RECIPES, Optimizer, Recipe
from vlmill.train.recipes.plain import flatten, to_plain
from vlmill.train.run.inputs import Inputs, Sources, same_words

PICTURES_MEASURED, MAX_REGIONS = 1000, 100


STARTS = {("beit", "vlmo")}  # which other variant's weights --init may bring


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
    refuse_random_constants(recipe, sources.init)
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


def make_tokenizer(recipe: Recipe, sources: Sources) -> Tokenizer:
    """``--init``'s, ``--vocab``'s, or one trained on the captions that are not held out."""
    if sources.init is not None and same_words(sources.init, recipe):
        return sources.init.tokenizer
    if sources.inputs.vocab is not None:
        return read_vocabulary(sources.inputs.vocab)

    def texts() -> Iterator[str]:
        with Progress(total=sources.num_pairs, unit="pair", label="vocabulary") as progress:
            for rows in pair_rows(sources.inputs.pairs):
                progress.advance(len(rows))
                yield from (row["text"] for row in rows if not is_held_out(row))

    return train_vocabulary(texts(), recipe.vocabulary_size)


def model_config(recipe: Recipe, tokenizer: Tokenizer, sources: Sources) -> Any:
    """The recipe's model with the data's sizes, or ``--init``'s if the data fit it."""
    config = _sized_config(recipe, tokenizer, sources)
    if sources.regions is not None:
        check_global_features(sources.regions, config)
    return config


def _sized_config(recipe: Recipe, tokenizer: Tokenizer, sources: Sources) -> Any:
    init = sources.init
    variants = (init.variant if init else recipe.variant, recipe.variant)
    if variants[0] != variants[1] and variants not in STARTS:
        raise InputError(f"--init is a {variants[0]}, the recipe's is {recipe.variant}")
    if sources.picture_tokenizer is not None:
        return _picture_config(recipe, sources.picture_tokenizer)
    sizes: dict[str, int] = {"vocab_size": tokenizer.get_vocab_size()}
    if sources.regions is not None:
        width, classes = sources.reader.feature_dim, _num_classes(sources)
        if recipe.variant == "vl-bert-end-to-end":
            return _end_to_end_config(recipe, sizes["vocab_size"], classes, init)
        if init is not None:
            _check_sizes(init.config, width, classes)
        sizes["region_width"] = width
        sizes["num_region_classes"] = max(recipe.model.num_region_classes, classes)
    if init is None or sources.regions is None:  # VLMo's stages differ in their heads and positions
        return dataclasses.replace(recipe.model, **sizes)
    return init.config


def _end_to_end_config(
    recipe: Recipe, words: int, classes: int, init: LoadedCheckpoint | None
) -> Any:
    """Features are the network's own, of its own width."""
    if init is not None:
        inner = init.config.model
        _check_sizes(inner, inner.region_width, classes)
        return init.config
    inner = recipe.model.model
    classes = max(inner.num_region_classes, classes)
    inner = dataclasses.replace(inner, vocab_size=words, num_region_classes=classes)
    return dataclasses.replace(recipe.model, model=inner)


def _picture_config(recipe: Recipe, tokenizer: PictureTokenizer) -> Any:
    for number, stage in enumerate(recipe.stages):
        size = (stage.feeding.token_size or 0) // tokenizer.stride
        if size != recipe.model.side:
            raise InputError(
                f"stages.{number}.feeding.token_size={stage.feeding.token_size} gives {size} "
                f"tokens a side, the model has {recipe.model.side} patches; "
                f"set it to {recipe.model.side * tokenizer.stride}"
            )
    return dataclasses.replace(recipe.model, num_visual_tokens=tokenizer.num_tokens)


def _num_classes(sources: Sources) -> int:
    """Classes of the regions: of the ids, or of their distributions with background."""
    about = sources.reader.arrays.get("class_probs")
    stored = 0 if about is None else int(about.get("of", about["dim"]))
    return max(sources.facts.num_classes, stored)


def _check_sizes(config: Any, width: int, classes: int) -> None:
    if config.region_width != width or config.num_region_classes < classes:
        raise InputError(
            f"--init takes features of {config.region_width} and {config.num_region_classes} "
            f"classes, --regions has {width} and {classes}; use its detector's regions"
        )


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
