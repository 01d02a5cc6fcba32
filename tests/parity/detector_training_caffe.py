"""The original's own rules: its targets of anchors and regions, and its scorer."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tests.parity.detector_training import Recorded, RecordedDraws, cases
from tests.parity.golden import GoldenSet, NotComparable
from tests.parity.results import Results
from torch import Tensor
from torch.nn import functional as F

from vlmill.models.detector.config import caffe
from vlmill.models.detector.proposals import grid_anchors, legacy_cell_anchors
from vlmill.train.detector.settings import CAFFE_ROI, CAFFE_RPN
from vlmill.train.detector.targets import (
    attribute_targets,
    candidates,
    encode_boxes,
    inside,
    mask_labels,
    match_anchors,
    match_regions,
    sample,
    sample_regions,
)
from vlmill.train.detector.vg_scores import OVERLAP, DetectedBoxes, TrueBoxes, vg_scores

PLAIN = (1.0, 1.0, 1.0, 1.0)


def caffe_targets(golden: GoldenSet, results: Results) -> None:
    """Both target layers; which one a case is of stands in its ``layer``."""
    layers = {"AnchorTargetLayer": anchor_layer, "ProposalTargetLayer": proposal_layer}
    for case in cases(golden, results):
        about = golden.config["cases"][int(case.name.removeprefix("case"))]
        if about["layer"] not in layers:
            raise NotComparable(f"{golden.folder}: {case.name}: no layer {about['layer']} here")
        layers[about["layer"]](case, about)


def disabling(permutation: Tensor, candidates: int, wanted: int) -> Tensor:
    """A draw that keeps what the recorded one does not disable: it disables the first ones."""
    if not len(permutation):
        return torch.arange(candidates)
    return permutation.roll(-(candidates - min(wanted, candidates)))


def anchor_layer(case: Recorded, about: Mapping[str, Any]) -> None:
    """AnchorTargetLayer: labels, deltas of every anchor inside, and weights."""
    rows, columns = case["in.map"].tolist()
    height, width = case["in.image_size"].tolist()
    ratios = about.get("ratios", (0.5, 1.0, 2.0))
    cells = legacy_cell_anchors([float(scale) for scale in about["scales"]], ratios)
    grid = grid_anchors(cells, rows, columns, about["feat_stride"])
    case.check("out.anchors", grid)
    positive, negative = about["RPN_POSITIVE_OVERLAP"], about["RPN_NEGATIVE_OVERLAP"]
    matching = dataclasses.replace(
        CAFFE_RPN.matching,
        thresholds=(negative, positive),
        batch=about["RPN_BATCHSIZE"],
        positives=about["RPN_FG_FRACTION"],
    )
    border = float(about.get("allowed_border", 0))
    rules = dataclasses.replace(CAFFE_RPN, matching=matching, border=border)
    boxes = case["in.gt_boxes"]
    matches = match_anchors(grid, boxes, (height, width), rules, 1.0)
    counts = [int((matches.labels == label).sum()) for label in (1, 0)]
    most = min(matching.most_positives, counts[0])
    draws = RecordedDraws(
        [
            disabling(case["in.perm_pos"], counts[0], most),
            disabling(case["in.perm_neg"], counts[1], matching.batch - most),
        ]
    )
    chosen = sample(matches.labels, matching, draws)
    labels = mask_labels(matches, chosen)

    def as_map(values: Tensor) -> Tensor:
        """By anchor [R, n] to [1, n A, rows, columns], the anchor before the coordinate."""
        return values.reshape(rows, columns, -1).permute(2, 0, 1)[None].float()

    maps = as_map(labels).reshape(1, 1, -1, columns)
    case.check("out.rpn_labels", maps)
    allowed = inside(grid, (height, width), border)
    deltas = encode_boxes(grid, boxes[matches.boxes], PLAIN, 1.0)
    case.check("out.rpn_bbox_targets", as_map(deltas.masked_fill(~allowed[:, None], 0.0)))
    positives = (labels == 1).float()[:, None].expand(-1, 4)
    shares = (labels >= 0).float()[:, None].expand(-1, 4) / (labels >= 0).sum()
    case.check("out.rpn_bbox_inside_weights", as_map(positives))
    case.check("out.rpn_bbox_outside_weights", as_map(shares))


def proposal_layer(case: Recorded, about: Mapping[str, Any]) -> None:
    """ProposalTargetLayer: sampled regions, classes, deltas at their class, attributes."""
    high, foreground = about["BG_THRESH_HI"], about["FG_THRESH"]
    low = about["BG_THRESH_LO"]
    thresholds, labels = [high], [0, 1]
    if foreground > high:
        thresholds, labels = [high, foreground], [0, -1, 1]
    if low > 0:
        thresholds, labels = [low, *thresholds], [-1, *labels]
    matching = dataclasses.replace(
        CAFFE_ROI.matching,
        thresholds=tuple(thresholds),
        labels=tuple(labels),
        batch=about["BATCH_SIZE"],
        positives=about["FG_FRACTION"],
    )
    rules = dataclasses.replace(CAFFE_ROI, matching=matching)
    boxes, classes = case["in.gt_boxes"], about["classes"]
    config = caffe(num_classes=classes, num_attributes=about.get("attributes", 0))
    there = candidates(case["in.rois"], boxes, rules)
    matches = match_regions(there, boxes, rules, config.box_offset)
    draws = RecordedDraws([case["in.perm_pos"], case["in.perm_neg"]])
    of_truth = case["in.gt_classes"] - 1
    regions = sample_regions(there, matches, of_truth, rules, background=classes, draw=draws)
    count = len(regions.boxes)
    case.check("out.rois", torch.cat((torch.zeros(count, 1), regions.boxes), dim=1))
    outputs = torch.where(regions.classes == classes, 0, regions.classes + 1)
    case.check("out.labels", outputs.float())
    weights = tuple(1 / std for std in about["BBOX_NORMALIZE_STDS"])
    deltas = encode_boxes(regions.boxes, boxes[regions.matched], weights, config.box_offset)
    targets = torch.zeros(count, classes + 1, 4)
    counted = torch.zeros(count, classes + 1, 4)
    rows = (outputs > 0).nonzero().flatten()
    targets[rows, outputs[rows]] = deltas[rows]
    counted[rows, outputs[rows]] = 1.0
    case.check("out.bbox_targets", targets.flatten(1))
    case.check("out.bbox_inside_weights", counted.flatten(1))
    case.check("out.bbox_outside_weights", counted.flatten(1))
    if not config.num_attributes:  # the layer of a network without them has no such output
        return
    attributes = attribute_targets(
        case["in.gt_attributes"] - 1, regions, background=classes, shift=True
    )
    # The layer's rows are those of the most positives, also where fewer regions are sampled.
    rows_left = max(matching.most_positives - len(attributes), 0)
    padded = F.pad(attributes, (0, 0, 0, rows_left), value=-1)[: matching.most_positives]
    case.check("out.attr_labels", padded.float())


def vg_map(golden: GoldenSet, results: Results) -> None:
    """The original's scorer, of classes and of attributes."""
    for case in cases(golden, results):
        about = golden.config["cases"][int(case.name.removeprefix("case"))]
        images, names, boxes = [], [], []
        for i in case.numbers("in.boxes"):
            of_boxes = case[f"in.classes{i}"][:, None]
            if about["kind"] == "attributes":
                of_boxes = case[f"in.attributes{i}"]
            for box, own in zip(case[f"in.boxes{i}"].tolist(), of_boxes.tolist(), strict=True):
                for name in sorted({one for one in own if one > 0}):
                    images.append(i)
                    names.append(name - 1)
                    boxes.append(box)
        rows = case["in.detections"].numpy()
        detected = DetectedBoxes(
            images=rows[:, 0].astype(np.int64),
            names=rows[:, 1].astype(np.int64) - 1,
            boxes=rows[:, 2:6],
            scores=rows[:, 6],
        )
        truth = TrueBoxes(
            np.array(images, dtype=np.int64),
            np.array(names, dtype=np.int64),
            np.array(boxes, dtype=np.float64).reshape(-1, 4),
        )
        overlap = about.get("overlap", golden.config.get("overlap", OVERLAP))
        scores = vg_scores(truth, detected, about["names"], overlap=overlap)
        case.check("out.ap", torch.from_numpy(scores.average_precision).float())
        case.check("out.boxes", torch.from_numpy(scores.counts))
        case.check("out.thresholds", torch.from_numpy(scores.thresholds).float())
        case.check("out.map", torch.tensor(scores.mean))
        case.check("out.weighted_map", torch.tensor(scores.weighted_mean))
