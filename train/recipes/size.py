"""A model's parameters, and what its layers keep, are counted here from its configuration.

Building the model to count them takes torch and seconds, for a list of recipes. Tests count again
on the models: every preset, and switches that no preset turns.
"""

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from vlmill.models.bert.config import BertConfig, BertTextConfig
from vlmill.models.imagebert.config import ImageBertRetrievalConfig
from vlmill.models.interbert.config import (
    InterBertImagesConfig,
    InterBertTasksConfig,
    InterBertTextConfig,
)
from vlmill.models.vilbert.config import (
    Vilbert12in1Config,
    VilbertClassifierConfig,
    VilbertConfig,
    VilbertTasksConfig,
)
from vlmill.models.vlbert.config import (
    EXPANSION,
    RegionCnnConfig,
    VlBertEndToEndConfig,
    VlBertRefcocoConfig,
    VlBertVcrConfig,
    VlBertVqaConfig,
)
from vlmill.models.vlmo.config import VlmoConfig, VlmoNlvr2Config, VlmoTextConfig, VlmoVqaConfig
from vlmill.train.recipes.trunk_size import COLOURS, TRUNKS, Network, linear, norm


def measure_network(config: Any) -> Network:
    """What a variant's configuration amounts to."""
    return NETWORKS[type(config)](config)


def _convolution(inputs: int, outputs: int, kernel: int) -> int:
    """Without bias, and the normalisation of its output."""
    return kernel**2 * inputs * outputs + norm(outputs)


def _region_cnn(config: RegionCnnConfig) -> int:
    """Stem and four stages of bottlenecks; the first of a stage has a shortcut if it widens."""
    total = _convolution(COLOURS, config.stem_channels, 7)
    outputs = [config.stem_channels, *(EXPANSION * inner for inner in config.widths)]
    for (before, after), inner, count in zip(
        pairwise(outputs), config.widths, config.blocks, strict=True
    ):
        total += _convolution(before, after, 1) if before != after else 0
        middle = _convolution(inner, inner, 3) + _convolution(inner, after, 1)
        total += count * middle
        total += _convolution(before, inner, 1) + (count - 1) * _convolution(after, inner, 1)
    return total


def _vlbert_end_to_end(config: VlBertEndToEndConfig) -> Network:
    model = measure_network(config.model)
    return model._replace(other_parameters=model.other_parameters + _region_cnn(config.cnn))


def _weight_norm(width: int, outputs: int) -> int:
    """A linear layer with a length beside its direction."""
    return linear(width, outputs) + 1


def _vilbert_tasks(config: VilbertTasksConfig) -> Network:
    trunk = measure_network(config.trunk)
    visual = pooled = config.trunk.width
    if isinstance(config.trunk, VilbertConfig):
        visual, pooled = config.trunk.visual_width, config.trunk.co_width
    heads = linear(pooled, 1) + linear(config.trunk.width, 1) + linear(visual, 1)
    heads += _weight_norm(pooled, 2 * pooled) + _weight_norm(2 * pooled, config.num_answers)
    return trunk._replace(other_parameters=trunk.other_parameters + heads)


def _interbert_tasks(config: InterBertTasksConfig) -> Network:
    trunk, width = measure_network(config.trunk), config.trunk.width
    pooled = config.trunk.pooled_width
    heads = linear(pooled, 1) + 2 * linear(width, 1) + linear(pooled, config.num_answers)
    return trunk._replace(other_parameters=trunk.other_parameters + heads)


def _imagebert_retrieval(config: ImageBertRetrievalConfig) -> Network:
    trunk = measure_network(config.trunk)
    return trunk._replace(other_parameters=trunk.other_parameters + linear(config.trunk.width, 1))


def _vlbert_vqa(config: VlBertVqaConfig) -> Network:
    heads: dict[str, Any] = {"masked_words": False, "masked_classes": False, "matching": False}
    body = measure_network(dataclasses.replace(config.body, **heads))
    width = config.body.width
    transform = {"mlm": linear(width, width) + norm(width), "1fc": 0}
    if config.classifier == "2fc":
        transform["2fc"], width = linear(width, config.classifier_width), config.classifier_width
    head = transform[config.classifier] + linear(width, config.num_answers)
    return body._replace(other_parameters=body.other_parameters + head)


def _vlbert_refcoco(config: VlBertRefcocoConfig) -> Network:
    heads: dict[str, Any] = {"masked_words": False, "masked_classes": False, "matching": False}
    body = measure_network(dataclasses.replace(config.body, **heads))
    width = config.body.width
    return body._replace(
        other_parameters=body.other_parameters + linear(width, width) + linear(width, 1)
    )


def _vlbert_vcr(config: VlBertVcrConfig) -> Network:
    heads: dict[str, Any] = {"masked_words": config.masked_words, "matching": False}
    body = measure_network(dataclasses.replace(config.body, **heads, masked_classes=False))
    # A masked region's own token belongs to the body, a head for its class does not.
    width = pooled = config.body.width
    has_token = config.body.masked_classes and config.body.masked_region in ("appearance", "pixels")
    head_parameters = width if has_token else 0
    if config.classifier == "2fc":
        head_parameters += linear(width, config.classifier_width)
        pooled = config.classifier_width
    head_parameters += (
        linear(pooled, 1) + linear(width, width) + linear(width, config.num_categories)
    )
    return body._replace(other_parameters=body.other_parameters + head_parameters)


def _vlmo_encoder(config: VlmoConfig, head: int) -> Network:
    """An encoder without pretraining's heads, and a ``head`` of so many parameters."""
    heads: dict[str, Any] = {"contrast": False, "match": False, "mlm": False}
    encoder = measure_network(dataclasses.replace(config, **heads))
    return encoder._replace(other_parameters=encoder.other_parameters + head)


def _two_layers(inputs: int, hidden: int, outputs: int) -> int:
    """Dense layer, norm, decoder."""
    return linear(inputs, hidden) + norm(hidden) + linear(hidden, outputs)


def _vlmo_vqa(config: VlmoVqaConfig) -> Network:
    width = config.encoder.width
    head = linear(width, config.num_answers)
    if config.two_layers:
        head = _two_layers(width, 2 * width, config.num_answers)
    return _vlmo_encoder(config.encoder, head)


def _vlmo_nlvr2(config: VlmoNlvr2Config) -> Network:
    both = 2 * config.encoder.width
    head = _two_layers(both, both, 2) if config.two_layers else linear(both, 2)
    return _vlmo_encoder(config.encoder, head)


def _vlmo_text(config: VlmoTextConfig) -> Network:
    return _vlmo_encoder(config.encoder, linear(config.encoder.width, config.num_labels))


def _text_classifier(config: BertTextConfig | InterBertTextConfig) -> Network:
    trunk, sizes = measure_network(config.trunk), config.trunk
    pooled = sizes.width if isinstance(sizes, BertConfig) else sizes.pooled_width
    return trunk._replace(
        other_parameters=trunk.other_parameters + linear(pooled, config.num_labels)
    )


def _image_classifier(config: VilbertClassifierConfig | InterBertImagesConfig) -> Network:
    trunk, sizes = measure_network(config.trunk), config.trunk
    pooled = sizes.co_width if isinstance(sizes, VilbertConfig) else sizes.pooled_width
    width = config.num_pictures * pooled
    return trunk._replace(
        other_parameters=trunk.other_parameters + _two_layers(width, width, config.num_labels)
    )


def _vilbert_12in1(config: Vilbert12in1Config) -> Network:
    trunk, pooled = measure_network(config.trunk), config.trunk.co_width
    heads = linear(pooled, 1) + linear(config.trunk.width, 1)
    heads += linear(config.trunk.visual_width, 1) + linear(pooled, 3)
    heads += _two_layers(pooled, 2 * pooled, config.num_answers)
    heads += _two_layers(pooled, 2 * pooled, config.num_gqa_answers)
    heads += _two_layers(2 * pooled, 2 * pooled, 2)
    return trunk._replace(other_parameters=trunk.other_parameters + heads)


NETWORKS: dict[type[Any], Callable[[Any], Network]] = {
    **TRUNKS,
    BertTextConfig: _text_classifier,
    ImageBertRetrievalConfig: _imagebert_retrieval,
    InterBertImagesConfig: _image_classifier,
    InterBertTasksConfig: _interbert_tasks,
    InterBertTextConfig: _text_classifier,
    Vilbert12in1Config: _vilbert_12in1,
    VilbertClassifierConfig: _image_classifier,
    VilbertTasksConfig: _vilbert_tasks,
    VlBertRefcocoConfig: _vlbert_refcoco,
    VlBertVcrConfig: _vlbert_vcr,
    VlBertVqaConfig: _vlbert_vqa,
    VlmoNlvr2Config: _vlmo_nlvr2,
    VlmoTextConfig: _vlmo_text,
    VlmoVqaConfig: _vlmo_vqa,
    VlBertEndToEndConfig: _vlbert_end_to_end,
}
