"""VLMo starts from a ViT here, as in its ablation of experts (arXiv:2111.02358)."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vlmill.models.beit.published import canonical as beit_names
from vlmill.models.convert.files import read_state, unwrapped
from vlmill.models.from_beit import Experts, initialise_from_patches
from vlmill.models.from_bert import Origin

PREFIX = re.compile(r"^(vit|deit)\.")
FUSED_BIAS = re.compile(r"^(blocks\.\d+\.attn)\.qkv\.bias$")
KEY_BIAS = re.compile(r"^blocks\.\d+\.attn\.key\.bias$")
DISTILLED = re.compile(r"^(dist_token$|embeddings\.distillation_token$)")


def canonical(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Renames a ViT's state dict as BEiT's released code has its own.

    Layouts, known by their names: that of DeiT and timm (``blocks.0.attn.qkv.bias``), and Hugging
    Face's two (``vit.encoder.layer.0.attention.attention.query.bias``, with and without the
    prefix, and ``layers.0.attention.q_proj.bias``). A bias of keys is left out: it adds one number
    to all scores of a query, which the softmax takes away again. So are DeiT's distillation token
    and its position.
    """
    names = beit_names({PREFIX.sub("", name): tensor for name, tensor in state.items()})
    tensors: dict[str, Tensor] = {}
    for name, tensor in names.items():
        if match := FUSED_BIAS.match(name):
            query, _, value = tensor.chunk(3)
            tensors |= {f"{match[1]}.q_bias": query, f"{match[1]}.v_bias": value}
        elif not KEY_BIAS.match(name) and not DISTILLED.match(name):
            tensors[name] = tensor
    if any(DISTILLED.match(name) for name in names) and "pos_embed" in tensors:
        positions = tensors["pos_embed"]
        tensors["pos_embed"] = torch.cat([positions[:, :1], positions[:, 2:]], dim=1)
    return tensors


def initialise_from_vit(
    model: nn.Module, source: Mapping[str, Any] | str | Path, experts: Experts = "image"
) -> dict[str, Origin]:
    """Copies a ViT's weights into a new model; says where each parameter now comes from.

    model: one with a `VlmoEncoder` as its ``encoder``; only one with absolute positions takes the
    ViT's. source: a state dict in any layout of `canonical`, or the path of such a file; nothing in
    it is executed. ``experts``: "image" for the vision experts alone, "all" for every feed-forward
    part. Text, types and heads stay as they were built.

    Raises CheckpointMismatch (a ValueError) where a shape differs or nothing fits, ValueError for
    another model, BEiT's weights or an unreadable file, and FileNotFoundError.
    """
    state = read_state(Path(source)) if isinstance(source, str | Path) else unwrapped(source)
    theirs = canonical(state)
    if any("relative_position_bias_table" in name for name in theirs):
        raise ValueError("these are BEiT's weights, with relative positions; give --family beit")
    return initialise_from_patches(model, theirs, "ViT", experts)
