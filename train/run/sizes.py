"""A run's model has the recipe's sizes but for those of the data, or ``--init``'s."""

import dataclasses
from typing import Any

from tokenizers import Tokenizer

from vlmill.schemas.errors import InputError
from vlmill.train.loading.features import check_global_features
from vlmill.train.loading.pictures.tokenizer import PictureTokenizer
from vlmill.train.recipes import Recipe
from vlmill.train.recipes.variants import training_of
from vlmill.train.run.inputs import Sources


def model_config(recipe: Recipe, tokenizer: Tokenizer, sources: Sources) -> Any:
    """The recipe's model with the data's sizes, or ``--init``'s if the data fit it."""
    config = _sized_config(recipe, tokenizer, sources)
    if sources.regions is not None:
        check_global_features(sources.regions, config)
    return config


def _sized_config(recipe: Recipe, tokenizer: Tokenizer, sources: Sources) -> Any:
    init, training = sources.init, training_of(recipe.variant)
    if init is not None and init.variant not in (recipe.variant, *training.starts_from):
        raise InputError(f"--init is a {init.variant}, the recipe's is {recipe.variant}")
    if sources.picture_tokenizer is not None:
        return _picture_config(recipe, sources.picture_tokenizer)
    sizes = {"vocab_size": tokenizer.get_vocab_size()}
    if sources.regions is None:  # VLMo's stages differ in their heads and positions
        return training.with_sizes(recipe.model, **sizes)
    body = training.body_of(recipe.model if init is None else init.config)
    # Its own network's features are as wide as that makes them.
    width = body.region_width if training.body else sources.reader.feature_dim
    classes = _num_classes(sources)
    if init is not None:
        _check_sizes(body, width, classes)
        return init.config
    sizes |= {
        "region_width": width,
        "num_region_classes": max(body.num_region_classes, classes),
    }
    return training.with_sizes(recipe.model, **sizes)


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
