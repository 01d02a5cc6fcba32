"""Detectors of other sizes and options than the recorded ones, by our network.

Pooling, anchors and proposals are held against torchvision's operators and a few lines of NumPy.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tests.parity.golden import GoldenSet
from tests.parity.handlers import compare
from tests.parity.variants import write_detector, write_set
from tests.parity.variants_detector import (
    SMALL,
    TOLERANCE,
    Sections,
    config_of_family,
    images,
    network_config,
    small_set,
)
from torchvision.ops import roi_align, roi_pool

from vlmill.models.detector.config import DetectorConfig

pytestmark = pytest.mark.nightly  # of the comparison itself, as test_harness.py

Array = npt.NDArray[np.float64]


def boxes(**keys: Any) -> Sections:
    return {"ROI_BOX_HEAD": keys}


VARIANTS: dict[str, tuple[str, Sections]] = {
    "detectron2-roipool": ("detectron2", boxes(POOLER_TYPE="ROIPool")),
    "detectron2-roialign": ("detectron2", boxes(POOLER_TYPE="ROIAlign")),
    "detectron2-roialignv2": ("detectron2", boxes(POOLER_TYPE="ROIAlignV2")),
    "detectron2-box-of-each-class": ("detectron2", boxes(CLS_AGNOSTIC_BBOX_REG=False)),
    "detectron2-pooled-9": ("detectron2", boxes(POOLER_RESOLUTION=9, POOLER_SAMPLING_RATIO=0)),
    "detectron2-stride-in-3x3": ("detectron2", {"RESNETS": {"STRIDE_IN_1X1": False}}),
    "detectron2-large-proposals": (
        "detectron2",
        {"PROPOSAL_GENERATOR": {"MIN_SIZE": 20}, "RPN": {"NMS_THRESH": 0.5}},
    ),
    "airsplay-dilated": ("airsplay", {}),
    "airsplay-halved": ("airsplay", boxes(RES5HALVE=True)),
    "airsplay-plain-max-pool": ("airsplay", {"CAFFE_MAXPOOL": False}),
    "airsplay-roialign": ("airsplay", boxes(POOLER_TYPE="ROIAlign")),
    "airsplay-box-of-each-class": ("airsplay", boxes(CLS_AGNOSTIC_BBOX_REG=False)),
    "airsplay-no-attributes": ("airsplay", boxes(ATTR=False)),
    "airsplay-frozen": ("airsplay", {"RESNETS": {"NORM": "FrozenBN"}}),
    "hf-several-overlaps": ("hf-frcnn", {"ROI_HEADS": {"NMS_THRESH_TEST": [0.3, 0.6]}}),
    "hf-one-overlap": ("hf-frcnn", {"ROI_HEADS": {"NMS_THRESH_TEST": 0.4}}),
    "hf-plain-max-pool": ("hf-frcnn", {"MODEL": {"max_pool": False}}),
    "hf-halved": ("hf-frcnn", boxes(RES5HALVE=True)),
    "hf-box-of-each-class": ("hf-frcnn", boxes(CLS_AGNOSTIC_BBOX_REG=False)),
    "hf-other-numbers": (
        "hf-frcnn",
        {"ROI_HEADS": {"NUM_CLASSES": 9}, "roi_box_head": {"num_attrs": 6}},
    ),
    "milvlg": ("milvlg", {}),
    "milvlg-pooled-10": ("milvlg", boxes(POOLER_RESOLUTION=10)),
    "milvlg-v2": (
        "milvlg",
        {"BUA": {"RESNET_VERSION": 2}, "RESNETS": {"STRIDE_IN_1X1": False, "RES5_DILATION": 1}},
    ),
    "milvlg-other-numbers": (
        "milvlg",
        {"ROI_HEADS": {"NUM_CLASSES": 8}, "BUA": {"ATTRIBUTE": {"NUM_CLASSES": 6}}},
    ),
}


QUICK = (
    "detectron2-roialign",
    "airsplay-halved",
    "airsplay-no-attributes",
    "hf-one-overlap",
    "milvlg-other-numbers",
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in VARIANTS],
)
def test_a_variant_is_compared_by_what_its_set_says(tmp_path: Path, name: str) -> None:
    """Weights with counters are of every family: the keys say whose they are."""
    golden, config = small_set(tmp_path, *VARIANTS[name])
    result: Any = compare(golden)
    assert (result["status"], result["reason"]) == ("passed", "")
    expect_pooled(golden, config)
    if config.anchor_layout == "centred":
        expect_anchors(golden, config)
    expect_proposals(golden, config)
    deltas = golden.tensors["case0.out.box_deltas"].shape[1]
    background = config.background == "first"
    assert deltas == 4 * ((config.num_classes + background) if config.class_specific_boxes else 1)


def first_proposals(golden: GoldenSet) -> torch.Tensor:
    name = "case0.out.proposals"
    return golden.tensors[name if name in golden.tensors else f"{name}0"]


def expect_pooled(golden: GoldenSet, config: DetectorConfig) -> None:
    pooled = golden.tensors["case0.out.pooled_first"]
    regions = first_proposals(golden)[: len(pooled)]
    features, size = golden.tensors["case0.out.res4"][:1], config.pool_size
    if config.pooling == "pool":
        ours = roi_pool(features, [regions], size, 1 / 16)
    else:
        aligned = config.pooling == "align"
        ours = roi_align(features, [regions], size, 1 / 16, config.sampling_ratio, aligned)
    torch.testing.assert_close(pooled, ours, rtol=1e-5, atol=1e-4)


def expect_anchors(golden: GoldenSet, config: DetectorConfig) -> None:
    """Row by row of cells, size by size, ratio by ratio, half a cell off."""
    rows, columns = golden.tensors["case0.out.res4"].shape[2:]
    anchors = []
    for y in range(rows):
        for x in range(columns):
            for size in SMALL["ANCHOR_GENERATOR"]["SIZES"][0]:
                for ratio in SMALL["ANCHOR_GENERATOR"]["ASPECT_RATIOS"][0]:
                    width = np.sqrt(size**2 / ratio)
                    half = np.array([width, width * ratio]) / 2
                    centre = (np.array([x, y]) + 0.5) * 16
                    anchors.append([*(centre - half), *(centre + half)])
    expected = torch.tensor(np.array(anchors), dtype=torch.float32)
    torch.testing.assert_close(golden.tensors["case0.out.anchors"], expected, rtol=1e-5, atol=1e-3)


def expect_proposals(golden: GoldenSet, config: DetectorConfig) -> None:
    """Of the first image, from the anchors and the recorded head by plain NumPy."""
    tensors, offset = golden.tensors, config.box_offset
    anchors = tensors["case0.out.anchors"].double().numpy()
    deltas = tensors["case0.out.rpn_deltas"][0].permute(1, 2, 0).reshape(-1, 4).double().numpy()
    logits = tensors["case0.out.rpn_logits"][0].double().numpy()
    half = len(logits) // 2
    if config.objectness == "softmax":
        logits = 1 / (1 + np.exp(logits[:half] - logits[half:]))
    scores = np.moveaxis(logits, 0, -1).reshape(-1)
    sides = anchors[:, 2:] - anchors[:, :2] + offset
    centres = anchors[:, :2] + sides / 2 + deltas[:, :2] * sides
    grown = sides * np.exp(np.minimum(deltas[:, 2:], np.log(1000 / 16)))
    height, width, scale = input_size(golden)
    corners = np.concatenate([centres - grown / 2, centres + grown / 2], axis=1)
    corners = corners.clip(0, np.array([width, height] * 2) - offset)
    order = np.argsort(-scores, kind="stable")
    if not config.filter_before_top:
        order = order[: config.pre_nms_top]
    smallest = config.min_proposal_size * (scale if config.min_size_of == "picture" else 1)
    order = order[(corners[order, 2:] - corners[order, :2] + offset > smallest).all(axis=1)]
    kept = suppressed(corners, order[: config.pre_nms_top], config)[: config.post_nms_top]
    ours = first_proposals(golden).double().numpy()
    np.testing.assert_allclose(ours, corners[kept], rtol=0, atol=0.01)


def input_size(golden: GoldenSet) -> tuple[int, int, float]:
    """Height, width and resize factor of the first image in the network, by its own sides."""
    name = "case0.in.image"
    image = golden.tensors[name if name in golden.tensors else f"{name}0"]
    height, width = image.shape[:2]
    scale = min(64 / min(height, width), 90 / max(height, width))
    return round(height * scale), round(width * scale), scale


def suppressed(corners: Array, order: npt.NDArray[np.int64], config: DetectorConfig) -> list[int]:
    """Greedy suppression, best first."""
    kept: list[int] = []
    ends = corners + np.array([0, 0, config.box_offset, config.box_offset])
    for number in order.tolist():
        low = np.maximum(ends[number, :2], ends[kept, :2])
        high = np.minimum(ends[number, 2:], ends[kept, 2:])
        shared = (high - low).clip(0).prod(axis=1)
        areas = (ends[[number, *kept], 2:] - ends[[number, *kept], :2]).prod(axis=1)
        if not (shared > config.rpn_nms_threshold * (areas[0] + areas[1:] - shared)).any():
            kept.append(number)
    return kept


def test_another_grid_of_anchors_than_recorded_fails(tmp_path: Path) -> None:
    golden, _ = small_set(tmp_path, "detectron2", {})
    keys = dict(golden.config["detectron2_keys"])
    keys["MODEL.ANCHOR_GENERATOR"] = keys["MODEL.ANCHOR_GENERATOR"] | {"OFFSET": 0.25}
    golden.config["detectron2_keys"] = keys
    result: Any = compare(golden)
    assert result["status"] == "failed" and "case0.out.anchors" in result["reason"]


def test_a_key_that_is_not_honoured_is_named(tmp_path: Path) -> None:
    config = config_of_family("detectron2", {"ROI_HEADS": {"NAME": "StandardROIHeads"}})
    entry = {"part": "detector", "family": "detectron2", "tolerance": TOLERANCE}
    tensors = {"case0.in.image0": images((50, 70))[0]}
    golden = write_set(tmp_path, "frcnn/other", entry, config, tensors)
    network = network_config("detectron2", config_of_family("detectron2", {}))
    write_detector(golden, network, counters=False)
    result: Any = compare(golden)
    assert result["status"] == "failed"
    assert "config.json" in result["reason"] and "MODEL.ROI_HEADS.NAME" in result["reason"]
