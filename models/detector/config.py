"""Holds in one dataclass all settings that differ between the published region detectors."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

# Detectron2's bound: no box grows by more than 1000/16 in one regression.
MAX_LOG_SCALE = math.log(1000.0 / 16.0)


BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


Box4 = tuple[float, float, float, float]
Family = Literal[
    "caffe",
    "milvlg",
    "milvlg-d2",
    "airsplay",
    "hf-frcnn",
    "detectron2",
    "detectron2-fpn",
    "vinvl",
    "vqa-maskrcnn",
    "grid-feats",
]
Resize = Literal["opencv", "pillow", "torch"]
Pooling = Literal["pool", "align", "align-legacy"]
Rule = Literal["class-confidence", "kept-class", "kept-confidence", "best-class", "class-pairs"]

# Sizes of ResNeXt 32x8d and 64x4d: groups, and channels of all groups in res2. In their weights the
# 3x3 convolution of a stage's first block has the stride.
RESNEXT_32X8: dict[str, Any] = {"groups": 32, "res2_width": 256, "stride_in_1x1": False}
RESNEXT_64X4: dict[str, Any] = RESNEXT_32X8 | {"groups": 64}
# Only Detectron2's ResNeXt-101 was trained on pixels in these units.
X101_STD = (57.375, 57.12, 58.395)

RISING_THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, kw_only=True)
class DetectorConfig:
    """Holds the sizes and conventions of a Faster R-CNN on a ResNet or ResNeXt. The network has one
    feature map (C4) or a feature pyramid (FPN), with or without an attribute head.

    The defaults are the ResNet-101 detector of bottom-up attention (Anderson et al. 2018) in the
    conventions of its PyTorch port, which computed the published features of ViLBERT, VL-BERT and
    LXMERT. The functions below return the other families.
    """

    family: Family = "milvlg"  # the family of the conventions and of the layout of its weights

    # Sizes.
    depth: int = 101  # 50, 101 or 152
    stem_channels: int = 64
    res2_channels: int = 256  # outputs of res2; each later stage doubles them
    res2_width: int = 64  # inner channels of res2's bottlenecks, all groups; likewise doubled
    groups: int = 1  # of the 3x3 convolutions; above 1: ResNeXt (Xie et al. 2017)
    fpn_channels: int = 0  # of each map of a feature pyramid (Lin et al. 2017); 0: one map, res4
    fc_channels: int = 1024  # of both linear layers of a linear head
    num_classes: int = 1600  # Visual Genome objects, background not counted
    num_attributes: int = 400  # without "no attribute"; 0: no attribute head
    rpn_channels: int = 512  # Detectron2's own C4 models have 1024
    class_embedding_size: int = 256
    attribute_hidden_size: int = 512

    # Image to network input.
    resize: Resize = "opencv"  # float after the mean; pillow: uint8, antialiased; torch: float
    short_side: int = 600  # Ren et al. 2015
    long_side: int = 1000
    truncated_sides: bool = False  # VinVL's size of an image: sides are cut, not rounded
    # Zeros are added to the right and below until both sides are multiples of this; 0: no padding.
    size_divisibility: int = 0
    channel_order: Literal["bgr", "rgb"] = "bgr"
    pixel_mean: tuple[float, float, float] = (102.9801, 115.9465, 122.7717)  # in channel order
    pixel_std: tuple[float, float, float] = (1.0, 1.0, 1.0)

    # Backbone.
    norm_eps: float = 1e-5
    batch_norm: Literal["frozen", "trained"] = "frozen"  # statistics and scales; inference: frozen
    frozen_stages: int = 0  # training: parameters frozen up to stem (1), res2 (2), ... res4 (4)
    pre_activation: bool = False  # ResNet v2: normalisation and ReLU before each convolution
    stem_ceil_pool: bool = True  # Caffe's pooling; False: padding 1
    stride_in_1x1: bool = True  # MSRA's weights; False: in the 3x3
    res5_stride: int = 1  # Detectron2: 2
    res5_dilation: int = 2  # Detectron2: 1
    last_stage: Literal[4, 5] = 4  # of the backbone; with 4, res5 is applied to regions
    # Stages whose 3x3 convolutions are deformable (Dai et al. 2017).
    deformable_stages: tuple[int, ...] = ()

    # Boxes.
    box_offset: float = 1.0  # 1: x2, y2 are the last pixel inside; 0: the first outside
    nms_offset: float | None = None  # the same for overlaps only; None: box_offset
    decoded_offset: float = 0.0  # subtracted from x2 and y2 of a decoded box; 0 in Caffe
    # The area that boxes are clipped to and that is treated as the image: with padding or without.
    clipped_to: Literal["image", "padded"] = "image"
    max_log_scale: float | None = MAX_LOG_SCALE  # None: unbounded, as in Caffe
    anchor_layout: Literal["legacy", "centred"] = "legacy"  # rounded, or exact around 0
    # In cells of their map (of 16 pixels in res4); in a pyramid, finer maps come first.
    anchor_scales: tuple[float, ...] = (4.0, 8.0, 16.0, 32.0)
    anchor_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)  # height / width
    anchor_offset: float = 0.0  # of the centred layout's grid, in cells
    cell_anchors: tuple[Box4, ...] | None = None  # replaces scales and ratios; read from weights
    rpn_box_weights: Box4 = (1.0, 1.0, 1.0, 1.0)
    box_weights: Box4 = (1.0, 1.0, 1.0, 1.0)  # Detectron2: 10, 10, 5, 5
    class_specific_boxes: bool = True  # False: one regression for all classes

    # Proposals.
    # An anchor has two channels, or one whose probability ("sigmoid") or logit is the score.
    objectness: Literal["softmax", "sigmoid", "logit"] = "softmax"
    filter_before_top: bool = True  # clip and drop small boxes before selecting the top proposals
    min_proposal_size: float = 16.0  # pixels
    min_size_of: Literal["picture", "input"] = "picture"  # pixels before or after resizing
    min_size_inclusive: bool = False  # Caffe keeps a box of exactly that size
    pre_nms_top: int = 6000  # of each map
    map_nms_top: int | None = None  # kept of each map of a pyramid; None: no limit per map
    post_nms_top: int = 300
    rpn_nms_threshold: float = 0.7
    nms_inclusive: bool = True  # an overlap equal to the threshold suppresses

    # RoI heads. "grid": the regions are the cells of res5 over the full image; nothing else is run.
    regions: Literal["proposals", "grid"] = "proposals"
    # The feature of a region: the mean of res5, or a linear layer, the first (fc6) or second (fc7).
    feature_layer: Literal["res5", "fc1", "fc2"] = "res5"
    level_eps: float = (
        1e-8  # added before the logarithm that selects the map a region is pooled from
    )
    pooling: Pooling = "pool"
    pool_size: int = 14
    sampling_ratio: int = 0  # RoIAlign's samples a bin and axis; 0: as many as cells
    background: Literal["first", "last"] = "first"  # its index among the classes
    # "No attribute": True: the first output, in the softmax; False: the last output, excluded from
    # the softmax; None: the head has no such output.
    attribute_background: bool | None = True
    # The boxes from which attributes are predicted: given the class that is written ("written") or
    # the likeliest class, background included ("proposals").
    attribute_boxes: Literal["proposals", "written"] = "proposals"
    # Pixels of the network's input per pixel of an image, for given boxes: as the image is resized,
    # or with the padding (12-in-1's defect).
    given_scale: Literal["resized", "padded"] = "resized"

    # Selection (vlmill.extract.detect.selection).
    selection: Rule = "class-confidence"
    written_boxes: Literal["proposals", "refined"] = "proposals"
    # Thresholds of the final suppression. If there are several, they are tried in increasing order
    # until there are enough boxes.
    class_nms_thresholds: tuple[float, ...] = (0.3,)
    # For the rules that select in the network's pixels: boxes are clipped to the image again, in
    # the image's pixels, and empty boxes are dropped.
    clips_written: bool = True
    # best-class: a score must be above this share of the threshold to be a candidate.
    candidate_share: float = 0.0
    # class-pairs: best first, or (VinVL) class by class, where the threshold is halved up to ten
    # times until there are enough.
    pair_order: Literal["score", "class"] = "score"
    background_counts: bool = False  # kept-confidence: background is treated like other classes

    def __post_init__(self) -> None:
        if self.depth not in BLOCKS:
            raise ValueError(f"depth {self.depth}: a ResNet here has one of {sorted(BLOCKS)}")
        if self.box_offset not in (0.0, 1.0):
            raise ValueError(f"box_offset {self.box_offset}: 1 or 0 pixels")
        if not 0 <= self.frozen_stages <= 4:
            raise ValueError(f"frozen_stages {self.frozen_stages}: 0 (none) to 4 (up to res4)")
        if not self.num_anchors or min(*self.anchor_scales, *self.anchor_ratios, 1.0) <= 0:
            raise ValueError(
                f"anchor_scales {self.anchor_scales}, anchor_ratios {self.anchor_ratios}: expected "
                "one or more of each, above 0"
            )
        if not self.class_nms_thresholds:
            raise ValueError("class_nms_thresholds are empty: give one or more")
        if self.groups < 1 or self.res2_width % self.groups:
            raise ValueError(
                f"groups {self.groups}: expected a divisor of res2_width {self.res2_width}"
            )
        per_cell = len(self.anchor_scales if self.cell_anchors is None else self.cell_anchors)
        if per_cell % len(self.strides):
            raise ValueError(
                f"{per_cell} anchor scales or anchors for {len(self.strides)} feature maps: "
                "expected as many for each map"
            )
        if self.fpn_channels and (self.feature_layer == "res5" or self.last_stage != 5):
            raise ValueError(
                f"fpn_channels {self.fpn_channels}: a pyramid needs last_stage 5 and feature_layer "
                "fc1 or fc2"
            )
        if self.last_stage == 5 and not self.fpn_channels and self.regions != "grid":
            raise ValueError(
                "last_stage 5 without fpn_channels: proposals of res5 have no features here; "
                'regions "grid" are its cells'
            )

    @property
    def strides(self) -> tuple[int, ...]:
        """Returns the pixels per cell of each map that proposals use: p2 to p6, or res4."""
        return (4, 8, 16, 32, 64) if self.fpn_channels else (16,)

    @property
    def stride(self) -> int:
        """Returns the pixels per cell of the first feature map, the only map of a C4 model."""
        return self.strides[0]

    @property
    def num_anchors(self) -> int:
        """Returns the number of anchors per cell, in each map."""
        if self.cell_anchors is not None:
            return len(self.cell_anchors) // len(self.strides)
        return len(self.anchor_scales) * len(self.anchor_ratios) // len(self.strides)

    @property
    def overlap_offset(self) -> float:
        """Returns the pixels that overlaps add at the end of a box."""
        return self.box_offset if self.nms_offset is None else self.nms_offset

    @property
    def map_channels(self) -> int:
        """Returns the channels of the maps that proposals use."""
        return self.fpn_channels or 4 * self.res2_channels

    @property
    def res5_channels(self) -> int:
        """Returns the channels of res5."""
        return 8 * self.res2_channels

    @property
    def feature_size(self) -> int:
        """Returns the dimension of a region's feature."""
        if self.feature_layer == "res5" or self.regions == "grid":
            return self.res5_channels
        return self.fc_channels

    @property
    def num_attribute_outputs(self) -> int:
        """Returns the number of outputs of the attribute head, with "no attribute" if it is one."""
        return self.num_attributes + (self.attribute_background is not None)

    @property
    def num_regressed(self) -> int:
        """Returns the number of boxes that the predictor regresses for each region."""
        if not self.class_specific_boxes:
            return 1
        return self.num_classes + (self.background == "first")

    def min_input_size(self, scale: float) -> float:
        """Returns the smallest side of a proposal, in pixels of the input that was resized by
        ``scale``.
        """
        return self.min_proposal_size * (scale if self.min_size_of == "picture" else 1.0)

    @property
    def min_input_side(self) -> int:
        """Returns the smallest side of an input; below it the stem's pooling has no window."""
        return 3


def milvlg(**changes: Any) -> DetectorConfig:
    """Configures the PyTorch port of the original detector (MILVLG), in its "caffe" mode."""
    return dataclasses.replace(DetectorConfig(), **changes)


# The rules of the original Caffe code, for weights in the port's layout.
caffe = partial(milvlg, family="caffe", max_log_scale=None, min_size_inclusive=True)

# The port's ResNet-152: pre-activation blocks, strided res5, no pixel mean.
milvlg_r152 = partial(
    milvlg,
    depth=152,
    pixel_mean=(0.0, 0.0, 0.0),
    norm_eps=2e-5,
    pre_activation=True,
    stride_in_1x1=False,
    res5_stride=2,
    res5_dilation=1,
)

# The Detectron2 fork of LXMERT's author: the best class of each region, as the author
# recommends.
airsplay = partial(
    milvlg,
    family="airsplay",
    resize="pillow",
    short_side=800,
    long_side=1333,
    box_offset=0.0,
    anchor_layout="centred",
    box_weights=(10.0, 10.0, 5.0, 5.0),
    objectness="logit",
    filter_before_top=False,
    min_proposal_size=0.0,
    min_size_of="input",
    nms_inclusive=False,
    background="last",
    attribute_background=False,
    selection="best-class",
    written_boxes="refined",
    class_nms_thresholds=RISING_THRESHOLDS,
)

# The notebooks of that Detectron2 fork: a region counts once for each of its possible
# classes.
airsplay_pairs = partial(
    airsplay, selection="class-pairs", class_nms_thresholds=(0.5, 0.6, 0.7, 0.8, 0.9)
)


def hf_frcnn(*, legacy_rgb: bool = False, **changes: Any) -> DetectorConfig:
    """Configures the port in Hugging Face's research projects.

    ``legacy_rgb`` reproduces its defect: the port feeds local files as red-green-blue, with the
    mean of the opposite order, to weights trained on blue-green-red.
    """
    order = {"channel_order": "rgb"} if legacy_rgb else {}
    return airsplay(**{"family": "hf-frcnn", "resize": "torch"} | order | changes)


# Detectron2's own C4 models: COCO classes, RoIAlign, no attributes.
detectron2 = partial(
    airsplay,
    family="detectron2",
    num_classes=80,
    num_attributes=0,
    rpn_channels=1024,
    pixel_mean=(103.53, 116.28, 123.675),
    stem_ceil_pool=False,
    res5_stride=2,
    res5_dilation=1,
    anchor_scales=(2.0, 4.0, 8.0, 16.0, 32.0),
    post_nms_top=1000,
    pooling="align",
    selection="class-pairs",
    class_nms_thresholds=(0.5,),
)

# The port's Detectron2 mode: Detectron2's network and, in addition to its box predictor,
# an attribute head without "no attribute".
milvlg_d2 = partial(
    detectron2,
    family="milvlg-d2",
    resize="opencv",
    short_side=600,
    long_side=1000,
    num_classes=1600,
    num_attributes=400,
    attribute_background=None,
    sampling_ratio=2,
)

# The port's ResNeXt-152 in its Detectron2 mode (``bua-d2-frcnn-x152``).
milvlg_d2_x152 = partial(milvlg_d2, depth=152, **RESNEXT_32X8, pool_size=7)

# Detectron2's models with a feature pyramid, Faster or Mask R-CNN: COCO classes, 1024
# features of the second linear layer.
detectron2_fpn = partial(
    detectron2,
    family="detectron2-fpn",
    fpn_channels=256,
    last_stage=5,
    res5_stride=2,
    rpn_channels=256,
    size_divisibility=32,
    anchor_scales=(8.0,) * 5,
    pre_nms_top=1000,
    feature_layer="fc2",
    pool_size=7,
)

# Detectron2's ResNeXt-101 with a feature pyramid.
detectron2_x101_fpn = partial(detectron2_fpn, pixel_std=X101_STD, **RESNEXT_32X8)

# The settings that detectors of maskrcnn-benchmark share: legacy anchors, boxes that end
# at their last pixel, objectness as a probability, normalisation without an epsilon.
maskrcnn_benchmark = partial(
    milvlg,
    norm_eps=0.0,
    stem_ceil_pool=False,
    res5_stride=2,
    res5_dilation=1,
    decoded_offset=1.0,
    objectness="sigmoid",
    filter_before_top=False,
    min_proposal_size=0.0,
    min_size_of="input",
    min_size_inclusive=True,
    nms_inclusive=False,
    pooling="align-legacy",
    box_weights=(10.0, 10.0, 5.0, 5.0),
)

# VinVL's ResNeXt-152 C4 (Zhang et al. 2021, arXiv:2101.00529) with objects and
# attributes. Regions are proposals; each has the most probable of the classes it survives in.
vinvl = partial(
    maskrcnn_benchmark,
    family="vinvl",
    depth=152,
    **RESNEXT_32X8,
    num_classes=1594,
    num_attributes=524,
    rpn_channels=1024,
    resize="pillow",
    truncated_sides=True,
    pixel_mean=(103.53, 116.28, 123.675),
    nms_offset=0.0,
    clips_written=False,
    anchor_scales=(2.0, 4.0, 8.0, 16.0, 32.0),
    attribute_boxes="written",
    selection="kept-class",
)

# VinVL with boxes refined for each class, as in its demonstration.
vinvl_refined = partial(vinvl, written_boxes="refined")

# VinVL's second selection (``NMS_FILTER 2``): one suppression for all classes.
vinvl_fast = partial(
    vinvl, selection="best-class", class_nms_thresholds=(0.5,), candidate_share=0.01
)

# vqa-maskrcnn-benchmark's ResNeXt-152 with a feature pyramid. Its first linear layer
# (fc6) computes the region features of Pythia, MMF, M4C and 12-in-1.
vqa_maskrcnn = partial(
    maskrcnn_benchmark,
    family="vqa-maskrcnn",
    depth=152,
    **RESNEXT_32X8,
    fpn_channels=512,
    fc_channels=2048,
    last_stage=5,
    num_attributes=0,
    rpn_channels=512,
    short_side=800,
    long_side=1333,
    size_divisibility=32,
    clipped_to="padded",
    anchor_scales=(8.0,) * 5,
    pre_nms_top=1000,
    map_nms_top=1000,
    post_nms_top=1000,
    feature_layer="fc1",
    level_eps=1e-6,
    pool_size=7,
    sampling_ratio=2,
    selection="kept-confidence",
    class_nms_thresholds=(0.5,),
)

# Grid features (Jiang et al. 2020, arXiv:2001.03615): the cells of res5 over the full
# image. The dilation is the one used for extraction, regardless of the one used in training.
grid_feats = partial(
    detectron2,
    family="grid-feats",
    depth=50,
    short_side=600,
    long_side=1000,
    num_classes=1600,
    last_stage=5,
    regions="grid",
)

# Grid features of a C4 detector that applies res5 to regions (R-50-updn).
grid_feats_updn = partial(grid_feats, last_stage=4)


def as_grid(config: DetectorConfig) -> DetectorConfig:
    """Returns a detector's configuration with the cells of res5 over the full image as regions."""
    return dataclasses.replace(config, regions="grid")


def tiny_detector() -> DetectorConfig:
    """Configures the detectors' structure at 1/8 of the width and depth 50: 256 features, for
    experiments on a CPU.
    """
    return DetectorConfig(
        depth=50,
        stem_channels=16,
        res2_channels=32,
        res2_width=8,
        rpn_channels=64,
        class_embedding_size=32,
        attribute_hidden_size=64,
        post_nms_top=150,
    )


# The conventions of each layout's weights; keys distinguish "milvlg-r152" from "milvlg".
CONVENTIONS: dict[str, Callable[..., DetectorConfig]] = {
    "milvlg": milvlg,
    "milvlg-r152": milvlg_r152,
    "airsplay": airsplay,
    "hf-frcnn": hf_frcnn,
    "detectron2": detectron2,
    "milvlg-d2": milvlg_d2,
    "caffe": caffe,
    "vinvl": vinvl,
    "vqa-maskrcnn": vqa_maskrcnn,
    "detectron2-fpn": detectron2_fpn,
    "grid-feats": grid_feats,
    "grid-feats-updn": grid_feats_updn,
}

ARCHITECTURES = {
    "r50": DetectorConfig(depth=50),
    "r101": DetectorConfig(),
    "r152": milvlg_r152(),
    "tiny": tiny_detector(),
    "caffe": caffe(),
    "airsplay": airsplay(),
    "airsplay-pairs": airsplay_pairs(),
    "hf-frcnn": hf_frcnn(),
    "hf-frcnn-rgb": hf_frcnn(legacy_rgb=True),
    "detectron2-r50": detectron2(depth=50),
    "detectron2-r101": detectron2(),
    "milvlg-d2-r101": milvlg_d2(),
    "milvlg-d2-x152": milvlg_d2_x152(),
    "vinvl": vinvl(),
    "vinvl-refined": vinvl_refined(),
    "vinvl-fast": vinvl_fast(),
    "vqa-maskrcnn-x152": vqa_maskrcnn(),
    "vqa-maskrcnn-x101": vqa_maskrcnn(depth=101, **RESNEXT_64X4),
    "detectron2-r50-fpn": detectron2_fpn(depth=50),
    "detectron2-r101-fpn": detectron2_fpn(),
    "detectron2-x101-fpn": detectron2_x101_fpn(),
    "grid-r50": grid_feats(),
    "grid-x101": grid_feats(depth=101, pixel_std=X101_STD, **RESNEXT_32X8),
    "grid-x152": grid_feats(depth=152, **RESNEXT_32X8),
    "grid-x152-challenge": grid_feats(depth=152, **RESNEXT_32X8, deformable_stages=(4, 5)),
    "grid-r50-updn": grid_feats_updn(sampling_ratio=2),
}
DEFAULT_ARCH = "r101"
