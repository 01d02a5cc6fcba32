"""A model's parameters, and what its layers keep, are counted here from its configuration.

Building the model to count them takes torch and seconds, for a list of recipes. Tests count again
on the models: every preset, and switches that no preset turns.
"""

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from vlmill.models.beit.config import BeitConfig
from vlmill.models.bert.config import BertConfig, BertTextConfig
from vlmill.models.imagebert.config import ImageBertConfig, ImageBertRetrievalConfig
from vlmill.models.interbert.config import (
    InterBertConfig,
    InterBertPicturesConfig,
    InterBertTasksConfig,
    InterBertTextConfig,
)
from vlmill.models.vilbert.config import (
    SingleStreamConfig,
    Vilbert12in1Config,
    VilbertClassifierConfig,
    VilbertConfig,
    VilbertTasksConfig,
)
from vlmill.models.vlbert.config import (
    EXPANSION,
    NUM_SPECIAL_WORDS,
    RegionCnnConfig,
    VlBertConfig,
    VlBertEndToEndConfig,
    VlBertRefcocoConfig,
    VlBertVcrConfig,
    VlBertVqaConfig,
)
from vlmill.models.vlmo.config import VlmoConfig, VlmoNlvr2Config, VlmoTextConfig, VlmoVqaConfig

BOX_NUMBERS = 5  # corners and area
COLOURS = 3


class Layer(NamedTuple):
    """A layer's parameters, and the inputs and outputs of its linear layers for one row."""

    parameters: int
    kept: int


class Stack(NamedTuple):
    """Layers of one kind over the rows of texts, of pictures, or of both."""

    rows: Literal["texts", "pictures", "both"]
    num_layers: int
    layer: Layer


class Network(NamedTuple):
    """The stacks of layers, and the parameters of embeddings and heads beside them."""

    beside: int
    stacks: tuple[Stack, ...]

    @property
    def parameters(self) -> int:
        """All of them, trained or not."""
        return self.beside + sum(stack.num_layers * stack.layer.parameters for stack in self.stacks)


def network_of(config: Any) -> Network:
    """What a variant's configuration amounts to."""
    return NETWORKS[type(config)](config)


def _linear(inputs: int, outputs: int) -> int:
    return (inputs + 1) * outputs


def _norm(width: int) -> int:
    return 2 * width


def _feed_forward(width: int, intermediate: int) -> int:
    return _linear(width, intermediate) + _linear(intermediate, width)


def _post_norm(width: int, intermediate: int) -> Layer:
    attention = _linear(width, 3 * width) + _linear(width, width)
    parameters = attention + _feed_forward(width, intermediate) + 2 * _norm(width)
    return Layer(parameters, 6 * width + 2 * (width + intermediate))


def _pre_norm(width: int, intermediate: int, num_experts: int, *, scaled: bool) -> Layer:
    """Its keys have no bias; each row takes one expert."""
    attention = _linear(width, 3 * width) - width + _linear(width, width) + _norm(width)
    expert = _feed_forward(width, intermediate) + _norm(width)
    scales = 2 * width if scaled else 0
    kept = 6 * width + 2 * (width + intermediate)
    return Layer(attention + num_experts * expert + scales, kept)


def _co_attention(config: VilbertConfig) -> Layer:
    parameters = kept = 0
    for width, intermediate in (
        (config.visual_width, config.visual_intermediate_width),
        (config.width, config.intermediate_width),
    ):
        attention = _linear(width, 3 * config.co_width) + _linear(config.co_width, width)
        parameters += attention + _feed_forward(width, intermediate) + 2 * _norm(width)
        kept += 2 * width + 4 * config.co_width + 2 * (width + intermediate)
    return Layer(parameters, kept)


def _text_embedding(vocab_size: int, num_positions: int, num_segments: int, width: int) -> int:
    return (vocab_size + num_positions + num_segments) * width + _norm(width)


def _region_embedding(region_width: int, width: int) -> int:
    return _linear(region_width, width) + _linear(BOX_NUMBERS, width) + _norm(width)


def _patch_embedding(config: BeitConfig | VlmoConfig) -> int:
    positions = config.side**2 + 1 if config.absolute_positions else 0
    patch = COLOURS * config.patch_size**2
    return _linear(patch, config.width) + (1 + positions) * config.width


def _relative_rows(config: BeitConfig | VlmoConfig) -> int:
    """Offsets between patches, and the class token's three."""
    return (2 * config.side - 1) ** 2 + 3


def _word_head(width: int, vocab_size: int) -> int:
    """The word table is the decoder, and counted there."""
    return _linear(width, width) + _norm(width) + vocab_size


def _pair_heads(
    config: VilbertConfig | InterBertConfig | SingleStreamConfig, visual_width: int, pooled: int
) -> int:
    regress = getattr(config, "regress_features", False)
    outputs = config.region_width if regress else config.num_region_classes
    transform = _linear(visual_width, visual_width) + _norm(visual_width)
    region_head = transform + _linear(visual_width, outputs)
    return _word_head(config.width, config.vocab_size) + region_head + _linear(pooled, 2)


def _tables(config: BertConfig | VilbertConfig | InterBertConfig | SingleStreamConfig) -> int:
    return _text_embedding(
        config.vocab_size, config.num_positions, config.num_segments, config.width
    )


def _bert(config: BertConfig) -> Network:
    width = config.width
    heads = _word_head(width, config.vocab_size) + _linear(width, 2)
    layer = _post_norm(width, config.intermediate_width)
    beside = _tables(config) + _linear(width, width) + heads
    return Network(beside, (Stack("both", config.num_layers, layer),))


def _imagebert(config: ImageBertConfig) -> Network:
    width = config.width
    beside = _text_embedding(config.vocab_size, config.num_positions, 2, width)
    beside += _region_embedding(config.region_width, width)
    beside += 2 * _norm(width) if config.image_pre_ln else 0
    beside += sum(_linear(features, width) for features in config.global_widths)
    beside += _word_head(width, config.vocab_size) + _linear(width, config.num_region_classes)
    beside += _linear(width, config.region_width) + _linear(width, config.match_outputs)
    beside += _linear(width, width) if config.itm_pooler else 0
    layer = _post_norm(width, config.intermediate_width)
    return Network(beside, (Stack("both", config.num_layers, layer),))


def _interbert(config: InterBertConfig) -> Network:
    width = config.width
    poolers = 2 * _linear(width, config.pooled_width)
    heads = _pair_heads(config, width, config.pooled_width)
    beside = _tables(config) + _region_embedding(config.region_width, width) + poolers + heads
    layer = _post_norm(width, config.intermediate_width)
    visual = _post_norm(width, config.visual_intermediate_width)
    stacks = (
        Stack("both", config.num_interaction_layers, layer),
        Stack("texts", config.num_text_layers, layer),
        Stack("pictures", config.num_visual_layers, visual),
    )
    return Network(beside, stacks)


def _vilbert(config: VilbertConfig) -> Network:
    width, visual = config.width, config.visual_width
    poolers = _linear(width, config.co_width) + _linear(visual, config.co_width)
    beside = _tables(config) + config.num_tasks * width + poolers
    beside += _region_embedding(config.region_width, visual)
    beside += _pair_heads(config, visual, config.co_width)
    picture_layer = _post_norm(visual, config.visual_intermediate_width)
    stacks = (
        Stack("texts", config.num_layers, _post_norm(width, config.intermediate_width)),
        Stack("pictures", config.visual_num_layers, picture_layer),
        Stack("both", len(config.text_co_layers), _co_attention(config)),
    )
    return Network(beside, stacks)


def _single_stream(config: SingleStreamConfig) -> Network:
    width = config.width
    regions = _region_embedding(config.region_width, width) + config.num_segments * width
    beside = _tables(config) + regions + _linear(width, width) + _pair_heads(config, width, width)
    layer = _post_norm(width, config.intermediate_width)
    return Network(beside, (Stack("both", config.num_layers, layer),))


def _vlbert(config: VlBertConfig) -> Network:
    width, vector = config.width, config.vector_width
    beside = _text_embedding(config.vocab_size, config.num_positions, config.num_segments, width)
    beside += _linear(8 * config.num_wavelengths + config.region_width, vector)
    beside += 2 * width  # [IMG] and [END]
    beside += {"appearance": config.region_width, "vector": vector}.get(config.masked_region, 0)
    has_token = config.masked_classes and config.masked_region in ("appearance", "pixels")
    beside += width if has_token else 0
    beside += vector if config.text_only else 0
    beside += NUM_SPECIAL_WORDS * width if config.frozen_words else 0
    beside += 2 * (_norm(width) if config.visual_norm else 1)
    beside += 2 * _linear(vector, width) if vector != width else 0
    beside += _linear(width, width) if config.pooler else 0
    beside += _word_head(width, config.vocab_size) if config.masked_words else 0
    if config.masked_classes:
        beside += _linear(width, width) + _linear(width, config.num_region_classes)
    beside += _linear(width, 2) if config.matching else 0
    layer = _post_norm(width, config.intermediate_width)
    return Network(beside, (Stack("both", config.num_layers, layer),))


def _convolution(inputs: int, outputs: int, kernel: int) -> int:
    """Without bias, and the normalisation of its output."""
    return kernel**2 * inputs * outputs + _norm(outputs)


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
    model = network_of(config.model)
    return model._replace(beside=model.beside + _region_cnn(config.cnn))


def _vlmo(config: VlmoConfig) -> Network:
    width, num_fused = config.width, config.num_layers - config.first_vl_layer
    beside = _text_embedding(config.vocab_size, config.max_text_tokens, 2, width)
    beside += _patch_embedding(config) + (1 + config.num_images) * width + _norm(width)
    beside += _linear(width, width) if config.pooler else 0
    if config.relative_positions:
        rows = _relative_rows(config) + 2 * config.relative_text_span + 2
        beside += rows * config.num_layers * config.num_heads
    if config.contrast:  # two heads and a scale for each contrast
        beside += config.num_contrast_pairs * (2 * width**2 + 1)
    beside += _linear(width, 2) if config.match else 0
    if config.mlm:
        beside += _word_head(width, config.vocab_size) + config.vocab_size * width
    scaled = config.layer_scale is not None
    lower, upper = (
        _pre_norm(width, config.intermediate_width, len(config.experts_of(n)), scaled=scaled)
        for n in (0, config.first_vl_layer)
    )
    stacks = (Stack("both", config.first_vl_layer, lower), Stack("both", num_fused, upper))
    return Network(beside, stacks)


def _beit(config: BeitConfig) -> Network:
    width = config.width
    beside = _patch_embedding(config) + (_norm(width) if config.final_norm else 0)
    if config.relative_positions:
        tables = 1 if config.shared_relative else config.num_layers
        beside += tables * _relative_rows(config) * config.num_heads
    if config.num_visual_tokens:
        beside += width + _linear(width, config.num_visual_tokens)  # with the mask token
    if config.num_classes:
        beside += _linear(width, config.num_classes)
        beside += _norm(width) if config.mean_pooling else 0
    scaled = config.layer_scale is not None
    layer = _pre_norm(width, config.intermediate_width, 1, scaled=scaled)
    return Network(beside, (Stack("both", config.num_layers, layer),))


def _weight_norm(width: int, outputs: int) -> int:
    """A linear layer with a length beside its direction."""
    return _linear(width, outputs) + 1


def _vilbert_tasks(config: VilbertTasksConfig) -> Network:
    trunk = network_of(config.trunk)
    visual = pooled = config.trunk.width
    if isinstance(config.trunk, VilbertConfig):
        visual, pooled = config.trunk.visual_width, config.trunk.co_width
    heads = _linear(pooled, 1) + _linear(config.trunk.width, 1) + _linear(visual, 1)
    heads += _weight_norm(pooled, 2 * pooled) + _weight_norm(2 * pooled, config.num_answers)
    return trunk._replace(beside=trunk.beside + heads)


def _interbert_tasks(config: InterBertTasksConfig) -> Network:
    trunk, width = network_of(config.trunk), config.trunk.width
    pooled = config.trunk.pooled_width
    heads = _linear(pooled, 1) + 2 * _linear(width, 1) + _linear(pooled, config.num_answers)
    return trunk._replace(beside=trunk.beside + heads)


def _imagebert_retrieval(config: ImageBertRetrievalConfig) -> Network:
    trunk = network_of(config.trunk)
    return trunk._replace(beside=trunk.beside + _linear(config.trunk.width, 1))


def _vlbert_vqa(config: VlBertVqaConfig) -> Network:
    heads: dict[str, Any] = {"masked_words": False, "masked_classes": False, "matching": False}
    body = network_of(dataclasses.replace(config.body, **heads))
    width = config.body.width
    transform = {"mlm": _linear(width, width) + _norm(width), "1fc": 0}
    if config.classifier == "2fc":
        transform["2fc"], width = _linear(width, config.classifier_width), config.classifier_width
    head = transform[config.classifier] + _linear(width, config.num_answers)
    return body._replace(beside=body.beside + head)


def _vlbert_refcoco(config: VlBertRefcocoConfig) -> Network:
    heads: dict[str, Any] = {"masked_words": False, "masked_classes": False, "matching": False}
    body = network_of(dataclasses.replace(config.body, **heads))
    width = config.body.width
    return body._replace(beside=body.beside + _linear(width, width) + _linear(width, 1))


def _vlbert_vcr(config: VlBertVcrConfig) -> Network:
    heads: dict[str, Any] = {"masked_words": config.masked_words, "matching": False}
    body = network_of(dataclasses.replace(config.body, **heads, masked_classes=False))
    # A masked region's own token belongs to the body, a head for its class does not.
    width = pooled = config.body.width
    has_token = config.body.masked_classes and config.body.masked_region in ("appearance", "pixels")
    beside = width if has_token else 0
    if config.classifier == "2fc":
        beside += _linear(width, config.classifier_width)
        pooled = config.classifier_width
    beside += _linear(pooled, 1) + _linear(width, width) + _linear(width, config.num_categories)
    return body._replace(beside=body.beside + beside)


def _vlmo_encoder(config: VlmoConfig, head: int) -> Network:
    """An encoder without pretraining's heads, and a ``head`` of so many parameters."""
    heads: dict[str, Any] = {"contrast": False, "match": False, "mlm": False}
    encoder = network_of(dataclasses.replace(config, **heads))
    return encoder._replace(beside=encoder.beside + head)


def _two_layers(inputs: int, hidden: int, outputs: int) -> int:
    """Dense layer, norm, decoder."""
    return _linear(inputs, hidden) + _norm(hidden) + _linear(hidden, outputs)


def _vlmo_vqa(config: VlmoVqaConfig) -> Network:
    width = config.encoder.width
    head = _linear(width, config.num_answers)
    if config.two_layers:
        head = _two_layers(width, 2 * width, config.num_answers)
    return _vlmo_encoder(config.encoder, head)


def _vlmo_nlvr2(config: VlmoNlvr2Config) -> Network:
    both = 2 * config.encoder.width
    head = _two_layers(both, both, 2) if config.two_layers else _linear(both, 2)
    return _vlmo_encoder(config.encoder, head)


def _vlmo_text(config: VlmoTextConfig) -> Network:
    return _vlmo_encoder(config.encoder, _linear(config.encoder.width, config.num_labels))


def _text_classifier(config: BertTextConfig | InterBertTextConfig) -> Network:
    trunk, sizes = network_of(config.trunk), config.trunk
    pooled = sizes.width if isinstance(sizes, BertConfig) else sizes.pooled_width
    return trunk._replace(beside=trunk.beside + _linear(pooled, config.num_labels))


def _picture_classifier(config: VilbertClassifierConfig | InterBertPicturesConfig) -> Network:
    trunk, sizes = network_of(config.trunk), config.trunk
    pooled = sizes.co_width if isinstance(sizes, VilbertConfig) else sizes.pooled_width
    width = config.num_pictures * pooled
    return trunk._replace(beside=trunk.beside + _two_layers(width, width, config.num_labels))


def _vilbert_12in1(config: Vilbert12in1Config) -> Network:
    trunk, pooled = network_of(config.trunk), config.trunk.co_width
    heads = _linear(pooled, 1) + _linear(config.trunk.width, 1)
    heads += _linear(config.trunk.visual_width, 1) + _linear(pooled, 3)
    heads += _two_layers(pooled, 2 * pooled, config.num_answers)
    heads += _two_layers(pooled, 2 * pooled, config.num_gqa_answers)
    heads += _two_layers(2 * pooled, 2 * pooled, 2)
    return trunk._replace(beside=trunk.beside + heads)


NETWORKS: dict[type[Any], Callable[[Any], Network]] = {
    BeitConfig: _beit,
    BertConfig: _bert,
    BertTextConfig: _text_classifier,
    ImageBertConfig: _imagebert,
    ImageBertRetrievalConfig: _imagebert_retrieval,
    InterBertConfig: _interbert,
    InterBertPicturesConfig: _picture_classifier,
    InterBertTasksConfig: _interbert_tasks,
    InterBertTextConfig: _text_classifier,
    SingleStreamConfig: _single_stream,
    Vilbert12in1Config: _vilbert_12in1,
    VilbertClassifierConfig: _picture_classifier,
    VilbertConfig: _vilbert,
    VilbertTasksConfig: _vilbert_tasks,
    VlBertConfig: _vlbert,
    VlBertRefcocoConfig: _vlbert_refcoco,
    VlBertVcrConfig: _vlbert_vcr,
    VlBertVqaConfig: _vlbert_vqa,
    VlmoNlvr2Config: _vlmo_nlvr2,
    VlmoTextConfig: _vlmo_text,
    VlmoVqaConfig: _vlmo_vqa,
    VlBertEndToEndConfig: _vlbert_end_to_end,
    VlmoConfig: _vlmo,
}
