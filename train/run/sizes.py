"""A run's model has the recipe's sizes but for those of the data, or ``--init``'s."""

import dataclasses
from typing import Any

from tokenizers import Tokenizer

from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import LoadedCheckpoint
from vlmill.train.loading.features import check_global_features
from vlmill.train.loading.pictures.tokenizer import PictureTokenizer
from vlmill.train.recipes import Recipe
from vlmill.train.run.inputs import Sources

STARTS = {("beit", "vlmo")}  # which other variant's weights --init may bring


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
