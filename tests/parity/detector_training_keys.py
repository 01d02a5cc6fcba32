"""What Detectron2's keys, by which training sets say their options, are in our settings."""

from collections.abc import Mapping
from typing import Any

from tests.parity.golden import GoldenSet, expect

from vlmill.models.detector.config import Box4, DetectorConfig, detectron2
from vlmill.models.detector.configurations import flatten_sections
from vlmill.train.detector.settings import Matching, RoiRules, RpnRules, Solver, TrainingSettings

Keys = Mapping[str, Any]
RPN, ROI, BOX = "MODEL.RPN.", "MODEL.ROI_HEADS.", "MODEL.ROI_BOX_HEAD."
ATTRIBUTES = "MODEL.ROI_ATTRIBUTE_HEAD."
# What a set leaves out is that of the COCO Faster R-CNN R50-C4 3x configuration.
DEFAULTS: dict[str, Any] = {
    "MODEL.RESNETS.NORM": "FrozenBN",
    "MODEL.BACKBONE.FREEZE_AT": 2,
    "MODEL.ANCHOR_GENERATOR": {
        **{"SIZES": [[32, 64, 128, 256, 512]], "ASPECT_RATIOS": [[0.5, 1.0, 2.0]], "OFFSET": 0.0},
    },
    "MODEL.RPN": {
        **{"IOU_THRESHOLDS": [0.3, 0.7], "IOU_LABELS": [0, -1, 1]},
        **{"BATCH_SIZE_PER_IMAGE": 256, "POSITIVE_FRACTION": 0.5, "BOUNDARY_THRESH": -1},
        **{"SMOOTH_L1_BETA": 0.0, "LOSS_WEIGHT": 1.0, "BBOX_REG_LOSS_WEIGHT": 1.0},
    },
    "MODEL.ROI_HEADS": {
        **{"IOU_THRESHOLDS": [0.5], "IOU_LABELS": [0, 1], "NUM_CLASSES": 80},
        **{"BATCH_SIZE_PER_IMAGE": 512, "POSITIVE_FRACTION": 0.25},
    },
    "SOLVER": {
        **{"BASE_LR": 0.02, "STEPS": [210_000, 250_000], "MAX_ITER": 270_000, "NUM_DECAYS": 3},
        "WARMUP_ITERS": 1000,
    },
}
# Of the attribute head, where a set is of its repository.
MILVLG_DEFAULTS = {
    "MODEL.ROI_ATTRIBUTE_HEAD": {"NUM_CLASSES": 400, "OBJ_EMBED_DIM": 256, "FC_DIM": 512},
}


def keys_of(golden: GoldenSet, case: str) -> dict[str, Any]:
    """The keys of a case: the defaults, those of the set over them, and its own over both; flat."""
    number = int(case.removeprefix("case"))
    config = golden.config
    own = config["cases"][number].get("keys", {})
    of_head = MILVLG_DEFAULTS if config.get("reference") == "milvlg" else {}
    of_set = (config.get("detectron2_keys", {}), config.get("attribute_keys", {}))
    layers = (DEFAULTS, of_head, *of_set, own)
    values: dict[str, Any] = {}
    for layer in layers:
        values |= dict(flatten_sections(layer))
    return values


def matching(keys: Keys, prefix: str) -> Matching:
    """Thresholds, labels and number of examples of one of the two stages."""
    return Matching(
        thresholds=tuple(keys[f"{prefix}IOU_THRESHOLDS"]),
        labels=tuple(keys[f"{prefix}IOU_LABELS"]),
        batch=keys[f"{prefix}BATCH_SIZE_PER_IMAGE"],
        positives=keys[f"{prefix}POSITIVE_FRACTION"],
    )


def rpn_rules(keys: Keys) -> RpnRules:
    """Of the proposal network."""
    border = keys[f"{RPN}BOUNDARY_THRESH"]
    weight = keys[f"{RPN}LOSS_WEIGHT"]
    return RpnRules(
        matching=matching(keys, RPN),
        border=None if border < 0 else float(border),
        box_loss=keys.get(f"{RPN}BBOX_REG_LOSS_TYPE", "smooth_l1"),
        beta=keys[f"{RPN}SMOOTH_L1_BETA"],
        class_weight=weight,
        box_weight=weight * keys[f"{RPN}BBOX_REG_LOSS_WEIGHT"],
        pre_nms_top=keys.get(f"{RPN}PRE_NMS_TOPK_TRAIN", RpnRules.pre_nms_top),
        post_nms_top=keys.get(f"{RPN}POST_NMS_TOPK_TRAIN", RpnRules.post_nms_top),
    )


def roi_rules(keys: Keys) -> RoiRules:
    """Of the heads."""
    return RoiRules(
        matching=matching(keys, ROI),
        box_loss=keys.get(f"{BOX}BBOX_REG_LOSS_TYPE", "smooth_l1"),
        beta=keys.get(f"{BOX}SMOOTH_L1_BETA", RoiRules.beta),
        box_weight=keys.get(f"{BOX}BBOX_REG_LOSS_WEIGHT", RoiRules.box_weight),
        append_truth=keys.get(f"{ROI}PROPOSAL_APPEND_GT", RoiRules.append_truth),
        attribute_weight=keys.get(f"{ATTRIBUTES}LOSS_WEIGHT", RoiRules.attribute_weight),
    )


def solver_of(keys: Keys) -> Solver:
    """Optimiser and schedule."""
    clip = {k.rpartition(".")[2]: v for k, v in keys.items() if ".CLIP_GRADIENTS." in k}
    schedules = {
        "WarmupMultiStepLR": "steps",
        "WarmupStepWithFixedGammaLR": "steps",
        "WarmupCosineLR": "cosine",
    }
    schedule = keys.get("SOLVER.LR_SCHEDULER_NAME", "WarmupMultiStepLR")
    expect(
        schedule in schedules, f"SOLVER.LR_SCHEDULER_NAME {schedule}: expected {list(schedules)}"
    )
    rate, steps = keys["SOLVER.BASE_LR"], keys.get("SOLVER.MAX_ITER", 0)
    drops = [drop for drop in keys.get("SOLVER.STEPS", ()) if drop <= steps]
    if schedule == "WarmupStepWithFixedGammaLR":  # parts of the same length
        parts = keys["SOLVER.NUM_DECAYS"] + 1
        drops = [steps * part / parts for part in range(1, parts)]
    return Solver(
        lr=rate,
        momentum=keys.get("SOLVER.MOMENTUM", 0.9),
        nesterov=keys.get("SOLVER.NESTEROV", False),
        weight_decay=keys.get("SOLVER.WEIGHT_DECAY", 1e-4),
        norm_decay=keys.get("SOLVER.WEIGHT_DECAY_NORM", 0.0),
        bias_rate=keys.get("SOLVER.BIAS_LR_FACTOR", 1.0),
        bias_decay=keys.get("SOLVER.WEIGHT_DECAY_BIAS"),
        schedule=schedules[schedule],  # type: ignore[arg-type]
        drops=tuple(drops),
        drop_factor=keys.get("SOLVER.GAMMA", 0.1),
        end=keys.get("SOLVER.BASE_LR_END", 0.0) / rate,
        warmup=keys.get("SOLVER.WARMUP_ITERS", 0),
        warmup_from=keys.get("SOLVER.WARMUP_FACTOR", 1e-3),
        warmup_method=keys.get("SOLVER.WARMUP_METHOD", "linear"),
        rescale=keys.get("SOLVER.RESCALE_INTERVAL", False),
        clip=clip["CLIP_TYPE"] if clip.get("ENABLED") else "none",
        clip_at=clip.get("CLIP_VALUE", 1.0),
        clip_norm=clip.get("NORM_TYPE", 2.0),
    )


def four(values: Any) -> Box4:
    """Four weights of deltas."""
    a, b, c, d = map(float, values)
    return a, b, c, d


def loss_config(keys: Keys) -> DetectorConfig:
    """A network of the conventions that the losses ask for."""
    return detectron2(
        num_classes=keys.get(f"{ROI}NUM_CLASSES", 80),
        class_specific_boxes=not keys.get(f"{BOX}CLS_AGNOSTIC_BBOX_REG", False),
        rpn_box_weights=four(keys.get(f"{RPN}BBOX_REG_WEIGHTS", [1.0] * 4)),
        box_weights=four(keys.get(f"{BOX}BBOX_REG_WEIGHTS", [10.0, 10.0, 5.0, 5.0])),
        anchor_scales=tuple(
            size / 16 for size in keys.get("MODEL.ANCHOR_GENERATOR.SIZES", [[32]])[0]
        ),
        anchor_ratios=tuple(keys.get("MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS", [[1.0]])[0]),
        anchor_offset=keys.get("MODEL.ANCHOR_GENERATOR.OFFSET", 0.0),
        num_attributes=keys.get(f"{ATTRIBUTES}NUM_CLASSES", 0),
        attribute_background=None,
        class_embedding_size=keys.get(f"{ATTRIBUTES}OBJ_EMBED_DIM", 1),
        attribute_hidden_size=keys.get(f"{ATTRIBUTES}FC_DIM", 1),
    )


def settings_of(keys: Keys, detector: DetectorConfig) -> TrainingSettings:
    """Everything that a step is made of."""
    return TrainingSettings(
        name="recording",
        detector=detector,
        rpn=rpn_rules(keys),
        roi=roi_rules(keys),
        solver=solver_of(keys),
    )
