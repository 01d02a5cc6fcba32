"""Detectors trained by other options than the recorded ones: the comparison takes them from the
set.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.parity.detector_training import Recorded
from tests.parity.detector_training_keys import (
    keys_of,
    loss_config,
    roi_rules,
    rpn_rules,
    solver_of,
)
from tests.parity.detector_training_step import batch_of, opened
from tests.parity.golden import GoldenSet
from tests.parity.handlers import compare
from tests.parity.results import Results
from tests.parity.variants import recorded, write_detector, write_set
from tests.parity.variants_detector import config_of_family, images, merged, network_config
from torch import Tensor

from vlmill.train.detector.settings import RoiRules, RpnRules, Solver
from vlmill.train.detector.step import DetectorStep

pytestmark = pytest.mark.nightly  # of the comparison itself, as test_harness.py

ENTRY = {"part": "detector-training", "family": "frcnn"}
NO_SAMPLE_TOO_LARGE = {
    "IOU_THRESHOLDS": [0.5],
    "IOU_LABELS": [0, 1],
    "BATCH_SIZE_PER_IMAGE": 6,
    "POSITIVE_FRACTION": 0.5,
}
RPN = {"BOUNDARY_THRESH": -1, "SMOOTH_L1_BETA": 0.1, "LOSS_WEIGHT": 1.0}
RPN |= {"BBOX_REG_LOSS_WEIGHT": 1.0, "PRE_NMS_TOPK_TRAIN": 40, "POST_NMS_TOPK_TRAIN": 12}
TRAINING = {
    "BACKBONE": {"FREEZE_AT": 0},
    "RPN": RPN | NO_SAMPLE_TOO_LARGE,
    "ROI_HEADS": NO_SAMPLE_TOO_LARGE,
}


def of_case(number: int, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"case{number}.{name}": tensor for name, tensor in tensors.items()}


def expect_passed(golden: GoldenSet) -> None:
    result: Any = compare(golden)
    assert (result["status"], result["reason"]) == ("passed", "")


@pytest.mark.parametrize(("reference", "attributes"), [("detectron2", 0), ("milvlg", 400)])
def test_keys_that_a_set_leaves_out_are_detectron2s(
    tmp_path: Path, reference: str, attributes: int
) -> None:
    """The READMEs say so; our own defaults are those, too."""
    config = {"reference": reference, "cases": [{"keys": {}}]}
    tensors = {"case0.in.iteration": torch.zeros(1)}
    keys = keys_of(write_set(tmp_path, "frcnn/keys", ENTRY, config, tensors), "case0")
    assert (rpn_rules(keys), roi_rules(keys)) == (RpnRules(), RoiRules())
    assert solver_of(keys) == Solver(drops=(210_000, 250_000))
    assert loss_config(keys).num_attributes == attributes


def test_regions_of_boxes_without_attributes_are_sampled(tmp_path: Path) -> None:
    """By hand: of three proposals the first is the box, and the box follows them."""
    box, far = [0.0, 0, 20, 20], [40.0, 40, 60, 60]
    keys = {f"MODEL.ROI_HEADS.{name}": value for name, value in NO_SAMPLE_TOO_LARGE.items()}
    keys |= {"MODEL.ROI_HEADS.NUM_CLASSES": 4, "MODEL.ROI_HEADS.PROPOSAL_APPEND_GT": True}
    rows = torch.tensor([box, box, far, far])
    tensors = {
        "in.proposals0": torch.tensor([box, far, far]),
        "in.proposal_logits0": torch.tensor([2.0, 1.0, 0.5]),
        "in.gt_boxes0": torch.tensor([box]),
        "in.gt_classes0": torch.tensor([2]),
        "in.perm_pos0": torch.tensor([1, 0]),
        "in.perm_neg0": torch.tensor([0, 1]),
        "out.matched0": torch.zeros(4, dtype=torch.int64),
        "out.matched_labels0": torch.tensor([1, 0, 0, 1], dtype=torch.int8),
        "out.sampled0": torch.tensor([3, 0, 1, 2]),
        "out.boxes0": rows,
        "out.classes0": torch.tensor([2, 2, 4, 4]),
        "out.objectness0": torch.tensor([23.0259, 2.0, 1.0, 0.5]),
        "out.gt_boxes0": torch.tensor([box] * 4),
    }
    config = {"cases": [{"keys": keys}]}
    entry = ENTRY | {"tolerance": [["*", {"abs": 1e-4}]]}
    expect_passed(write_set(tmp_path, "frcnn/regions", entry, config, of_case(0, tensors)))


def test_the_originals_layers_allow_a_border_and_have_no_attributes(tmp_path: Path) -> None:
    """One anchor, 16 pixels wide, in each of two cells of an image of 24: by hand."""
    anchors = {
        **{"layer": "AnchorTargetLayer", "feat_stride": 16, "scales": [1], "ratios": [1.0]},
        **{"RPN_BATCHSIZE": 4, "RPN_FG_FRACTION": 0.5, "allowed_border": 9},
        **{"RPN_POSITIVE_OVERLAP": 0.7, "RPN_NEGATIVE_OVERLAP": 0.3},
    }
    regions = {
        **{"layer": "ProposalTargetLayer", "classes": 2, "BATCH_SIZE": 4, "FG_FRACTION": 0.5},
        **{"FG_THRESH": 0.5, "BG_THRESH_HI": 0.5, "BG_THRESH_LO": 0.0},
        "BBOX_NORMALIZE_STDS": [0.1, 0.1, 0.2, 0.2],
    }
    second = torch.tensor([[16.0, 0, 31, 15]])
    none = torch.zeros(0, dtype=torch.int64)
    of_anchors = {
        "in.map": torch.tensor([1, 2]),
        "in.image_size": torch.tensor([16, 24]),
        "in.gt_boxes": second,
        **{"in.perm_pos": none, "in.perm_neg": none},
        "out.anchors": torch.tensor([[0.0, 0, 15, 15], *second.tolist()]),
        "out.rpn_labels": torch.tensor([[[[0.0, 1.0]]]]),
        # From the first anchor the box lies a width to the right.
        "out.rpn_bbox_targets": torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0]).reshape(1, 4, 1, 2),
        "out.rpn_bbox_inside_weights": torch.tensor([0.0, 1]).expand(1, 4, 1, 2),
        "out.rpn_bbox_outside_weights": torch.full((1, 4, 1, 2), 0.5),
    }
    counted = torch.zeros(2, 12)
    counted[:, 4:8] = 1
    of_regions = {
        **{"in.rois": second, "in.gt_boxes": second, "in.gt_classes": torch.tensor([1])},
        **{"in.perm_pos": torch.tensor([0, 1]), "in.perm_neg": none},
        "out.rois": torch.tensor([[0.0, *second[0].tolist()]] * 2),
        "out.labels": torch.tensor([1.0, 1.0]),
        "out.bbox_targets": torch.zeros(2, 12),
        **{"out.bbox_inside_weights": counted, "out.bbox_outside_weights": counted},
    }
    config = {"cases": [anchors, regions]}
    tensors = of_case(0, of_anchors) | of_case(1, of_regions)
    expect_passed(write_set(tmp_path, "frcnn/layers", ENTRY, config, tensors))


@pytest.mark.parametrize("norm", ["BN", "SyncBN", "naiveSyncBN"])
def test_normalisations_that_learn_leave_their_statistics(tmp_path: Path, norm: str) -> None:
    """Those of one process, whatever they gather over several; by plain PyTorch."""
    golden = training_set(tmp_path, norm)
    expect_passed(golden)
    weights, name = open_weights(golden), "backbone.stem.conv1"
    means = torch.nn.functional.conv2d(
        golden.tensors["case0.out.tensor"], weights[f"{name}.weight"], stride=2, padding=3
    ).mean(dim=(0, 2, 3))
    expected = 0.9 * weights[f"{name}.norm.running_mean"] + 0.1 * means
    ours = golden.tensors[f"case0.out.after.{name}.norm.running_mean"]
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def open_weights(golden: GoldenSet) -> Mapping[str, Tensor]:
    return opened(golden, "case0")[1].state_dict()


def training_set(root: Path, norm: str) -> GoldenSet:
    """A whole step of a small network on two images, one of them without a box."""
    inside = merged(TRAINING, {"RESNETS": {"NORM": norm}})
    keys = config_of_family("detectron2", {})["detectron2_keys"]
    keys = merged(keys, {f"MODEL.{name}": value for name, value in inside.items()})
    solver = {"BASE_LR": 0.01, "WEIGHT_DECAY_NORM": 0.1}
    keys |= {f"SOLVER.{name}": value for name, value in solver.items()}
    config = {"detectron2_keys": keys, "cases": [{"keys": {}}]}
    tensors = {
        f"case0.in.image{number}": image for number, image in enumerate(images((48, 64), (64, 48)))
    }
    boxes = torch.tensor([[4.0, 4, 40, 44], [20, 8, 60, 30]])
    tensors |= {"case0.in.gt_boxes0": boxes, "case0.in.gt_classes0": torch.tensor([1, 3])}
    nothing = torch.zeros(0, dtype=torch.int64)
    tensors |= {"case0.in.gt_boxes1": boxes[:0], "case0.in.gt_classes1": nothing}
    golden = write_set(root, f"frcnn/{norm}", ENTRY, config, tensors)
    write_detector(golden, network_config("detectron2", config), counters=False)
    drawn = draws_of(golden)
    return recorded(write_set(root, golden.name, ENTRY, config, tensors | drawn))


def draws_of(golden: GoldenSet) -> dict[str, Tensor]:
    """The permutations that a step asks for, in its order."""
    settings, model = opened(golden, "case0")
    batch = batch_of(Recorded("case0", golden, Results(golden)), model.config)
    names = [
        f"case0.in.{stage}_perm_{sign}{number}"
        for stage in ("rpn", "roi")
        for number in range(len(batch.truths))
        for sign in ("pos", "neg")
    ]
    drawn: dict[str, Tensor] = {}

    def draw(count: int) -> Tensor:
        permutation = torch.arange(count).flip(0)
        drawn[names[len(drawn)]] = permutation
        return permutation

    DetectorStep(model, settings).losses(batch, draw)
    return drawn
