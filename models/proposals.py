"""Region proposals: the network's head, the anchors, and what makes boxes of both.

A anchors per cell, G x V cells of the feature map, R proposals.  Boxes are (x1, y1, x2, y2) in
pixels of the network's input.  Paper: Ren et al. 2015 (arXiv:1506.01497).
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from vlmill.models.boxes import (
    centred_cell_anchors,
    clip_boxes,
    decode_boxes,
    grid_anchors,
    legacy_cell_anchors,
)
from vlmill.models.detector_config import DetectorConfig
from vlmill.models.nms import nms
from vlmill.models.resnet import relu, widened


class RpnHead(nn.Module):
    """Objectness (one logit, or background's and foreground's) and a regression of every anchor."""

    def __init__(self, in_channels: int, channels: int, num_anchors: int, num_logits: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, channels, 3, padding=1)
        self.objectness_logits = nn.Conv2d(channels, num_logits * num_anchors, 1)
        self.anchor_deltas = nn.Conv2d(channels, 4 * num_anchors, 1)

    def forward(
        self, features: Float[Tensor, "N C G V"]
    ) -> tuple[Float[Tensor, "N L G V"], Float[Tensor, "N A4 G V"]]:
        hidden = relu(self.conv(features))
        return self.objectness_logits(hidden), self.anchor_deltas(hidden)


def cell_anchors_of(config: DetectorConfig) -> Float[Tensor, "A 4"]:
    """The anchors of one cell as configured."""
    if config.cell_anchors is not None:
        return torch.tensor(config.cell_anchors)
    if config.anchor_layout == "legacy":
        return legacy_cell_anchors(config.anchor_scales, config.anchor_ratios)
    sizes = [scale * config.stride for scale in config.anchor_scales]
    return centred_cell_anchors(sizes, config.anchor_ratios)


class AnchorGenerator(nn.Module):
    """The cell anchors, kept as a buffer: the published weights carry their own."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.stride, self.shift = config.stride, config.anchor_offset
        self.cell_anchors = nn.Module()
        self.cell_anchors.register_buffer("0", cell_anchors_of(config))

    def forward(self, rows: int, columns: int) -> Float[Tensor, "GVA 4"]:
        cells = self.cell_anchors.get_buffer("0")
        return grid_anchors(cells, rows, columns, self.stride, self.shift)


class ProposalGenerator(nn.Module):
    """The region proposal network and its proposal layer."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.config = config
        self.rpn_head = RpnHead(
            4 * config.res2_channels,
            config.rpn_channels,
            config.num_anchors,
            2 if config.objectness == "softmax" else 1,
        )
        self.anchor_generator = AnchorGenerator(config)

    def forward(
        self, features: Float[Tensor, "1 C G V"], height: int, width: int, scale: float
    ) -> tuple[Float[Tensor, "R 4"], Float[Tensor, " R"]]:
        logits, deltas = self.rpn_head(features)
        return self.propose(widened(logits), widened(deltas), height, width, scale)

    @torch.no_grad()
    def propose(
        self,
        logits: Float[Tensor, "1 L G V"],
        deltas: Float[Tensor, "1 A4 G V"],
        height: int,
        width: int,
        scale: float,
    ) -> tuple[Float[Tensor, "R 4"], Float[Tensor, " R"]]:
        """Proposals and their scores (probabilities or logits, as configured), best first.

        ``height`` and ``width`` are those of the picture itself where the map is of a padded one;
        ``scale`` is its resize factor: the smallest size is meant in pixels of the original.
        Proposals are constants to a training loss, as in the paper's approximate joint training.
        """
        config = self.config
        scores = self.objectness(logits)
        anchors = self.anchor_generator(*logits.shape[-2:])
        regressions = deltas[0].permute(1, 2, 0).reshape(-1, 4)
        if not config.filter_before_top:
            top = self.best(scores)
            scores, anchors, regressions = scores[top], anchors[top], regressions[top]
        boxes = decode_boxes(
            anchors,
            regressions,
            weights=config.rpn_box_weights,
            offset=config.box_offset,
            max_log_scale=config.max_log_scale,
        )
        boxes = clip_boxes(boxes, float(height), float(width), config.box_offset)
        large = self.large_enough(boxes, config.min_proposal_size * scale)
        boxes, scores = boxes[large], scores[large]
        if config.filter_before_top:
            top = self.best(scores)
            boxes, scores = boxes[top], scores[top]
        kept = nms(
            boxes,
            scores,
            config.rpn_nms_threshold,
            offset=config.box_offset,
            inclusive=config.nms_inclusive,
        )[: config.post_nms_top]
        return boxes[kept], scores[kept]

    def objectness(self, logits: Float[Tensor, "1 L G V"]) -> Float[Tensor, " GVA"]:
        """The score of every anchor: foreground's probability, or the logit itself."""
        if self.config.objectness == "softmax":
            return foreground_scores(logits)
        return logits[0].permute(1, 2, 0).reshape(-1)

    def best(self, scores: Float[Tensor, " S"]) -> Int64[Tensor, " T"]:
        """The highest scores' places, in falling order; equal ones in the anchors' order."""
        return scores.sort(descending=True, stable=True).indices[: self.config.pre_nms_top]

    def large_enough(self, boxes: Float[Tensor, "R 4"], side: float) -> Tensor:
        """Which boxes are at least (or more than) ``side`` wide and high."""
        sizes = boxes[:, 2:] - boxes[:, :2] + self.config.box_offset
        if self.config.min_size_inclusive:
            return (sizes >= side).all(dim=1)
        return ((sizes > side) & (boxes[:, 2:] > boxes[:, :2])).all(dim=1)


def foreground_scores(logits: Float[Tensor, "1 A2 G V"]) -> Float[Tensor, " GVA"]:
    """Softmax over (background, foreground) of each anchor; background's channels come first."""
    _, channels, rows, columns = logits.shape
    pairs = logits.reshape(2, channels // 2, rows, columns)
    return pairs.softmax(dim=0)[1].permute(1, 2, 0).reshape(-1)
