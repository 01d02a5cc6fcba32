"""Wraps Detectron2's modules in the methods that extraction calls on a detector.

Proposals, features, logits and regressions are computed by its own modules from its own
configuration; preprocessing, selection and rows are the same as for every other detector.
"""

import importlib
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from vlmill.models.detector.backbone import Maps
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.faster_rcnn import Detections, DetectorNetwork
from vlmill.models.detector.resnet import widen
from vlmill.models.detector.roi_heads import pooled_of


class Detectron2Network(DetectorNetwork):
    """Takes the steps of a detector by a model of Detectron2."""

    model: Any

    def __init__(self, model: nn.Module, config: DetectorConfig, cfg: Any) -> None:
        super().__init__()
        self.model, self.config, self.cfg = model, config, cfg

    def feature_maps(self, images: Float[Tensor, "N 3 H W"]) -> Maps:
        """Computes the maps that proposals and regions share."""
        features = self.model.backbone(images)
        return tuple(features[level] for level in self.levels)

    @property
    def levels(self) -> list[str]:
        """Returns Detectron2's names of the maps that proposals are made of."""
        return list(self.model.proposal_generator.in_features)

    def proposals(
        self, maps: Maps, limits: Float[Tensor, "N 4"], min_sides: Float[Tensor, " N"]
    ) -> tuple[Float[Tensor, "N P 4"], Bool[Tensor, "N P"]]:
        """Returns proposals, best first, and which of the slots are used.

        ``min_sides`` is ignored: Detectron2 uses the value of its configuration.
        """
        sizes = [(int(height), int(width)) for width, height, *_ in limits.tolist()]
        # Of the images its proposal generator reads the sizes alone.
        images = importlib.import_module("detectron2.structures").ImageList(maps[0], sizes)
        features = dict(zip(self.levels, maps, strict=True))
        instances, _ = self.model.proposal_generator(images, features, None)
        boxes = [instance.proposal_boxes.tensor for instance in instances]
        flags = [torch.ones_like(image_boxes[:, 0], dtype=torch.bool) for image_boxes in boxes]
        return pad_sequence(boxes, batch_first=True), pad_sequence(flags, batch_first=True)

    def describe(
        self,
        maps: Maps,
        boxes: Float[Tensor, "N P 4"],
        box_mask: Bool[Tensor, "N P"],
        chunk: int = 50,
    ) -> Detections:
        """Features, classes and regressions of boxes, ``chunk`` at a time to bound memory."""
        features = self.region_features(maps, boxes, box_mask, chunk)
        logits, deltas = self.model.roi_heads.box_predictor(features.flatten(0, 1))
        return Detections(
            boxes=boxes,
            box_mask=box_mask,
            features=features,
            class_probs=widen(logits).softmax(dim=1).view(*box_mask.shape, -1),
            box_deltas=widen(deltas).view(*box_mask.shape, -1),
        )

    def region_features(
        self,
        maps: Maps,
        boxes: Float[Tensor, "N P 4"],
        box_mask: Bool[Tensor, "N P"],
        chunk: int = 50,
    ) -> Float[Tensor, "N P D"]:
        """Returns the features of each region, ``chunk`` at a time to bound memory: the mean of
        res5, or the output of the box head.
        """
        structures = importlib.import_module("detectron2.structures")
        rows = [boxes.new_zeros((0, self.config.feature_size))]
        for number, image_boxes in enumerate(boxes):
            own = [features[number : number + 1] for features in pooled_of(maps, self.config)]
            for part in torch.split(image_boxes, chunk):
                rows.append(self.describe_boxes(own, structures.Boxes(part)))
        return torch.cat(rows).view(*boxes.shape[:2], self.config.feature_size)

    def describe_boxes(self, maps: list[Tensor], boxes: Any) -> Float[Tensor, "R D"]:
        """Returns the features of Detectron2's ``boxes`` on the maps of one image."""
        heads = self.model.roi_heads
        if self.config.feature_layer == "res5":
            return widen(heads.res5(heads.pooler(maps, [boxes]))).mean(dim=(2, 3))
        return widen(heads.box_head(heads.box_pooler(maps, [boxes])))
