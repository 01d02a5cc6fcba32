"""Single operators of the detectors: pooling, suppression, anchors, box coders, resizes.

Which operator with which argument stands in the names of the recordings, sizes in their shapes.
"""

import math
import re
from fractions import Fraction

import torch
from tests.parity.golden import GoldenSet, expect
from tests.parity.results import Results
from torch import Tensor

from vlmill.extract.images.resize import resize_bilinear, resize_pillow, resize_torch
from vlmill.models.detector.boxes import decode_boxes
from vlmill.models.detector.config import MAX_LOG_SCALE, DetectorConfig, Pooling
from vlmill.models.detector.nms import first_survivors
from vlmill.models.detector.proposals import centred_cell_anchors, grid_anchors, legacy_cell_anchors
from vlmill.models.detector.resnet import stem_pool
from vlmill.models.detector.roi_heads import pool_regions

MEAN = DetectorConfig().pixel_mean  # Caffe's, as no set of operators tells it
POOLINGS: dict[str, Pooling] = {"pool": "pool", "aligned": "align", "legacy": "align-legacy"}
POOLING = re.compile(r"roi\.out\.(?:align_)?(pool|aligned|legacy)(\d*)")
PLAIN = (1.0, 1.0, 1.0, 1.0)  # weights of a box coder


def operators(golden: GoldenSet, results: Results) -> None:
    """Every recorded operator."""
    recorded = golden.tensors
    for key in recorded:
        name, _, what = key.partition(".out.")
        if found := POOLING.fullmatch(key):
            pooling(golden, results, key, POOLINGS[found[1]], int(found[2] or 0))
        elif name == "nms" and what:
            suppression(golden, results, key)
        elif key.startswith("anchor.out.caffe_"):
            results.check(key, caffe_anchors(golden, key))
        elif key.startswith("anchor.out.d2_"):
            results.check(key, grid_of_anchors(golden, key))
        elif name == "coder" and what:
            results.check(key, decoded(golden, what))
        elif name.startswith("pool") and what:
            ceil = what == "caffe"
            results.check(key, stem_pool(recorded[f"{name}.in.x"], ceil_pool=ceil))
        elif name.startswith("resize_") and what:
            results.check(key, resized(golden, name, what))


def pooling(golden: GoldenSet, results: Results, key: str, kind: Pooling, samples: int) -> None:
    """All images' regions at once, in the order of the rows; scaled to our network's stride."""
    features, rois = golden.tensors["roi.in.map"], golden.tensors["roi.in.rois"]
    rows, columns = golden.tensors[key].shape[-2:]
    expect(rows == columns, f"{golden.folder}: {key}: {rows} x {columns} bins, expected a square")
    config = DetectorConfig(pooling=kind, sampling_ratio=samples, pool_size=rows)
    boxes = rois[:, 1:] * (golden.tensors["roi.in.scale"].item() * config.stride)
    scaled = torch.cat((rois[:, :1], boxes), dim=1)
    results.check(key, pool_regions((features,), scaled, config))


def suppression(golden: GoldenSet, results: Results, key: str) -> None:
    """``legacy`` lists kept boxes by index, the others by score."""
    recorded = golden.tensors
    boxes, scores = recorded["nms.in.boxes"], recorded["nms.in.scores"]
    name, _, limit = key.removeprefix("nms.out.").partition("_")
    tie = limit == "tie"
    threshold = recorded["nms.in.tie_threshold"].item() if tie else float(limit)
    if name == "batched":
        labels = recorded["nms.in.labels"]
        columns = one_column_a_class(scores, labels)
        ids = survivors(boxes, columns, threshold, caffe=False)
    else:
        ids = survivors(boxes, scores[:, None], threshold, caffe=name != "tv")
    results.check(key, ids.sort().values if name == "legacy" else ids)


def one_column_a_class(scores: Tensor, labels: Tensor) -> Tensor:
    """Scores [R, K] of which each row has one, that of its label."""
    columns = torch.nn.functional.one_hot(labels).bool()
    return scores[:, None].masked_fill(~columns, -torch.inf)


def survivors(boxes: Tensor, scores: Tensor, threshold: float, *, caffe: bool) -> Tensor:
    """Rows of all survivors of one image, best first."""
    places, values = first_survivors(
        boxes[None, :, None],
        scores[None],
        (threshold,),
        len(boxes),
        offset=float(caffe),
        inclusive=caffe,
    )
    return places[values > -torch.inf] // scores.shape[1]


def caffe_anchors(golden: GoldenSet, key: str) -> Tensor:
    """One cell's anchors: scales from the key, base and ratios from the recorded boxes.

    Sides are rounded, so that a ratio is known within bounds, between which all give the same.
    """
    scales = [float(scale) for scale in key.removeprefix("anchor.out.caffe_").split("_")]
    boxes = golden.tensors[key].double()
    base = int(boxes[0, 0] + boxes[0, 2]) + 1
    ratios = []
    for x1, y1, x2, y2 in boxes[:: len(scales)].tolist():
        width, height = (x2 - x1 + 1) / scales[0], (y2 - y1 + 1) / scales[0]
        low = max((base / (width + 0.5)) ** 2, (height - 0.5) / width)
        high = min((base / (width - 0.5)) ** 2, (height + 0.5) / width)
        ratios.append((low + high) / 2)
    return legacy_cell_anchors(scales, ratios, base)


def grid_of_anchors(golden: GoldenSet, key: str) -> Tensor:
    """Anchors of every cell of a grid, in cells' order; the key ends with the grid's offset.

    The recorded boxes tell the rest: those of the first cell share their centre, and the next
    cells' centres lie a stride further.
    """
    boxes = golden.tensors[key].double()
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    # Centres are sums of rounded corners, strides are pixels.
    same = torch.isclose(centres, centres[0], rtol=0.0, atol=0.01)
    num_anchors = int((same.all(dim=1)).sum())
    columns = int(same[:, 1].sum()) // num_anchors
    rows = len(boxes) // (num_anchors * columns)
    cells = centres[::num_anchors]
    steps = torch.cat([cells[:columns, 0].diff(), cells[:, 1].diff()])
    stride = round(float(steps.max())) if len(steps) else DetectorConfig().stride
    width, height = (boxes[:num_anchors, 2:] - boxes[:num_anchors, :2]).unbind(dim=1)
    areas = (width * height).sqrt().tolist()
    per_size = sum(math.isclose(area, areas[0], rel_tol=1e-4) for area in areas)
    ratios = [simplest(ratio) for ratio in (height / width).tolist()[:per_size]]
    sizes = [simplest(size) for size in areas[::per_size]]
    offset = float(key.rpartition("_")[2])
    return grid_anchors(centred_cell_anchors(sizes, ratios), rows, columns, stride, offset)


def simplest(value: float) -> float:
    """A number that was rounded to 32 bits, without that: the nearest of the plain fractions."""
    return float(Fraction(value).limit_denominator(1000))


def decoded(golden: GoldenSet, what: str) -> Tensor:
    """Caffe's coder, or Detectron2's with the weights in its name.

    Deltas that are not divided by weights are the recorded small ones.
    """
    weights = tuple(float(weight) for weight in what.split("_")[1:]) or PLAIN
    expect(
        len(weights) == 4, f"{golden.folder}: coder.out.{what}: expected four weights in the name"
    )
    deltas = golden.tensors["coder.in.deltas_small" if weights == PLAIN else "coder.in.deltas"]
    caffe = what == "caffe"
    return decode_boxes(
        golden.tensors["coder.in.boxes"],
        deltas,
        weights=(weights[0], weights[1], weights[2], weights[3]),
        offset=float(caffe),
        max_log_scale=None if caffe else MAX_LOG_SCALE,
    )


def resized(golden: GoldenSet, name: str, what: str) -> Tensor:
    """One of the three resizes, to the recorded size where the size is an argument."""
    image = golden.tensors[f"{name}.in.image"]
    target = golden.tensors[f"{name}.out.{what}"]
    if what == "cv2_float_minus_mean":
        centred = image.float() - torch.tensor(MEAN)
        return resize_bilinear(centred, golden.tensors[f"{name}.in.scale"].item())
    if what == "pil_uint8":
        return torch.tensor(resize_pillow(image.numpy(), *target.shape[:2]))
    return resize_torch(image.float(), *target.shape[1:]).permute(2, 0, 1)
