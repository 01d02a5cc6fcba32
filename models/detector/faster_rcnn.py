"""Builds Faster R-CNN on ResNet C4: the detectors of bottom-up attention and of Detectron2.

Papers: Ren et al. 2015 (arXiv:1506.01497), Anderson et al. 2018 (arXiv:1707.07998).  Parameter
names are those of the published PyTorch weights (vlmill.models.detector.published).

N images, P places for regions in each, R regions, K classes and L attributes (K1 and L1 with
background, where the family has it), D = feature size, G x V cells of the feature map.  Boxes are
(x1, y1, x2, y2) in pixels of the network's input.
"""

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vlmill.models.detector.backbone import Backbone
from vlmill.models.detector.boxes import clip_boxes, decode_boxes
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.proposals import ProposalGenerator
from vlmill.models.detector.resnet import PreActivationBottleneck, widen
from vlmill.models.detector.roi_heads import RoiHeads


@dataclass(frozen=True, kw_only=True)
class Detections:
    """Holds what the network says of P places for regions in each of N images, before any
    selection.

    ``box_mask`` says which places hold a proposal or a given box: images have different numbers of
    them. What stands in the others means nothing.
    """

    boxes: Float[Tensor, "N P 4"]  # proposals, not refined
    box_mask: Bool[Tensor, "N P"]
    features: Float[Tensor, "N P D"]
    class_probs: Float[Tensor, "N P K1"]  # background where the family has it
    attribute_probs: Float[Tensor, "N P L1"] | None = None  # None: no attribute head
    box_deltas: Float[Tensor, "N P B4"] | None = None  # None: the family writes proposals
    global_features: Float[Tensor, "N D"] | None = None  # of the regions that are the full images


class DetectorNetwork(nn.Module, ABC):
    """Detects in full images by the steps of a network: ours, or another project's."""

    config: DetectorConfig

    def forward(
        self,
        images: Float[Tensor, "N 3 H W"],
        limits: Float[Tensor, "N 4"],
        min_sides: Float[Tensor, " N"],
        *,
        given_boxes: tuple[Float[Tensor, "N P 4"], Bool[Tensor, "N P"]] | None = None,
        with_global_features: bool = False,
        chunk: int = 50,
    ) -> Detections:
        """Detects in images, or describes ``given_boxes`` (and which of them count).

        ``limits`` are the images' farthest corners twice (x, y, x, y), which tell padding to the
        right and below: it is part of the images, as it is to the published code, but no
        proposal reaches into it. ``min_sides`` are the least width and height of proposals,
        ``chunk`` the regions that pass through res5 together. All in pixels of the network's input.
        """
        features = self.feature_map(images)
        regions = (
            self.proposals(features, limits, min_sides) if given_boxes is None else given_boxes
        )
        detections = self.describe(features, *regions, chunk)
        if not with_global_features:
            return detections
        return dataclasses.replace(
            detections, global_features=self.full_images(features, limits, chunk)
        )

    @abstractmethod
    def feature_map(self, images: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N C G V"]:
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
        box_mask: Bool[Tensor, "N P"],
        chunk: int = 50,
    ) -> Detections:
        """Returns what the network says of boxes on the feature map."""

    @abstractmethod
    def full_images(
        self, features: Float[Tensor, "N C G V"], limits: Float[Tensor, "N 4"], chunk: int = 50
    ) -> Float[Tensor, "N D"]:
        """Returns the features of the regions that are the full images."""


class FasterRCNN(DetectorNetwork):
    """Detects in full images: finds their proposals and describes all of them.

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

    def feature_map(self, images: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N C G V"]:
        """Says what proposals and regions share: res4, activated where res5 expects that."""
        return self.activate(self.backbone(images))

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
        box_mask: Bool[Tensor, "N P"],
        chunk: int = 50,
    ) -> Detections:
        """Returns features, classes and attributes of proposals or given boxes on the feature
        map.
        """
        region_features = self.roi_heads.region_features(features, boxes, box_mask, chunk)
        return self.classify(boxes, box_mask, region_features)

    def classify(
        self,
        boxes: Float[Tensor, "N P 4"],
        box_mask: Bool[Tensor, "N P"],
        region_features: Float[Tensor, "N P D"],
    ) -> Detections:
        """Says what the predictors say of regions with these features."""
        predictor = self.roi_heads.box_predictor
        class_logits = widen(predictor.cls_score(region_features))
        attributes = deltas = None
        if self.config.num_attributes:
            logits = widen(predictor.attribute_logits(region_features, class_logits))
            attributes = predictor.attribute_probs(logits)
        if self.config.written_boxes == "refined":
            deltas = widen(predictor.bbox_pred(region_features))
        return Detections(
            boxes=boxes,
            box_mask=box_mask,
            features=region_features,
            class_probs=class_logits.softmax(dim=-1),
            attribute_probs=attributes,
            box_deltas=deltas,
        )

    def full_images(
        self, features: Float[Tensor, "N C G V"], limits: Float[Tensor, "N 4"], chunk: int = 50
    ) -> Float[Tensor, "N D"]:
        """Returns the features of the regions that are the full images."""
        everyone = torch.ones_like(limits[:, :1], dtype=torch.bool)
        return self.roi_heads.region_features(features, whole_boxes(limits), everyone, chunk)[:, 0]


def whole_boxes(limits: Float[Tensor, "N 4"]) -> Float[Tensor, "N 1 4"]:
    """Returns the regions that are the full images, which end at ``limits``."""
    return torch.cat((torch.zeros_like(limits[:, :2]), limits[:, 2:]), dim=1)[:, None]


def refine_boxes(
    boxes: Float[Tensor, "N P 4"],
    deltas: Float[Tensor, "N P B4"],
    limits: Float[Tensor, "N 4"],
    config: DetectorConfig,
) -> Float[Tensor, "N P B 4"]:
    """Returns each region's regressed boxes, one a class or one for all, clipped to the image.

    ``limits``: the images' farthest corners twice, in the pixels of ``boxes``.
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
