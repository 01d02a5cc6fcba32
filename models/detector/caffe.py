"""Converts the weights of the original Caffe detector to the layout of its PyTorch port.

The layers are those in bottom-up attention's ``test.prototxt`` (peteanderson80, 514e561b). Rows of
classes and attributes, channels of proposals and regressions are already in the port's order. The
file has no anchors; the detector computes them.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Blob = npt.NDArray[np.float32]
Blobs = Sequence[Blob]
# Layers outside the ResNet: the network's name, and the dimensions of their weight.
LAYERS = {
    "rpn_conv/3x3": ("proposal_generator.rpn_head.conv", 4),
    "rpn_cls_score": ("proposal_generator.rpn_head.objectness_logits", 4),
    "rpn_bbox_pred": ("proposal_generator.rpn_head.anchor_deltas", 4),
    "cls_score": ("roi_heads.box_predictor.cls_score", 2),
    "bbox_pred": ("roi_heads.box_predictor.bbox_pred", 2),
    "cls_embedding": ("roi_heads.box_predictor.cls_embed", 2),
    "fc_attr": ("roi_heads.box_predictor.attr_linear1", 2),
    "attr_score": ("roi_heads.box_predictor.attr_linear2", 2),
}
# res4b22_branch2a; at other depths res3d_branch1. Its normalisations are bn4b22_..., scale4b22_...
BLOCK = re.compile(r"(?P<stage>[2-5])(?P<letter>[a-z])(?P<number>\d{0,3})_branch(?P<conv>1|2[abc])")
CONVOLUTIONS = {"1": "shortcut", "2a": "conv1", "2b": "conv2", "2c": "conv3"}


def name_caffe_weights(layers: Mapping[str, Blobs]) -> dict[str, Tensor]:
    """Returns a state dict in milvlg's layout, without anchors, from the blobs of Caffe's layers.

    Raises ValueError for a layer that is not in the detector, or a wrong number or shape of blobs.
    """
    state: dict[str, Tensor] = {}
    for name, blobs in layers.items():
        try:
            state |= name_layer(name, blobs, layers)
        except ValueError as error:
            raise ValueError(f"layer {name!r}: {error}") from None
    return state


def name_layer(name: str, blobs: Blobs, layers: Mapping[str, Blobs]) -> dict[str, Tensor]:
    """Returns the tensors of one layer; empty for a scale, which belongs to its normalisation."""
    if name in LAYERS:
        ours, rank = LAYERS[name]
        return name_linear(ours, blobs, rank)
    if name.startswith("scale"):
        if f"bn{name.removeprefix('scale')}" not in layers:
            raise ValueError("a scale layer without a batch normalisation")
        return {}
    if name.startswith("bn"):
        suffix = name.removeprefix("bn")
        convolution = layers.get(suffix.removeprefix("_") if suffix == "_conv1" else f"res{suffix}")
        scale = layers.get(f"scale{suffix}")
        if convolution is None or scale is None:
            raise ValueError("a batch normalisation without a convolution and a scale")
        return fold_norm(f"{convolution_name(name, 'bn')}.norm", blobs, scale, convolution)
    (weight, *_) = blobs
    return {f"{convolution_name(name, 'res')}.weight": as_tensor(weight, 4)}


def convolution_name(name: str, prefix: str) -> str:
    """Returns the network's name for a ResNet convolution. Raises ValueError for an unknown
    layer.
    """
    if name in ("conv1", "bn_conv1"):
        return "backbone.stem.conv1"
    block = BLOCK.fullmatch(name.removeprefix(prefix))
    if not name.startswith(prefix) or block is None:
        raise ValueError("unknown; expected the layers of bottom-up attention's Faster R-CNN")
    letter, number, stage = block["letter"], block["number"], block["stage"]
    if number and letter != "b":
        raise ValueError("unknown; blocks are called a, b1, b2, ... or a, b, c, ...")
    index = int(number) if number else ord(letter) - ord("a")
    body = "roi_heads.res5" if stage == "5" else f"backbone.res{stage}"
    return f"{body}.{index}.{CONVOLUTIONS[block['conv']]}"


def name_linear(ours: str, blobs: Blobs, rank: int) -> dict[str, Tensor]:
    """Returns the weight and, if there is one, the bias of a layer."""
    if len(blobs) not in (1, 2):
        raise ValueError(f"{len(blobs)} blobs; expected a weight and a bias")
    state = {f"{ours}.weight": as_tensor(blobs[0], rank)}
    if len(blobs) == 2:
        state[f"{ours}.bias"] = as_tensor(blobs[1], 1)
    return state


def fold_norm(ours: str, blobs: Blobs, scale: Blobs, convolution: Blobs) -> dict[str, Tensor]:
    """Returns the four constants of a normalisation from Caffe's two layers.

    Mean and variance are stored as sums; the third blob is their divisor (if it is 0, they are 0).
    A bias of the preceding convolution shifts the mean.
    """
    if len(blobs) != 3 or len(scale) != 2:
        raise ValueError(
            f"{len(blobs)} blobs and {len(scale)} of its scale; expected mean, variance, factor, "
            "weight and bias"
        )
    mean, variance, factor = (as_tensor(blob, 1) for blob in blobs)
    if factor.numel() != 1:
        raise ValueError(f"a factor of {factor.numel()} values; expected one")
    share = 0.0 if float(factor) == 0 else 1 / factor
    mean = mean * share
    if len(convolution) > 1:
        mean = mean - as_tensor(convolution[1], 1)
    return {
        f"{ours}.weight": as_tensor(scale[0], 1),
        f"{ours}.bias": as_tensor(scale[1], 1),
        f"{ours}.running_mean": mean,
        f"{ours}.running_var": variance * share,
    }


def as_tensor(blob: Blob, rank: int) -> Tensor:
    """Returns a blob as a tensor of ``rank`` dimensions, without the leading ones of the old form.

    Raises ValueError if it has fewer dimensions, or if a leading dimension is not one.
    """
    leading = blob.ndim - rank
    if leading < 0 or any(side != 1 for side in blob.shape[:leading]):
        raise ValueError(f"a blob of {blob.shape}; expected {rank} dimensions")
    return torch.from_numpy(blob.reshape(blob.shape[leading:]))
