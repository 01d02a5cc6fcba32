"""Detectors of other sizes and options than the recorded ones, by our network.

Pooling and anchors are held against torchvision's operators and a few lines of NumPy.
"""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import GOLDEN
from tests.parity.golden import GoldenSet, read_index
from tests.parity.handlers import compare
from tests.parity.variants import recorded, write_detector, write_set
from torch import Tensor
from torchvision.ops import roi_align, roi_pool

from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.configurations import configuration_of, flat

SETS = {golden.name: golden for golden in read_index(GOLDEN)}
TOLERANCE = SETS["frcnn/d2_r50c4"].entry["tolerance"]
# Four sizes, two ratios, anchors half a cell off, pooled to 7 x 7.
RESNETS = {"WIDTH_PER_GROUP": 4, "RES2_OUT_CHANNELS": 12, "STEM_OUT_CHANNELS": 6}
ANCHORS: dict[str, Any] = {
    "SIZES": [[16, 32, 48, 96]],
    "ASPECT_RATIOS": [[0.5, 1.5]],
    "OFFSET": 0.5,
}
RPN = {"PRE_NMS_TOPK_TEST": 60, "POST_NMS_TOPK_TEST": 11}
BOXES = {"POOLER_RESOLUTION": 7, "CLS_AGNOSTIC_BBOX_REG": True}
CLASSES = 5


def detectron2_keys(pooler: str, **heads: Any) -> dict[str, Any]:
    """The committed keys with other sizes; ``heads`` of the section ROI_HEADS."""
    keys = copy.deepcopy(dict(SETS["frcnn/d2_r50c4"].config["detectron2_keys"]))
    keys["MODEL.RESNETS"] = dict(keys["MODEL.RESNETS"]) | RESNETS | {"NORM": "BN"}
    keys["MODEL.ANCHOR_GENERATOR"] = dict(keys["MODEL.ANCHOR_GENERATOR"]) | ANCHORS
    keys["MODEL.RPN"] = dict(keys["MODEL.RPN"]) | RPN
    boxes = BOXES | {"POOLER_TYPE": pooler, "POOLER_SAMPLING_RATIO": 2}
    keys["MODEL.ROI_BOX_HEAD"] = dict(keys["MODEL.ROI_BOX_HEAD"]) | boxes
    settings = {"NUM_CLASSES": CLASSES, "SCORE_THRESH_TEST": 0.02}
    keys["MODEL.ROI_HEADS"] = dict(keys["MODEL.ROI_HEADS"]) | settings | heads
    keys["INPUT"] = {"MIN_SIZE_TEST": 64, "MAX_SIZE_TEST": 90, "FORMAT": "BGR"}
    return keys | {"TEST.DETECTIONS_PER_IMAGE": 6}


def pictures(*sizes: tuple[int, int]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randint(0, 256, (*size, 3), dtype=torch.uint8) for size in sizes]


def config_of(keys: dict[str, Any], num_anchors: int) -> DetectorConfig:
    config = configuration_of(dict(flat(keys))).config
    assert config.num_anchors == num_anchors and config.pool_size == 7
    return config


def made(
    golden: GoldenSet, keys: dict[str, Any], num_anchors: int, *, counters: bool = True
) -> GoldenSet:
    """The set with weights and outputs; it passes, and its pooled regions are torchvision's."""
    config = config_of(keys, num_anchors)
    write_detector(golden, config, counters=counters)
    whole = recorded(golden)
    result: Any = compare(whole)
    assert (result["status"], result["reason"]) == ("passed", "")
    expect_pooled(whole, config)
    if config.anchor_layout == "centred":
        expect_anchors(whole, config)
    return whole


def expect_pooled(golden: GoldenSet, config: DetectorConfig) -> None:
    pooled = golden.tensors["case0.out.pooled_first"]
    name = "case0.out.proposals"
    boxes = golden.tensors[name if name in golden.tensors else f"{name}0"][: len(pooled)]
    features = golden.tensors["case0.out.res4"][:1]
    if config.pooling == "pool":
        ours = roi_pool(features, [boxes], 7, 1 / 16)
    else:
        aligned = config.pooling == "align"
        ours = roi_align(features, [boxes], 7, 1 / 16, config.sampling_ratio, aligned)
    torch.testing.assert_close(pooled, ours, rtol=1e-5, atol=1e-4)


def expect_anchors(golden: GoldenSet, config: DetectorConfig) -> None:
    """Row by row of cells, size by size, ratio by ratio, half a cell off where asked."""
    rows, columns = golden.tensors["case0.out.res4"].shape[2:]
    anchors = []
    for y in range(rows):
        for x in range(columns):
            for size in ANCHORS["SIZES"][0]:
                for ratio in ANCHORS["ASPECT_RATIOS"][0]:
                    width = np.sqrt(size**2 / ratio)
                    half = np.array([width, width * ratio]) / 2
                    centre = (np.array([x, y]) + config.anchor_offset) * 16
                    anchors.append([*(centre - half), *(centre + half)])
    expected = torch.tensor(np.array(anchors), dtype=torch.float32)
    torch.testing.assert_close(golden.tensors["case0.out.anchors"], expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("pooler", ["ROIPool", "ROIAlign", "ROIAlignV2"])
def test_detectron2_with_every_pooling(tmp_path: Path, pooler: str) -> None:
    keys = detectron2_keys(pooler)
    entry = {"part": "detector", "family": "detectron2", "tolerance": TOLERANCE}
    first, second = pictures((50, 70), (80, 60))
    tensors = {"case0.in.image0": first, "case0.in.image1": second}
    tensors["case0.out.pooled_first"] = torch.zeros(4, 48, 7, 7)
    golden = write_set(tmp_path, "frcnn/other", entry, {"detectron2_keys": keys}, tensors)
    whole = made(golden, keys, 8)
    assert whole.tensors["case0.out.box_deltas"].shape[1] == 4  # whatever the class
    changed = dict(whole.config["detectron2_keys"])
    changed["MODEL.ANCHOR_GENERATOR"] = changed["MODEL.ANCHOR_GENERATOR"] | {"OFFSET": 0.25}
    whole.config["detectron2_keys"] = changed
    again: Any = compare(whole)
    assert again["status"] == "failed" and "case0.out.anchors" in again["reason"]


@pytest.mark.parametrize("halved", [True, False])
def test_airsplay_with_trained_norms(tmp_path: Path, halved: bool) -> None:
    """Weights with counters are airsplay's all the same: the keys say whose they are."""
    plain = {k.removeprefix("MODEL."): v for k, v in detectron2_keys("ROIAlign").items()}
    sides = plain.pop("INPUT")
    del plain["TEST.DETECTIONS_PER_IMAGE"], plain["RPN"]["CONV_DIMS"]
    del plain["ROI_HEADS"]["NMS_THRESH_TEST"]
    plain |= {"CAFFE_MAXPOOL": False}
    plain["PROPOSAL_GENERATOR"] = {"NAME": "RPN", "HID_CHANNELS": 14, "MIN_SIZE": 0}
    plain["ROI_BOX_HEAD"] |= {"ATTR": True, "NUM_ATTRS": 3, "RES5HALVE": halved}
    config = {"keys": plain, "INPUT": sides, "options": {"N": 4, "score": 0.02}}
    entry = {"part": "detector", "family": "airsplay", "tolerance": TOLERANCE}
    tensors = {"case0.in.image": pictures((50, 70))[0]}
    tensors["case0.in.given_boxes"] = torch.tensor([[1.0, 2.0, 30.0, 40.0], [5.0, 5.0, 9.0, 60.0]])
    tensors["case0.out.pooled_first"] = torch.zeros(2, 48, 7, 7)
    golden = write_set(tmp_path, "frcnn/other", entry, config, tensors)
    made(golden, {"MODEL": plain, "INPUT": sides}, 8)


@pytest.mark.parametrize("thresholds", [0.4, [0.3, 0.6]])
@pytest.mark.parametrize("halved", [True, False])
def test_hf_frcnn_with_other_options(tmp_path: Path, thresholds: Any, halved: bool) -> None:
    """One threshold or several, plain max pooling, and res5 with a stride."""
    config: dict[str, Any] = copy.deepcopy(
        {k: dict(v) if isinstance(v, dict) else v for k, v in SETS["frcnn/hf_frcnn"].config.items()}
    )
    config["model"]["max_pool"] = False
    config["input"] |= {"min_size_test": 64, "max_size_test": 90}
    config["resnets"] |= {name.lower(): value for name, value in RESNETS.items()}
    config["anchor_generator"] |= {name.lower(): value for name, value in ANCHORS.items()}
    config["rpn"] |= {name.lower(): value for name, value in RPN.items()}
    config["proposal_generator"]["hidden_channels"] = 14
    config["roi_heads"] |= {"num_classes": CLASSES, "nms_thresh_test": thresholds}
    boxes = {"pooler_resolution": 7, "cls_agnostic_bbox_reg": True, "res5halve": halved}
    config["roi_box_head"] |= boxes | {"num_attrs": 3}
    config |= {"min_detections": 3, "max_detections": 5}
    entry = {"part": "detector", "family": "hf-frcnn", "tolerance": TOLERANCE}
    tensors = {"case0.in.image0": pictures((50, 70))[0]}
    tensors["case0.out.pooled_first"] = torch.zeros(2, 48, 7, 7)
    golden = write_set(tmp_path, "frcnn/other", entry, config, tensors)
    made(golden, config, 8)


def test_a_key_that_is_not_honoured_is_named(tmp_path: Path) -> None:
    keys = detectron2_keys("ROIAlignV2", NAME="StandardROIHeads")
    entry = {"part": "detector", "family": "detectron2", "tolerance": TOLERANCE}
    tensors = {"case0.in.image0": pictures((50, 70))[0]}
    golden = write_set(tmp_path, "frcnn/other", entry, {"detectron2_keys": keys}, tensors)
    write_detector(golden, config_of(detectron2_keys("ROIAlignV2"), 8), counters=False)
    result: Any = compare(golden)
    assert result["status"] == "failed"
    assert "config.json" in result["reason"] and "MODEL.ROI_HEADS.NAME" in result["reason"]
