"""Detectron2's modules behind the calls that extraction makes of a detector.

Proposals, features, logits and regressions are computed by its own modules from its own
configuration; preprocessing, selection and rows are those of every other detector.
"""

import importlib
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.faster_rcnn import Detections, DetectorNetwork, whole_boxes
from vlmill.models.detector.resnet import widen


class Detectron2Network(DetectorNetwork):
    """Takes the steps of a detector by a model of Detectron2."""

    model: Any

    def __init__(self, model: nn.Module, config: DetectorConfig, cfg: Any) -> None:
        super().__init__()
        self.model, self.config, self.cfg = model, config, cfg

    def feature_map(self, images: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N C G V"]:
        """Computes the map that proposals and regions share."""
        features: Tensor = self.model.backbone(images)[self.level]
        return features

    @property
    def level(self) -> str:
        """Tells Detectron2's name of the map that proposals and regions share."""
        (name,) = self.model.roi_heads.in_features
        assert isinstance(name, str)
        return name

    def proposals(
        self,
        features: Float[Tensor, "N C G V"],
        limits: Float[Tensor, "N 4"],
        min_sides: Float[Tensor, " N"],
    ) -> tuple[Float[Tensor, "N P 4"], Bool[Tensor, "N P"]]:
        """Proposals, best first, and which of their places are taken.

        ``min_sides`` play no part: Detectron2 has its own of its configuration.
        """
        sizes = [(int(height), int(width)) for width, height, *_ in limits.tolist()]
        # Of the images its proposal generator reads the sizes alone.
        images = importlib.import_module("detectron2.structures").ImageList(features, sizes)
        instances, _ = self.model.proposal_generator(images, {self.level: features}, None)
        boxes = [instance.proposal_boxes.tensor for instance in instances]
        flags = [torch.ones_like(image_boxes[:, 0], dtype=torch.bool) for image_boxes in boxes]
        return pad_sequence(boxes, batch_first=True), pad_sequence(flags, batch_first=True)

    def describe(
        self,
        features: Float[Tensor, "N C G V"],
        boxes: Float[Tensor, "N P 4"],
        box_mask: Bool[Tensor, "N P"],
        chunk: int = 50,
    ) -> Detections:
        """Features, classes and regressions of boxes, ``chunk`` at a time to bound memory."""
        means = self.region_means(features, boxes, chunk)
        logits, deltas = self.model.roi_heads.box_predictor(means.flatten(0, 1))
        return Detections(
            boxes=boxes,
            box_mask=box_mask,
            features=means,
            class_probs=widen(logits).softmax(dim=1).view(*box_mask.shape, -1),
            box_deltas=widen(deltas).view(*box_mask.shape, -1),
        )

    def full_images(
        self, features: Float[Tensor, "N C G V"], limits: Float[Tensor, "N 4"], chunk: int = 50
    ) -> Float[Tensor, "N D"]:
        """Returns the means of res5 over the full images."""
        return self.region_means(features, whole_boxes(limits), chunk)[:, 0]

    def region_means(
        self, features: Float[Tensor, "N C G V"], boxes: Float[Tensor, "N P 4"], chunk: int
    ) -> Float[Tensor, "N P D"]:
        """Returns the mean of res5 over each region, ``chunk`` at a time to bound memory."""
        heads, structures = self.model.roi_heads, importlib.import_module("detectron2.structures")
        means = [boxes.new_zeros((0, self.config.feature_size))]
        for number, image_boxes in enumerate(boxes):
            for part in torch.split(image_boxes, chunk):
                own_map = features[number : number + 1]
                pooled = heads.pooler([own_map], [structures.Boxes(part)])
                means.append(widen(heads.res5(pooled)).mean(dim=(2, 3)))
        return torch.cat(means).view(*boxes.shape[:2], self.config.feature_size)
