"""Both picture tokenizers' layouts. DALL-E's has to be saved as a state dict first."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from vlmill.models.dvae import DalleBlock, DalleConfig, DalleTokenizer, Dvae, DvaeConfig
from vlmill.models.reference.family import Family
from vlmill.models.reference.keymap import Link

DALLE_PARTS = {"weight": "w", "bias": "b"}


def configure(config: Mapping[str, Any]) -> DalleConfig | DvaeConfig:
    """Of DALL-E's encoder (``n_hid``) or of the auto-encoder (``hidden_dim``)."""
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
    raise ValueError("want n_hid (DALL-E's encoder) or hidden_dim (BEiT's own tokenizer)")


def build(config: DalleConfig | DvaeConfig) -> nn.Module:
    """The tokenizer of a configuration."""
    return DalleTokenizer(config) if isinstance(config, DalleConfig) else Dvae(config)


def links(model: nn.Module) -> list[Link]:
    """Under the repositories' names; the auto-encoder's are ours."""
    if isinstance(model, Dvae):
        return [Link(name, (name,)) for name in model.state_dict()]
    assert isinstance(model, DalleTokenizer)
    named = {"first": "blocks.input", "last": "blocks.output.conv"}
    for group, blocks in enumerate(model.groups):
        assert isinstance(blocks, nn.ModuleList)
        for number, block in enumerate(blocks):
            assert isinstance(block, DalleBlock)
            ours = f"groups.{group}.{number}"
            theirs = f"blocks.group_{group + 1}.block_{number + 1}"
            if isinstance(block.identity, nn.Conv2d):
                named[f"{ours}.identity"] = f"{theirs}.id_path"
            for layer in range(len(block.convolutions)):
                named[f"{ours}.convolutions.{layer}"] = f"{theirs}.res_path.conv_{layer + 1}"
    return [
        Link(f"{ours}.{part}", (f"{theirs}.{letter}",))
        for ours, theirs in named.items()
        for part, letter in DALLE_PARTS.items()
    ]


DVAE = Family(configure=configure, build=build, links=links)
