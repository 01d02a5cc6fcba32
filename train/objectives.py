"""ImageBERT's losses (sec. 3.3).  B pairs, N masked positions, K classes, D feature width.

Conditional masking: batches carry labels of matching pairs only, so the masked losses of other
pairs vanish by construction.
"""

import torch
from torch import Tensor

from vlmill.models import ImageBert
from vlmill.train.collate import PretrainBatch
from vlmill.train.losses import mean_cross_entropy, mean_matching, mean_squared_error
from vlmill.train.recipes.base import Objectives


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
        losses["itm"] = mean_matching(logits, batch.matching)
    return losses


def weighted_sum(losses: dict[str, Tensor], weights: Objectives) -> Tensor:
    """The sum that is minimised."""
    terms = [loss * getattr(weights, name) for name, loss in losses.items()]
    return torch.stack(terms).sum()
