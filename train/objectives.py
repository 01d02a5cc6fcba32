"""ImageBERT's losses (sec. 3.3).  B pairs, N masked positions, K classes, D feature width.

Conditional masking: batches carry labels of matching pairs only, so the masked losses of other
pairs vanish by construction.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from vlmill.models import ImageBert
from vlmill.train.collate import PretrainBatch
from vlmill.train.recipes.base import Objectives


def mean_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over N of the cross-entropy of logits [N, K] with classes [N]; 0 for N = 0.

    Targets of -100 (a class that the detector did not give) do not count.
    """
    total = F.cross_entropy(logits, targets, reduction="sum", ignore_index=-100)
    return total / (targets != -100).sum().clamp(min=1)


def mean_squared_error(predicted: Tensor, targets: Tensor) -> Tensor:
    """Mean over [N, D] of the squared difference; 0 for N = 0.

    The paper sums over D, which for D = 2048 outweighs the other losses, and prints a minus sign,
    which would diverge: a mean, as UNITER's (arXiv:1909.11740), and a plus.
    """
    return F.mse_loss(predicted, targets, reduction="sum") / max(targets.numel(), 1)


def pretraining_losses(
    model: ImageBert, batch: PretrainBatch, weights: Objectives
) -> dict[str, Tensor]:
    """The losses with a weight above 0, each unweighted; :func:`weighted_sum` adds them.

    MLM, MOC, MRFR: means over the masked words and regions of matching pairs. ITM: mean over all
    pairs. Means over nothing are 0 with a gradient, not NaN.
    """
    output = model(batch.inputs)
    regions = output.regions.flatten(0, 1)[batch.masked_regions]
    losses: dict[str, Tensor] = {}
    if weights.mlm:
        words = output.text.flatten(0, 1)[batch.masked_tokens]
        losses["mlm"] = mean_cross_entropy(model.mlm_logits(words), batch.token_targets)
    if weights.moc:
        logits = model.region_class_logits(regions)
        losses["moc"] = mean_cross_entropy(logits, batch.class_targets)
    if weights.mrfr:
        predicted = model.region_features(regions)
        losses["mrfr"] = mean_squared_error(predicted, batch.feature_targets)
    if weights.itm:
        logits = model.match_logit(output.pooled)
        losses["itm"] = F.binary_cross_entropy_with_logits(logits, batch.matching)
    return losses


def weighted_sum(losses: dict[str, Tensor], weights: Objectives) -> Tensor:
    """The sum that is minimised."""
    terms = [loss * getattr(weights, name) for name, loss in losses.items()]
    return torch.stack(terms).sum()
