"""Reads and writes BEiT's checkpoints: the released layout and Hugging Face's two."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vlmill.models.beit.config import BeitConfig
from vlmill.models.beit.dvae import DalleConfig, DalleTokenizer, Dvae, DvaeConfig
from vlmill.models.beit.model import EXPERT, Beit
from vlmill.models.convert.files import without_prefix
from vlmill.models.convert.keymap import Family, Link, link_module
from vlmill.models.layers.relative_position import (
    CLASS_ROWS,
    image_index,
    resize_absolute,
    resize_relative,
)
from vlmill.models.vlmo.published import block_links

TABLE = "relative_position_bias_table"
SHARED_TABLE = f"rel_pos_bias.{TABLE}"
LAYER_TABLE = re.compile(rf"^blocks\.(\d+)\.attn\.{TABLE}$")

# Keys of the configurations of the released code and of transformers, and our fields.
FIELDS = {
    "embed_dim": "width",
    "hidden_size": "width",
    "depth": "num_layers",
    "num_hidden_layers": "num_layers",
    "num_heads": "num_heads",
    "num_attention_heads": "num_heads",
    "intermediate_size": "intermediate_width",
    "img_size": "image_size",
    "image_size": "image_size",
    "patch_size": "patch_size",
    "use_shared_rel_pos_bias": "shared_relative",
    "use_shared_relative_position_bias": "shared_relative",
    "use_abs_pos_emb": "absolute_positions",
    "use_absolute_position_embeddings": "absolute_positions",
    "drop_path_rate": "drop_path",
    "layer_norm_eps": "eps",
    "use_mean_pooling": "mean_pooling",
    "initializer_range": "init_std",
}


def configure(config: Mapping[str, Any]) -> BeitConfig:
    """Reads a configuration from the released code's settings or transformers' config.json.

    ``num_classes`` (``num_labels``, ``id2label``) selects a classifier, otherwise ``vocab_size``
    selects the head of masked image modelling.
    """
    fields = {field: config[key] for key, field in FIELDS.items() if key in config}
    if "width" not in fields:
        raise ValueError("no embed_dim or hidden_size: expected BEiT's settings or config.json")
    per_layer = config.get("use_rel_pos_bias", config.get("use_relative_position_bias", False))
    if per_layer and fields.get("shared_relative"):
        raise ValueError(
            "use_rel_pos_bias and use_shared_rel_pos_bias: a table for each layer in "
            "addition to the shared one is not supported; set only one of the two"
        )
    fields["relative_positions"] = bool(per_layer or fields.get("shared_relative"))
    fields["shared_relative"] = bool(fields.get("shared_relative", not per_layer))
    if "intermediate_width" not in fields:
        fields["intermediate_width"] = round(fields["width"] * config.get("mlp_ratio", 4))
    start = config.get("layer_scale_init_value", 0.1 if config.get("layer_scale", True) else 0.0)
    fields["layer_scale"] = start or None
    architectures = config.get("architectures") or [""]
    labels = config.get("num_labels", len(config.get("id2label", ())))
    if config.get("num_classes"):
        classes = int(config["num_classes"])
    else:
        classes = labels if "Classification" in architectures[0] else 0
    tokens = 0 if classes else config.get("vocab_size") or 0
    return BeitConfig(**fields, num_classes=classes, num_visual_tokens=tokens)


RENAMES = (
    (re.compile(r"^beit\."), ""),
    (re.compile(r"^embeddings\.patch_embeddings\.projection\."), "patch_embed.proj."),
    (re.compile(r"^embeddings\.(cls_token|mask_token)$"), r"\1"),
    (re.compile(r"^embeddings\.position_embeddings$"), "pos_embed"),
    (
        re.compile(rf"^(encoder\.relative_position_bias|shared_position_bias)\.{TABLE}$"),
        SHARED_TABLE,
    ),
    (re.compile(r"^(encoder\.layer|layers)\."), "blocks."),
    (
        re.compile(rf"^(blocks\.\d+)\.(attention\.attention\.)?relative_position_bias\.{TABLE}$"),
        rf"\1.attn.{TABLE}",
    ),
    (re.compile(r"\.attention\.attention\.(query|key|value)\."), r".attn.\1."),
    (re.compile(r"\.attention\.q_proj\."), ".attn.query."),
    (re.compile(r"\.attention\.k_proj\."), ".attn.key."),
    (re.compile(r"\.attention\.v_proj\."), ".attn.value."),
    (re.compile(r"\.attention\.(output\.dense|o_proj)\."), ".attn.proj."),
    (re.compile(r"^(blocks\.\d+)\.intermediate\.dense\."), r"\1.mlp.fc1."),
    (re.compile(r"^(blocks\.\d+)\.output\.dense\."), r"\1.mlp.fc2."),
    (re.compile(r"\.layernorm_before\."), ".norm1."),
    (re.compile(r"\.layernorm_after\."), ".norm2."),
    (re.compile(r"\.lambda_([12])$"), r".gamma_\1"),
    (re.compile(r"^pooler\.layernorm\."), "fc_norm."),
    (re.compile(r"^layernorm\."), "norm."),
    (re.compile(r"^classifier\."), "head."),
)
# Tensors that show where a network on patches is in a larger one.
KNOWN = frozenset(("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.norm1.weight"))
QUERY = re.compile(r"^(blocks\.\d+\.attn)\.query\.weight$")


def rename(name: str) -> str:
    """Returns a tensor's name in the released code."""
    for pattern, replacement in RENAMES:
        name = pattern.sub(replacement, name)
    return name


def canonical(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Renames a BEiT state dict of any layout to the released names, with q, k and v fused."""
    renamed = {rename(n): tensor for n, tensor in without_prefix(state, "backbone.").items()}
    for name in list(renamed):
        if match := QUERY.match(name):
            base = match[1]
            names = [f"{base}.{part}.weight" for part in ("query", "key", "value")]
            if any(part not in renamed for part in names):
                continue
            parts = [renamed.pop(part) for part in names]
            renamed[f"{base}.qkv.weight"] = torch.cat(parts)
            for part, letter in (("query", "q"), ("value", "v")):
                if f"{base}.{part}.bias" in renamed:
                    renamed[f"{base}.{letter}_bias"] = renamed.pop(f"{base}.{part}.bias")
    return renamed


def links(model: nn.Module) -> list[Link]:
    """Links our tensors to the released code's names."""
    assert isinstance(model, Beit)
    config = model.config
    keymap = [
        *link_module("patch_embedding.projection", "patch_embed.proj"),
        Link("patch_embedding.class_token", ("cls_token",)),
    ]
    if config.absolute_positions:
        keymap.append(Link("patch_embedding.position", ("pos_embed",)))
    if config.final_norm:
        keymap += link_module("norm", "norm")
    if config.num_visual_tokens:
        keymap.append(Link("mask_token", ("mask_token",)))
        keymap += link_module("visual_head", "lm_head")
    if config.num_classes:
        keymap += link_module("pooled_norm", "fc_norm") if config.mean_pooling else []
        keymap += link_module("class_head", "head")
    for number in range(len(model.relative)):
        name = SHARED_TABLE if config.shared_relative else f"blocks.{number}.attn.{TABLE}"
        keymap.append(Link(f"relative.{number}.table", (name,)))
    for number in range(config.num_layers):
        experts = {EXPERT: ("norm2", "mlp")}
        scaled = config.layer_scale is not None
        keymap += block_links(f"layers.{number}", f"blocks.{number}", experts, scaled=scaled)
    return keymap


def fit(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Resizes positions to the model; copies the shared table to every layer that has its own."""
    assert isinstance(model, Beit)
    config = model.config
    fitted = dict(state)
    if "pos_embed" in fitted:
        fitted["pos_embed"] = resize_absolute(fitted["pos_embed"], config.side)
    if SHARED_TABLE in fitted and config.relative_positions and not config.shared_relative:
        shared = fitted.pop(SHARED_TABLE)
        names = [f"blocks.{number}.attn.{TABLE}" for number in range(config.num_layers)]
        fitted |= dict.fromkeys(names, shared)
    for name in fitted:
        if name == SHARED_TABLE or LAYER_TABLE.match(name):
            fitted[name] = resize_image_table(fitted[name], config.side)
    return fitted


def resize_image_table(table: Tensor, side: int) -> Tensor:
    """Resizes a relative table of patches and class token; the last rows are copied."""
    patches, class_rows = table[:-CLASS_ROWS], table[-CLASS_ROWS:]
    return torch.cat([resize_relative(patches, side), class_rows])


def build_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Builds the index matrices that the released code keeps as buffers."""
    assert isinstance(model, Beit)
    config = model.config
    if not config.relative_positions:
        return {}
    index = image_index(config.side)
    if config.shared_relative:
        return {"rel_pos_bias.relative_position_index": index}
    names = (f"blocks.{i}.attn.relative_position_index" for i in range(config.num_layers))
    return dict.fromkeys(names, index)


IGNORED = ("*relative_position_index",)

BEIT = Family(
    configs=(BeitConfig,),
    configure=configure,
    build=Beit,
    links=links,
    prepare=canonical,
    ignored=IGNORED,
    fit=fit,
    build_buffers=build_buffers,
)

# --- the tokenizer of DALL-E ----------------------------------------------------------------------

DALLE_PARTS = {"weight": "w", "bias": "b"}


def configure_dvae(config: Mapping[str, Any]) -> DalleConfig | DvaeConfig:
    """Reads the settings of DALL-E's encoder (``n_hid``) or the auto-encoder (``hidden_dim``)."""
    if "n_hid" in config:
        return DalleConfig(
            num_tokens=config["vocab_size"],
            width=config["n_hid"],
            num_groups=config.get("group_count", 4),
            blocks_per_group=config.get("n_blk_per_group", 2),
        )
    if "hidden_dim" in config:
        return DvaeConfig(
            num_tokens=config["num_tokens"],
            width=config["hidden_dim"],
            num_layers=config.get("num_layers", 3),
            codebook_width=config["codebook_dim"],
        )
    raise ValueError("expected n_hid (DALL-E's encoder) or hidden_dim (BEiT's own tokenizer)")


def sizes(state: Mapping[str, Tensor]) -> DalleConfig | DvaeConfig:
    """Returns the configuration of the tokenizer in a state dict, from its names and shapes.

    Raises ValueError for any other state dict.
    """
    if "blocks.input.w" in state and "blocks.output.conv.w" in state:
        matches = [re.match(r"blocks\.group_(\d+)\.block_(\d+)\.", name) for name in state]
        blocks = [(int(m[1]), int(m[2])) for m in matches if m]
        return DalleConfig(
            num_tokens=len(state["blocks.output.conv.w"]),
            width=len(state["blocks.input.w"]),
            num_groups=max((group for group, _ in blocks), default=0),
            blocks_per_group=max((block for _, block in blocks), default=0),
        )
    if "codebook.weight" in state and "encoder.0.0.weight" in state:
        tokens, width = state["codebook.weight"].shape
        stages = {m[1] for name in state if (m := re.match(r"encoder\.(\d+)\.net\.", name))}
        return DvaeConfig(
            num_tokens=tokens,
            width=len(state["encoder.0.0.weight"]),
            num_layers=len(stages),
            codebook_width=width,
        )
    raise ValueError("no tokenizer of images")


OURS = re.compile(r"^groups\.(\d+)\.(\d+)\.(identity|convolutions\.(\d+))\.(weight|bias)$")
ENDS = {"first": "blocks.input", "last": "blocks.output.conv"}


def prepare(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Renames weights to DALL-E's names, also from ours. The auto-encoder's names are ours."""
    return {_official(name): tensor for name, tensor in state.items()}


def _official(name: str) -> str:
    if match := OURS.match(name):
        group, block = int(match[1]) + 1, int(match[2]) + 1
        path = "id_path" if match[4] is None else f"res_path.conv_{int(match[4]) + 1}"
        return f"blocks.group_{group}.block_{block}.{path}.{DALLE_PARTS[match[5]]}"
    module, _, part = name.rpartition(".")
    return f"{ENDS[module]}.{DALLE_PARTS[part]}" if module in ENDS else name


def build(config: DalleConfig | DvaeConfig) -> nn.Module:
    """Builds the tokenizer of a configuration."""
    return DalleTokenizer(config) if isinstance(config, DalleConfig) else Dvae(config)


def dvae_links(model: nn.Module) -> list[Link]:
    """Links our tensors to the repositories' names. The auto-encoder's names are ours."""
    if isinstance(model, Dvae):
        return [Link(name, (name,)) for name in model.state_dict()]
    assert isinstance(model, DalleTokenizer)
    return [Link(name, (_official(name),)) for name in model.state_dict()]


DVAE = Family(
    configs=(DalleConfig, DvaeConfig),
    configure=configure_dvae,
    build=build,
    links=dvae_links,
    prepare=prepare,
    sizes=sizes,
)
