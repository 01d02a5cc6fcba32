"""Reads checkpoints of image tokenizers. DALL-E's must be saved as a state dict first."""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from vlmill.models.beit.dvae import DalleConfig, DalleTokenizer, Dvae, DvaeConfig
from vlmill.models.convert.family import Family
from vlmill.models.convert.keymap import Link

DALLE_PARTS = {"weight": "w", "bias": "b"}


def configure(config: Mapping[str, Any]) -> DalleConfig | DvaeConfig:
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


def links(model: nn.Module) -> list[Link]:
    """Links our tensors to the repositories' names. The auto-encoder's names are ours."""
    if isinstance(model, Dvae):
        return [Link(name, (name,)) for name in model.state_dict()]
    assert isinstance(model, DalleTokenizer)
    return [Link(name, (_official(name),)) for name in model.state_dict()]


DVAE = Family(
    configs=(DalleConfig, DvaeConfig),
    configure=configure,
    build=build,
    links=links,
    prepare=prepare,
    sizes=sizes,
)
