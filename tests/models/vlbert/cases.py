"""A tiny VL-BERT and a batch for it, for all its tests."""

from typing import Any

import torch
from tests.models.pair_cases import SIZES
from torch import nn

from vlmill.models import VLInputs
from vlmill.models.vlbert.config import VlBertConfig
from vlmill.models.vlbert.model import VlBert

TINY: dict[str, Any] = SIZES | {
    "num_positions": 14,
    "region_width": 16,
    "num_region_classes": 7,
    "num_wavelengths": 4,
    "pooler": True,
    "matching": True,
}


def tiny_config(**changes: Any) -> VlBertConfig:
    return VlBertConfig(**(TINY | changes))


def lively(model: nn.Module) -> Any:
    """Weights larger than at the start, so that everything acts; in evaluation mode."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


def tiny_model(**changes: Any) -> VlBert:
    model: VlBert = lively(VlBert(tiny_config(**changes)))
    return model


def random_batch(pairs: int = 3, tokens: int = 6, regions: int = 5) -> VLInputs:
    """Without padding; the first region of each is masked."""
    generator = torch.Generator().manual_seed(1)
    masked = torch.zeros(pairs, regions, dtype=torch.bool)
    masked[:, 1:2] = True
    return VLInputs(
        tokens=torch.randint(0, 50, (pairs, tokens), generator=generator),
        token_mask=torch.ones(pairs, tokens, dtype=torch.bool),
        region_features=torch.rand(pairs, regions, 16, generator=generator),
        region_locations=torch.rand(pairs, regions, 5, generator=generator),
        region_mask=torch.ones(pairs, regions, dtype=torch.bool),
        masked_regions=masked,
    )


def padded_batch() -> VLInputs:
    """Texts of 6, 3, 4 tokens; 5, 2, 0 regions: the last is text alone."""
    return changed(
        random_batch(),
        token_mask=torch.arange(6) < torch.tensor([[6], [3], [4]]),
        region_mask=torch.arange(5) < torch.tensor([[5], [2], [0]]),
    )


def changed(inputs: VLInputs, **parts: torch.Tensor | None) -> VLInputs:
    return VLInputs(**(vars(inputs) | parts))
