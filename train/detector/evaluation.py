"""Measures a trained detector on held-out images.

Visual Genome's mean average precision at 0.5 as its repository computes it, COCO's where
pycocotools is installed, the recall of proposals, and the accuracy of classes and attributes on the
true boxes.
"""

import contextlib
import dataclasses
import importlib.util
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vlmill.extract.config import InputLimits, Selection
from vlmill.extract.detect.rows import Query
from vlmill.extract.detect.selection import Frames, select
from vlmill.extract.detect.transfer import compute_measures, make_frames
from vlmill.extract.images.resize import network_input
from vlmill.models.detector.backbone import Maps
from vlmill.models.detector.boxes import pairwise_iou
from vlmill.models.detector.config import DetectorConfig
from vlmill.models.detector.faster_rcnn import (
    Detections,
    FasterRCNN,
    foreground_attributes,
    foreground_classes,
)
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.readers.images import ImageReader
from vlmill.schemas.rejects import Reason, Rejected
from vlmill.train.detector.batches import decode_example
from vlmill.train.detector.examples import Example
from vlmill.train.detector.vg_scores import DetectedBoxes, TrueBoxes, VgScores, vg_scores

Array = npt.NDArray[Any]


def coco_metrics(
    truth: Sequence[Array],
    detected: Sequence[Array],
    sizes: Sequence[tuple[int, int]],
    num_classes: int,
    *,
    crowds: Sequence[Array] = (),
) -> dict[str, float]:
    """Returns COCO's average precision by pycocotools; nothing where that is not installed.

    ``truth`` are rows of image, class and corners of each image, ``detected`` also of scores,
    ``sizes`` the images' width and height. A detection in one of ``crowds`` is neither right nor
    wrong.
    """
    if importlib.util.find_spec("pycocotools") is None or not truth:
        return {}
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    rows = np.concatenate([*truth, *crowds])
    first_crowd = sum(map(len, truth))
    data_set = COCO()
    data_set.dataset = {
        "images": [{"id": index, "width": w, "height": h} for index, (w, h) in enumerate(sizes)],
        "categories": [{"id": number, "name": str(number)} for number in range(num_classes)],
        "annotations": [
            {
                "id": index + 1,
                "image_id": int(row[0]),
                "category_id": int(row[1]),
                "bbox": to_xywh(row[2:6]),
                "area": float((row[4] - row[2]) * (row[5] - row[3])),
                "iscrowd": int(index >= first_crowd),
            }
            for index, row in enumerate(rows)
        ],
    }
    detections = [
        {
            "image_id": int(row[0]),
            "category_id": int(row[1]),
            "bbox": to_xywh(row[2:6]),
            "score": float(row[6]),
        }
        for row in np.concatenate(detected)
    ]
    if not len(rows) or not detections:
        return {"coco/ap": 0.0, "coco/ap50": 0.0, "coco/ap75": 0.0}
    with contextlib.redirect_stdout(io.StringIO()):  # it prints a dozen lines a call
        data_set.createIndex()
        scorer = COCOeval(data_set, data_set.loadRes(detections), "bbox")
        scorer.evaluate()
        scorer.accumulate()
        scorer.summarize()
    # -1 where nothing is counted.
    ap, ap50, ap75 = (max(float(value), 0.0) for value in scorer.stats[:3])
    return {"coco/ap": ap, "coco/ap50": ap50, "coco/ap75": ap75}


def to_xywh(box: Array) -> list[float]:
    """Returns x, y, width, height of corners."""
    x1, y1, x2, y2 = map(float, box)
    return [x1, y1, x2 - x1, y2 - y1]


# The original's: 400 boxes of an image over all classes, overlaps below 0.3, any score.
VG_RULE, VG_OVERLAP = Selection(threshold=0.0, min_boxes=0, max_boxes=400), 0.3
# Detectron2's for COCO: 100 above 0.05, overlaps up to 0.5.
COCO_RULE, COCO_OVERLAP = Selection(threshold=0.05, min_boxes=0, max_boxes=100), 0.5
RECALL_AT = (36, 100)
FOUND = 0.5  # overlap with which a proposal has found a box


@dataclass(kw_only=True)
class Findings:
    """Gathers detections and true boxes, image by image."""

    vg: list[Array] = field(default_factory=list)  # image, class, x1, y1, x2, y2, score
    coco: list[Array] = field(default_factory=list)
    truth: list[Array] = field(default_factory=list)  # image, class, x1, y1, x2, y2
    crowds: list[Array] = field(default_factory=list)  # likewise, boxes around many
    examples: list[Example] = field(default_factory=list)  # the images, in the order of numbers
    sizes: list[tuple[int, int]] = field(default_factory=list)  # width, height
    attribute_scores: list[Array] = field(default_factory=list)  # [M, L] of the true boxes
    attributes: list[Array] = field(default_factory=list)  # [M, A]
    classes: list[Array] = field(default_factory=list)  # the likeliest of each true box
    num_recalled: dict[int, int] = field(default_factory=lambda: dict.fromkeys(RECALL_AT, 0))
    unread: dict[str, tuple[Reason, str]] = field(default_factory=dict)  # images, and why


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Holds the results: numbers by name, and the scores of each class."""

    metrics: dict[str, float]
    classes: VgScores
    findings: Findings


def evaluate_detector(
    network: FasterRCNN, examples: Sequence[Example], images: ImageReader, *, visible: bool = True
) -> Evaluation:
    """Detects in the images of the examples and scores it; images that cannot be read are counted.
    ``network`` is the result of :func:`for_inference`.
    """
    findings = Findings()
    with Progress(
        total=len(examples), unit="image", label="validation", visible=visible
    ) as progress:
        for example in examples:
            try:
                measure_example(network, example, images.read_bytes(example.row), findings)
            except Rejected as why:
                findings.unread[example.image_id] = (why.reason, str(why))
            progress.advance(rejects=len(findings.unread) - progress.rejects)
    config = network.config
    classes = vg_scores(
        make_true_boxes(findings), make_detected_boxes(findings.vg), max(config.num_classes, 1)
    )
    return Evaluation(
        metrics=compute_metrics(findings, classes, config), classes=classes, findings=findings
    )


def for_inference(
    config: DetectorConfig, weights: Mapping[str, Tensor], device: torch.device
) -> FasterRCNN:
    """Returns a network with the weights that refines boxes, with frozen normalisations."""
    config = dataclasses.replace(
        config, written_boxes="refined", batch_norm="frozen", frozen_stages=0
    )
    network = FasterRCNN(config)
    network.load_state_dict(
        {k: v for k, v in weights.items() if not k.endswith("num_batches_tracked")}
    )
    return network.requires_grad_(False).eval().to(device)


@torch.inference_mode()
def measure_example(
    network: FasterRCNN, example: Example, data: bytes | None, findings: Findings
) -> None:
    """Detects in one image, and describes its true boxes. Raises Rejected."""
    config = network.config
    limits = InputLimits()
    image = network_input(decode_example(example, data, limits), config, limits)
    query = Query(image_id=example.image_id, image=image)
    device = next(network.parameters()).device
    frames = make_frames(torch.tensor([compute_measures(query, config)], device=device))
    maps = network.feature_maps(image.tensor.to(device))
    proposals = network.proposals(maps, frames.network_limits, frames.min_sides)
    detections = network.describe(maps, *proposals)
    number = len(findings.sizes)
    findings.examples.append(example)
    findings.sizes.append((example.width, example.height))
    for rule, overlap, rows in (
        (VG_RULE, VG_OVERLAP, findings.vg),
        (COCO_RULE, COCO_OVERLAP, findings.coco),
    ):
        rows.append(detected_rows(detections, frames, config, (rule, overlap), number))
    boxes = torch.from_numpy(example.boxes).to(device)
    findings.truth.append(true_rows(number, example.classes, example.boxes))
    findings.crowds.append(true_rows(number, example.crowd_classes, example.crowd_boxes))
    image_proposals = frames.to_images(proposals[0])[0, proposals[1][0]]
    count_recalled(image_proposals, boxes, findings)
    describe_truth(network, maps, boxes, frames, example, findings)


def true_rows(number: int, classes: Array, boxes: Array) -> Array:
    """Returns one image's annotated boxes as rows."""
    columns = [np.full(len(boxes), number), classes, *boxes.T]
    return np.stack(columns, axis=1).astype(np.float64).reshape(-1, 6)


def detected_rows(
    detections: Detections,
    frames: Frames,
    config: DetectorConfig,
    how: tuple[Selection, float],
    number: int,
) -> Array:
    """Returns one image's detections as rows, refined boxes of every class."""
    rule, overlap = how
    spec = dataclasses.replace(config, selection="class-pairs", class_nms_thresholds=(overlap,))
    chosen = select(detections, spec, frames, rule)
    box_mask = chosen.box_mask[0]
    boxes, scores = chosen.boxes[0, box_mask].cpu().numpy(), chosen.class_scores[0, box_mask]
    names = chosen.class_ids[0, box_mask].cpu().numpy()
    columns = [np.full(len(boxes), number), names, *boxes.T, scores.cpu().numpy()]
    return np.stack(columns, axis=1).astype(np.float64).reshape(-1, 7)


def count_recalled(proposals: Tensor, boxes: Tensor, findings: Findings) -> None:
    """Counts the true boxes that one of the first proposals has found."""
    if not len(boxes):
        return
    overlaps = pairwise_iou(boxes, proposals, 0.0)
    for count in RECALL_AT:
        if len(proposals):
            findings.num_recalled[count] += int((overlaps[:, :count].amax(dim=1) >= FOUND).sum())


def describe_truth(
    network: FasterRCNN,
    maps: Maps,
    boxes: Tensor,
    frames: Frames,
    example: Example,
    findings: Findings,
) -> None:
    """Stores the heads' predictions for the true boxes: the likeliest class, and all attributes."""
    if not len(boxes):
        return
    config = network.config
    scaled_boxes = (boxes * frames.factors[0])[None]
    there = torch.ones(scaled_boxes.shape[:2], dtype=torch.bool, device=scaled_boxes.device)
    detections = network.describe(maps, scaled_boxes, there)
    classes = foreground_classes(detections.class_probs, config)[0]
    findings.classes.append(classes.argmax(dim=1).cpu().numpy())
    if detections.attribute_probs is not None:
        probs = foreground_attributes(detections.attribute_probs, config)[0]
        findings.attribute_scores.append(probs.cpu().numpy())
        findings.attributes.append(example.attributes)


def make_true_boxes(findings: Findings) -> TrueBoxes:
    """Returns the true boxes as the original's data set has them: whole pixels inside the
    image.
    """
    rows = np.concatenate([np.zeros((0, 6)), *findings.truth])
    images = rows[:, 0].astype(np.int64)
    sizes = np.array(findings.sizes, dtype=np.float64).reshape(-1, 2)[images]
    boxes = np.floor(np.minimum(rows[:, 2:], np.tile(sizes, 2) - 1))
    return TrueBoxes(images, rows[:, 1].astype(np.int64), boxes)


def make_detected_boxes(rows: Sequence[Array]) -> DetectedBoxes:
    """Returns rows of detections by their columns."""
    everything = np.concatenate([np.zeros((0, 7)), *rows])
    images, names = (everything[:, column].astype(np.int64) for column in (0, 1))
    return DetectedBoxes(images, names, everything[:, 2:6], everything[:, 6])


def compute_metrics(
    findings: Findings, classes: VgScores, config: DetectorConfig
) -> dict[str, float]:
    """Returns the numbers that a run reports, as fractions."""
    truth = make_true_boxes(findings)
    total = len(truth.names)
    metrics = {"vg/map": classes.mean, "vg/weighted_map": classes.weighted_mean}
    for count in RECALL_AT:
        metrics[f"proposals/recall{count}"] = findings.num_recalled[count] / max(total, 1)
    predicted_classes = np.concatenate([np.zeros(0, dtype=np.int64), *findings.classes])
    metrics["boxes/class_accuracy"] = (
        float((predicted_classes == truth.names).mean()) if total else 0.0
    )
    if findings.attributes:
        metrics |= attribute_metrics(findings, truth, config.num_attributes)
    metrics |= coco_metrics(
        findings.truth, findings.coco, findings.sizes, config.num_classes, crowds=findings.crowds
    )
    return metrics | {"pictures": float(len(findings.sizes)), "boxes": float(total)}


def attribute_metrics(
    findings: Findings, truth: TrueBoxes, num_attributes: int
) -> dict[str, float]:
    """Scores attributes on the true boxes: how often the likeliest is one of theirs, and the
    original's mean average precision with the probability of each as its score there.
    """
    scores = np.concatenate(findings.attribute_scores)
    width = max(targets.shape[1] for targets in findings.attributes)
    padded = [
        np.pad(targets, ((0, 0), (0, width - targets.shape[1])), constant_values=-1)
        for targets in findings.attributes
    ]
    labels = np.concatenate(padded)
    has_labels = (labels >= 0).any(axis=1)
    right = (labels == scores.argmax(axis=1)[:, None]).any(axis=1)
    has = np.zeros(scores.shape, dtype=bool)
    rows, columns = np.nonzero(labels >= 0)
    has[rows, labels[rows, columns]] = True
    box_indices, names = np.nonzero(has)
    carried = TrueBoxes(truth.images[box_indices], names, truth.boxes[box_indices])
    everywhere = np.repeat(np.arange(len(scores)), num_attributes)
    predictions = DetectedBoxes(
        truth.images[everywhere],
        np.tile(np.arange(num_attributes), len(scores)),
        truth.boxes[everywhere],
        scores.ravel(),
    )
    name_scores = vg_scores(carried, predictions, num_attributes)
    return {
        "attributes/accuracy": float(right[has_labels].mean()) if has_labels.any() else 0.0,
        "attributes/map": name_scores.mean,
        "attributes/weighted_map": name_scores.weighted_mean,
    }
