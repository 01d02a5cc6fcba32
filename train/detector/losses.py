"""Computes the losses of a detector, each a pure function over the examples of a batch.

N images, A anchors a cell, R anchors, S sampled regions of all images. Boxes in pixels of the
network's input. Paper: Ren et al. 2015 (arXiv:1506.01497), eq. 1; Girshick 2015 (arXiv:1504.08083),
eqs. 2 and 3.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import complete_box_iou_loss, distance_box_iou_loss, generalized_box_iou_loss

from vlmill.models.detector.boxes import decode_boxes
from vlmill.models.detector.config import Box4, DetectorConfig
from vlmill.train.detector.settings import BoxLoss, RoiRules, RpnRules
from vlmill.train.detector.targets import IGNORED, POSITIVE, encode_boxes

OVERLAP_LOSSES = {
    "giou": generalized_box_iou_loss,
    "diou": distance_box_iou_loss,
    "ciou": complete_box_iou_loss,
}
SMALLEST_BETA = 1e-5  # below it the quadratic part is omitted (Detectron2)


def smooth_l1(
    predictions: Float[Tensor, "*n"], targets: Float[Tensor, "*n"], beta: float
) -> Float[Tensor, ""]:
    """Sums the Huber loss over ``beta``: quadratic below it, L1 less half of it above."""
    difference = (predictions - targets).abs()
    if beta < SMALLEST_BETA:
        return difference.sum()
    quadratic = 0.5 * difference.square() / beta
    return torch.where(difference < beta, quadratic, difference - 0.5 * beta).sum()


def box_loss(
    boxes: Float[Tensor, "P 4"],
    deltas: Float[Tensor, "P 4"],
    targets: Float[Tensor, "P 4"],
    *,
    kind: BoxLoss,
    beta: float,
    weights: Box4,
    config: DetectorConfig,
) -> Float[Tensor, ""]:
    """Sums how far the regressed boxes are from the true ones; 0 with a gradient of 0 for none."""
    if kind == "smooth_l1":
        return smooth_l1(deltas, encode_boxes(boxes, targets, weights, config.box_offset), beta)
    regressed = decode_boxes(
        boxes, deltas, weights=weights, offset=config.box_offset, max_log_scale=config.max_log_scale
    )
    if not len(boxes):
        return regressed.sum()
    loss: Tensor = OVERLAP_LOSSES[kind](regressed, targets, reduction="sum")
    return loss


def by_anchor(maps: Float[Tensor, "N C G V"], values: int) -> Float[Tensor, "N R {values}"]:
    """Returns the head's deltas or single logits [N, values * A, G, V] by anchor, in the anchors'
    order.
    """
    return maps.permute(0, 2, 3, 1).reshape(len(maps), -1, values)


def class_pairs(maps: Float[Tensor, "N A2 G V"]) -> Float[Tensor, "N R 2"]:
    """Returns background's and foreground's logit of each anchor; background's channels come
    first.
    """
    images, channels, rows, columns = maps.shape
    pairs = maps.reshape(images, 2, channels // 2, rows, columns)
    return pairs.permute(0, 3, 4, 2, 1).reshape(images, -1, 2)


def rpn_losses(
    logits: Float[Tensor, "N C G V"],
    deltas: Float[Tensor, "N A4 G V"],
    anchors: Float[Tensor, "R 4"],
    labels: Int64[Tensor, "N R"],
    matched: Float[Tensor, "N R 4"],
    rules: RpnRules,
    config: DetectorConfig,
) -> dict[str, Float[Tensor, ""]]:
    """Returns the proposal network's losses of objectness and of boxes.

    ``matched`` are the true boxes of the positive anchors, without a meaning elsewhere.
    """
    positive, sampled = labels == POSITIVE, labels != IGNORED
    if config.objectness == "softmax":
        pairs = class_pairs(logits)[sampled]
        objectness = F.cross_entropy(pairs, positive[sampled].long(), reduction="sum")
    else:
        scores = by_anchor(logits, 1)[..., 0][sampled]
        objectness = F.binary_cross_entropy_with_logits(
            scores, positive[sampled].to(scores.dtype), reduction="sum"
        )
    boxes = box_loss(
        anchors.expand(len(labels), -1, -1)[positive],
        by_anchor(deltas, 4)[positive],
        matched[positive],
        kind=rules.box_loss,
        beta=rules.beta,
        weights=config.rpn_box_weights,
        config=config,
    )
    if rules.normaliser == "sampled":
        total = sampled.sum().clamp(min=1)
    else:
        total = torch.tensor(rules.matching.batch * len(labels), device=labels.device)
    return {
        "rpn_class": objectness / total * rules.class_weight,
        "rpn_box": boxes / total * rules.box_weight,
    }


def class_outputs(classes: Int64[Tensor, " S"], config: DetectorConfig) -> Int64[Tensor, " S"]:
    """Returns the class output of each class without background, numbered from 0; background is
    ``num_classes``.
    """
    if config.background == "last":
        return classes
    return torch.where(classes == config.num_classes, 0, classes + 1)


def region_losses(
    class_logits: Float[Tensor, "S K1"],
    deltas: Float[Tensor, "S B4"],
    boxes: Float[Tensor, "S 4"],
    classes: Int64[Tensor, " S"],
    matched: Float[Tensor, "S 4"],
    rules: RoiRules,
    config: DetectorConfig,
) -> dict[str, Float[Tensor, ""]]:
    """Returns the losses of the sampled regions' classes and boxes.

    ``classes`` are without background, which is ``num_classes``; ``matched`` the true boxes, which
    mean nothing for background. The boxes' loss is of the true class, over all regions.
    """
    outputs, foreground = class_outputs(classes, config), classes < config.num_classes
    if not len(classes):
        return {"class": class_logits.sum() * 0.0, "box": deltas.sum() * 0.0}
    layers = deltas.view(len(deltas), -1, 4)
    layer = outputs[foreground] if config.class_specific_boxes else outputs[foreground] * 0
    loss = box_loss(
        boxes[foreground],
        layers[foreground.nonzero().flatten(), layer],
        matched[foreground],
        kind=rules.box_loss,
        beta=rules.beta,
        weights=config.box_weights,
        config=config,
    )
    return {
        "class": F.cross_entropy(class_logits, outputs),
        "box": loss / len(classes) * rules.box_weight,
    }


def attribute_loss(
    logits: Float[Tensor, "S L"], targets: Int64[Tensor, "S A"], *, left_out: int = 0
) -> Float[Tensor, ""]:
    """Returns the mean over regions with attributes of the mean of -log p over their attributes.

    ``targets`` are -1 where a region has fewer; a repeated one counts again. The last ``left_out``
    outputs have no attribute. Without any attributes the loss is 0, with a gradient of 0 (MILVLG's
    own code fails there).
    """
    label_mask = targets >= 0
    region_mask = label_mask.any(dim=1)
    log_probs = logits[:, : logits.shape[1] - left_out].log_softmax(dim=1)
    label_log_probs = log_probs.gather(1, targets.clamp(min=0)).masked_fill(~label_mask, 0.0)
    means = label_log_probs.sum(dim=1) / label_mask.sum(dim=1).clamp(min=1)
    return -means.sum() / region_mask.sum().clamp(min=1)
