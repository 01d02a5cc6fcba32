"""A run's model has the recipe's sizes but for those of the data, or ``--init``'s."""

import dataclasses
from typing import Any

from tokenizers import Tokenizer

from vlmill.models.registry import get_variant
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import LoadedCheckpoint
from vlmill.train.loading.features import check_global_features
from vlmill.train.loading.images.tokenizer import ImageTokenizer
from vlmill.train.recipes import Recipe
from vlmill.train.run.inputs import Sources


def model_config(recipe: Recipe, tokenizer: Tokenizer, sources: Sources) -> Any:
    """Returns the recipe's model with the data's sizes, or ``--init``'s if the data fit it."""
    config = _sized_config(recipe, tokenizer, sources)
    if sources.regions is not None:
        check_global_features(sources.regions, config)
    return config


def _sized_config(recipe: Recipe, tokenizer: Tokenizer, sources: Sources) -> Any:
    init, variant = sources.init, get_variant(recipe.variant)
    if sources.picture_tokenizer is not None:
        return _image_config(recipe, sources.picture_tokenizer)
    sizes = {"vocab_size": tokenizer.get_vocab_size()}
    config = continued_config(recipe, init)
    if sources.regions is None:
        return variant.with_sizes(recipe.model, **sizes) if config is None else config
    body = variant.get_body(recipe.model if config is None else config)
    # Its own network's features are as wide as that makes them.
    width = body.region_width if variant.makes_features else sources.reader.feature_dim
    if config is not None:
        _check_sizes(body, width, recipe, sources)
        return config
    classes = max(_num_guessed(recipe, sources), _num_stored(sources))
    sizes |= {
        "region_width": width,
        "num_region_classes": max(body.num_region_classes, classes),
    }
    return variant.with_sizes(recipe.model, **sizes)


def continued_config(recipe: Recipe, init: LoadedCheckpoint | None) -> Any:
    """The configuration of ``--init``, where its model is trained on; None where one is new.

    VLMo's stages differ in their heads and positions, and what starts from BERT has the recipe's
    sizes.
    """
    if init is None or get_variant(recipe.variant).shared_sizes:
        return None
    return init.config if init.variant == recipe.variant else None


def _image_config(recipe: Recipe, tokenizer: ImageTokenizer) -> Any:
    for number, stage in enumerate(recipe.stages):
        size = (stage.feeding.token_size or 0) // tokenizer.stride
        if size != recipe.model.side:
            raise InputError(
                f"stages.{number}.feeding.token_size={stage.feeding.token_size} gives {size} "
                f"tokens a side, the model has {recipe.model.side} patches; "
                f"set it to {recipe.model.side * tokenizer.stride}"
            )
    return dataclasses.replace(recipe.model, num_visual_tokens=tokenizer.num_tokens)


def _num_stored(sources: Sources) -> int:
    """Classes of the distributions that the regions have, with background; 0 without."""
    about = sources.reader.arrays.get("class_probs")
    return 0 if about is None else int(about.get("of", about["dim"]))


def _num_guessed(recipe: Recipe, sources: Sources) -> int:
    """Classes that the stages guess: those of the ids, or of distributions with background.

    What a table has beside the ids does not count where no stage reads it.
    """
    if _stages_of_distributions(recipe):
        return max(sources.facts.num_classes + 1, _num_stored(sources))
    return sources.facts.num_classes


def _stages_of_distributions(recipe: Recipe) -> list[int]:
    stages = enumerate(recipe.stages)
    return [i for i, stage in stages if stage.feeding.region_targets == "distribution"]


def _check_sizes(config: Any, width: int, recipe: Recipe, sources: Sources) -> None:
    if config.region_width != width:
        raise InputError(
            f"--init takes features of {config.region_width}, --regions has {width}; use its "
            "detector's regions"
        )
    classes, guessed = config.num_region_classes, _num_guessed(recipe, sources)
    if classes < sources.facts.num_classes:
        raise InputError(
            f"--init guesses {classes} classes, --regions has {sources.facts.num_classes}; use its "
            "detector's regions"
        )
    if classes < guessed:
        changes = (
            f"stages.{i}.feeding.region_targets=class" for i in _stages_of_distributions(recipe)
        )
        raise InputError(
            f"--init guesses {classes} classes, distributions of --regions have {guessed} with "
            f"background; add {' '.join(changes)}"
        )
