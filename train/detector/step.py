"""Computes one training step: from images and their true boxes to the sum of the losses.

N images, G x V cells, A anchors a cell, R anchors, M true boxes, S sampled regions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.resnet import widen
from vlmill.models.detector.roi_heads import pool_regions
from vlmill.schemas.errors import InputError
from vlmill.train.detector.losses import attribute_loss, class_outputs, region_losses, rpn_losses
from vlmill.train.detector.settings import TrainingSettings
from vlmill.train.detector.targets import (
    Draw,
    Matches,
    Regions,
    attribute_targets,
    candidates,
    mask_labels,
    match_anchors,
    match_regions,
    sample,
    sample_regions,
)
from vlmill.train.loading.undecodable import Undecodable


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Holds the annotated objects of one image; boxes in pixels of the network's input."""

    boxes: Float[Tensor, "M 4"]
    classes: Int64[Tensor, " M"]  # from 0, background not counted
    attributes: Int64[Tensor, "M A"]  # from 0; -1 where a box has fewer

    def to(self, device: torch.device | str) -> "Truth":
        """Returns the same object on a device."""
        return Truth(
            boxes=self.boxes.to(device),
            classes=self.classes.to(device),
            attributes=self.attributes.to(device),
        )


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Holds the images of a part of a step, padded to the right and below with zeros.

    ``draw`` chooses the part's examples. ``undecodable`` names the images that are missing.
    """

    image_ids: tuple[str, ...]
    images: Float[Tensor, "N 3 H W"]
    sizes: tuple[tuple[int, int], ...]  # height and width without the padding
    min_sides: Float[Tensor, " N"]  # the least width and height of proposals
    truths: tuple[Truth, ...]
    draw: Draw | None = None
    undecodable: tuple[Undecodable, ...] = ()
    sources: tuple[str, ...] = ()  # of tables of pairs alone

    @property
    def pair_ids(self) -> tuple[str, ...]:
        """Returns the ids of the images."""
        return self.image_ids

    def to(self, device: torch.device | str) -> "Batch":
        """Returns the same object on a device."""
        return replace(
            self,
            images=self.images.to(device, non_blocking=True),
            min_sides=self.min_sides.to(device),
            truths=tuple(truth.to(device) for truth in self.truths),
        )

    def limits(self, offset: float) -> Float[Tensor, "N 4"]:
        """Returns the images' farthest corners twice (x, y, x, y)."""
        corners = [[width - offset, height - offset] * 2 for height, width in self.sizes]
        return torch.tensor(corners, device=self.images.device)


@dataclass(frozen=True, kw_only=True)
class AnchorTargets:
    """Holds the targets of the anchors of a batch."""

    matches: Sequence[Matches]  # of each image, before sampling
    labels: Int64[Tensor, "N R"]  # of the examples; the others are ignored
    boxes: Float[Tensor, "N R 4"]  # of the positive ones


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Holds the network's outputs for a step's sampled regions, and the regions."""

    regions: Sequence[Regions]  # of each image
    features: Float[Tensor, "S D"]
    class_logits: Float[Tensor, "S K1"]
    deltas: Float[Tensor, "S B4"]
    attribute_logits: Float[Tensor, "F L"] | None  # of foreground, given its true class


class DetectorStep(nn.Module):
    """Computes the losses of a batch; the network is the one that extracts."""

    contrast = None  # of no pairs

    def __init__(self, model: FasterRCNN, settings: TrainingSettings) -> None:
        super().__init__()
        if model.config.fpn_channels or model.config.regions == "grid":
            raise InputError(
                "detector: a detector with a pyramid or a grid is not trained here; set "
                "detector.fpn_channels=0 and detector.regions=proposals"
            )
        self.model, self.rpn, self.roi = model, settings.rpn, settings.roi

    def forward(
        self, batch: Batch, shares: Float[Tensor, " 1"], *_: Tensor | None
    ) -> tuple[Float[Tensor, ""], dict[str, Float[Tensor, ""]]]:
        """Returns the sum of the losses, and each loss, times the batch's share of its step."""
        assert batch.draw is not None
        losses = self.losses(batch, batch.draw)
        losses = {name: loss * shares[0] for name, loss in losses.items()}
        return torch.stack(list(losses.values())).sum(), losses

    def losses(self, batch: Batch, draw: Draw) -> dict[str, Float[Tensor, ""]]:
        """Returns the losses by name, weighted; their sum is minimised.

        ``draw`` samples the positive and the negative anchors of each image, then the foreground
        and background of each.
        """
        (features,) = self.model.feature_maps(batch.images)  # of a C4 model
        logits, deltas = map(widen, self.model.proposal_generator.rpn_head(features))
        anchors = self.model.proposal_generator.anchor_generator(*logits.shape[-2:])
        targets = self.anchor_targets(batch, anchors, draw)
        losses = rpn_losses(
            logits, deltas, anchors, targets.labels, targets.boxes, self.rpn, self.model.config
        )
        proposals = [boxes for boxes, _ in self.proposals(batch, logits, deltas)]
        regions = self.regions(batch, proposals, draw)
        outputs = self.describe(features, regions)
        return losses | self.head_losses(batch, outputs)

    def anchor_targets(
        self, batch: Batch, anchors: Float[Tensor, "R 4"], draw: Draw
    ) -> AnchorTargets:
        """Matches and samples the anchors of each image."""
        matches, labels, boxes = [], [], []
        for size, truth in zip(batch.sizes, batch.truths, strict=True):
            offset = self.model.config.box_offset
            image_matches = match_anchors(anchors, truth.boxes, size, self.rpn, offset)
            chosen = sample(image_matches.labels, self.rpn.matching, draw)
            matches.append(image_matches)
            labels.append(mask_labels(image_matches, chosen))
            boxes.append(truth.boxes[image_matches.boxes] if len(truth.boxes) else anchors)
        return AnchorTargets(matches=matches, labels=torch.stack(labels), boxes=torch.stack(boxes))

    def proposals(
        self, batch: Batch, logits: Float[Tensor, "N L G V"], deltas: Float[Tensor, "N A4 G V"]
    ) -> list[tuple[Float[Tensor, "P 4"], Float[Tensor, " P"]]]:
        """Returns the proposals of each image, best first, and their scores, without a gradient."""
        boxes, scores = self.model.proposal_generator.propose(
            (logits.detach(),),
            (deltas.detach(),),
            batch.limits(self.model.config.box_offset),
            batch.min_sides,
            tops=(self.rpn.pre_nms_top, self.rpn.post_nms_top),
        )
        box_masks = [score > -torch.inf for score in scores]
        return [
            (image_boxes[there], score[there])
            for image_boxes, score, there in zip(boxes, scores, box_masks, strict=True)
        ]

    def regions(
        self, batch: Batch, proposals: Sequence[Float[Tensor, "P 4"]], draw: Draw
    ) -> list[Regions]:
        """Matches and samples the proposals of each image."""
        config, sampled = self.model.config, []
        for image_proposals, truth in zip(proposals, batch.truths, strict=True):
            boxes = candidates(image_proposals, truth.boxes, self.roi)
            matches = match_regions(boxes, truth.boxes, self.roi, config.box_offset)
            sampled.append(
                sample_regions(
                    boxes,
                    matches,
                    truth.classes,
                    self.roi,
                    background=config.num_classes,
                    draw=draw,
                )
            )
        return sampled

    def describe(self, features: Float[Tensor, "N C G V"], regions: Sequence[Regions]) -> Outputs:
        """Returns the outputs of res5 and the predictors for the sampled regions of all images."""
        config, heads = self.model.config, self.model.roi_heads
        rois = torch.cat(
            [
                torch.cat(
                    (torch.full_like(image_regions.boxes[:, :1], number), image_regions.boxes),
                    dim=1,
                )
                for number, image_regions in enumerate(regions)
            ]
        )
        means = heads.describe(pool_regions((widen(features),), rois, config))
        predictor = heads.box_predictor
        attributes = None
        if config.num_attributes:
            classes = torch.cat([image_regions.classes for image_regions in regions])
            foreground = classes < config.num_classes
            outputs = class_outputs(classes[foreground], config)
            attributes = widen(predictor.score_attributes(means[foreground], outputs))
        return Outputs(
            regions=regions,
            features=means,
            class_logits=widen(predictor.cls_score(means)),
            deltas=widen(predictor.bbox_pred(means)),
            attribute_logits=attributes,
        )

    def head_losses(self, batch: Batch, outputs: Outputs) -> dict[str, Float[Tensor, ""]]:
        """Returns the losses of the sampled regions."""
        config, regions = self.model.config, outputs.regions
        classes = torch.cat([image_regions.classes for image_regions in regions])
        boxes = torch.cat([image_regions.boxes for image_regions in regions])
        matched = torch.cat(
            [
                truth.boxes[image_regions.matched] if len(truth.boxes) else image_regions.boxes
                for image_regions, truth in zip(regions, batch.truths, strict=True)
            ]
        )
        losses = region_losses(
            outputs.class_logits, outputs.deltas, boxes, classes, matched, self.roi, config
        )
        if outputs.attribute_logits is not None:
            targets = attributes_of_regions(batch.truths, regions, config)
            loss = attribute_loss(
                outputs.attribute_logits,
                targets[classes < config.num_classes],
                left_out=config.attribute_background is False,
            )
            losses["attribute"] = loss * self.roi.attribute_weight
        return losses


def attributes_of_regions(
    truths: Sequence[Truth], regions: Sequence[Regions], config: DetectorConfig
) -> Int64[Tensor, "S A"]:
    """Returns the attribute targets of the regions of all images, -1 for none."""
    targets = [
        attribute_targets(
            truth.attributes,
            item,
            background=config.num_classes,
            shift=config.attribute_background is True,
        )
        for truth, item in zip(truths, regions, strict=True)
    ]
    width = max(item.shape[1] for item in targets)
    return torch.cat([F.pad(item, (0, width - item.shape[1]), value=-1) for item in targets])
