"""Computes a detector's outputs for regions: pooling, res5 or linear layers, and the predictors.

N images with P region slots each, R regions, K classes and L attributes (K1 and L1 with background,
where the family has it), D = feature size, G x V cells of the feature map.
"""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from vlmill.models.detector.backbone import PYRAMID_STAGES, Maps, backbone_stage, make_norm
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.fused_stages import FusedStage, pooled_means, shares_windows
from vlmill.models.detector.nms import has_kernels
from vlmill.models.detector.operators import roi_align, roi_pool
from vlmill.models.detector.resnet import relu, widen


class BoxPredictor(nn.Module):
    """Predicts classes, box regressions and, given the likeliest class, attributes from a region's
    feature.
    """

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.config = config
        # The second linear layer is as wide as the first, so either may be the one that is written.
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
        """Scores attributes given the likeliest class, which may be background (as originally)."""
        return self.score_attributes(features, class_logits.argmax(dim=-1))

    def score_attributes(
        self, features: Float[Tensor, "*R D"], classes: Int64[Tensor, "*R"]
    ) -> Float[Tensor, "*R L1"]:
        """Scores attributes of regions given their classes, numbered as the class outputs are."""
        embedded = self.cls_embed(classes)
        hidden = relu(self.attr_linear1(torch.cat((features, embedded), dim=-1)))
        logits: Tensor = self.attr_linear2(hidden)
        return logits

    def attribute_probs(self, logits: Float[Tensor, "*R L1"]) -> Float[Tensor, "*R L"]:
        """Returns the softmax with "no attribute" (the first), or without it (the last output)."""
        without_last = self.config.attribute_background is False
        return (logits[..., :-1] if without_last else logits).softmax(dim=-1)


class LinearHead(nn.Module):
    """Applies two linear layers with ReLU to pooled regions; either one provides the features."""

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        size = config.map_channels * config.pool_size**2
        self.describes_by_first = config.feature_layer == "fc1"
        self.fc1 = nn.Linear(size, config.fc_channels)
        self.fc2 = nn.Linear(config.fc_channels, config.fc_channels)

    def forward(self, pooled: Float[Tensor, "R C P P"]) -> Float[Tensor, "R D"]:
        """Returns the features of regions: the output of the layer that provides them."""
        first = relu(self.fc1(pooled.flatten(1)))
        return first if self.describes_by_first else relu(self.fc2(first))

    def classified(self, features: Float[Tensor, "*R D"]) -> Float[Tensor, "*R D"]:
        """Returns the predictors' input for these features: the output of the second layer."""
        return relu(self.fc2(features)) if self.describes_by_first else features


class RoiHeads(nn.Module):
    """Applies RoI pooling, res5 or linear layers, and the predictors.

    If the regions are res5's cells, it holds only res5, or nothing if res5 is in the backbone.
    """

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        self.config = config
        if config.last_stage == 4:
            self.res5 = backbone_stage(config, 5)
            if config.pre_activation:
                self.res5_bn = make_norm(config, 5).layer(config.res5_channels)
        if config.regions != "grid":
            if config.feature_layer != "res5":
                self.box_head = LinearHead(config)
            self.box_predictor = BoxPredictor(config)

    def res5_map(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D G V"]:
        """Returns the output of res5 for pooled regions, or for the map of full images."""
        if x.dtype == torch.float32 and not isinstance(self.res5, FusedStage):
            # In channels last cuDNN takes 28 times as long for dilated convolutions.
            x = x.contiguous()
        y: Tensor = self.res5(x)
        return relu(self.res5_bn(y)) if self.config.pre_activation else y

    def describe(self, pooled: Float[Tensor, "R C P P"]) -> Float[Tensor, "R D"]:
        """Returns the features of pooled regions: the mean of res5, or a linear layer."""
        if self.config.feature_layer != "res5":
            return widen(self.box_head(pooled))
        x = self.res5_map(pooled)
        return x.mean(dim=(2, 3), dtype=torch.promote_types(x.dtype, torch.float32))

    def classified(self, features: Float[Tensor, "*R D"]) -> Float[Tensor, "*R D"]:
        """Returns the predictors' input for regions with these features."""
        if self.config.feature_layer == "res5":
            return features
        seen: Tensor = self.box_head.classified(features)
        return seen

    def region_features(
        self, maps: Maps, boxes: Float[Tensor, "N P 4"], box_mask: Bool[Tensor, "N P"], chunk: int
    ) -> Float[Tensor, "N P D"]:
        """Returns the features of regions, ``chunk`` regions at a time to bound memory."""
        if boxes.device.type != "cpu":
            rows = self.pooled_features(maps, number_boxes(boxes), chunk)
            return rows.view(*box_mask.shape, self.config.feature_size)
        # No device is waited for here, so only valid boxes are computed; the other rows are 0.
        rows = boxes.new_zeros((*box_mask.shape, self.config.feature_size))
        for number, row_mask in enumerate(box_mask):
            own_maps = tuple(features[number : number + 1] for features in maps)
            rows[number, row_mask] = self.image_features(own_maps, boxes[number, row_mask], chunk)
        return rows

    def image_features(
        self, maps: Maps, boxes: Float[Tensor, "R 4"], chunk: int
    ) -> Float[Tensor, "R D"]:
        """Returns the features of each region of one image on a CPU; regions share computation if
        possible.
        """
        pools_for_res5 = self.config.pooling == "pool" and self.config.feature_layer == "res5"
        if len(boxes) and pools_for_res5 and shares_windows(self.res5):
            size, scale = self.config.pool_size, 1 / self.config.stride
            return pooled_means(self.res5, maps[0], boxes, scale=scale, size=size, chunk=chunk)
        return self.pooled_features(maps, number_boxes(boxes[None]), chunk, may_wait=True)

    def pooled_features(
        self, maps: Maps, rois: Float[Tensor, "R 5"], chunk: int, *, may_wait: bool = False
    ) -> Float[Tensor, "R D"]:
        """Returns the features of each row of ``rois``: an image's number, then a box.

        ``may_wait`` as in :func:`pool_regions`.
        """
        if not len(rois):
            return rois.new_zeros((0, self.config.feature_size))
        pooled_maps, config = poolable(maps, self.config), self.config
        return torch.cat(
            [
                self.describe(pool_regions(pooled_maps, part, config, may_wait=may_wait))
                for part in torch.split(rois, chunk)
            ]
        )


def number_boxes(boxes: Float[Tensor, "N P 4"]) -> Float[Tensor, "R 5"]:
    """Returns all images' boxes as rows of an image's number and a box, as torchvision pools
    them.
    """
    numbers = torch.arange(len(boxes), dtype=boxes.dtype, device=boxes.device)
    return torch.cat((numbers[:, None, None].expand(*boxes.shape[:2], 1), boxes), 2).flatten(0, 1)


def poolable(maps: Maps, config: DetectorConfig) -> Maps:
    """Returns the maps in the layout of :func:`pool_regions`, so that chunks need no conversion.

    Torchvision's operators take float32, channels first. A maximum of bfloat16 numbers is one of
    them, so no other rounding happens.
    """
    if pools_by_kernel(maps, config):
        return tuple(x.contiguous(memory_format=torch.channels_last) for x in maps)
    return tuple(widen(x).contiguous() for x in pooled_of(maps, config))


def pooled_of(maps: Maps, config: DetectorConfig) -> Maps:
    """Returns the maps that regions are pooled from: in a pyramid, all but the coarsest."""
    return maps[: len(PYRAMID_STAGES)] if config.fpn_channels else maps


def pools_by_kernel(maps: Maps, config: DetectorConfig) -> bool:
    """Returns whether vlmill's own kernel pools; it reads and returns channels last."""
    return config.pooling == "pool" and len(maps) == 1 and has_kernels(maps[0])


def pool_regions(
    maps: Maps, rois: Float[Tensor, "R 5"], config: DetectorConfig, *, may_wait: bool = False
) -> Float[Tensor, "R C P P"]:
    """Applies RoI max pooling (Girshick 2015: a bin is the maximum of the cells that it touches),
    or RoIAlign (He et al. 2017); its first version, ``align-legacy``, is off by half a cell.

    Each row of ``rois`` has the image's number, then the box. In a pyramid a region's size
    determines the map that it is pooled from. ``may_wait`` lets the host read the number of regions
    of each map, which saves pooling regions from the other maps.
    """
    if pools_by_kernel(maps, config):
        from vlmill.models.detector.gpu_kernels import pooled_regions

        return pooled_regions(maps[0], rois, config.pool_size, 1 / config.stride)
    sources = pooled_of(maps, config)
    if len(sources) == 1:
        return pool_map(sources[0], rois, config.stride, config)
    numbers = map_numbers(rois[:, 1:], config)
    pooled = rois.new_zeros((len(rois), sources[0].shape[1], config.pool_size, config.pool_size))
    for number, (features, stride) in enumerate(zip(sources, config.strides, strict=False)):
        own = numbers == number
        if may_wait:
            pooled[own] = pool_map(features, rois[own], stride, config)
            continue
        # Regions of other maps become empty boxes.
        moved = torch.cat((rois[:, :1], rois[:, 1:] * own[:, None]), dim=1)
        pooled = torch.where(
            own[:, None, None, None], pool_map(features, moved, stride, config), pooled
        )
    return pooled


def map_numbers(boxes: Float[Tensor, "R 4"], config: DetectorConfig) -> Int64[Tensor, " R"]:
    """Returns the pyramid map that each box is pooled from, 0 for p2. A box with the area of 224 x
    224 pixels is in p4; each doubling of its sides adds one (Lin et al. 2017, equation 1).
    """
    areas = (boxes[:, 2:] - boxes[:, :2] + config.box_offset).prod(dim=1)
    levels = (4 + torch.log2(areas.sqrt() / 224 + config.level_eps)).floor()
    return levels.clamp(min=PYRAMID_STAGES[0], max=PYRAMID_STAGES[-1]).long() - PYRAMID_STAGES[0]


def pool_map(
    features: Float[Tensor, "N C G V"],
    rois: Float[Tensor, "R 5"],
    stride: int,
    config: DetectorConfig,
) -> Float[Tensor, "R C P P"]:
    """Pools regions from one map of ``stride`` pixels per cell."""
    size, scale = config.pool_size, 1 / stride
    if config.pooling == "pool":
        return roi_pool(features, rois, size, scale)
    aligned, ratio = config.pooling == "align", config.sampling_ratio
    return roi_align(features, rois, size, scale, sampling_ratio=ratio, aligned=aligned)
