"""Learning rates: the factor of the peak at a place ``at`` of the run, counted in updates.

ViLBERT, InterBERT and VLMo count the updates made before, so that the first has rate 0 under
warm-up; VL-BERT counts from 1.
"""

import math
from collections.abc import Sequence

from vlmill.train.recipes.spec import Optimizer


def _rest(at: float, warmup: float, total: float) -> float:
    """The share of the way from the peak to the end that is left."""
    return max((total - at) / (total - warmup), 0.0)


def linear(at: float, *, warmup: float, total: float) -> float:
    """Up from 0 over ``warmup``, then down to 0 at ``total``: the papers' pretraining schedule."""
    return at / warmup if at < warmup else _rest(at, warmup, total)


def constant(at: float, *, warmup: float) -> float:
    """Up from 0 over ``warmup``, then 1: ViLBERT's and InterBERT's fine-tuning, between drops."""
    return at / warmup if at < warmup else 1.0


def polynomial(
    at: float, *, warmup: float, total: float, power: float = 1.0, end: float = 0.0
) -> float:
    """VLMo's: up from 0, then down to ``end`` (a factor of the peak) by a power of what is left."""
    if at < warmup:
        return at / warmup
    return end + (1 - end) * math.pow(_rest(at, warmup, total), power)


def cosine(at: float, *, warmup: float, total: float, end: float = 0.0) -> float:
    """Up from 0 over ``warmup``, then half a wave down to ``end`` (BEiT, VLMo's option)."""
    if at < warmup:
        return at / warmup
    done = 1 - _rest(at, warmup, total)
    return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * done))


def milestones(at: float, *, warmup: float, drops: Sequence[float], factor: float = 0.1) -> float:
    """VL-BERT's for VCR: up from 0, and times ``factor`` at each of the ``drops`` reached.

    The warm-up's rise and the drops multiply, as far as they meet.
    """
    reached = sum(at >= drop for drop in drops)
    return float(min(at / warmup, 1.0) if warmup else 1.0) * factor**reached


def learning_rate(step: int, *, steps: int, settings: Optimizer) -> float:
    """The rate of step 1..``steps``: a line up to the peak, then down as the settings say.

    The end of the way down would be reached at the step after the last.
    """
    rising = settings.warmup_steps
    if rising is None:
        rising = int(settings.warmup * steps)
    if step <= rising:
        return settings.lr * step / rising
    if settings.schedule == "constant":
        return settings.lr
    down = cosine if settings.schedule == "cosine" else polynomial
    return settings.lr * down(step - 1, warmup=rising, total=steps, end=settings.end)
