"""What a detector says of regions: pooling, res5 and the predictors.

N images, P places for regions in each, R regions, K classes and L attributes (K1 and L1 with
background, where the family has it), D = feature size, G x V cells of the feature map.
"""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from vlmill.models.detector.backbone import backbone_stage, make_norm
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.fused_stages import FusedStage, pooled_means, shares_windows
from vlmill.models.detector.gpu import has_kernels
from vlmill.models.detector.operators import roi_align, roi_pool
from vlmill.models.detector.resnet import relu, widen


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
        return self.score_attributes(features, class_logits.argmax(dim=-1))

    def score_attributes(
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
            self.res5_bn = make_norm(config, 5).layer(config.feature_size)
        self.box_predictor = BoxPredictor(config)

    def region_means(self, pooled: Float[Tensor, "R C P P"]) -> Float[Tensor, "R D"]:
        """Returns the mean of res5 over each pooled region."""
        if pooled.dtype == torch.float32 and not isinstance(self.res5, FusedStage):
            # In channels last cuDNN takes 28 times as long for dilated convolutions.
            pooled = pooled.contiguous()
        x: Tensor = self.res5(pooled)
        if self.config.pre_activation:
            x = relu(self.res5_bn(x))
        return x.mean(dim=(2, 3), dtype=torch.promote_types(x.dtype, torch.float32))

    def region_features(
        self,
        features: Float[Tensor, "N C G V"],
        boxes: Float[Tensor, "N P 4"],
        box_mask: Bool[Tensor, "N P"],
        chunk: int,
    ) -> Float[Tensor, "N P D"]:
        """Returns the mean of res5 over each region, ``chunk`` regions at a time to bound
        memory.
        """
        if features.device.type != "cpu":
            means = self.pooled_features(features, number_boxes(boxes), chunk)
            return means.view(*box_mask.shape, self.config.feature_size)
        # No device is waited for here, so only what is taken is computed: 0 elsewhere.
        means = boxes.new_zeros((*box_mask.shape, self.config.feature_size))
        for number, row_mask in enumerate(box_mask):
            own_map = features[number : number + 1]
            means[number, row_mask] = self.image_features(own_map, boxes[number, row_mask], chunk)
        return means

    def image_features(
        self, features: Float[Tensor, "1 C G V"], boxes: Float[Tensor, "R 4"], chunk: int
    ) -> Float[Tensor, "R D"]:
        """Returns the mean of res5 over each region of one image on a CPU, whose regions share
        what they can.
        """
        if len(boxes) and self.config.pooling == "pool" and shares_windows(self.res5):
            size, scale = self.config.pool_size, 1 / self.config.stride
            return pooled_means(self.res5, features, boxes, scale=scale, size=size, chunk=chunk)
        return self.pooled_features(features, number_boxes(boxes[None]), chunk)

    def pooled_features(
        self, features: Float[Tensor, "N C G V"], rois: Float[Tensor, "R 5"], chunk: int
    ) -> Float[Tensor, "R D"]:
        """Returns the mean of res5 over each of the regions that follow their image's number."""
        if not len(rois):
            return rois.new_zeros((0, self.config.feature_size))
        maps = poolable(features, self.config)
        parts = torch.split(rois, chunk)
        return torch.cat([self.region_means(pool_regions(maps, r, self.config)) for r in parts])


def number_boxes(boxes: Float[Tensor, "N P 4"]) -> Float[Tensor, "R 5"]:
    """Returns all boxes in one row, each after its image's number, as torchvision pools them."""
    numbers = torch.arange(len(boxes), dtype=boxes.dtype, device=boxes.device)
    return torch.cat((numbers[:, None, None].expand(*boxes.shape[:2], 1), boxes), 2).flatten(0, 1)


def poolable(
    features: Float[Tensor, "N C G V"], config: DetectorConfig
) -> Float[Tensor, "N C G V"]:
    """Returns the map as :func:`pool_regions` reads it without changing it for each chunk.

    Torchvision's operators take float32, channels first. A maximum of bfloat16 numbers is one of
    them, so nothing is rounded otherwise.
    """
    if pools_by_kernel(features, config):
        return features.contiguous(memory_format=torch.channels_last)
    return widen(features).contiguous()


def pools_by_kernel(features: Tensor, config: DetectorConfig) -> bool:
    """Says whether a kernel of our own pools: it reads and gives channels last."""
    return config.pooling == "pool" and has_kernels(features)


def pool_regions(
    features: Float[Tensor, "N C G V"], rois: Float[Tensor, "R 5"], config: DetectorConfig
) -> Float[Tensor, "R C P P"]:
    """Applies RoI max pooling (Girshick 2015: a bin is the maximum of the cells that it touches),
    or RoIAlign (He et al. 2017), whose first form, ``align-legacy``, is half a cell off.

    Each box of ``rois`` follows its image's number.
    """
    size, scale = config.pool_size, 1 / config.stride
    if pools_by_kernel(features, config):
        from vlmill.models.detector.gpu_kernels import pooled_regions

        return pooled_regions(features, rois, size, scale)
    if config.pooling == "pool":
        return roi_pool(features, rois, size, scale)
    aligned, ratio = config.pooling == "align", config.sampling_ratio
    return roi_align(features, rois, size, scale, sampling_ratio=ratio, aligned=aligned)
