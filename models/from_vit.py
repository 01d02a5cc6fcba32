"""Initialises VLMo from a ViT, as in its ablation of experts (arXiv:2111.02358)."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vlmill.models.beit.published import KNOWN
from vlmill.models.beit.published import canonical as beit_names
from vlmill.models.beit.published import rename as beit_name
from vlmill.models.convert.files import read_state, unwrap_state
from vlmill.models.convert.wrapped import unwrap_network
from vlmill.models.from_beit import Experts, initialise_from_patches
from vlmill.models.from_bert import Origin

PREFIX = re.compile(r"^(vit|deit|dinov2|dinov2_with_registers)\.")
# Names of layer scales in timm and DINOv2, and in transformers' DINOv2.
SCALES = re.compile(r"\.(?:ls|layer_scale)([12])\.(?:gamma|lambda1)$")
FUSED_BIAS = re.compile(r"^(blocks\.\d+\.attn)\.qkv\.bias$")
KEY_BIAS = re.compile(r"^blocks\.\d+\.attn\.key\.bias$")
DISTILLED = re.compile(r"^(dist_token$|embeddings\.distillation_token$)")
REGISTERS = re.compile(r"^(reg_token|register_tokens|embeddings\.register_tokens)$")
POSITIONS = "pos_embed"


def rename(name: str) -> str:
    """Returns a tensor's name in BEiT's released code."""
    return SCALES.sub(r".gamma_\1", beit_name(PREFIX.sub("", name)))


def canonical(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Renames a ViT's state dict to the names of BEiT's released code.

    The names show the layout: that of DeiT, timm and DINOv2 (``blocks.0.attn.qkv.bias``), or one of
    Hugging Face's two (``vit.encoder.layer.0.attention.attention.query.bias``, with and without the
    prefix, and ``layers.0.attention.q_proj.bias``). A bias of keys is omitted: it adds the same
    number to all scores of a query, which does not change the softmax. DeiT's distillation token
    and its position are omitted too. Register tokens keep their names, since VLMo has none.
    """
    names = beit_names(
        {SCALES.sub(r".gamma_\1", PREFIX.sub("", name)): t for name, t in state.items()}
    )
    tensors: dict[str, Tensor] = {}
    for name, tensor in names.items():
        if match := FUSED_BIAS.match(name):
            query, _, value = tensor.chunk(3)
            tensors |= {f"{match[1]}.q_bias": query, f"{match[1]}.v_bias": value}
        elif not KEY_BIAS.match(name) and not DISTILLED.match(name):
            tensors[name] = tensor
    if any(DISTILLED.match(name) for name in names) and POSITIONS in tensors:
        positions = tensors[POSITIONS]
        tensors[POSITIONS] = torch.cat([positions[:, :1], positions[:, 2:]], dim=1)
    return tensors


def num_registers(state: Mapping[str, Tensor]) -> int:
    """Counts the register tokens, which are [1, R, width]."""
    return sum(tensor.shape[-2] for name, tensor in state.items() if REGISTERS.match(name))


def with_class_position(positions: Tensor, registers: int, side: int) -> Float[Tensor, "1 M D"]:
    """Returns a table of positions with the class token's row first, without registers' rows.

    A table of only a square of patches, as with timm's ``no_embed_class`` (DeiT III), gets a row of
    zeros, since its class token has no position. If several layouts fit the number of rows, the one
    with ``side`` patches per side is used.

    Raises ValueError for a shape other than [1, positions, width], for a number of rows that no
    layout has, and if several layouts fit.
    """
    shape = list(positions.shape)
    if len(shape) != 3 or shape[0] != 1:
        raise ValueError(f"{POSITIONS} is {shape}, expected [1, positions, width]")
    before = sorted({0, 1, 1 + registers})
    sides = {first: math.isqrt(shape[1] - first) for first in before if shape[1] > first}
    fitting = [first for first, root in sides.items() if root * root == shape[1] - first]
    chosen = [first for first in fitting if sides[first] == side] or fitting
    if len(chosen) != 1:
        layouts = "a class token and a square of patches, or the square alone"
        if registers:
            layouts += f", or a class token, {registers} registers and the square"
        which = "; several of these fit: give an image_size that matches only one"
        raise ValueError(
            f"{POSITIONS} has {shape[1]} positions, expected the number for {layouts}"
            + (which if chosen else "")
        )
    first = chosen[0]
    if first == 0:
        return torch.cat([torch.zeros_like(positions[:, :1]), positions], dim=1)
    return torch.cat([positions[:, :1], positions[:, first:]], dim=1)


def initialise_from_vit(
    model: nn.Module, source: Mapping[str, Any] | str | Path, experts: Experts = "image"
) -> dict[str, Origin]:
    """Copies a ViT's weights into a new model; returns the origin of each parameter.

    model: has a `VlmoEncoder` as its ``encoder``; only a model with absolute positions takes the
    ViT's. source: a state dict in any layout of `canonical`, or the path of such a file; nothing in
    it is executed. ``experts``: "image" for the vision experts only, "all" for every feed-forward
    part. Text, types and heads keep their values.

    Raises CheckpointMismatch (a ValueError) if a shape differs or no tensor matches, ValueError for
    another model, BEiT's weights or an unreadable file, and FileNotFoundError.
    """
    state = read_state(Path(source)) if isinstance(source, str | Path) else unwrap_state(source)
    state = unwrap_network(state, canonical, KNOWN)
    tensors = canonical(state)
    if any("relative_position_bias_table" in name for name in tensors):
        raise ValueError("these are BEiT's weights, with relative positions; give --family beit")
    side = getattr(getattr(getattr(model, "encoder", None), "config", None), "side", None)
    if POSITIONS in tensors and side is not None:
        registers = num_registers(tensors)
        tensors[POSITIONS] = with_class_position(tensors[POSITIONS], registers, side)
    published = {rename(name): name for name in state}
    return initialise_from_patches(model, tensors, "ViT", experts, published)
