"""Builds Faster R-CNN on ResNet C4: the detectors of bottom-up attention and of Detectron2.

Papers: Ren et al. 2015 (arXiv:1506.01497), Anderson et al. 2018 (arXiv:1707.07998).  Parameter
names are those of the published PyTorch weights (vlmill.models.detector.published).

N pictures, P places for regions in each, R regions, K classes and L attributes (K1 and L1 with
background, where the family has it), D = feature size, G x V cells of the feature map.  Boxes are
(x1, y1, x2, y2) in pixels of the network's input.
"""

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torchvision.ops import roi_align, roi_pool

from vlmill.models.detector.boxes import clip_boxes, decode_boxes
from vlmill.models.detector.config import BLOCKS, DetectorConfig
from vlmill.models.detector.cpu_stages import pooled_means, shares_windows
from vlmill.models.detector.proposals import ProposalGenerator
from vlmill.models.detector.resnet import (
    Norm,
    PreActivationBottleneck,
    Stem,
    pre_activation_stage,
    relu,
    resnet_stage,
    widened,
)


@dataclass(frozen=True, kw_only=True)
class Detections:
    """Holds what the network says of P places for regions in each of N pictures, before any
    selection.

    ``taken`` says which places hold a proposal or a given box: pictures have different numbers of
    them. What stands in the others means nothing.
    """

    boxes: Float[Tensor, "N P 4"]  # proposals, not refined
    taken: Bool[Tensor, "N P"]
    features: Float[Tensor, "N P D"]
    class_probs: Float[Tensor, "N P K1"]  # background where the family has it
    attribute_probs: Float[Tensor, "N P L1"] | None = None  # None: no attribute head
    box_deltas: Float[Tensor, "N P B4"] | None = None  # None: the family writes proposals
    whole: Float[Tensor, "N D"] | None = None  # of the regions that are the whole pictures


class Backbone(nn.Module):
    """Computes stem to res4: one feature map of stride 16."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.stem = Stem(
            config.stem_channels,
            norm_of(config, 1),
            ceil_pool=config.stem_ceil_pool,
            normalise_input=config.pre_activation,
        )
        self.res2 = backbone_stage(config, 2)
        self.res3 = backbone_stage(config, 3)
        self.res4 = backbone_stage(config, 4)

    def forward(self, picture: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N C G V"]:
        features: Tensor = self.res4(self.res3(self.res2(self.stem(picture))))
        return features


def norm_of(config: DetectorConfig, number: int) -> Norm:
    """Returns the normalisation of stage ``number`` (the stem is 1): constant in frozen stages."""
    frozen = number <= config.frozen_stages
    return Norm(eps=config.norm_eps, kind="frozen" if frozen else config.batch_norm)


def backbone_stage(config: DetectorConfig, number: int) -> nn.Sequential:
    """Stage 2 to 5 of the configured ResNet; res2 keeps the stem's resolution."""
    factor = 2 ** (number - 2)
    before = config.stem_channels if number == 2 else config.res2_channels * factor // 2
    blocks = BLOCKS[config.depth][number - 2]
    widths = (before, config.res2_width * factor, config.res2_channels * factor)
    stride = {2: 1, 5: config.res5_stride}.get(number, 2)
    norm = norm_of(config, number)
    dilation, in_1x1 = config.res5_dilation if number == 5 else 1, config.stride_in_1x1
    if config.pre_activation:
        return pre_activation_stage(
            blocks,
            *widths,
            norm,
            stride=stride,
            dilation=dilation,
            stride_in_1x1=in_1x1,
            activated=number == 5,
        )
    return resnet_stage(
        blocks, *widths, norm, stride=stride, dilation=dilation, stride_in_1x1=in_1x1
    )


class BoxPredictor(nn.Module):
    """Predicts classes, box regressions and, given the likeliest class, attributes of a region's
    feature.
    """

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.config = config
        size, classes = config.feature_size, config.num_classes + 1
        self.cls_score = nn.Linear(size, classes)
        self.bbox_pred = nn.Linear(size, 4 * config.num_regressed)
        if config.num_attributes:
            self.cls_embed = nn.Embedding(classes, config.class_embedding_size)
            self.attr_linear1 = nn.Linear(
                size + config.class_embedding_size, config.attribute_hidden_size
            )
            self.attr_linear2 = nn.Linear(
                config.attribute_hidden_size, config.num_attribute_outputs
            )

    def attribute_logits(
        self, features: Float[Tensor, "*R D"], class_logits: Float[Tensor, "*R K1"]
    ) -> Float[Tensor, "*R L1"]:
        """Scores attributes beside the likeliest class, which may be background, as originally."""
        return self.attributes_of(features, class_logits.argmax(dim=-1))

    def attributes_of(
        self, features: Float[Tensor, "*R D"], classes: Int64[Tensor, "*R"]
    ) -> Float[Tensor, "*R L1"]:
        """Scores attributes of regions of these classes, numbered as the class outputs are."""
        embedded = self.cls_embed(classes)
        hidden = relu(self.attr_linear1(torch.cat((features, embedded), dim=-1)))
        logits: Tensor = self.attr_linear2(hidden)
        return logits

    def attribute_probs(self, logits: Float[Tensor, "*R L1"]) -> Float[Tensor, "*R L"]:
        """Returns the softmax with "no attribute" (the first), or without it (the last output)."""
        without_last = self.config.attribute_background is False
        return (logits[..., :-1] if without_last else logits).softmax(dim=-1)


class RoiHeads(nn.Module):
    """Applies RoI pooling, res5 and the predictors."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.config = config
        self.res5 = backbone_stage(config, 5)
        if config.pre_activation:
            self.res5_bn = norm_of(config, 5).layer(config.feature_size)
        self.box_predictor = BoxPredictor(config)

    def region_means(self, pooled: Float[Tensor, "R C P P"]) -> Float[Tensor, "R D"]:
        """Returns the mean of res5 over each pooled region."""
        x: Tensor = self.res5(pooled)
        if self.config.pre_activation:
            x = relu(self.res5_bn(x))
        return x.mean(dim=(2, 3), dtype=torch.promote_types(x.dtype, torch.float32))

    def region_features(
        self,
        features: Float[Tensor, "N C G V"],
        boxes: Float[Tensor, "N P 4"],
        taken: Bool[Tensor, "N P"],
        chunk: int,
    ) -> Float[Tensor, "N P D"]:
        """Returns the mean of res5 over each region, ``chunk`` regions at a time to bound
        memory.
        """
        if features.device.type != "cpu":
            means = self.pooled_features(features, numbered(boxes), chunk)
            return means.view(*taken.shape, self.config.feature_size)
        # No device is waited for here, so only what is taken is computed: 0 elsewhere.
        means = boxes.new_zeros((*taken.shape, self.config.feature_size))
        for number, places in enumerate(taken):
            own_map = features[number : number + 1]
            means[number, places] = self.picture_features(own_map, boxes[number, places], chunk)
        return means

    def picture_features(
        self, features: Float[Tensor, "1 C G V"], boxes: Float[Tensor, "R 4"], chunk: int
    ) -> Float[Tensor, "R D"]:
        """Returns the mean of res5 over each region of one picture on a CPU, whose regions share
        what they can.
        """
        if len(boxes) and self.config.pooling == "pool" and shares_windows(self.res5):
            size, scale = self.config.pool_size, 1 / self.config.stride
            return pooled_means(self.res5, features, boxes, scale=scale, size=size, chunk=chunk)
        return self.pooled_features(features, numbered(boxes[None]), chunk)

    def pooled_features(
        self, features: Float[Tensor, "N C G V"], rois: Float[Tensor, "R 5"], chunk: int
    ) -> Float[Tensor, "R D"]:
        """Returns the mean of res5 over each of the regions that follow their picture's number."""
        if not len(rois):
            return rois.new_zeros((0, self.config.feature_size))
        # Once for all chunks: torchvision's pooling would do both to the whole map for each. A
        # maximum of bfloat16 numbers is one of them, so nothing is rounded otherwise.
        maps = widened(features).contiguous()
        parts = torch.split(rois, chunk)
        return torch.cat([self.region_means(pool_regions(maps, r, self.config)) for r in parts])


def numbered(boxes: Float[Tensor, "N P 4"]) -> Float[Tensor, "R 5"]:
    """Returns all boxes in one row, each after its picture's number, as torchvision pools them."""
    numbers = torch.arange(len(boxes), dtype=boxes.dtype, device=boxes.device)
    return torch.cat((numbers[:, None, None].expand(*boxes.shape[:2], 1), boxes), 2).flatten(0, 1)


def pool_regions(
    features: Float[Tensor, "N C G V"], rois: Float[Tensor, "R 5"], config: DetectorConfig
) -> Float[Tensor, "R C P P"]:
    """Applies RoI max pooling (Girshick 2015: a bin is the maximum of the cells that it touches),
    or RoIAlign (He et al. 2017), whose first form, ``align-legacy``, is half a cell off.

    Each box of ``rois`` follows its picture's number.
    """
    size, scale = config.pool_size, 1 / config.stride
    if config.pooling == "pool":
        pooled: Tensor = roi_pool(features, rois, size, scale)
        return pooled
    aligned = config.pooling == "align"
    pooled = roi_align(features, rois, size, scale, config.sampling_ratio, aligned)
    return pooled


class DetectorNetwork(nn.Module, ABC):
    """Detects in whole pictures by the steps of a network: ours, or another project's."""

    config: DetectorConfig

    def forward(
        self,
        pictures: Float[Tensor, "N 3 H W"],
        limits: Float[Tensor, "N 4"],
        min_sides: Float[Tensor, " N"],
        *,
        given_boxes: tuple[Float[Tensor, "N P 4"], Bool[Tensor, "N P"]] | None = None,
        whole: bool = False,
        chunk: int = 50,
    ) -> Detections:
        """Detects in pictures, or describes ``given_boxes`` (and which of them count).

        ``limits`` are the pictures' farthest corners twice (x, y, x, y), which tell padding to the
        right and below: it is part of the pictures, as it is to the published code, but no
        proposal reaches into it. ``min_sides`` are the least width and height of proposals,
        ``chunk`` the regions that pass through res5 together. All in pixels of the network's input.
        """
        features = self.feature_map(pictures)
        regions = (
            self.proposals(features, limits, min_sides) if given_boxes is None else given_boxes
        )
        detections = self.describe(features, *regions, chunk)
        if not whole:
            return detections
        return dataclasses.replace(detections, whole=self.whole_pictures(features, limits, chunk))

    @abstractmethod
    def feature_map(self, pictures: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N C G V"]:
        """Computes the map that proposals and regions share."""

    @abstractmethod
    def proposals(
        self,
        features: Float[Tensor, "N C G V"],
        limits: Float[Tensor, "N 4"],
        min_sides: Float[Tensor, " N"],
    ) -> tuple[Float[Tensor, "N P 4"], Bool[Tensor, "N P"]]:
        """Returns where regions may be, best first, and which of the places are taken."""

    @abstractmethod
    def describe(
        self,
        features: Float[Tensor, "N C G V"],
        boxes: Float[Tensor, "N P 4"],
        taken: Bool[Tensor, "N P"],
        chunk: int = 50,
    ) -> Detections:
        """Returns what the network says of boxes on the feature map."""

    @abstractmethod
    def whole_pictures(
        self, features: Float[Tensor, "N C G V"], limits: Float[Tensor, "N 4"], chunk: int = 50
    ) -> Float[Tensor, "N D"]:
        """Returns the features of the regions that are the whole pictures."""


class FasterRCNN(DetectorNetwork):
    """Detects in whole pictures: finds their proposals and describes all of them.

    Trainable: gradients reach every stage above ``config.frozen_stages``.
    """

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = Backbone(config)
        self.proposal_generator = ProposalGenerator(config)
        self.roi_heads = RoiHeads(config)
        for number in range(1, config.frozen_stages + 1):
            name = "stem" if number == 1 else f"res{number}"
            self.backbone.get_submodule(name).requires_grad_(False)

    def feature_map(self, pictures: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N C G V"]:
        """Says what proposals and regions share: res4, activated where res5 expects that."""
        return self.activate(self.backbone(pictures))

    def activate(self, features: Float[Tensor, "N C G V"]) -> Float[Tensor, "N C G V"]:
        """Normalises and rectifies res4 of a pre-activation network once, as res5's first block
        would.
        """
        first = self.roi_heads.res5[0]
        return first.activate(features) if isinstance(first, PreActivationBottleneck) else features

    def proposals(
        self,
        features: Float[Tensor, "N C G V"],
        limits: Float[Tensor, "N 4"],
        min_sides: Float[Tensor, " N"],
    ) -> tuple[Float[Tensor, "N P 4"], Bool[Tensor, "N P"]]:
        """Returns where regions may be, best first, and which of the places are taken."""
        boxes, scores = self.proposal_generator(features, limits, min_sides)
        return boxes, scores > -torch.inf

    def describe(
        self,
        features: Float[Tensor, "N C G V"],
        boxes: Float[Tensor, "N P 4"],
        taken: Bool[Tensor, "N P"],
        chunk: int = 50,
    ) -> Detections:
        """Returns features, classes and attributes of proposals or given boxes on the feature
        map.
        """
        region_features = self.roi_heads.region_features(features, boxes, taken, chunk)
        return self.classify(boxes, taken, region_features)

    def classify(
        self,
        boxes: Float[Tensor, "N P 4"],
        taken: Bool[Tensor, "N P"],
        region_features: Float[Tensor, "N P D"],
    ) -> Detections:
        """Says what the predictors say of regions with these features."""
        predictor = self.roi_heads.box_predictor
        class_logits = widened(predictor.cls_score(region_features))
        attributes = deltas = None
        if self.config.num_attributes:
            logits = widened(predictor.attribute_logits(region_features, class_logits))
            attributes = predictor.attribute_probs(logits)
        if self.config.written_boxes == "refined":
            deltas = widened(predictor.bbox_pred(region_features))
        return Detections(
            boxes=boxes,
            taken=taken,
            features=region_features,
            class_probs=class_logits.softmax(dim=-1),
            attribute_probs=attributes,
            box_deltas=deltas,
        )

    def whole_pictures(
        self, features: Float[Tensor, "N C G V"], limits: Float[Tensor, "N 4"], chunk: int = 50
    ) -> Float[Tensor, "N D"]:
        """Returns the features of the regions that are the whole pictures."""
        everyone = torch.ones_like(limits[:, :1], dtype=torch.bool)
        return self.roi_heads.region_features(features, whole_boxes(limits), everyone, chunk)[:, 0]


def whole_boxes(limits: Float[Tensor, "N 4"]) -> Float[Tensor, "N 1 4"]:
    """Returns the regions that are the whole pictures, which end at ``limits``."""
    return torch.cat((torch.zeros_like(limits[:, :2]), limits[:, 2:]), dim=1)[:, None]


def refine_boxes(
    boxes: Float[Tensor, "N P 4"],
    deltas: Float[Tensor, "N P B4"],
    limits: Float[Tensor, "N 4"],
    config: DetectorConfig,
) -> Float[Tensor, "N P B 4"]:
    """Returns each region's regressed boxes, one a class or one for all, clipped to the picture.

    ``limits``: the pictures' farthest corners twice, in the pixels of ``boxes``.
    """
    decoded = decode_boxes(
        boxes.flatten(0, 1),
        deltas.flatten(0, 1),
        weights=config.box_weights,
        offset=config.box_offset,
        max_log_scale=config.max_log_scale,
    )
    layers = deltas.shape[2] // 4
    return clip_boxes(decoded.view(*boxes.shape[:2], layers, 4), limits[:, None, None])


def foreground_classes(
    probs: Float[Tensor, "*R K1"], config: DetectorConfig
) -> Float[Tensor, "*R K"]:
    """Returns class probabilities without background's, not renormalised."""
    return probs[..., 1:] if config.background == "first" else probs[..., :-1]


def foreground_attributes(
    probs: Float[Tensor, "*R L1"], config: DetectorConfig
) -> Float[Tensor, "*R L"]:
    """Returns attribute probabilities without that of "no attribute", not renormalised."""
    return probs[..., 1:] if config.attribute_background else probs
