"""Builds Faster R-CNN on ResNet C4 or a feature pyramid: the detectors of region features.

Papers: Ren et al. 2015 (arXiv:1506.01497), Lin et al. 2017 (arXiv:1612.03144), Anderson et al. 2018
(arXiv:1707.07998), Jiang et al. 2020 (arXiv:2001.03615). Parameter names are those in the published
PyTorch weights (vlmill.models.detector.published).

N images with P region slots each, R regions, K classes and L attributes (K1 and L1 with background,
where the family has it), D = feature size, G x V cells of the feature map. Boxes are (x1, y1, x2,
y2) in pixels of the network's input.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from vlmill.models.detector.backbone import Backbone, Maps
from vlmill.models.detector.boxes import clip_boxes, decode_boxes
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.proposals import ProposalGenerator
from vlmill.models.detector.resnet import PreActivationBottleneck, widen
from vlmill.models.detector.roi_heads import RoiHeads


@dataclass(frozen=True, kw_only=True)
class Detections:
    """Holds the network's outputs for P region slots in each of N images, before any selection.

    ``box_mask`` is True for slots that hold a proposal or a given box, because images have
    different numbers of them. The values in the other slots are undefined.
    """

    boxes: Float[Tensor, "N P 4"]  # proposals, not refined, or a grid's cells
    box_mask: Bool[Tensor, "N P"]
    features: Float[Tensor, "N P D"]
    class_probs: Float[Tensor, "N P K1"]  # with background if the family has it; K1 is 0 for a grid
    # None: no attribute head, or a head that reads the written boxes.
    attribute_probs: Float[Tensor, "N P L1"] | None = None
    box_deltas: Float[Tensor, "N P B4"] | None = None  # None: the family writes proposals


class DetectorNetwork(nn.Module, ABC):
    """Detects regions in full images; the base class of vlmill's and other projects' networks."""

    config: DetectorConfig

    def forward(
        self,
        images: Float[Tensor, "N 3 H W"],
        limits: Float[Tensor, "N 4"],
        min_sides: Float[Tensor, " N"],
        *,
        given_boxes: tuple[Float[Tensor, "N P 4"], Bool[Tensor, "N P"]] | None = None,
        chunk: int = 50,
    ) -> Detections:
        """Detects regions in images, or describes ``given_boxes`` (and the mask of the valid ones).

        ``limits`` are the images' farthest corners twice (x, y, x, y). They separate images from
        the padding to the right and below: as in the published code, padding is part of the input,
        but no proposal extends into it. ``min_sides`` are the minimum width and height of
        proposals, ``chunk`` is the number of regions in one forward pass of res5. All in pixels of
        the network's input.
        """
        return self.detect(
            self.feature_maps(images), limits, min_sides, given_boxes=given_boxes, chunk=chunk
        )

    def detect(
        self,
        maps: Maps,
        limits: Float[Tensor, "N 4"],
        min_sides: Float[Tensor, " N"],
        *,
        given_boxes: tuple[Float[Tensor, "N P 4"], Bool[Tensor, "N P"]] | None = None,
        chunk: int = 50,
    ) -> Detections:
        """Detects regions as :meth:`forward` does, from the images' feature maps."""
        if given_boxes is None:
            given_boxes = self.proposals(maps, limits, min_sides)
        return self.describe(maps, *given_boxes, chunk)

    @abstractmethod
    def feature_maps(self, images: Float[Tensor, "N 3 H W"]) -> Maps:
        """Computes the maps that proposals and regions share."""

    @abstractmethod
    def proposals(
        self, maps: Maps, limits: Float[Tensor, "N 4"], min_sides: Float[Tensor, " N"]
    ) -> tuple[Float[Tensor, "N P 4"], Bool[Tensor, "N P"]]:
        """Returns proposal boxes, best first, and the mask of the slots that are used."""

    @abstractmethod
    def describe(
        self,
        maps: Maps,
        boxes: Float[Tensor, "N P 4"],
        box_mask: Bool[Tensor, "N P"],
        chunk: int = 50,
    ) -> Detections:
        """Returns the network's outputs for boxes on the feature maps."""

    @abstractmethod
    def region_features(
        self,
        maps: Maps,
        boxes: Float[Tensor, "N P 4"],
        box_mask: Bool[Tensor, "N P"],
        chunk: int = 50,
    ) -> Float[Tensor, "N P D"]:
        """Returns the features of boxes on the feature maps."""

    def full_images(
        self, maps: Maps, limits: Float[Tensor, "N 4"], chunk: int = 50
    ) -> Float[Tensor, "N D"]:
        """Returns the image-level features: of one region per image, which ends at ``limits``."""
        everyone = torch.ones_like(limits[:, :1], dtype=torch.bool)
        boxes = torch.cat((torch.zeros_like(limits[:, :2]), limits[:, 2:]), dim=1)[:, None]
        return self.region_features(maps, boxes, everyone, chunk)[:, 0]


class FasterRCNN(DetectorNetwork):
    """Finds the proposals in full images and describes all of them.

    Trainable: gradients reach every stage above ``config.frozen_stages``.
    """

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = Backbone(config)
        if config.regions != "grid":
            self.proposal_generator = ProposalGenerator(config)
        self.roi_heads = RoiHeads(config)
        for number in range(1, config.frozen_stages + 1):
            name = "stem" if number == 1 else f"res{number}"
            self.backbone.get_submodule(name).requires_grad_(False)

    def feature_maps(self, images: Float[Tensor, "N 3 H W"]) -> Maps:
        """Computes the maps that proposals and regions share: res4 (activated where res5 expects
        it), the maps of a pyramid, or res5 where its cells are the regions.
        """
        maps = self.activate(self.backbone(images))
        if self.config.regions == "grid" and self.config.last_stage == 4:
            return (self.roi_heads.res5_map(maps[0]),)
        return maps

    def activate(self, maps: Maps) -> Maps:
        """Normalises and rectifies res4 of a pre-activation network once, as the first block of
        res5 would.
        """
        if not self.config.pre_activation:
            return maps
        first = self.roi_heads.res5[0]
        assert isinstance(first, PreActivationBottleneck)
        return tuple(first.activate(features) for features in maps)

    def detect(
        self,
        maps: Maps,
        limits: Float[Tensor, "N 4"],
        min_sides: Float[Tensor, " N"],
        *,
        given_boxes: tuple[Float[Tensor, "N P 4"], Bool[Tensor, "N P"]] | None = None,
        chunk: int = 50,
    ) -> Detections:
        """Returns the network's outputs for proposals, ``given_boxes`` or the cells of res5."""
        if self.config.regions == "grid":
            assert given_boxes is None
            return grid_cells(maps[0], limits, self.config)
        return super().detect(maps, limits, min_sides, given_boxes=given_boxes, chunk=chunk)

    def proposals(
        self, maps: Maps, limits: Float[Tensor, "N 4"], min_sides: Float[Tensor, " N"]
    ) -> tuple[Float[Tensor, "N P 4"], Bool[Tensor, "N P"]]:
        """Returns proposal boxes, best first, and the mask of the slots that are used."""
        boxes, scores = self.proposal_generator(maps, limits, min_sides)
        return boxes, scores > -torch.inf

    def describe(
        self,
        maps: Maps,
        boxes: Float[Tensor, "N P 4"],
        box_mask: Bool[Tensor, "N P"],
        chunk: int = 50,
    ) -> Detections:
        """Returns features, classes and attributes of proposals or given boxes on the feature
        maps.
        """
        features = self.region_features(maps, boxes, box_mask, chunk)
        return self.classify(boxes, box_mask, features)

    def region_features(
        self,
        maps: Maps,
        boxes: Float[Tensor, "N P 4"],
        box_mask: Bool[Tensor, "N P"],
        chunk: int = 50,
    ) -> Float[Tensor, "N P D"]:
        """Returns the features of boxes on the feature maps."""
        return self.roi_heads.region_features(maps, boxes, box_mask, chunk)

    def classify(
        self,
        boxes: Float[Tensor, "N P 4"],
        box_mask: Bool[Tensor, "N P"],
        region_features: Float[Tensor, "N P D"],
    ) -> Detections:
        """Returns the predictors' outputs for regions with these features."""
        predictor = self.roi_heads.box_predictor
        seen = self.roi_heads.classified(region_features)
        class_logits = widen(predictor.cls_score(seen))
        attributes = deltas = None
        if self.config.num_attributes and self.config.attribute_boxes == "proposals":
            logits = widen(predictor.attribute_logits(seen, class_logits))
            attributes = predictor.attribute_probs(logits)
        if self.config.written_boxes == "refined":
            deltas = widen(predictor.bbox_pred(seen))
        return Detections(
            boxes=boxes,
            box_mask=box_mask,
            features=region_features,
            class_probs=class_logits.softmax(dim=-1),
            attribute_probs=attributes,
            box_deltas=deltas,
        )

    def written_attributes(
        self, features: Float[Tensor, "N M D"], class_ids: Int64[Tensor, "N M"]
    ) -> Float[Tensor, "N M L1"]:
        """Returns the attribute probabilities of regions at the boxes that are written, given their
        features and classes (without background).
        """
        predictor = self.roi_heads.box_predictor
        outputs = class_ids + (self.config.background == "first")
        seen = self.roi_heads.classified(features)
        return predictor.attribute_probs(widen(predictor.score_attributes(seen, outputs)))


def grid_cells(
    features: Float[Tensor, "N D G V"], limits: Float[Tensor, "N 4"], config: DetectorConfig
) -> Detections:
    """Returns the cells of a map as regions, row by row, each with the pixels that it covers.

    Cells that cover only padding are not regions; the last cells end at the images' edges.
    """
    images, size, rows, columns = features.shape
    stride, offset = 16 * config.res5_stride, config.box_offset
    y, x = (
        stride * torch.arange(count, dtype=limits.dtype, device=limits.device)
        for count in (rows, columns)
    )
    top, left = (axis.flatten() for axis in torch.meshgrid(y, x, indexing="ij"))
    cells = torch.stack((left, top, left + stride - offset, top + stride - offset), dim=1)
    inside = (cells[None, :, :2] < limits[:, None, :2] + offset).all(dim=2)
    return Detections(
        boxes=clip_boxes(cells[None], limits[:, None]),
        box_mask=inside,
        features=widen(features).permute(0, 2, 3, 1).reshape(images, rows * columns, size),
        class_probs=features.new_zeros((images, rows * columns, 0)),
    )


def refine_boxes(
    boxes: Float[Tensor, "N P 4"],
    deltas: Float[Tensor, "N P B4"],
    limits: Float[Tensor, "N 4"],
    config: DetectorConfig,
) -> Float[Tensor, "N P B 4"]:
    """Returns each region's regressed boxes, one per class or one for all, clipped to the image.

    ``limits``: the images' farthest corners twice, in the pixels of ``boxes``.
    """
    decoded = decode_boxes(
        boxes.flatten(0, 1),
        deltas.flatten(0, 1),
        weights=config.box_weights,
        offset=config.box_offset,
        max_log_scale=config.max_log_scale,
        end=config.decoded_offset,
    )
    layers = deltas.shape[2] // 4
    return clip_boxes(decoded.view(*boxes.shape[:2], layers, 4), limits[:, None, None])


def foreground_classes(
    probs: Float[Tensor, "*R K1"], config: DetectorConfig
) -> Float[Tensor, "*R K"]:
    """Returns the class probabilities without background, not renormalised."""
    return probs[..., 1:] if config.background == "first" else probs[..., :-1]


def foreground_attributes(
    probs: Float[Tensor, "*R L1"], config: DetectorConfig
) -> Float[Tensor, "*R L"]:
    """Returns the attribute probabilities without "no attribute", not renormalised."""
    return probs[..., 1:] if config.attribute_background else probs
