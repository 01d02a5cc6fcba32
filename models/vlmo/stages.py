"""Initialises one VLMo model from another's weights: stages, resolutions, tasks, BEiT."""

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vlmill.models.layers.relative_position import (
    CLASS_ROWS,
    num_text_rows,
    resize_absolute,
    resize_relative,
)
from vlmill.models.vlmo.config import VlmoConfig
from vlmill.models.vlmo.encoder import IMAGE_TYPE


def resize_table(table: Float[Tensor, "R C"], config: VlmoConfig) -> Float[Tensor, "R2 C"]:
    """Resizes the relative table to ``config``'s resolution; the last rows are copied.

    Raises ValueError for a table that cannot be resized.
    """
    num_copied = CLASS_ROWS + num_text_rows(config.relative_text_span)
    if table.shape[0] <= num_copied:
        raise ValueError(
            f"the table of relative positions has {table.shape[0]} rows and "
            f"relative_text_span={config.relative_text_span} needs {num_copied}; no row "
            "remains for images"
        )
    patches, trailing_rows = table[:-num_copied], table[-num_copied:]
    return torch.cat([resize_relative(patches, config.side), trailing_rows])


def resize_text(table: Float[Tensor, "T H"], config: VlmoConfig) -> Float[Tensor, "T2 H"]:
    """Truncates a table of text positions. Raises ValueError if it is too short."""
    if table.shape[0] < config.max_text_tokens:
        raise ValueError(
            f"the checkpoint has {table.shape[0]} text positions, max_text_tokens="
            f"{config.max_text_tokens} needs more; lower max_text_tokens"
        )
    return table[: config.max_text_tokens]


def resize_types(table: Float[Tensor, "K H"], config: VlmoConfig) -> Float[Tensor, "K2 H"]:
    """Initialises the rows of further images with the first image's; omits unneeded rows."""
    missing = 1 + config.num_images - table.shape[0]
    more = table[IMAGE_TYPE : IMAGE_TYPE + 1].expand(max(missing, 0), -1)
    return torch.cat([table, more])[: 1 + config.num_images]


# The encoder's tensors that depend on resolution, text length and number of images.
RESIZED: dict[str, Callable[[Tensor, VlmoConfig], Tensor]] = {
    "relative.table": resize_table,
    "patch_embedding.position": lambda tensor, config: resize_absolute(tensor, config.side),
    "text_embedding.position.weight": resize_text,
    "type_table.weight": resize_types,
}


def resize(name: str, tensor: Tensor, config: VlmoConfig) -> Tensor:
    """Resizes the encoder's tensor ``name`` (without ``encoder.``) to the sizes of ``config``."""
    return RESIZED[name](tensor, config) if name in RESIZED else tensor


def start_from(model: nn.Module, state: Mapping[str, Tensor], config: VlmoConfig) -> list[str]:
    """Copies the tensors that ``model`` shares with the state dict of another VLMo model of ours.

    ``config`` is the encoder's configuration of ``model``. For the next stage, another resolution
    or a task: positions are resized, and heads and experts that ``state`` lacks keep their values.
    Returns the list of these. Raises ValueError if other shapes differ.
    """
    resized = {
        name: resize(name.removeprefix("encoder."), tensor, config)
        for name, tensor in state.items()
        if not name.startswith("classifier.")  # for other answers; always new, as released
    }
    model_state = model.state_dict()
    for name in sorted(model_state.keys() & resized.keys()):
        if model_state[name].shape != resized[name].shape:
            raise ValueError(
                f"{name} is {list(model_state[name].shape)} here and {list(resized[name].shape)} "
                "in the "
                "checkpoint; give a configuration with the checkpoint's sizes"
            )
    return list(model.load_state_dict(resized, strict=False).missing_keys)
