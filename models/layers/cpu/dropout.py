"""Draws the random numbers of dropout fast on a CPU."""

import torch
from torch import Tensor

LEVELS = 1 << 16  # the rate is rounded to a multiple of 1 / LEVELS: 0.1 becomes 0.100006
LOWEST = -(LEVELS // 2)


def draw_factors(like: Tensor, rate: float) -> Tensor | None:
    """Returns factors in the shape of ``like``: 0 with probability ``rate``, else 1 / (1 -
    ``rate``).

    Returns None if the rate rounds to 0. For each float32 PyTorch draws 32 bits on a CPU, one after
    the other, which was 3 % of a training step; here four numbers share a draw of 64. Clamping to
    two neighbours makes the factors. PyTorch vectorises it; comparing and choosing, which it does
    not vectorise, has a tenth of the speed.
    """
    dropped = min(round(rate * LEVELS), LEVELS - 1)
    if dropped == 0:
        return None
    draws = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
    first_kept = LOWEST + dropped
    sides = draws.view(torch.int16)[: like.numel()].clamp_(first_kept - 1, first_kept)
    factors = sides.sub_(first_kept - 1).to(like.dtype).mul_(LEVELS / (LEVELS - dropped))
    return factors.view(like.shape)


def drops_faster(hidden: Tensor) -> bool:
    """Returns whether `cpu_dropout` is faster: for float32, not while it is traced."""
    plain = hidden.device.type == "cpu" and hidden.dtype == torch.float32
    return plain and not torch.compiler.is_compiling()


def cpu_dropout(hidden: Tensor, rate: float) -> Tensor:
    """Sets each number to 0 with probability ``rate``, else divides it by 1 - ``rate``."""
    factors = draw_factors(hidden, rate)
    return hidden if factors is None else hidden * factors
