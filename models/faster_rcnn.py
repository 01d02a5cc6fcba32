"""Faster R-CNN on ResNet C4 with an attribute head: the detector of bottom-up attention.

Papers: Ren et al. 2015 (arXiv:1506.01497), Anderson et al. 2018 (arXiv:1707.07998).  Parameter
names are those of the published PyTorch weights, so that their state dicts load as they are.

R regions, K classes and L attributes (background first, so K+1 and L+1 scores), A anchors per cell,
D = feature size, G x V cells of the feature map.  Boxes are (x1, y1, x2, y2) in pixels of the
network's input.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import roi_pool

from vlmill.models.boxes import clip_boxes, decode_boxes, grid_anchors, legacy_cell_anchors
from vlmill.models.detector_config import DetectorConfig
from vlmill.models.fused import pooled_means, shares_windows
from vlmill.models.nms import nms
from vlmill.models.resnet import BLOCKS, Stem, resnet_stage

# Training statistics of batch normalisation, which inference never reads; older ports lack them.
IGNORED_SUFFIXES = ("num_batches_tracked",)


@dataclass(frozen=True, kw_only=True)
class Detections:
    """What the network says of one picture's R proposals, before any selection."""

    boxes: Float[Tensor, "R 4"]  # proposals, not refined
    features: Float[Tensor, "R D"]
    class_probs: Float[Tensor, "R K1"]
    attribute_probs: Float[Tensor, "R L1"]


class Backbone(nn.Module):
    """Stem to res4: one feature map of stride 16."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.stem = Stem(config.stem_channels, config.norm_eps, ceil_pool=config.stem_ceil_pool)
        self.res2 = backbone_stage(config, 2)
        self.res3 = backbone_stage(config, 3)
        self.res4 = backbone_stage(config, 4)

    def forward(self, picture: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C G V"]:
        features: Tensor = self.res4(self.res3(self.res2(self.stem(picture))))
        return features


def backbone_stage(config: DetectorConfig, number: int) -> nn.Sequential:
    """Stage 2 to 5 of the configured ResNet; res2 keeps the stem's resolution."""
    factor = 2 ** (number - 2)
    before = config.stem_channels if number == 2 else config.res2_channels * factor // 2
    return resnet_stage(
        BLOCKS[config.depth][number - 2],
        before,
        config.res2_width * factor,
        config.res2_channels * factor,
        config.norm_eps,
        stride={2: 1, 5: config.res5_stride}.get(number, 2),
        dilation=config.res5_dilation if number == 5 else 1,
        stride_in_1x1=config.stride_in_1x1,
    )


class RpnHead(nn.Module):
    """Background and foreground logits and one regression for every anchor of every cell."""

    def __init__(self, in_channels: int, channels: int, num_anchors: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, channels, 3, padding=1)
        self.objectness_logits = nn.Conv2d(channels, 2 * num_anchors, 1)
        self.anchor_deltas = nn.Conv2d(channels, 4 * num_anchors, 1)

    def forward(
        self, features: Float[Tensor, "1 C G V"]
    ) -> tuple[Float[Tensor, "1 A2 G V"], Float[Tensor, "1 A4 G V"]]:
        hidden = F.relu(self.conv(features), inplace=not torch.is_grad_enabled())
        return self.objectness_logits(hidden), self.anchor_deltas(hidden)


class AnchorGenerator(nn.Module):
    """The cell anchors, kept as a buffer: the published weights carry their own."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.stride = config.stride
        self.cell_anchors = nn.Module()
        cells = legacy_cell_anchors(config.anchor_scales, config.anchor_ratios)
        self.cell_anchors.register_buffer("0", cells)

    def forward(self, rows: int, columns: int) -> Float[Tensor, "GVA 4"]:
        return grid_anchors(self.cell_anchors.get_buffer("0"), rows, columns, self.stride)


class ProposalGenerator(nn.Module):
    """The region proposal network and its proposal layer."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.config = config
        self.rpn_head = RpnHead(4 * config.res2_channels, config.rpn_channels, config.num_anchors)
        self.anchor_generator = AnchorGenerator(config)

    def forward(
        self, features: Float[Tensor, "1 C G V"], height: int, width: int, scale: float
    ) -> tuple[Float[Tensor, "R 4"], Float[Tensor, " R"]]:
        logits, deltas = self.rpn_head(features)
        return self.propose(logits, deltas, height, width, scale)

    def propose(
        self,
        logits: Float[Tensor, "1 A2 G V"],
        deltas: Float[Tensor, "1 A4 G V"],
        height: int,
        width: int,
        scale: float,
    ) -> tuple[Float[Tensor, "R 4"], Float[Tensor, " R"]]:
        """Proposals and their foreground probabilities, best first.

        ``scale`` is the picture's resize factor: the smallest size is meant in pixels of the
        original.
        """
        config = self.config
        scores = foreground_scores(logits)
        anchors = self.anchor_generator(*logits.shape[-2:])
        boxes = decode_boxes(
            anchors,
            deltas[0].permute(1, 2, 0).reshape(-1, 4),
            weights=config.rpn_box_weights,
            offset=config.box_offset,
            max_log_scale=config.max_log_scale,
        )
        boxes = clip_boxes(boxes, float(height), float(width), config.box_offset)
        large = self.large_enough(boxes, config.min_proposal_size * scale)
        boxes, scores = boxes[large], scores[large]
        top = scores.sort(descending=True, stable=True).indices[: config.pre_nms_top]
        boxes, scores = boxes[top], scores[top]
        kept = nms(
            boxes,
            scores,
            config.rpn_nms_threshold,
            offset=config.box_offset,
            inclusive=config.nms_inclusive,
        )[: config.post_nms_top]
        return boxes[kept], scores[kept]

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


class BoxPredictor(nn.Module):
    """Classes, box regressions and, given the likeliest class, attributes of a region's feature."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        size, classes = config.feature_size, config.num_classes + 1
        self.cls_score = nn.Linear(size, classes)
        self.bbox_pred = nn.Linear(size, 4 * classes)
        self.cls_embed = nn.Embedding(classes, config.class_embedding_size)
        self.attr_linear1 = nn.Linear(
            size + config.class_embedding_size, config.attribute_hidden_size
        )
        self.attr_linear2 = nn.Linear(config.attribute_hidden_size, config.num_attributes + 1)

    def attribute_logits(
        self, features: Float[Tensor, "R D"], class_logits: Float[Tensor, "R K1"]
    ) -> Float[Tensor, "R L1"]:
        """The class may be background here, as in the original network."""
        embedded = self.cls_embed(class_logits.argmax(dim=1))
        hidden = F.relu(self.attr_linear1(torch.cat((features, embedded), dim=1)))
        logits: Tensor = self.attr_linear2(hidden)
        return logits


class RoiHeads(nn.Module):
    """RoI pooling, res5 and the predictors."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.config = config
        self.res5 = backbone_stage(config, 5)
        self.box_predictor = BoxPredictor(config)

    def pool(
        self, features: Float[Tensor, "1 C G V"], boxes: Float[Tensor, "R 4"]
    ) -> Float[Tensor, "R C P P"]:
        """RoI max pooling (Girshick 2015): a bin is the maximum of the cells that it touches."""
        pooled: Tensor = roi_pool(features, [boxes], self.config.pool_size, 1 / self.config.stride)
        return pooled

    def region_features(
        self, features: Float[Tensor, "1 C G V"], boxes: Float[Tensor, "R 4"], chunk: int
    ) -> Float[Tensor, "R D"]:
        """The mean of res5 over each region, ``chunk`` regions at a time to bound memory."""
        if not len(boxes):
            return features.new_zeros((0, self.config.feature_size))
        if features.device.type == "cpu" and shares_windows(self.res5):
            size, scale = self.config.pool_size, 1 / self.config.stride
            return pooled_means(self.res5, features, boxes, scale=scale, size=size, chunk=chunk)
        means = [
            self.res5(self.pool(features, part)).mean(dim=(2, 3))
            for part in torch.split(boxes, chunk)
        ]
        return torch.cat(means)


class FasterRCNN(nn.Module):
    """The whole detector: one picture in, all its proposals described."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = Backbone(config)
        self.proposal_generator = ProposalGenerator(config)
        self.roi_heads = RoiHeads(config)

    def forward(
        self, picture: Float[Tensor, "1 3 H W"], scale: float, chunk: int = 50
    ) -> Detections:
        """Detects in one picture, blue-green-red with the mean subtracted, resized by ``scale``."""
        features = self.backbone(picture)
        boxes, _ = self.proposal_generator(features, picture.shape[2], picture.shape[3], scale)
        return self.describe(features, boxes, chunk)

    def describe(
        self, features: Float[Tensor, "1 C G V"], boxes: Float[Tensor, "R 4"], chunk: int = 50
    ) -> Detections:
        """Features, classes and attributes of given boxes on the feature map."""
        region_features = self.roi_heads.region_features(features, boxes, chunk)
        predictor = self.roi_heads.box_predictor
        class_logits = predictor.cls_score(region_features)
        attribute_logits = predictor.attribute_logits(region_features, class_logits)
        return Detections(
            boxes=boxes,
            features=region_features,
            class_probs=class_logits.softmax(dim=1),
            attribute_probs=attribute_logits.softmax(dim=1),
        )

    def load_published(self, state: Mapping[str, Tensor]) -> None:
        """Loads a state dict of the published layout, its anchors included.

        Raises ValueError that names every missing and unexpected key and every tensor of another
        shape.
        """
        state = {k: v for k, v in state.items() if not k.endswith(IGNORED_SUFFIXES)}
        own = self.state_dict()
        complaints = [f"missing {key}" for key in own if key not in state]
        complaints += [f"unexpected {key}" for key in state if key not in own]
        complaints += [
            f"{key} is {tuple(state[key].shape)}, want {tuple(own[key].shape)}"
            for key in own
            if key in state and state[key].shape != own[key].shape
        ]
        if complaints:
            raise ValueError("the weights do not fit the detector: " + "; ".join(complaints))
        self.load_state_dict(dict(state))
