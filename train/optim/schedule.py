"""Computes learning rates: factors of the peak at position ``at``, counted in updates.

A stage's first step is at 0 or at 1, as `Optimizer.first_step` specifies. It is 0, with rate 0
under warm-up, in the codes of BERT, ViLBERT, InterBERT, VLMo and BEiT. It is 1 in VL-BERT's code,
whose last step has rate 0.
"""

import math
from collections.abc import Sequence

from vlmill.train.settings.parts import Optimizer


def constant(position: float, *, warmup: float) -> float:
    """Rises from 0 over ``warmup``, then stays 1: ViLBERT's and InterBERT's fine-tuning, between
    drops.
    """
    return position / warmup if position < warmup else 1.0


def _remaining_share(position: float, warmup: float, total: float) -> float:
    """Returns the remaining share of the interval from the peak to the end."""
    return max(total - position, 0.0) / max(total - warmup, 1.0)


def polynomial(
    position: float, *, warmup: float, total: float, power: float = 1.0, end: float = 0.0
) -> float:
    """Rises from 0, then falls to ``end`` (a factor) by a power of the remaining share (VLMo).

    A ``power`` of 1 is linear, the pretraining schedule of all the papers.
    """
    if position < warmup:
        return constant(position, warmup=warmup)
    return end + (1 - end) * math.pow(_remaining_share(position, warmup, total), power)


def cosine(position: float, *, warmup: float, total: float, end: float = 0.0) -> float:
    """Rises from 0 over ``warmup``, then half a cosine wave to ``end`` (BEiT, VLMo's option)."""
    if position < warmup:
        return constant(position, warmup=warmup)
    done = 1 - _remaining_share(position, warmup, total)
    return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * done))


def milestones(
    position: float, *, warmup: float, drops: Sequence[float], factor: float = 0.1
) -> float:
    """Rises from 0, and is multiplied by ``factor`` at each of the ``drops`` reached (VL-BERT's
    rate for VCR, ViLBERT's for all tasks).

    Drops within the warm-up multiply its rise.
    """
    reached = sum(position >= drop for drop in drops)
    return constant(position, warmup=warmup) * float(factor**reached)


def warmup_length(steps: int, settings: Optimizer) -> float:
    """Returns the length of the warm-up of a stage of ``steps``, in steps.

    BertAdam uses a share of the steps unrounded, and compares the share of completed steps with it
    (the codes of ViLBERT and InterBERT: 2.25 of 9 steps). The others truncate it to whole steps, as
    VLMo's code does.
    """
    if settings.warmup_steps is not None:
        return settings.warmup_steps
    share = settings.warmup * steps
    return share if settings.kind == "bert-adam" else int(share)


def learning_rate(step: int, *, steps: int, settings: Optimizer, epoch_steps: float = 0.0) -> float:
    """Returns the rate of step 1..``steps`` of a stage, as its optimizer's settings specify.

    ``epoch_steps``: the steps of an epoch, the unit of drops.
    """
    rising = warmup_length(steps, settings)
    position = step - 1 + settings.first_step
    if settings.schedule == "constant":
        return settings.lr * constant(position, warmup=rising)
    if settings.schedule == "milestones":
        drops = [int(epoch * epoch_steps) for epoch in settings.drops]
        factor = milestones(position, warmup=rising, drops=drops, factor=settings.drop_factor)
        return settings.lr * factor
    down = cosine if settings.schedule == "cosine" else polynomial
    return settings.lr * down(position, warmup=rising, total=steps, end=settings.end)
