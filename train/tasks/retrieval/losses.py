"""Computes losses over a pair and its negatives, for retrieval (ImageBERT, arXiv:2001.07966, sec.
4.2).

S samples of P candidates, K heads; the one that belongs together is in column 0. The paper prints
the signs of the first and third otherwise, and the third without margin and difference: misprints.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vlmill.train.tasks.retrieval.settings import MARGIN


def candidate_losses(
    scores: Float[Tensor, "S P K"], names: Sequence[str], margin: float = MARGIN
) -> dict[str, Float[Tensor, ""]]:
    """Returns the losses of these names: pairs by themselves by the first head, candidates by the
    last one.
    """
    losses: dict[str, Callable[[], Tensor]] = {
        "binary": lambda: binary_candidates(scores[..., 0]),
        "softmax": lambda: softmax_candidates(scores[..., -1]),
        "triplet": lambda: hardest_triplet(scores[..., -1], margin),
    }
    return {name: losses[name]() for name in names}


def binary_candidates(logits: Float[Tensor, "S P"]) -> Float[Tensor, ""]:
    """Returns the mean over all pairs of the binary cross-entropy, the paper's best loss.

    Of log odds that are the difference of two logits it is the cross-entropy of their two classes
    (InterBERT's code).
    """
    targets = torch.zeros_like(logits)
    targets[:, 0] = 1.0
    total = F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    return total / max(logits.numel(), 1)


def softmax_candidates(scores: Float[Tensor, "S P"]) -> Float[Tensor, ""]:
    """Returns the mean over S of the cross-entropy among P candidates (its multi-class loss)."""
    target = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
    return F.cross_entropy(scores, target, reduction="sum") / max(len(scores), 1)


def hardest_triplet(scores: Float[Tensor, "S P"], margin: float = MARGIN) -> Float[Tensor, ""]:
    """Returns the mean over S of max(0, margin + s(hardest negative) - s(positive)), s between 0
    and 1.

    Of negative texts and negative images in one sample the losses are taken apart and added.
    Without a negative it is 0.
    """
    bounded = scores.sigmoid()
    if not scores.numel() or scores.shape[1] < 2:
        return bounded.sum() * 0.0
    hardest = bounded[:, 1:].max(dim=1).values
    return (margin + hardest - bounded[:, 0]).clamp(min=0).mean()
