"""Dropout that draws its random numbers fast on a CPU."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 1 << 16  # the rate is rounded to so many: 0.1 becomes 0.100006
LOWEST = -(LEVELS // 2)


def draw_kept(like: Tensor, rate: float) -> Tensor | None:
    """Factors of the shape of ``like``: 0 with chance ``rate``, else 1 / (1 - ``rate``).

    On a CPU. None if the rate rounds to 0. PyTorch draws 32 bits for each float32 there, one after
    the other, which was 3 % of a training step; here four numbers share a draw of 64. Clamping to
    two neighbours makes the factors, which PyTorch vectorises; comparing and choosing it does not,
    at a tenth of the speed.
    """
    dropped = min(round(rate * LEVELS), LEVELS - 1)
    if dropped == 0:
        return None
    draws = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
    first_kept = LOWEST + dropped
    sides = draws.view(torch.int16)[: like.numel()].clamp_(first_kept - 1, first_kept)
    kept = sides.sub_(first_kept - 1).to(like.dtype).mul_(LEVELS / (LEVELS - dropped))
    return kept.view(like.shape)


def dropout(hidden: Tensor, rate: float) -> Tensor:
    """Each number is 0 with chance ``rate``, else divided by 1 - ``rate``; any shape."""
    ours = hidden.device.type == "cpu" and hidden.dtype == torch.float32
    if not ours or torch.compiler.is_compiling():
        return F.dropout(hidden, rate)
    kept = draw_kept(hidden, rate)
    return hidden if kept is None else hidden * kept


class Dropout(nn.Module):
    """`dropout` while training."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"dropout rate {rate}: want a share from 0 to below 1")
        self.rate = rate

    def forward(self, hidden: Tensor) -> Tensor:
        """The same shape; unchanged in evaluation."""
        return dropout(hidden, self.rate) if self.training else hidden
