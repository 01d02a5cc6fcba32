"""Measures of held-out images by hand, and COCO's beside pycocotools."""

import numpy as np
import pytest

from vlmill.train.detector.evaluation import (
    Findings,
    attribute_metrics,
    coco_metrics,
    make_true_boxes,
)
from vlmill.train.detector.vg_scores import DetectedBoxes, TrueBoxes, vg_scores

TRUE = TrueBoxes(
    np.array([0, 0, 1]),
    np.array([0, 0, 1]),
    np.array([[0, 0, 9, 9], [20, 20, 29, 29], [0, 0, 4, 4.0]]),
)


def detected(*rows: tuple[float, ...]) -> DetectedBoxes:
    """Rows of image, name, corners and score."""
    table = np.array(rows, dtype=np.float64).reshape(-1, 7)
    names = table[:, 1].astype(np.int64)
    return DetectedBoxes(table[:, 0].astype(np.int64), names, table[:, 2:6], table[:, 6])


def test_the_second_hit_of_a_box_is_false() -> None:
    scores = vg_scores(
        TRUE,
        detected((0, 0, 0, 0, 9, 9, 0.9), (0, 0, 0, 0, 9, 9, 0.8), (0, 0, 20, 20, 29, 29, 0.7)),
        2,
    )
    # Precision 1, 1/2, 2/3 at recall 1/2, 1/2, 1.
    assert scores.average_precision[0] == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert scores.mean == pytest.approx(scores.average_precision[0] / 2)
    assert scores.weighted_mean == pytest.approx(scores.average_precision[0] * 2 / 3)


def test_detections_are_compared_a_pixel_further() -> None:
    """The original's defect: its text files count from 1, its truth from 0."""
    box = (1, 1, 0, 0, 4, 4, 0.9)  # 4 x 4 of 5 x 5 pixels are left: 16 / 34 is not enough
    assert vg_scores(TRUE, detected(box), 2).average_precision[1] == 0
    assert vg_scores(TRUE, detected(box), 2, overlap=0.4).average_precision[1] == 1
    shifted = (1, 1, -1, -1, 3, 3, 0.9)
    assert vg_scores(TRUE, detected(shifted), 2).average_precision[1] == 1


def test_nothing_detected_is_0_everywhere() -> None:
    scores = vg_scores(TRUE, detected(), 2)
    assert (scores.mean, scores.weighted_mean) == (0.0, 0.0)
    assert scores.counts.tolist() == [2, 1]


def findings() -> Findings:
    """Two images with a box each."""
    return Findings(
        sizes=[(40, 30), (40, 30)],
        truth=[np.array([[0, 0, 5, 5, 15, 15.0]]), np.array([[1, 1, 0, 0, 40, 30.0]])],
        coco=[
            np.array([[0, 0, 5, 5, 15, 15, 0.9]]),
            np.array([[1, 1, 0, 0, 20, 30, 0.8], [1, 0, 0, 0, 40, 30, 0.7]]),
        ],
        attribute_scores=[np.array([[0.7, 0.2, 0.1]]), np.array([[0.3, 0.6, 0.1]])],
        attributes=[np.array([[0, 2]]), np.array([[2]])],
    )


def test_truth_is_of_whole_pixels_inside_the_image() -> None:
    assert make_true_boxes(findings()).boxes.tolist() == [[5, 5, 15, 15], [0, 0, 39, 29]]


def test_attributes_count_where_the_likeliest_is_one_of_them() -> None:
    found = findings()
    metrics = attribute_metrics(found, make_true_boxes(found), 3)
    assert metrics["attributes/accuracy"] == 0.5
    assert 0 < metrics["attributes/map"] < 1


def test_cocos_precision() -> None:
    pytest.importorskip("pycocotools", reason="pip install -e '.[coco]'")
    found = findings()
    metrics = coco_metrics(found.truth, found.coco, found.sizes, 2)
    # Class 0: all thresholds, with a false one that is less sure. Class 1: an overlap of 0.5.
    assert metrics["coco/ap"] == pytest.approx((1 + 0.1) / 2)
    assert metrics["coco/ap50"] == pytest.approx(1) and metrics["coco/ap75"] == pytest.approx(0.5)


def test_what_is_detected_in_a_crowd_is_no_fault() -> None:
    """The surest detection lies where many are: wrong without the crowd's box, else not counted."""
    pytest.importorskip("pycocotools", reason="pip install -e '.[coco]'")
    truth = [np.array([[0, 0, 5, 5, 15, 15.0]])]
    detections = [np.array([[0, 0, 22, 12, 38, 28, 0.9], [0, 0, 5, 5, 15, 15, 0.8]])]
    crowds = [np.array([[0, 0, 20, 10, 40, 30.0]])]
    assert coco_metrics(truth, detections, [(40, 30)], 1)["coco/ap50"] == pytest.approx(0.5)
    without = coco_metrics(truth, detections, [(40, 30)], 1, crowds=crowds)
    assert without["coco/ap50"] == pytest.approx(1)
