"""Draws random weights for a detector: a substitute when no trained weights are available.

They detect nothing, but the numbers are realistic: activations keep their scale through 50 to 152
layers, features differ between regions, and class scores are as peaked as in a trained network.
Everything is determined by the seed, without data and without arithmetic that depends on the number
of threads.
"""

import math

import numpy as np
import torch
from torch import Tensor, nn

from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.resnet import Bottleneck, ConvNorm, PreActivationBottleneck

# Standard deviation of mean-subtracted grey levels in photographs, about 64: the stem's
# normalisation removes it.
PIXEL_SCALE = 1 / 64
STAGES = ("res2", "res3", "res4", "res5")
# Makes class logits spread over several units, so that the best of 1600 classes is distinct.
CLASS_LOGIT_SCALE = 8.0


def randomise(model: FasterRCNN, seed: int) -> None:
    """Fills every parameter in place; the same seed gives the same numbers on every machine."""
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.weight.copy_(centred_normal(module.weight, rng))
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, nn.Embedding):
                module.weight.copy_(centred_normal(module.weight, rng))
        for name, stage in model.named_modules():
            if name.rpartition(".")[2] in STAGES:
                damp_branches(stage)
        norm_weight(model.backbone.stem.conv1).fill_(PIXEL_SCALE * model.config.pixel_std[0])
        if model.config.regions != "grid":
            scale_heads(model)


def centred_normal(weight: Tensor, rng: np.random.Generator) -> Tensor:
    """Fills weights as He et al. 2015 do for rectifiers, and subtracts each filter's mean.

    Rectified inputs share a positive mean. Plain filters pass it on until all images look the same;
    a filter with zero sum removes it.
    """
    drawn = rng.standard_normal(tuple(weight.shape), dtype=np.float32).reshape(len(weight), -1)
    centred = drawn - drawn.mean(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
    scaled = centred * np.float32(math.sqrt(2 / drawn.shape[1]))
    return torch.from_numpy(scaled.reshape(tuple(weight.shape)))


def damp_branches(stage: nn.Module) -> None:
    """Shrinks each block's branch so that the sum over a stage of any depth stays near 1."""
    blocks = list(stage.children())
    for block in blocks:
        if isinstance(block, Bottleneck):
            norm_weight(block.conv3).fill_(1 / math.sqrt(len(blocks)))
        elif isinstance(block, PreActivationBottleneck):  # its norms come before the convolutions
            block.conv3.weight.mul_(1 / math.sqrt(len(blocks)))


def scale_heads(model: FasterRCNN) -> None:
    """Scales objectness, box regressions and class logits to a trained network's ranges."""
    rpn, predictor = model.proposal_generator.rpn_head, model.roi_heads.box_predictor
    rpn.anchor_deltas.weight.mul_(0.3)
    predictor.cls_score.weight.mul_(CLASS_LOGIT_SCALE)
    predictor.bbox_pred.weight.mul_(0.1)


def norm_weight(layer: ConvNorm) -> Tensor:
    """Returns the scale of a layer's normalisation."""
    weight = layer.norm.weight
    assert isinstance(weight, Tensor)
    return weight
