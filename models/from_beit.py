"""Initialises VLMo from BEiT (arXiv:2111.02358, sec. 3.4; released code)."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vlmill.models.beit.published import KNOWN, LAYER_TABLE, SHARED_TABLE, resize_image_table
from vlmill.models.beit.published import canonical as beit_names
from vlmill.models.beit.published import rename as beit_name
from vlmill.models.convert.files import read_state, unwrap_network, unwrap_state
from vlmill.models.convert.keymap import CheckpointMismatch, Link, import_state, link_module
from vlmill.models.from_bert import Origin, loaded_origins
from vlmill.models.layers.relative_position import num_image_rows, resize_absolute
from vlmill.models.vlmo.config import VlmoConfig
from vlmill.models.vlmo.encoder import VlmoEncoder
from vlmill.models.vlmo.published import block_links

# The feed-forward parts that are copied from BEiT: the images' (sec. 3.4), or all (the ablation
# without a text-only stage).
Experts = Literal["image", "all"]
TABLES = "blocks.*.attn.relative_position_bias_table"  # of all layers, concatenated
# Tensors of layers and of the patch embedding and final norm; positions are resized instead.
BLOCK = re.compile(r"^blocks\.(\d+)\.")
AROUND = re.compile(r"^(norm_pre|patch_embed(?!\.proj\.))\.")
WITHOUT_EFFECT = re.compile(r"relative_position_(bias_table|index)$")
GAMMA = re.compile(r"\.gamma_[12]$")


def initialise_from_beit(
    model: nn.Module, source: Mapping[str, Any] | str | Path, experts: Experts = "image"
) -> dict[str, Origin]:
    """Copies BEiT's weights into a new model; returns the origin of each parameter.

    model: has a `VlmoEncoder` as its ``encoder``. source: a state dict in the layout of the
    released code or either of Hugging Face's, or the path of such a file; nothing in it is
    executed.

    Attention, its norms, layer scales, vision experts and the patch embedding are copied from BEiT.
    So are the image's part of the relative table, resized to the model's resolution (a table that
    BEiT's layers share is copied to every layer), and the final norm, which only masked image
    modelling has. All other parameters keep their values: text, types, heads and, unless
    ``experts`` is "all", language and vision-language experts.

    Raises CheckpointMismatch (a ValueError) if a shape differs or no tensor matches, ValueError for
    another model, a ViT's weights or an unreadable file, and FileNotFoundError.
    """
    state = read_state(Path(source)) if isinstance(source, str | Path) else unwrap_state(source)
    tensors = beit_names(unwrap_network(state, beit_names, KNOWN))
    if any(name.endswith(("attn.qkv.bias", "attn.key.bias")) for name in tensors):
        raise ValueError("these are a ViT's weights, whose keys have a bias; give --family vit")
    return initialise_from_patches(model, tensors, "BEiT", experts)


def initialise_from_patches(
    model: nn.Module,
    state: dict[str, Tensor],
    family: str,
    experts: Experts,
    published: Mapping[str, str] | None = None,
) -> dict[str, Origin]:
    """Copies the weights of a patch transformer, under the names of BEiT's released code.

    ``family`` is its name in error messages, and ``published`` the tensors' names in its file;
    otherwise like `initialise_from_beit`.
    """
    encoder = getattr(model, "encoder", None)
    if not isinstance(encoder, VlmoEncoder):
        raise ValueError(f"{type(model).__name__} does not start from {family}; VLMo does")
    tensors = with_tables(state, encoder.config)
    links = beit_links(encoder.config, experts)
    _refuse_other_networks(state, links, encoder.config, published or {})
    table = import_state(model, links, tensors)
    if table.mismatched:
        raise CheckpointMismatch(
            f"{len(table.mismatched)} of {family}'s tensors have other shapes than the model's; "
            f"build it with the sizes of that {family}",
            table,
        )
    if not table.loaded:
        raise CheckpointMismatch(f"the checkpoint has no tensor of {family}", table)
    return loaded_origins(model, links, table)


def _refuse_other_networks(
    state: Mapping[str, Tensor],
    links: Sequence[Link],
    config: VlmoConfig,
    published: Mapping[str, str],
) -> None:
    """Raises ValueError for a tensor that changes the network's output and that the model lacks.
    Without it, the other tensors would have another meaning.
    """
    placed = {name for link in links for name in (*link.references, *link.also)}
    for name in sorted(state.keys() - placed):
        layer = BLOCK.match(name)
        if layer is None and not AROUND.match(name):
            continue
        if layer and (int(layer[1]) >= config.num_layers or WITHOUT_EFFECT.search(name)):
            continue
        published_name = published.get(name, name)
        if GAMMA.search(name):
            raise ValueError(
                f"{published_name}: the checkpoint's layers have scales, the model has none; add "
                "layer_scale=0.1 (the values are the checkpoint's)"
            )
        raise ValueError(
            f"{published_name} does not exist in VLMo: the checkpoint is of a network "
            "other than BEiT or ViT; start from a BEiT or ViT checkpoint"
        )


def with_tables(state: dict[str, Tensor], config: VlmoConfig) -> dict[str, Tensor]:
    """Returns ``state`` with the model's positions: its layers' tables concatenated and resized."""
    layers = {int(match[1]): name for name in state if (match := LAYER_TABLE.match(name))}
    tables = [state[layers[number]] for number in sorted(layers)]
    if SHARED_TABLE in state:
        tables = [state[SHARED_TABLE]] * config.num_layers
    tensors = dict(state)
    if tables and config.relative_positions:
        tensors[TABLES] = resize_image_table(torch.cat(tables, dim=1), config.side)
    if "pos_embed" in tensors:
        tensors["pos_embed"] = resize_absolute(tensors["pos_embed"], config.side)
    return tensors


def beit_links(config: VlmoConfig, experts: Experts = "image") -> list[Link]:
    """Returns the links from the model's tensors to BEiT's, under the released code's names."""
    patches = "encoder.patch_embedding"
    keymap = [
        *link_module(f"{patches}.projection", "patch_embed.proj"),
        Link(f"{patches}.class_token", ("cls_token",)),
        *link_module("encoder.norm", "norm"),
    ]
    if config.absolute_positions:
        keymap.append(Link(f"{patches}.position", ("pos_embed",)))
    if config.relative_positions:
        rows = num_image_rows(config.side)
        keymap.append(Link("encoder.relative.table", (TABLES,), rows=rows))
    for number in range(config.num_layers):
        takes_all = experts == "all" or not config.modality_experts
        names = config.list_experts(number) if takes_all else ("image",)
        keymap += block_links(
            f"encoder.layers.{number}",
            f"blocks.{number}",
            {name: ("norm2", "mlp") for name in names},
            scaled=config.layer_scale is not None,
        )
    return keymap


# --- from a ViT -----------------------------------------------------------------------------------

PREFIX = re.compile(r"^(vit|deit|dinov2|dinov2_with_registers)\.")
# Names of layer scales in timm and DINOv2, and in transformers' DINOv2.
SCALES = re.compile(r"\.(?:ls|layer_scale)([12])\.(?:gamma|lambda1)$")
FUSED_BIAS = re.compile(r"^(blocks\.\d+\.attn)\.qkv\.bias$")
KEY_BIAS = re.compile(r"^blocks\.\d+\.attn\.key\.bias$")
DISTILLED = re.compile(r"^(dist_token$|embeddings\.distillation_token$)")
REGISTERS = re.compile(r"^(reg_token|register_tokens|embeddings\.register_tokens)$")
POSITIONS = "pos_embed"


def vit_name(name: str) -> str:
    """Returns a tensor's name in BEiT's released code."""
    return SCALES.sub(r".gamma_\1", beit_name(PREFIX.sub("", name)))


def vit_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
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
    ViT's. source: a state dict in any layout of `vit_names`, or the path of such a file; nothing in
    it is executed. ``experts``: "image" for the vision experts only, "all" for every feed-forward
    part. Text, types and heads keep their values.

    Raises CheckpointMismatch (a ValueError) if a shape differs or no tensor matches, ValueError for
    another model, BEiT's weights or an unreadable file, and FileNotFoundError.
    """
    state = read_state(Path(source)) if isinstance(source, str | Path) else unwrap_state(source)
    state = unwrap_network(state, vit_names, KNOWN)
    tensors = vit_names(state)
    if any("relative_position_bias_table" in name for name in tensors):
        raise ValueError("these are BEiT's weights, with relative positions; give --family beit")
    side = getattr(getattr(getattr(model, "encoder", None), "config", None), "side", None)
    if POSITIONS in tensors and side is not None:
        registers = sum(t.shape[-2] for name, t in tensors.items() if REGISTERS.match(name))
        tensors[POSITIONS] = with_class_position(tensors[POSITIONS], registers, side)
    published = {vit_name(name): name for name in state}
    return initialise_from_patches(model, tensors, "ViT", experts, published)
