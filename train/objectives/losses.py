"""Computes losses from predictions and targets, with the papers' reductions.

N labelled words, regions or patches; K classes; D feature width; B pairs; C candidates. Labels of
:data:`IGNORED` do not count. A mean over nothing is 0 with a gradient of 0, where released codes
give NaN. Weights of objectives are the recipe's; conditional masking (labels of matching pairs
only) is the collator's.
"""

import math
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.amp import is_autocast_available

IGNORED = -100


def mean_cross_entropy(
    logits: Float[Tensor, "N K"], targets: Int[Tensor, " N"]
) -> Float[Tensor, ""]:
    """Returns the mean over N of the cross-entropy of logits with classes.

    Used for masked words in every paper, masked regions by class (ImageBERT, InterBERT's paper),
    masked patches (BEiT), matching by two logits (class 0 is a match in ViLBERT and InterBERT,
    class 1 in VL-BERT and VLMo).
    """
    total = F.cross_entropy(logits, targets, reduction="sum", ignore_index=IGNORED)
    return total / (targets != IGNORED).sum().clamp(min=1)


def matching_classes(matching: Float[Tensor, " B"], *, matching_class: int) -> Int[Tensor, " B"]:
    """Returns targets of two-class matching from flags, in the paper's order of classes."""
    belongs = matching.bool()
    return torch.where(belongs, matching_class, 1 - matching_class)


def mean_matching(logits: Float[Tensor, " B"], matching: Float[Tensor, " B"]) -> Float[Tensor, ""]:
    """Returns the mean over B of the binary cross-entropy of one logit per pair (ImageBERT)."""
    return _mean(F.binary_cross_entropy_with_logits(logits, matching.float(), reduction="none"))


def mean_divergence(
    logits: Float[Tensor, "N K"],
    distributions: Float[Tensor, "N K"],
    counted: Bool[Tensor, " N"] | None = None,
) -> Float[Tensor, ""]:
    """Returns the mean over N of KL(q || softmax(logits)), where q is the detector's distribution.

    With ``counted``, the mean over the counted ones of N.

    It is ViLBERT's and InterBERT's loss of masked regions: background is a class like the others,
    nothing is normalised again, and a class of probability 0 adds nothing.
    """
    log_shares = logits.float().log_softmax(-1)
    losses = F.kl_div(log_shares, distributions.float(), reduction="none").sum(-1)
    return _mean(losses, counted)


def are_whole(distributions: Float[Tensor, "N K"]) -> Bool[Tensor, " N"]:
    """Returns whether each distribution sums to 1 within 0.1, a condition of VL-BERT's code."""
    return (distributions.float().sum(-1) - 1).abs() < 0.1


def soft_cross_entropies(
    logits: Float[Tensor, "N K"], distributions: Float[Tensor, "N K"]
) -> Float[Tensor, " N"]:
    """Returns cross-entropies with distributions, 0 for incomplete distributions (VL-BERT)."""
    losses = F.cross_entropy(logits, distributions.float(), reduction="none")
    return losses * are_whole(distributions)


def mean_soft_cross_entropy(
    logits: Float[Tensor, "N K"],
    distributions: Float[Tensor, "N K"],
    counted: Bool[Tensor, " N"] | None = None,
) -> Float[Tensor, ""]:
    """Returns the mean of :func:`soft_cross_entropies` over complete distributions (VL-BERT).

    Regions that are not ``counted`` are not whole: they are zeros.

    Its gradient equals that of :func:`mean_divergence`, if all are whole.
    """
    number = are_whole(distributions).sum()
    return soft_cross_entropies(logits, distributions).sum() / number.clamp(min=1)


def mean_squared_error(
    predicted: Float[Tensor, "N D"],
    targets: Float[Tensor, "N D"],
    counted: Bool[Tensor, " N"] | None = None,
) -> Float[Tensor, ""]:
    """Returns the mean squared difference over N and D (ViLBERT's option; our reading of
    ImageBERT).

    With ``counted``, the mean over the counted ones of N.

    ImageBERT's paper sums over D, which for D = 2048 outweighs the other losses, and prints a minus
    sign, which would diverge. Here it is a mean, as UNITER's (arXiv:1909.11740), with a plus.
    """
    if counted is not None:
        errors = (predicted.float() - targets).square().sum(-1)
        return _mean(errors, counted) / max(targets.shape[1], 1)
    return F.mse_loss(predicted, targets, reduction="sum") / max(targets.numel(), 1)


def summed_squared_error(
    predicted: Float[Tensor, "N D"], targets: Float[Tensor, "N D"]
) -> Float[Tensor, ""]:
    """Returns the sum over D, mean over N of the squared difference (InterBERT's option)."""
    return _mean((predicted - targets).square().sum(-1))


def contrast_logits(
    queries: Float[Tensor, "B D"], candidates: Float[Tensor, "C D"], scale: Float[Tensor, ""]
) -> Float[Tensor, "B C"]:
    """Returns products of unit vectors times ``scale``, in float32.

    It uses float32 under autocast too: in bfloat16, products at VLMo's highest scale of 100 are off
    by up to 0.3.
    """
    device = queries.device.type
    with torch.autocast(device, enabled=False) if is_autocast_available(device) else nullcontext():
        return scale.float() * queries.float() @ candidates.float().T


def contrast(
    texts: Float[Tensor, "B D"],
    images: Float[Tensor, "B D"],
    scale: Float[Tensor, ""],
    excluded: Bool[Tensor, "B B"] | None = None,
) -> Float[Tensor, ""]:
    """Returns the mean cross-entropy of both directions; rows i of unit vectors are a pair (VLMo).

    Products are multiplied by ``scale``. ``excluded``: True where text i and image j match though
    they are not a pair, and therefore are not negatives. With vectors of several processes every
    process computes the loss over all pairs (`gather.gather_first`).
    """
    logits = contrast_logits(texts, images, scale)
    if excluded is not None:
        logits = logits.masked_fill(excluded, -math.inf)
    partners = torch.arange(len(logits), device=logits.device)
    return (F.cross_entropy(logits, partners) + F.cross_entropy(logits.T, partners)) / 2


def summed_binary_cross_entropy(
    logits: Float[Tensor, "B K"], scores: Float[Tensor, "B K"]
) -> Float[Tensor, ""]:
    """Returns binary cross-entropy summed over K, averaged over B: VQA's loss in released code."""
    losses = F.binary_cross_entropy_with_logits(logits, scores, reduction="none")
    return _mean(losses.sum(-1))


def _mean(
    losses: Float[Tensor, " N"], counted: Bool[Tensor, " N"] | None = None
) -> Float[Tensor, ""]:
    if counted is None:
        return losses.sum() / max(len(losses), 1)
    return torch.where(counted, losses, 0).sum() / counted.sum().clamp(min=1)
