"""Computes the public extractors' graph, written anew to measure against (no code of theirs).

Every normalisation is an operator of its own, tensors are in their default layout, all regions are
pooled by torchvision's operator and go through res5 at once, and 1,600 suppressions follow one
another: so do the PyTorch ports of bottom-up attention. Preprocessing and the proposal layer, a few
per cent, are those of vlmill.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import nms, roi_pool

from vlmill.extract.config import Selection
from vlmill.extract.detect.selection import choose_regions
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.nms import exclusive_corners
from vlmill.models.detector.resnet import Bottleneck, ConvNorm, FrozenBatchNorm, stem_pool


@dataclass(frozen=True, kw_only=True)
class Regions:
    """Holds one image's proposals and the regions chosen from them."""

    boxes: Float[Tensor, "R 4"]
    features: Float[Tensor, "R D"]
    class_probs: Float[Tensor, "R K1"]
    chosen: Int64[Tensor, " N"]


def extract(
    model: FasterRCNN, image: Float[Tensor, "1 3 H W"], scale: float, rule: Selection
) -> Regions:
    """Detects and selects with an unfolded ``model``."""
    features = backbone(model, image)
    height, width = image.shape[2:]
    offset, least = model.config.box_offset, model.config.min_input_size(scale)
    limits = torch.tensor([[width - offset, height - offset] * 2])
    places, taken = model.proposals((features,), limits, torch.tensor([least]))
    boxes = places[taken]
    pooled = roi_pool(features, [boxes], model.config.pool_size, 1 / model.config.stride)
    means = stage(model.roi_heads.res5, pooled).mean(dim=(2, 3))
    predictor = model.roi_heads.box_predictor
    logits = predictor.cls_score(means)
    predictor.attribute_logits(means, logits).softmax(dim=1)
    predictor.bbox_pred(means)
    probs = logits.softmax(dim=1)
    confidence = best_surviving(boxes / scale, probs[:, 1:], model)
    chosen, counts = choose_regions(confidence[None], rule)
    return Regions(boxes=boxes, features=means, class_probs=probs, chosen=chosen[counts])


def backbone(model: FasterRCNN, image: Float[Tensor, "1 3 H W"]) -> Tensor:
    """Computes stem to res4."""
    body = model.backbone
    x = stem_pool(F.relu_(conv_norm(body.stem.conv1, image)), ceil_pool=body.stem.ceil_pool)
    for blocks in (body.res2, body.res3, body.res4):
        x = stage(blocks, x)
    return x


def stage(blocks: torch.nn.Sequential, x: Tensor) -> Tensor:
    """Computes bottlenecks, one operator after the other."""
    for block in blocks:
        assert isinstance(block, Bottleneck)
        y = F.relu_(conv_norm(block.conv1, x))
        y = F.relu_(conv_norm(block.conv2, y))
        y = conv_norm(block.conv3, y)
        y += conv_norm(block.shortcut, x) if isinstance(block.shortcut, ConvNorm) else x
        x = F.relu_(y)
    return x


def conv_norm(conv: ConvNorm, x: Tensor) -> Tensor:
    """Computes a convolution, then its normalisation as torch's own operator."""
    norm = cast(FrozenBatchNorm, conv.norm)
    y = F.conv2d(x, conv.weight, None, conv.stride, conv.padding, conv.dilation)
    return F.batch_norm(
        y, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps
    )


def best_surviving(
    boxes: Float[Tensor, "R 4"], foreground: Float[Tensor, "R K"], model: FasterRCNN
) -> Float[Tensor, " R"]:
    """Returns the highest probability with which a box survives in some class, class after
    class.
    """
    spec = model.config
    threshold = np.float32(spec.class_nms_thresholds[0])
    assert spec.nms_inclusive
    strict = float(np.nextafter(threshold, np.float32(-np.inf)))
    corners = exclusive_corners(boxes, spec.box_offset)
    best = foreground.new_zeros(len(boxes))
    for number in range(foreground.shape[1]):
        scores = foreground[:, number]
        survivors = nms(corners, scores, strict)
        best[survivors] = torch.maximum(best[survivors], scores[survivors])
    return best
