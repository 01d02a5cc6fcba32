"""The parameters of the networks that are pretrained, and what their layers keep, are counted here
from their configurations.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from vlmill.models.beit.config import BeitConfig
from vlmill.models.bert.config import BertConfig
from vlmill.models.imagebert.config import ImageBertConfig
from vlmill.models.interbert.config import InterBertConfig
from vlmill.models.vilbert.config import SingleStreamConfig, VilbertConfig
from vlmill.models.vlbert.config import NUM_SPECIAL_WORDS, VlBertConfig
from vlmill.models.vlmo.config import VlmoConfig

BOX_NUMBERS = 5  # corners and area
COLOURS = 3


class Layer(NamedTuple):
    """A layer's parameters, and the inputs and outputs of its linear layers for one row."""

    parameters: int
    activations: int


class Stack(NamedTuple):
    """Layers of one kind over the rows of texts, of images, or of both."""

    rows: Literal["texts", "pictures", "both"]
    num_layers: int
    layer: Layer


class Network(NamedTuple):
    """The stacks of layers, and the parameters of embeddings and heads beside them."""

    other_parameters: int
    stacks: tuple[Stack, ...]

    @property
    def parameters(self) -> int:
        """All of them, trained or not."""
        return self.other_parameters + sum(
            stack.num_layers * stack.layer.parameters for stack in self.stacks
        )


def linear(inputs: int, outputs: int) -> int:
    """A linear layer's weights and bias."""
    return (inputs + 1) * outputs


def norm(width: int) -> int:
    """A layer norm's gain and bias."""
    return 2 * width


def _feed_forward(width: int, intermediate: int) -> int:
    return linear(width, intermediate) + linear(intermediate, width)


def _post_norm(width: int, intermediate: int) -> Layer:
    attention = linear(width, 3 * width) + linear(width, width)
    parameters = attention + _feed_forward(width, intermediate) + 2 * norm(width)
    return Layer(parameters, 6 * width + 2 * (width + intermediate))


def _pre_norm(width: int, intermediate: int, num_experts: int, *, scaled: bool) -> Layer:
    """Its keys have no bias; each row takes one expert."""
    attention = linear(width, 3 * width) - width + linear(width, width) + norm(width)
    expert = _feed_forward(width, intermediate) + norm(width)
    scales = 2 * width if scaled else 0
    activations = 6 * width + 2 * (width + intermediate)
    return Layer(attention + num_experts * expert + scales, activations)


def _co_attention(config: VilbertConfig) -> Layer:
    parameters = activations = 0
    for width, intermediate in (
        (config.visual_width, config.visual_intermediate_width),
        (config.width, config.intermediate_width),
    ):
        attention = linear(width, 3 * config.co_width) + linear(config.co_width, width)
        parameters += attention + _feed_forward(width, intermediate) + 2 * norm(width)
        activations += 2 * width + 4 * config.co_width + 2 * (width + intermediate)
    return Layer(parameters, activations)


def _text_embedding(vocab_size: int, num_positions: int, num_segments: int, width: int) -> int:
    return (vocab_size + num_positions + num_segments) * width + norm(width)


def _region_embedding(region_width: int, width: int) -> int:
    return linear(region_width, width) + linear(BOX_NUMBERS, width) + norm(width)


def _patch_embedding(config: BeitConfig | VlmoConfig) -> int:
    positions = config.side**2 + 1 if config.absolute_positions else 0
    patch = COLOURS * config.patch_size**2
    return linear(patch, config.width) + (1 + positions) * config.width


def _relative_rows(config: BeitConfig | VlmoConfig) -> int:
    """Offsets between patches, and the class token's three."""
    return (2 * config.side - 1) ** 2 + 3


def _word_head(width: int, vocab_size: int) -> int:
    """The word table is the decoder, and counted there."""
    return linear(width, width) + norm(width) + vocab_size


def _pair_heads(
    config: VilbertConfig | InterBertConfig | SingleStreamConfig, visual_width: int, pooled: int
) -> int:
    regress = getattr(config, "regress_features", False)
    outputs = config.region_width if regress else config.num_region_classes
    transform = linear(visual_width, visual_width) + norm(visual_width)
    region_head = transform + linear(visual_width, outputs)
    return _word_head(config.width, config.vocab_size) + region_head + linear(pooled, 2)


def _tables(config: BertConfig | VilbertConfig | InterBertConfig | SingleStreamConfig) -> int:
    return _text_embedding(
        config.vocab_size, config.num_positions, config.num_segments, config.width
    )


def _bert(config: BertConfig) -> Network:
    width = config.width
    heads = _word_head(width, config.vocab_size) + linear(width, 2)
    layer = _post_norm(width, config.intermediate_width)
    other_parameters = _tables(config) + linear(width, width) + heads
    return Network(other_parameters, (Stack("both", config.num_layers, layer),))


def _imagebert(config: ImageBertConfig) -> Network:
    width = config.width
    other_parameters = _text_embedding(config.vocab_size, config.num_positions, 2, width)
    other_parameters += _region_embedding(config.region_width, width)
    other_parameters += 2 * norm(width) if config.image_pre_ln else 0
    other_parameters += sum(linear(features, width) for features in config.global_widths)
    other_parameters += _word_head(width, config.vocab_size) + linear(
        width, config.num_region_classes
    )
    other_parameters += linear(width, config.region_width) + linear(width, config.match_outputs)
    other_parameters += linear(width, width) if config.itm_pooler else 0
    layer = _post_norm(width, config.intermediate_width)
    return Network(other_parameters, (Stack("both", config.num_layers, layer),))


def _interbert(config: InterBertConfig) -> Network:
    width = config.width
    poolers = 2 * linear(width, config.pooled_width)
    heads = _pair_heads(config, width, config.pooled_width)
    other_parameters = (
        _tables(config) + _region_embedding(config.region_width, width) + poolers + heads
    )
    layer = _post_norm(width, config.intermediate_width)
    visual = _post_norm(width, config.visual_intermediate_width)
    stacks = (
        Stack("both", config.num_interaction_layers, layer),
        Stack("texts", config.num_text_layers, layer),
        Stack("pictures", config.num_visual_layers, visual),
    )
    return Network(other_parameters, stacks)


def _vilbert(config: VilbertConfig) -> Network:
    width, visual = config.width, config.visual_width
    poolers = linear(width, config.co_width) + linear(visual, config.co_width)
    other_parameters = _tables(config) + config.num_tasks * width + poolers
    other_parameters += _region_embedding(config.region_width, visual)
    other_parameters += _pair_heads(config, visual, config.co_width)
    image_layer = _post_norm(visual, config.visual_intermediate_width)
    stacks = (
        Stack("texts", config.num_layers, _post_norm(width, config.intermediate_width)),
        Stack("pictures", config.visual_num_layers, image_layer),
        Stack("both", len(config.text_co_layers), _co_attention(config)),
    )
    return Network(other_parameters, stacks)


def _single_stream(config: SingleStreamConfig) -> Network:
    width = config.width
    regions = _region_embedding(config.region_width, width) + config.num_segments * width
    other_parameters = (
        _tables(config) + regions + linear(width, width) + _pair_heads(config, width, width)
    )
    layer = _post_norm(width, config.intermediate_width)
    return Network(other_parameters, (Stack("both", config.num_layers, layer),))


def _vlbert(config: VlBertConfig) -> Network:
    width, vector = config.width, config.vector_width
    other_parameters = _text_embedding(
        config.vocab_size, config.num_positions, config.num_segments, width
    )
    other_parameters += linear(8 * config.num_wavelengths + config.region_width, vector)
    other_parameters += 2 * width  # [IMG] and [END]
    other_parameters += {"appearance": config.region_width, "vector": vector}.get(
        config.masked_region, 0
    )
    has_token = config.masked_classes and config.masked_region in ("appearance", "pixels")
    other_parameters += width if has_token else 0
    other_parameters += vector if config.text_only else 0
    other_parameters += NUM_SPECIAL_WORDS * width if config.frozen_words else 0
    other_parameters += 2 * (norm(width) if config.visual_norm else 1)
    other_parameters += 2 * linear(vector, width) if vector != width else 0
    other_parameters += linear(width, width) if config.pooler else 0
    other_parameters += _word_head(width, config.vocab_size) if config.masked_words else 0
    if config.masked_classes:
        other_parameters += linear(width, width) + linear(width, config.num_region_classes)
    other_parameters += linear(width, 2) if config.matching else 0
    layer = _post_norm(width, config.intermediate_width)
    return Network(other_parameters, (Stack("both", config.num_layers, layer),))


def _vlmo(config: VlmoConfig) -> Network:
    width, num_fused = config.width, config.num_layers - config.first_vl_layer
    other_parameters = _text_embedding(config.vocab_size, config.max_text_tokens, 2, width)
    other_parameters += _patch_embedding(config) + (1 + config.num_images) * width + norm(width)
    other_parameters += linear(width, width) if config.pooler else 0
    if config.relative_positions:
        rows = _relative_rows(config) + 2 * config.relative_text_span + 2
        other_parameters += rows * config.num_layers * config.num_heads
    if config.contrast:  # two heads and a scale for each contrast
        other_parameters += config.num_contrast_pairs * (2 * width**2 + 1)
    other_parameters += linear(width, 2) if config.match else 0
    if config.mlm:
        other_parameters += _word_head(width, config.vocab_size) + config.vocab_size * width
    scaled = config.layer_scale is not None
    lower, upper = (
        _pre_norm(width, config.intermediate_width, len(config.list_experts(n)), scaled=scaled)
        for n in (0, config.first_vl_layer)
    )
    stacks = (Stack("both", config.first_vl_layer, lower), Stack("both", num_fused, upper))
    return Network(other_parameters, stacks)


def _beit(config: BeitConfig) -> Network:
    width = config.width
    other_parameters = _patch_embedding(config) + (norm(width) if config.final_norm else 0)
    if config.relative_positions:
        tables = 1 if config.shared_relative else config.num_layers
        other_parameters += tables * _relative_rows(config) * config.num_heads
    if config.num_visual_tokens:
        other_parameters += width + linear(width, config.num_visual_tokens)  # with the mask token
    if config.num_classes:
        other_parameters += linear(width, config.num_classes)
        other_parameters += norm(width) if config.mean_pooling else 0
    scaled = config.layer_scale is not None
    layer = _pre_norm(width, config.intermediate_width, 1, scaled=scaled)
    return Network(other_parameters, (Stack("both", config.num_layers, layer),))


TRUNKS: dict[type[Any], Callable[[Any], Network]] = {
    BeitConfig: _beit,
    BertConfig: _bert,
    ImageBertConfig: _imagebert,
    InterBertConfig: _interbert,
    SingleStreamConfig: _single_stream,
    VilbertConfig: _vilbert,
    VlBertConfig: _vlbert,
    VlmoConfig: _vlmo,
}
