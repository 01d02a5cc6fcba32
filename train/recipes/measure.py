"""Measures a model's size on the meta device, without memory for its weights."""

from typing import Any

import torch
from torch import nn

from vlmill.models.registry import get_variant


def measure_model(variant: str, config: Any) -> tuple[int, int, int, int]:
    """Builds a configuration's model on the meta device and returns the numbers of
    `vlmill.train.recipes.describe.ModelSize`.

    Stacks of layers are the lists of modules named ``*layers``: ``text_layers`` read texts,
    ``visual_layers`` images, all others both.
    """
    row = get_variant(variant)
    with torch.device("meta"):
        model: nn.Module = row.build(config)
    stored = {"text_layers": 0, "visual_layers": 0, "": 0}
    for path, part in row.get_body(model).named_modules():
        name = path.rpartition(".")[2]
        if isinstance(part, nn.ModuleList) and name.endswith("layers"):
            stored[name if name in stored else ""] += sum(map(_kept_values, part))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return parameters, stored["text_layers"], stored["visual_layers"], stored[""]


def _kept_values(layer: nn.Module) -> int:
    """Returns the inputs and outputs of a layer's linear layers for a row; it has one expert."""
    experts = getattr(layer, "experts", None)
    unused = list(experts.values())[1:] if isinstance(experts, nn.ModuleDict) else []
    skipped = {part for expert in unused for part in expert.modules()}
    return sum(
        part.in_features + part.out_features
        for part in layer.modules()
        if isinstance(part, nn.Linear) and part not in skipped
    )
