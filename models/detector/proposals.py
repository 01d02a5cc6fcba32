"""Makes region proposals from the outputs of the network's head and its anchors.

N images, A anchors per cell, G x V cells of the feature map, R anchors, P proposal slots. Boxes are
(x1, y1, x2, y2) in pixels of the network's input. Paper: Ren et al. 2015 (arXiv:1506.01497).
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from vlmill.models.detector.backbone import Maps
from vlmill.models.detector.boxes import clip_boxes, decode_boxes
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.nms import first_survivors
from vlmill.models.detector.resnet import relu, widen


def legacy_cell_anchors(
    scales: Sequence[float], ratios: Sequence[float], base: int = 16
) -> Float[Tensor, "A 4"]:
    """Returns one cell's anchors as in the original Caffe code, in (ratio, scale) order.

    The base box (0, 0, base-1, base-1) is reshaped to each ratio (height / width) with rounded
    sides, then scaled around its centre; corners are inclusive.
    """
    centre = (base - 1) / 2
    anchors = []
    for ratio in ratios:
        width = np.round(np.sqrt(base * base / ratio))
        height = np.round(width * ratio)
        for scale in scales:
            half_w, half_h = (width * scale - 1) / 2, (height * scale - 1) / 2
            anchors.append((centre - half_w, centre - half_h, centre + half_w, centre + half_h))
    return torch.tensor(np.array(anchors, dtype=np.float32))


def centred_cell_anchors(sizes: Sequence[float], ratios: Sequence[float]) -> Float[Tensor, "A 4"]:
    """Returns Detectron2's anchors of one cell: exact sides around 0, in (size, ratio) order.

    An anchor of ``size`` covers size x size pixels at every ratio (height / width).
    """
    anchors = []
    for size in sizes:
        for ratio in ratios:
            width = math.sqrt(size**2 / ratio)
            height = ratio * width
            anchors.append((-width / 2, -height / 2, width / 2, height / 2))
    return torch.tensor(anchors)


def grid_anchors(
    cells: Float[Tensor, "A 4"], rows: int, columns: int, stride: int, shift: float = 0.0
) -> Float[Tensor, "GHA 4"]:
    """Shifts one cell's anchors to every cell of a feature map; order is row, column, anchor.

    The anchors of the first cell are shifted by ``shift`` cells from ``cells``.
    """
    x = (torch.arange(columns, dtype=cells.dtype, device=cells.device) + shift) * stride
    y = (torch.arange(rows, dtype=cells.dtype, device=cells.device) + shift) * stride
    shift_y, shift_x = torch.meshgrid(y, x, indexing="ij")
    shifts = torch.stack((shift_x, shift_y, shift_x, shift_y), dim=-1).reshape(-1, 1, 4)
    return (shifts + cells).reshape(-1, 4)


def make_cell_anchors(config: DetectorConfig, number: int = 0) -> Float[Tensor, "A 4"]:
    """Returns the configured anchors of one cell of feature map ``number``."""
    num_maps, stride = len(config.strides), config.strides[number]
    if config.cell_anchors is not None:
        first = number * config.num_anchors
        return torch.tensor(config.cell_anchors[first : first + config.num_anchors])
    per_map = len(config.anchor_scales) // num_maps
    scales = config.anchor_scales[number * per_map : (number + 1) * per_map]
    if config.anchor_layout == "legacy":
        return legacy_cell_anchors(scales, config.anchor_ratios, stride)
    return centred_cell_anchors([scale * stride for scale in scales], config.anchor_ratios)


class AnchorGenerator(nn.Module):
    """Holds the cell anchors of each map as buffers, because published weights contain anchors."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.strides, self.shift = config.strides, config.anchor_offset
        self.cell_anchors = nn.Module()
        for number in range(len(config.strides)):
            self.cell_anchors.register_buffer(str(number), make_cell_anchors(config, number))

    def forward(self, rows: int, columns: int, number: int = 0) -> Float[Tensor, "GVA 4"]:
        """Returns the anchors of all cells of the feature map ``number``."""
        cells = self.cell_anchors.get_buffer(str(number))
        return grid_anchors(cells, rows, columns, self.strides[number], self.shift)


class RpnHead(nn.Module):
    """Predicts objectness (one or two logits) and a regression for every anchor."""

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


class ProposalGenerator(nn.Module):
    """Applies the region proposal network and its proposal layer."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.config = config
        self.rpn_head = RpnHead(
            config.map_channels,
            config.rpn_channels,
            config.num_anchors,
            2 if config.objectness == "softmax" else 1,
        )
        self.anchor_generator = AnchorGenerator(config)

    def forward(
        self, maps: Maps, limits: Float[Tensor, "N 4"], min_sides: Float[Tensor, " N"]
    ) -> tuple[Float[Tensor, "N P 4"], Float[Tensor, "N P"]]:
        outputs = [self.rpn_head(features) for features in maps]
        logits, deltas = (tuple(map(widen, kind)) for kind in zip(*outputs, strict=True))
        return self.propose(logits, deltas, limits, min_sides)

    @torch.no_grad()
    def propose(
        self,
        logits: Maps,
        deltas: Maps,
        limits: Float[Tensor, "N 4"],
        min_sides: Float[Tensor, " N"],
        *,
        tops: tuple[int, int] | None = None,
    ) -> tuple[Float[Tensor, "N P 4"], Float[Tensor, "N P"]]:
        """Returns proposals and their scores (probabilities or logits, as configured), best first.

        ``logits`` and ``deltas`` are the head's outputs for each map. A slot with a score of -inf
        is empty. ``limits`` are the images' farthest corners without padding; ``min_sides`` the
        smallest width and height in pixels of the network's input. ``tops`` replaces two configured
        numbers: of proposals per map before suppression, and of all proposals after it. No size
        depends on values, so the host need not wait for a GPU. Proposals are constants to a
        training loss, as in the paper's approximate joint training.
        """
        config, images = self.config, len(limits)
        before, after = tops or (config.pre_nms_top, config.post_nms_top)
        candidates = [
            self.candidates(number, map_logits, map_deltas, limits, min_sides, before)
            for number, (map_logits, map_deltas) in enumerate(zip(logits, deltas, strict=True))
        ]
        boxes, scores = stack_maps(candidates)
        survivors, values = first_survivors(
            boxes[:, :, None],
            scores[:, :, None],
            (config.rpn_nms_threshold,),
            min(config.map_nms_top or after, after, scores.shape[1]),
            offset=config.overlap_offset,
            inclusive=config.nms_inclusive,
        )
        boxes = gather_boxes(boxes, survivors[:, 0]).reshape(images, -1, 4)
        values = values[:, 0].reshape(images, -1)
        if len(candidates) == 1:
            return boxes, values
        top = top_indices(values, after)
        return gather_boxes(boxes, top), values.gather(1, top)

    def candidates(
        self,
        number: int,
        logits: Float[Tensor, "N L G V"],
        deltas: Float[Tensor, "N A4 G V"],
        limits: Float[Tensor, "N 4"],
        min_sides: Float[Tensor, " N"],
        count: int,
    ) -> tuple[Float[Tensor, "N R 4"], Float[Tensor, "N R"]]:
        """Returns the best ``count`` boxes of one map, before suppression, and their scores; -inf
        for boxes that are too small.
        """
        config, scores = self.config, self.objectness(logits)
        anchors = self.anchor_generator(*logits.shape[-2:], number).expand(len(logits), -1, -1)
        regressions = deltas.permute(0, 2, 3, 1).reshape(anchors.shape)
        if not config.filter_before_top:
            top = top_indices(scores, count)
            scores, anchors = scores.gather(1, top), gather_boxes(anchors, top)
            regressions = gather_boxes(regressions, top)
        boxes = self.decode(anchors, regressions, limits)
        large = self.large_enough(boxes, min_sides[:, None, None])
        scores = scores.masked_fill(~large, -torch.inf)
        if config.filter_before_top:
            top = top_indices(scores, count)
            scores, boxes = scores.gather(1, top), gather_boxes(boxes, top)
        return boxes, scores

    def decode(
        self,
        anchors: Float[Tensor, "N R 4"],
        regressions: Float[Tensor, "N R 4"],
        limits: Float[Tensor, "N 4"],
    ) -> Float[Tensor, "N R 4"]:
        """Returns the boxes decoded from anchors, inside the images."""
        config = self.config
        boxes = decode_boxes(
            anchors.reshape(-1, 4),
            regressions.reshape(-1, 4),
            weights=config.rpn_box_weights,
            offset=config.box_offset,
            max_log_scale=config.max_log_scale,
            end=config.decoded_offset,
        )
        return clip_boxes(boxes.view(anchors.shape), limits[:, None])

    def objectness(self, logits: Float[Tensor, "N L G V"]) -> Float[Tensor, "N GVA"]:
        """Returns the score of every anchor: the probability of foreground, or the logit.

        For large logits float32 probabilities are all 1; equal scores stay in the anchors' order.
        """
        if self.config.objectness == "softmax":
            return foreground_scores(logits)
        if self.config.objectness == "sigmoid":
            logits = logits.sigmoid()
        return logits.permute(0, 2, 3, 1).reshape(len(logits), -1)

    def large_enough(
        self, boxes: Float[Tensor, "N R 4"], side: Float[Tensor, "N 1 1"]
    ) -> Bool[Tensor, "N R"]:
        """Returns which boxes are at least (or more than) ``side`` wide and high."""
        sizes = boxes[..., 2:] - boxes[..., :2] + self.config.box_offset
        if self.config.min_size_inclusive:
            return (sizes >= side).all(dim=-1)
        return ((sizes > side) & (boxes[..., 2:] > boxes[..., :2])).all(dim=-1)


def stack_maps(
    candidates: Sequence[tuple[Float[Tensor, "N _ 4"], Float[Tensor, "N _"]]],
) -> tuple[Float[Tensor, "M R 4"], Float[Tensor, "M R"]]:
    """Returns the candidates of all maps of N images as M = N x maps images, because suppression is
    within a map. Slots that a smaller map lacks have a score of -inf.
    """
    if len(candidates) == 1:
        return candidates[0]
    most = max(scores.shape[1] for _, scores in candidates)
    boxes, scores = [], []
    for map_boxes, map_scores in candidates:
        missing = most - map_scores.shape[1]
        boxes.append(F.pad(map_boxes, (0, 0, 0, missing)))
        scores.append(F.pad(map_scores, (0, missing), value=-torch.inf))
    return torch.stack(boxes, dim=1).flatten(0, 1), torch.stack(scores, dim=1).flatten(0, 1)


def top_indices(scores: Float[Tensor, "N S"], count: int) -> Int64[Tensor, "N T"]:
    """Returns the indices of the highest scores, descending; equal scores in the anchors' order."""
    return scores.sort(descending=True, stable=True).indices[:, :count]


def gather_boxes(
    boxes: Float[Tensor, "N R 4"], indices: Int64[Tensor, "N T"]
) -> Float[Tensor, "N T 4"]:
    """Returns the boxes of each image at its indices."""
    return boxes.gather(1, indices[..., None].expand(-1, -1, 4))


def foreground_scores(logits: Float[Tensor, "N A2 G V"]) -> Float[Tensor, "N GVA"]:
    """Returns each anchor's softmax over (background, foreground); background's channels come
    first.
    """
    images, channels, rows, columns = logits.shape
    pairs = logits.reshape(images, 2, channels // 2, rows, columns)
    return pairs.softmax(dim=1)[:, 1].permute(0, 2, 3, 1).reshape(images, -1)
