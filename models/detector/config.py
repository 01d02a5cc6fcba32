"""Holds in one dataclass everything in which the published region detectors differ."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

# Detectron2's bound: no box grows by more than 1000/16 in one regression.
MAX_LOG_SCALE = math.log(1000.0 / 16.0)


BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


Box4 = tuple[float, float, float, float]
Family = Literal["caffe", "milvlg", "milvlg-d2", "airsplay", "hf-frcnn", "detectron2"]
Resize = Literal["opencv", "pillow", "torch"]
Pooling = Literal["pool", "align", "align-legacy"]
Rule = Literal["class-confidence", "best-class", "class-pairs"]

RISING_THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, kw_only=True)
class DetectorConfig:
    """Holds sizes and conventions of a ResNet C4 Faster R-CNN, with or without an attribute head.

    The defaults are the ResNet-101 detector of bottom-up attention (Anderson et al. 2018) in the
    conventions of its PyTorch port, with which the published features of ViLBERT, VL-BERT and
    LXMERT were made. The functions below give the other families.
    """

    family: Family = "milvlg"  # whose conventions these are; names the layout of its weights

    # Sizes.
    depth: int = 101  # 50, 101 or 152
    stem_channels: int = 64
    res2_channels: int = 256  # outputs of res2; each later stage doubles them
    res2_width: int = 64  # inner channels of res2's bottlenecks; likewise doubled
    num_classes: int = 1600  # Visual Genome objects, background not counted
    num_attributes: int = 400  # without "no attribute"; 0: no attribute head
    rpn_channels: int = 512  # Detectron2's own models have 1024
    class_embedding_size: int = 256
    attribute_hidden_size: int = 512

    # Image to network input.
    resize: Resize = "opencv"  # float after the mean; pillow: uint8, antialiased; torch: float
    short_side: int = 600  # Ren et al. 2015
    long_side: int = 1000
    channel_order: Literal["bgr", "rgb"] = "bgr"
    pixel_mean: tuple[float, float, float] = (102.9801, 115.9465, 122.7717)  # in the order fed
    pixel_std: tuple[float, float, float] = (1.0, 1.0, 1.0)

    # Backbone.
    norm_eps: float = 1e-5
    batch_norm: Literal["frozen", "trained"] = "frozen"  # statistics and scales; inference: frozen
    frozen_stages: int = 0  # training: constant parameters up to stem (1), res2 (2), ... res4 (4)
    pre_activation: bool = False  # ResNet v2: normalisation and ReLU before each convolution
    stem_ceil_pool: bool = True  # Caffe's pooling; False: padding 1
    stride_in_1x1: bool = True  # MSRA's weights; False: in the 3x3
    res5_stride: int = 1  # Detectron2: 2
    res5_dilation: int = 2  # Detectron2: 1

    # Boxes.
    box_offset: float = 1.0  # 1: x2, y2 are the last pixel inside; 0: the first outside
    max_log_scale: float | None = MAX_LOG_SCALE  # None: unbounded, as in Caffe
    anchor_layout: Literal["legacy", "centred"] = "legacy"  # rounded, or exact around 0
    anchor_scales: tuple[float, ...] = (4.0, 8.0, 16.0, 32.0)  # in cells of 16 pixels
    anchor_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)  # height / width
    anchor_offset: float = 0.0  # of the centred layout's grid, in cells
    cell_anchors: tuple[Box4, ...] | None = None  # replaces scales and ratios: what weights carry
    rpn_box_weights: Box4 = (1.0, 1.0, 1.0, 1.0)
    box_weights: Box4 = (1.0, 1.0, 1.0, 1.0)  # Detectron2: 10, 10, 5, 5
    class_specific_boxes: bool = True  # False: one regression for all classes

    # Proposals.
    objectness: Literal["softmax", "logit"] = "softmax"  # two channels an anchor, or one
    filter_before_top: bool = True  # clip and drop small boxes before the best are taken
    min_proposal_size: float = 16.0  # pixels
    min_size_of: Literal["picture", "input"] = "picture"  # whose pixels: before or after resizing
    min_size_inclusive: bool = False  # Caffe keeps a box of exactly that size
    pre_nms_top: int = 6000
    post_nms_top: int = 300
    rpn_nms_threshold: float = 0.7
    nms_inclusive: bool = True  # an overlap equal to the threshold suppresses

    # RoI heads.
    pooling: Pooling = "pool"
    pool_size: int = 14
    sampling_ratio: int = 0  # RoIAlign's samples a bin and axis; 0: as many as cells
    background: Literal["first", "last"] = "first"  # its place among the classes
    # "No attribute": True: the first output, in the softmax; False: the last, left out of it; None:
    # there is no such output.
    attribute_background: bool | None = True

    # Selection (vlmill.extract.detect.selection).
    selection: Rule = "class-confidence"
    written_boxes: Literal["proposals", "refined"] = "proposals"
    # Of the final suppression; more than one: raised until there are enough boxes.
    class_nms_thresholds: tuple[float, ...] = (0.3,)

    def __post_init__(self) -> None:
        if self.depth not in BLOCKS:
            raise ValueError(f"depth {self.depth}: a ResNet here has one of {sorted(BLOCKS)}")
        if self.box_offset not in (0.0, 1.0):
            raise ValueError(f"box_offset {self.box_offset}: 1 or 0 pixels")
        if not 0 <= self.frozen_stages <= 4:
            raise ValueError(f"frozen_stages {self.frozen_stages}: 0 (none) to 4 (up to res4)")
        if not self.num_anchors or min(*self.anchor_scales, *self.anchor_ratios, 1.0) <= 0:
            raise ValueError(
                f"anchor_scales {self.anchor_scales}, anchor_ratios {self.anchor_ratios}: want "
                "one or more of each, above 0"
            )
        if not self.class_nms_thresholds:
            raise ValueError("class_nms_thresholds are empty: give one or more")

    @property
    def stride(self) -> int:
        """Returns pixels per cell of the shared feature map, res4."""
        return 16

    @property
    def num_anchors(self) -> int:
        if self.cell_anchors is not None:
            return len(self.cell_anchors)
        return len(self.anchor_scales) * len(self.anchor_ratios)

    @property
    def feature_size(self) -> int:
        """Returns the number of channels of res5, the dimension of a region's feature."""
        return 8 * self.res2_channels

    @property
    def num_attribute_outputs(self) -> int:
        """Returns the outputs of the attribute head, "no attribute" with them where it is one."""
        return self.num_attributes + (self.attribute_background is not None)

    @property
    def num_regressed(self) -> int:
        """Returns how many boxes the predictor regresses for each region."""
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
        """Below this the stem's pooling has no window."""
        return 3


def milvlg(**changes: Any) -> DetectorConfig:
    """Configures the PyTorch port of the original detector (MILVLG), in its "caffe" mode."""
    return dataclasses.replace(DetectorConfig(), **changes)


def caffe(**changes: Any) -> DetectorConfig:
    """Configures the rules of the original Caffe code, for weights in the port's layout."""
    return milvlg(
        **{"family": "caffe", "max_log_scale": None, "min_size_inclusive": True} | changes
    )


def milvlg_r152(**changes: Any) -> DetectorConfig:
    """Configures the port's ResNet-152: pre-activation blocks, strided res5, pixels without a
    mean.
    """
    settings = {
        "depth": 152,
        "pixel_mean": (0.0, 0.0, 0.0),
        "norm_eps": 2e-5,
        "pre_activation": True,
        "stride_in_1x1": False,
        "res5_stride": 2,
        "res5_dilation": 1,
    }
    return milvlg(**settings | changes)


def airsplay(**changes: Any) -> DetectorConfig:
    """Configures the Detectron2 fork of LXMERT's author: each region's best class, as he
    recommends.
    """
    settings = {
        "family": "airsplay",
        "resize": "pillow",
        "short_side": 800,
        "long_side": 1333,
        "box_offset": 0.0,
        "anchor_layout": "centred",
        "box_weights": (10.0, 10.0, 5.0, 5.0),
        "objectness": "logit",
        "filter_before_top": False,
        "min_proposal_size": 0.0,
        "min_size_of": "input",
        "nms_inclusive": False,
        "background": "last",
        "attribute_background": False,
        "selection": "best-class",
        "written_boxes": "refined",
        "class_nms_thresholds": RISING_THRESHOLDS,
    }
    return milvlg(**settings | changes)


def airsplay_pairs(**changes: Any) -> DetectorConfig:
    """Configures the notebooks of that Detectron2 fork: a region counts once for every class that
    it may be.
    """
    settings = {"selection": "class-pairs", "class_nms_thresholds": (0.5, 0.6, 0.7, 0.8, 0.9)}
    return airsplay(**settings | changes)


def hf_frcnn(*, legacy_rgb: bool = False, **changes: Any) -> DetectorConfig:
    """Configures the port in Hugging Face's research projects.

    ``legacy_rgb`` repeats its defect: it feeds local files as red-green-blue, with the mean of the
    opposite order, to weights trained on blue-green-red.
    """
    order = {"channel_order": "rgb"} if legacy_rgb else {}
    return airsplay(**{"family": "hf-frcnn", "resize": "torch"} | order | changes)


def detectron2(**changes: Any) -> DetectorConfig:
    """Configures Detectron2's own C4 models: COCO classes, RoIAlign, no attributes."""
    settings = {
        "family": "detectron2",
        "num_classes": 80,
        "num_attributes": 0,
        "rpn_channels": 1024,
        "pixel_mean": (103.53, 116.28, 123.675),
        "stem_ceil_pool": False,
        "res5_stride": 2,
        "res5_dilation": 1,
        "anchor_scales": (2.0, 4.0, 8.0, 16.0, 32.0),
        "post_nms_top": 1000,
        "pooling": "align",
        "selection": "class-pairs",
        "class_nms_thresholds": (0.5,),
    }
    return airsplay(**settings | changes)


def milvlg_d2(**changes: Any) -> DetectorConfig:
    """Configures the port's Detectron2 mode: Detectron2's network and, beside its box predictor, an
    attribute head without "no attribute".
    """
    settings = {
        "family": "milvlg-d2",
        "resize": "opencv",
        "short_side": 600,
        "long_side": 1000,
        "num_classes": 1600,
        "num_attributes": 400,
        "attribute_background": None,
        "sampling_ratio": 2,
    }
    return detectron2(**settings | changes)


def tiny_detector() -> DetectorConfig:
    """Configures the detectors' structure at 1/8 of the width and depth 50: 256 features, for
    trials on a CPU.
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


# What the weights of a layout mean; "milvlg-r152" is told from "milvlg" by its keys.
CONVENTIONS: dict[str, Callable[..., DetectorConfig]] = {
    "milvlg": milvlg,
    "milvlg-r152": milvlg_r152,
    "airsplay": airsplay,
    "hf-frcnn": hf_frcnn,
    "detectron2": detectron2,
    "milvlg-d2": milvlg_d2,
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
}
DEFAULT_ARCH = "r101"
