"""Defines the settings of a detector's training: sampling, losses, optimiser, data, run; and the
recipes: the settings that trained published detectors, and one recipe for trials on a CPU.

Defaults are Detectron2's for its C4 models (Ren et al. 2015, arXiv:1506.01497, as
facebookresearch/detectron2 trains it); the recipes change them.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from vlmill.models.config_checks import check_sizes
from vlmill.models.detector.config import DetectorConfig, caffe, detectron2, milvlg_d2
from vlmill.schemas.errors import InputError

Normaliser = Literal["wanted", "sampled"]
Precision = Literal["no", "bf16"]
# How boxes are compared in a box loss: by their deltas, or by generalised overlap.
BoxLoss = Literal["smooth_l1", "giou", "diou", "ciou"]
Clip = Literal["none", "value", "norm", "global"]
# Fields that may be 0: a run's other whole numbers are at least 1.
FROM_ZERO = (
    *("steps", "seed", "workers", "validate_every", "validation_pictures", "keep_checkpoints"),
    "patience",
)
LEAST_DECAY = 0.5  # of an average of weights


@dataclass(frozen=True, kw_only=True)
class Matching:
    """Defines which overlaps with the true boxes make an example positive (1), negative (0) or
    ignored (-1).
    """

    thresholds: tuple[float, ...]  # rising; one less than labels
    labels: tuple[int, ...]
    batch: int  # examples of an image
    positives: float  # at most this share of them
    round_positives: bool = False  # their number, half to even; False: cut to a whole one

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.thresholds) + 1 or set(self.labels) - {-1, 0, 1}:
            raise ValueError(
                f"labels {self.labels}: expected values of -1, 0 or 1, one more than thresholds"
            )
        if sorted(self.thresholds) != list(self.thresholds) or not self.thresholds:
            raise ValueError(f"thresholds {self.thresholds}: expected overlaps in ascending order")
        if self.batch < 1 or not 0 <= self.positives <= 1:
            raise ValueError(
                f"batch {self.batch} with positives {self.positives}: expected a batch "
                "of at least 1 and a fraction of positives from 0 to 1"
            )

    @property
    def most_positives(self) -> int:
        target_count = self.batch * self.positives
        return round(target_count) if self.round_positives else int(target_count)


@dataclass(frozen=True, kw_only=True)
class RpnRules:
    """Defines how the proposal network is trained."""

    matching: Matching = Matching(
        thresholds=(0.3, 0.7), labels=(0, -1, 1), batch=256, positives=0.5
    )
    # Anchors that reach further out of the image are ignored; None: used.
    border: float | None = None
    inside_first: bool = False  # Caffe: the ignored ones are never a box's best anchor either
    box_loss: BoxLoss = "smooth_l1"
    beta: float = 0.0  # where smooth L1 turns into L1; 0: L1
    class_weight: float = 1.0
    box_weight: float = 1.0
    normaliser: Normaliser = "wanted"  # of an image's anchors: as many as wanted, or sampled
    pre_nms_top: int = 12_000
    post_nms_top: int = 2_000


@dataclass(frozen=True, kw_only=True)
class RoiRules:
    """Defines how the heads of regions are trained."""

    matching: Matching = Matching(thresholds=(0.5,), labels=(0, 1), batch=512, positives=0.25)
    append_truth: bool = True  # the true boxes are proposals, too
    box_loss: BoxLoss = "smooth_l1"
    beta: float = 0.0
    box_weight: float = 1.0
    attribute_weight: float = 0.2  # MILVLG's; 0.5 in the original


@dataclass(frozen=True, kw_only=True)
class Solver:
    """Defines how weights are updated: SGD with momentum, a warm-up, then steps or a cosine."""

    lr: float = 0.02
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4
    norm_decay: float | None = 0.0  # of normalisations; None: like weights
    bias_rate: float = 1.0  # times lr
    bias_decay: float | None = None  # None: like weights
    schedule: Literal["steps", "cosine"] = "steps"
    drops: tuple[int, ...] = ()  # the steps after which the rate is multiplied by drop_factor
    drop_factor: float = 0.1
    end: float = 0.0  # of the cosine, times lr
    warmup: int = 1_000  # steps
    warmup_from: float = 1e-3  # times lr
    warmup_method: Literal["linear", "constant"] = "linear"
    rescale: bool = False  # the schedule begins after the warm-up, not at its start
    clip: Clip = "none"  # value and norm: of each tensor separately; global: of all together
    clip_at: float = 1.0
    clip_norm: float = 2.0  # which norm

    def __post_init__(self) -> None:
        if self.lr <= 0 or self.warmup < 0:
            raise ValueError(
                f"lr {self.lr}, warmup {self.warmup}: expected lr above 0 and warmup of at least 0"
            )
        if not 0 <= self.momentum < 1 or (self.nesterov and not self.momentum):
            raise ValueError(
                f"momentum {self.momentum}: expected at least 0 and below 1; above 0 with nesterov"
            )
        if min(self.weight_decay, self.norm_decay or 0.0, self.bias_decay or 0.0) < 0:
            raise ValueError("weight_decay, norm_decay and bias_decay: expected 0 or more")
        if self.clip_at <= 0:
            raise ValueError(f"clip_at {self.clip_at}: expected a bound above 0")


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Holds all settings of a run of ``extract-rois train``."""

    command: ClassVar[str] = "train"

    name: str
    about: str = ""  # a line for the list of recipes
    detector: DetectorConfig
    rpn: RpnRules = RpnRules()
    roi: RoiRules = RoiRules()
    solver: Solver = Solver()
    steps: int = 270_000
    batch_size: int = 16  # images of a step, of all processes
    # Parts that each process computes a step in. Normalisations that learn, and losses, see the
    # images of a part: steps differ from those in one part.
    accumulation: int = 1
    short_sides: tuple[int, ...] = (640, 672, 704, 736, 768, 800)  # one is sampled for each image
    long_side: int = 1333
    flip: float = 0.5  # the share of images that are mirrored
    empty_pictures: bool = True  # images without a box are negatives
    splits: tuple[str, ...] = ("train",)  # rows without a split belong to them
    validation_split: str = "val"
    validate_every: int = 0  # steps; 0: at the end alone
    validation_pictures: int = 0  # at most; 0: all
    # Validations in a row without a vg/map above the best before them, after which the run ends
    # and its detector is the best one that was measured. 0: it is the last one.
    patience: int = 0
    # Decay of a moving average of the weights, which is measured and published. 0: none.
    average: float = 0.0
    # torch.compile translates each residual block.
    compile: Literal[False, "blocks"] = False
    # Weights, gradients and momenta are divided among the processes (FSDP).
    shard: bool = False
    seed: int = 0
    precision: Precision = "no"
    save_every: int = 5_000
    keep_checkpoints: int = 2
    log_every: int = 20
    workers: int = 0  # processes that read, decode and resize
    trackers: tuple[str, ...] = ("tensorboard",)
    new_layers: Literal["detectron2", "caffe"] = "detectron2"  # of layers without weights

    def __post_init__(self) -> None:
        check_sizes(self, from_zero=FROM_ZERO)
        if not 0 <= self.flip <= 1:
            raise ValueError(f"flip {self.flip}: expected a share from 0 to 1")
        if self.batch_size % self.accumulation:
            raise ValueError(
                f"batch_size {self.batch_size} is not a multiple of accumulation "
                f"{self.accumulation}"
            )
        if self.average and not LEAST_DECAY <= self.average < 1:
            raise ValueError(
                f"average {self.average}: expected a decay from {LEAST_DECAY} to below 1, or 0"
            )
        if self.patience and not self.validate_every:
            raise ValueError(
                f"patience {self.patience}: validate_every=0 measures only once; set validate_every"
            )
        sides = self.short_sides
        if not sides or min(sides) < self.detector.min_input_side or max(sides) > self.long_side:
            raise ValueError(
                f"short_sides {sides}: expected sides from "
                f"{self.detector.min_input_side} to long_side "
                f"{self.long_side}"
            )


# Settings that may differ when a run continues, or do not affect its numbers.
NO_EFFECT = ("about", "workers", "keep_checkpoints", "log_every", "trackers", "save_every")
# Fields that runs of earlier versions do not have, with the value that changes nothing.
ADDED = {"accumulation": 1, "patience": 0, "average": 0.0, "compile": False, "shard": False}


def for_classes(
    settings: TrainingSettings, num_classes: int, num_attributes: int
) -> TrainingSettings:
    """Returns the settings with a detector of these vocabularies."""
    detector = dataclasses.replace(
        settings.detector, num_classes=num_classes, num_attributes=num_attributes
    )
    return dataclasses.replace(settings, detector=detector)


# --- recipes --------------------------------------------------------------------------------------

# The original's rules (bottom-up-attention: faster_rcnn_end2end_resnet.yml, train.prototxt).
CAFFE_RPN = RpnRules(
    matching=Matching(thresholds=(0.3, 0.7), labels=(0, -1, 1), batch=64, positives=0.5),
    border=0.0,
    inside_first=True,
    beta=1 / 9,
    normaliser="sampled",
)
CAFFE_ROI = RoiRules(
    matching=Matching(
        thresholds=(0.5,), labels=(0, 1), batch=64, positives=0.5, round_positives=True
    ),
    beta=1.0,
    attribute_weight=0.5,
)


def vg_r101_c4() -> TrainingSettings:
    """Returns the training of Visual Genome's 1600 classes and 400 attributes as in MILVLG
    (train-d2-r101).
    """
    return TrainingSettings(
        name="vg-r101-c4",
        about="Visual Genome's 1600 classes and 400 attributes, as MILVLG trains them",
        detector=milvlg_d2(frozen_stages=2),
        rpn=RpnRules(border=0.0, beta=0.1111),
        roi=RoiRules(beta=1.0),
        solver=Solver(lr=0.01, drops=(120_000, 160_000)),
        steps=180_000,
        batch_size=8,
        short_sides=(600,),
        long_side=1000,
    )


def vg_r101_caffe() -> TrainingSettings:
    """Returns the training on the same data with the original's targets, sampling and losses
    (Anderson et al. 2018).

    The rate of PyTorch's momentum changes immediately at a drop; Caffe's lags. res4a's shortcut is
    trained here, which the original leaves as it is.
    """
    return TrainingSettings(
        name="vg-r101-caffe",
        about="the same data with the targets, sampling and losses of the original code",
        detector=caffe(frozen_stages=3, box_weights=(10.0, 10.0, 5.0, 5.0)),
        rpn=CAFFE_RPN,
        roi=CAFFE_ROI,
        solver=Solver(lr=0.001, weight_decay=5e-4, bias_rate=2.0, drops=(350_000,), warmup=0),
        steps=380_000,
        batch_size=1,
        short_sides=(600,),
        long_side=1000,
        new_layers="caffe",
        empty_pictures=False,
    )


def coco_r101_c4() -> TrainingSettings:
    """Returns the training on COCO's 80 classes as Detectron2 trains them
    (faster_rcnn_R_101_C4_3x).
    """
    return TrainingSettings(
        name="coco-r101-c4",
        about="COCO's 80 classes as Detectron2 trains them (R101-C4, 3x)",
        detector=detectron2(frozen_stages=2),
        solver=Solver(drops=(210_000, 250_000)),
        empty_pictures=False,
    )


def tao_r101() -> TrainingSettings:
    """Returns the settings for 33 classes of goods for InterBERT's TaoMultimodal, whose detector
    was never published.

    Nothing is known of its training, so these are the settings of ``vg-r101-c4`` without
    attributes, with a quarter of the steps for a set of fewer classes.
    """
    base = vg_r101_c4()
    return dataclasses.replace(
        base,
        name="tao-r101",
        about="33 product classes, for InterBERT's data; the settings are vlmill's own",
        detector=dataclasses.replace(base.detector, num_classes=33, num_attributes=0),
        solver=Solver(lr=0.01, drops=(30_000, 40_000)),
        steps=45_000,
    )


def small() -> TrainingSettings:
    """Returns a run of minutes on a CPU: a narrow ResNet-50 from random weights on small images.

    Sampling, learning rate and warm-up are scaled with it; normalisations learn, as nothing is
    frozen, and the whole gradient is clipped.
    """
    return TrainingSettings(
        name="small",
        about="a narrow ResNet-50 on small images: minutes on a CPU",
        detector=small_detector(),
        rpn=RpnRules(
            matching=Matching(thresholds=(0.3, 0.7), labels=(0, -1, 1), batch=64, positives=0.5),
            beta=0.1111,
            pre_nms_top=600,
            post_nms_top=150,
        ),
        roi=RoiRules(
            matching=Matching(thresholds=(0.5,), labels=(0, 1), batch=32, positives=0.25), beta=1.0
        ),
        solver=Solver(lr=0.02, drops=(450, 550), warmup=50, clip="global", clip_at=10.0),
        steps=600,
        batch_size=8,
        short_sides=(160,),
        long_side=240,
        save_every=100,
        validation_pictures=200,
    )


def small_detector() -> DetectorConfig:
    """Returns a detector of 1/8 of ResNet-50's width, with anchors for images of 160 pixels."""
    return milvlg_d2(
        depth=50,
        stem_channels=16,
        res2_channels=32,
        res2_width=8,
        rpn_channels=64,
        class_embedding_size=32,
        attribute_hidden_size=64,
        short_side=160,
        long_side=240,
        anchor_scales=(1.0, 2.0, 4.0, 8.0),
        pool_size=7,
        pre_nms_top=600,
        post_nms_top=100,
        batch_norm="trained",
        selection="best-class",
        class_nms_thresholds=(0.5,),
        res5_stride=1,
    )


RECIPES: dict[str, Callable[[], TrainingSettings]] = {
    "vg-r101-c4": vg_r101_c4,
    "vg-r101-caffe": vg_r101_caffe,
    "coco-r101-c4": coco_r101_c4,
    "tao-r101": tao_r101,
    "small": small,
}
DEFAULT_RECIPE = "vg-r101-c4"


def find_recipe(name: str) -> TrainingSettings:
    """Returns a recipe. Raises InputError with the names there are."""
    if name not in RECIPES:
        raise InputError(f"recipe={name}: there are {', '.join(RECIPES)}")
    return RECIPES[name]()
