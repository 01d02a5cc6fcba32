"""Visual Genome's mean average precision at 0.5, as the original repository computes it.

Source: peteanderson80/bottom-up-attention, ``lib/datasets/vg_eval.py`` and ``vg.py``. Detections
are compared as that code writes them to text: scores with three decimals, coordinates with one and
one pixel further, while the truth stays where it is. B true boxes and D detections of all images.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
OVERLAP = 0.5


@dataclass(frozen=True)
class TrueBoxes:
    """Holds the boxes of all images that have a name: a class, or one of their attributes."""

    images: Ids  # [B]
    names: Ids  # [B], from 0
    boxes: Numbers  # [B, 4], inclusive corners from 0


@dataclass(frozen=True)
class DetectedBoxes:
    """Holds the detections in all images."""

    images: Ids  # [D]
    names: Ids  # [D]
    boxes: npt.NDArray[np.floating]  # [D, 4]
    scores: npt.NDArray[np.floating]  # [D]


@dataclass(frozen=True)
class VgScores:
    """Holds the average precision of each name, and the means that the paper reports."""

    average_precision: Numbers  # 0 without a true box or a detection
    counts: Ids  # true boxes of each name
    thresholds: Numbers  # the score of the best F; of names without one the mean of the others

    @property
    def mean(self) -> float:
        """Returns the mean over all names, those without a box with 0."""
        return float(self.average_precision.mean())

    @property
    def weighted_mean(self) -> float:
        """Returns the mean over the true boxes; 0 without true boxes."""
        total = int(self.counts.sum())
        return float((self.average_precision * self.counts).sum() / total) if total else 0.0


def vg_scores(
    truth: TrueBoxes, detected: DetectedBoxes, num_names: int, *, overlap: float = OVERLAP
) -> VgScores:
    """Scores the detections of every name; a detection that overlaps a true box by more than
    ``overlap`` may hit it.
    """
    boxes, scores = as_written(detected)
    precisions, thresholds = np.zeros(num_names), np.zeros(num_names)
    counts = np.bincount(truth.names, minlength=num_names).astype(np.int64)
    truth_by_name, detected_by_name = (
        by_name(truth.names, num_names),
        by_name(detected.names, num_names),
    )
    for name in range(num_names):
        true_indices, detected_indices = truth_by_name[name], detected_by_name[name]
        if not len(true_indices) or not len(detected_indices):
            continue
        order = detected_indices[np.argsort(-scores[detected_indices], kind="stable")]
        hits = true_positives(
            truth.images[true_indices],
            truth.boxes[true_indices],
            detected.images[order],
            boxes[order],
            overlap,
        )
        recall = hits.cumsum() / len(true_indices)
        precision = hits.cumsum() / np.arange(1, len(hits) + 1)
        precisions[name] = area_under_envelope(recall, precision)
        if len(true_indices) > 1:
            total = precision + recall
            best = np.argmax(np.divide(precision * recall, total, where=total > 0, out=0 * total))
            thresholds[name] = scores[order[best]]
    chosen = thresholds[thresholds != 0]
    # With three decimals like the scores, as the original writes them to its file.
    mean = float(f"{chosen.mean():.3f}") if len(chosen) else 0.0
    return VgScores(precisions, counts, np.where(thresholds == 0, mean, thresholds))


def by_name(names: Ids, num_names: int) -> list[Ids]:
    """Returns the indices of each name, in rising order."""
    order = np.argsort(names, kind="stable")
    ends = np.searchsorted(names[order], np.arange(1, num_names))
    return np.split(order, ends)


def as_written(detected: DetectedBoxes) -> tuple[Numbers, Numbers]:
    """Returns boxes and scores as the original code reads them back from its text files."""
    shifted = (detected.boxes + 1).ravel()
    boxes = [float(f"{value:.1f}") for value in shifted.tolist()]
    scores = [float(f"{value:.3f}") for value in detected.scores.tolist()]
    return np.array(boxes).reshape(-1, 4), np.array(scores)


def true_positives(
    true_images: Ids, true_boxes: Numbers, images: Ids, boxes: Numbers, overlap: float
) -> npt.NDArray[np.bool_]:
    """Returns which detections of one name, best first, hit a true box that none has hit before.

    A detection counts for the box that it overlaps most, without a second choice.
    """
    indices_by_image: dict[int, Ids] = {}
    for image in np.unique(true_images).tolist():
        indices_by_image[image] = np.flatnonzero(true_images == image)
    free = np.ones(len(true_boxes), dtype=bool)
    hits = np.zeros(len(boxes), dtype=bool)
    for index, (image, box) in enumerate(zip(images.tolist(), boxes, strict=True)):
        indices = indices_by_image.get(image)
        if indices is None:
            continue
        overlaps = inclusive_overlaps(true_boxes[indices], box)
        best = int(overlaps.argmax())
        box_index = indices[best]
        hits[index] = overlaps[best] > overlap and free[box_index]
        free[box_index] &= not hits[index]
    return hits


def inclusive_overlaps(boxes: Numbers, box: Numbers) -> Numbers:
    """Returns the intersection over union of boxes whose second corner is their last pixel."""
    low, high = np.maximum(boxes[:, :2], box[:2]), np.minimum(boxes[:, 2:], box[2:])
    inter = (high - low + 1).clip(min=0).prod(axis=1)
    areas = (boxes[:, 2:] - boxes[:, :2] + 1).prod(axis=1)
    overlaps: Numbers = inter / (areas + (box[2:] - box[:2] + 1).prod() - inter)
    return overlaps


def area_under_envelope(recall: Numbers, precision: Numbers) -> float:
    """Returns the area under the precision that falls with recall (VOC from 2010 on)."""
    recalls = np.concatenate(([0.0], recall, [1.0]))
    envelope = np.maximum.accumulate(np.concatenate(([0.0], precision, [0.0]))[::-1])[::-1]
    steps = np.flatnonzero(recalls[1:] != recalls[:-1])
    return float(((recalls[steps + 1] - recalls[steps]) * envelope[steps + 1]).sum())
