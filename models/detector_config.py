"""One dataclass for everything in which the published region detectors differ."""

from dataclasses import dataclass

from vlmill.models.boxes import MAX_LOG_SCALE
from vlmill.models.resnet import BLOCKS

Box4 = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class DetectorConfig:
    """Sizes and conventions of a ResNet C4 Faster R-CNN with an attribute head.

    The defaults are the ResNet-101 detector of bottom-up attention (Anderson et al. 2018) in the
    conventions of its PyTorch port, with which the published features of ViLBERT, VL-BERT and
    LXMERT were made.
    """

    # Sizes.
    depth: int = 101  # 50, 101 or 152
    stem_channels: int = 64
    res2_channels: int = 256  # outputs of res2; each later stage doubles them
    res2_width: int = 64  # inner channels of res2's bottlenecks; likewise doubled
    num_classes: int = 1600  # Visual Genome objects, background not counted
    num_attributes: int = 400
    rpn_channels: int = 512  # Detectron2's own models have 1024
    class_embedding_size: int = 256
    attribute_hidden_size: int = 512

    # Backbone.
    pixel_mean: tuple[float, float, float] = (102.9801, 115.9465, 122.7717)  # blue, green, red
    norm_eps: float = 1e-5
    stem_ceil_pool: bool = True  # Caffe's pooling; False: padding 1
    stride_in_1x1: bool = True  # MSRA's weights; False: in the 3x3
    res5_stride: int = 1  # Detectron2: 2
    res5_dilation: int = 2  # Detectron2: 1

    # Boxes.
    box_offset: float = 1.0  # 1: x2, y2 are the last pixel inside; 0: the first outside
    max_log_scale: float | None = MAX_LOG_SCALE  # None: unbounded, as in Caffe
    anchor_scales: tuple[float, ...] = (4.0, 8.0, 16.0, 32.0)
    anchor_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)  # height / width
    rpn_box_weights: Box4 = (1.0, 1.0, 1.0, 1.0)
    box_weights: Box4 = (1.0, 1.0, 1.0, 1.0)  # Detectron2: 10, 10, 5, 5

    # Proposals.
    min_proposal_size: float = 16.0  # pixels of the original picture
    min_size_inclusive: bool = False  # Caffe keeps a box of exactly that size
    pre_nms_top: int = 6000
    post_nms_top: int = 300
    rpn_nms_threshold: float = 0.7
    class_nms_threshold: float = 0.3
    nms_inclusive: bool = True  # an overlap equal to the threshold suppresses

    # RoI head.
    pool_size: int = 14

    def __post_init__(self) -> None:
        if self.depth not in BLOCKS:
            raise ValueError(f"depth {self.depth}: a ResNet here has one of {sorted(BLOCKS)}")
        if self.box_offset not in (0.0, 1.0):
            raise ValueError(f"box_offset {self.box_offset}: 1 or 0 pixels")

    @property
    def stride(self) -> int:
        """Pixels per cell of the shared feature map, res4."""
        return 16

    @property
    def num_anchors(self) -> int:
        return len(self.anchor_scales) * len(self.anchor_ratios)

    @property
    def feature_size(self) -> int:
        """Channels of res5, the dimension of a region's feature."""
        return 8 * self.res2_channels

    @property
    def min_input_side(self) -> int:
        """Below this the stem's pooling has no window."""
        return 3


def tiny_detector() -> DetectorConfig:
    """The same structure at 1/8 of the width and depth 50: 256 features, for trials on a CPU."""
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


ARCHITECTURES = {
    "r50": DetectorConfig(depth=50),
    "r101": DetectorConfig(),
    "r152": DetectorConfig(depth=152),
    "tiny": tiny_detector(),
}
