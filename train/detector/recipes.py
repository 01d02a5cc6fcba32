"""Recipes: the settings that trained published detectors, and one recipe for trials on a CPU."""

import dataclasses
from collections.abc import Callable

from vlmill.models.detector.config import DetectorConfig, caffe, detectron2, milvlg_d2
from vlmill.schemas.errors import InputError
from vlmill.train.detector.settings import Matching, RoiRules, RpnRules, Solver, TrainingSettings

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
