"""Single operators of the detectors: pooling, suppression, anchors, box coders, resizes."""

import torch
from tests.parity.golden import GoldenSet, Results
from torch import Tensor

from vlmill.extract.pictures.resize import resize_bilinear, resize_pillow, resize_torch
from vlmill.models.detector.boxes import (
    centred_cell_anchors,
    decode_boxes,
    grid_anchors,
    legacy_cell_anchors,
)
from vlmill.models.detector.config import MAX_LOG_SCALE, DetectorConfig, Pooling
from vlmill.models.detector.faster_rcnn import pool_regions
from vlmill.models.detector.nms import first_survivors
from vlmill.models.detector.resnet import stem_pool

RATIOS = (0.5, 1.0, 2.0)
SIZES = {"a": (64.0, 128.0, 256.0, 512.0), "b": (32.0, 64.0, 128.0, 256.0, 512.0)}
MEAN = (102.9801, 115.9465, 122.7717)
POOLINGS: dict[str, tuple[Pooling, int]] = {
    "pool": ("pool", 0),
    "align_aligned0": ("align", 0),
    "align_aligned2": ("align", 2),
    "align_legacy0": ("align-legacy", 0),
    "align_legacy2": ("align-legacy", 2),
}


def operators(golden: GoldenSet, results: Results) -> None:
    """The set ``frcnn/ops``."""
    recorded = golden.tensors
    pooling(recorded, results)
    suppression(recorded, results)
    boxes_and_anchors(recorded, results)
    for key in recorded:
        name, _, what = key.partition(".out.")
        if name.startswith("pool") and what:
            ceil = what == "caffe"
            results.check(key, stem_pool(recorded[f"{name}.in.x"], ceil_pool=ceil))
        elif name.startswith("resize_") and what:
            results.check(key, resized(recorded, name, what))


def pooling(recorded: dict[str, Tensor], results: Results) -> None:
    """All pictures' regions at once, in the order of the rows."""
    features, rois = recorded["roi.in.map"], recorded["roi.in.rois"]
    assert recorded["roi.in.scale"].item() == 1 / DetectorConfig().stride
    for name, (kind, samples) in POOLINGS.items():
        config = DetectorConfig(pooling=kind, sampling_ratio=samples)
        results.check(f"roi.out.{name}", pool_regions(features, rois, config))


def suppression(recorded: dict[str, Tensor], results: Results) -> None:
    """``legacy`` lists kept boxes by index, the others by score."""
    boxes, scores = recorded["nms.in.boxes"], recorded["nms.in.scores"]
    for key in recorded:
        name, _, limit = key.removeprefix("nms.out.").partition("_")
        if not key.startswith("nms.out."):
            continue
        tie = limit == "tie"
        threshold = recorded["nms.in.tie_threshold"].item() if tie else float(limit)
        if name == "batched":
            labels = recorded["nms.in.labels"]
            kept = survivors(boxes, one_column_a_class(scores, labels), threshold, caffe=False)
        else:
            kept = survivors(boxes, scores[:, None], threshold, caffe=name != "tv")
        results.check(key, kept.sort().values if name == "legacy" else kept)


def one_column_a_class(scores: Tensor, labels: Tensor) -> Tensor:
    """Scores [R, K] of which each row has one, that of its label."""
    columns = torch.nn.functional.one_hot(labels).bool()
    return scores[:, None].masked_fill(~columns, -torch.inf)


def survivors(boxes: Tensor, scores: Tensor, threshold: float, *, caffe: bool) -> Tensor:
    """Rows of all survivors of one picture, best first."""
    places, values = first_survivors(
        boxes[None, :, None],
        scores[None],
        (threshold,),
        len(boxes),
        offset=float(caffe),
        inclusive=caffe,
    )
    return places[values > -torch.inf] // scores.shape[1]


def boxes_and_anchors(recorded: dict[str, Tensor], results: Results) -> None:
    legacy = legacy_cell_anchors((4.0, 8.0, 16.0, 32.0), RATIOS)
    results.check("anchor.out.caffe_4_8_16_32", legacy)
    for name, sizes in SIZES.items():
        for shift in (0.0, 0.5):
            anchors = grid_anchors(centred_cell_anchors(sizes, RATIOS), 3, 4, 16, shift)
            results.check(f"anchor.out.d2_{name}_{shift}", anchors)
    small, plain = recorded["coder.in.deltas_small"], (1.0, 1.0, 1.0, 1.0)
    for name, deltas, weights, offset, bound in (
        ("caffe", small, plain, 1.0, None),
        ("d2_1_1_1_1", small, plain, 0.0, MAX_LOG_SCALE),
        ("d2_10_10_5_5", recorded["coder.in.deltas"], (10.0, 10.0, 5.0, 5.0), 0.0, MAX_LOG_SCALE),
    ):
        boxes = recorded["coder.in.boxes"]
        decoded = decode_boxes(boxes, deltas, weights=weights, offset=offset, max_log_scale=bound)
        results.check(f"coder.out.{name}", decoded)


def resized(recorded: dict[str, Tensor], name: str, what: str) -> Tensor:
    """One of the three resizes, to the recorded size where the size is an argument."""
    picture, target = recorded[f"{name}.in.image"], recorded[f"{name}.out.{what}"]
    if what == "cv2_float_minus_mean":
        centred = picture.float() - torch.tensor(MEAN)
        return resize_bilinear(centred, recorded[f"{name}.in.scale"].item())
    if what == "pil_uint8":
        return torch.tensor(resize_pillow(picture.numpy(), *target.shape[:2]))
    return resize_torch(picture.float(), *target.shape[1:]).permute(2, 0, 1)
