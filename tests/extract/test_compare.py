"""The comparison of two detectors: nothing differs from itself, and each column tells its stage."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from vlmill.extract.compare import (
    Differences,
    Infer,
    compare,
    compute_distances,
    format_differences,
)
from vlmill.extract.config import ExtractConfig, InputLimits, Selection
from vlmill.extract.detect.detector import Detector, open_detector
from vlmill.extract.detect.predict import predict_regions
from vlmill.extract.images.decode import Pixels
from vlmill.extract.images.resize import network_input
from vlmill.models.detector.config import detectron2
from vlmill.schemas.errors import InputError

SIZES = {"depth": 50, "stem_channels": 4, "res2_channels": 8, "res2_width": 2, "num_classes": 6}
CONFIG = ExtractConfig(
    selection=Selection(threshold=0.0, min_boxes=9, max_boxes=9),
    limits=InputLimits(short_side=96, long_side=160),
)
SPEC = detectron2(**SIZES, rpn_channels=32, post_nms_top=30)


def detector(**changes: object) -> Detector:
    return open_detector(dataclasses.replace(SPEC, **changes), None, seed=1)  # type: ignore[arg-type]


def inferring(one: Detector) -> Infer:
    """A detector of ours in the place of Detectron2."""

    def infer(pixels: Pixels) -> tuple[torch.Tensor, torch.Tensor]:
        network_in = network_input(pixels, one.model.config, CONFIG.limits)
        row = predict_regions("x", network_in, one, CONFIG)
        assert row.class_ids is not None
        return torch.from_numpy(row.boxes), torch.tensor(row.class_ids).long()

    return infer


def compared(image: Path, ours: Detector, theirs: Detector) -> Differences:
    (one,) = compare([image], ours, theirs, inferring(theirs), CONFIG)
    return one


@pytest.fixture
def image(tmp_path: Path, jpeg: Callable[[int], bytes]) -> Path:
    (tmp_path / "a.jpg").write_bytes(jpeg(1))
    return tmp_path / "a.jpg"


def test_a_detector_does_not_differ_from_itself(image: Path) -> None:
    assert compared(image, detector(), detector()) == Differences(
        feature_map=0.0,
        proposals=30,
        other_proposals=0,
        proposals_px=0.0,
        features=0.0,
        class_probs=0.0,
        refined_px=0.0,
        regions=9,
        other_regions=0,
    )


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"stem_ceil_pool": True}, "feature_map"),
        ({"anchor_offset": 0.5}, "other_proposals"),
        ({"pooling": "align-legacy"}, "features"),
        ({"box_weights": (5.0, 5.0, 5.0, 5.0)}, "refined_px"),
        ({"class_nms_thresholds": (0.01,)}, "other_regions"),
    ],
)
def test_the_first_column_that_differs_tells_the_stage(
    changes: dict[str, object], first: str, image: Path
) -> None:
    found = compared(image, detector(**changes), detector())
    differing = [
        field.name
        for field in dataclasses.fields(found)
        if field.name not in ("proposals", "regions") and getattr(found, field.name) > 1e-3
    ]
    assert differing[0] == first, found


def test_a_bad_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "b.jpg").write_bytes(b"none")
    one = detector()
    for name, message in (("none.jpg", "cannot be read"), ("b.jpg", "cannot be used")):
        with pytest.raises(InputError, match=f"{name} {message}"):
            compared(tmp_path / name, one, one)


def test_the_nearest_box_counts_and_none_is_infinitely_far() -> None:
    boxes = torch.tensor([[0.0, 0, 4, 4], [9.0, 9, 12, 12]])
    among = torch.tensor([[9.0, 9.5, 12, 12], [0.0, 0, 4, 1]])
    assert compute_distances(boxes, among).tolist() == [3.0, 0.5]
    assert compute_distances(boxes, among[:0]).tolist() == [torch.inf] * 2


def test_the_table_ends_with_the_largest_of_each_column() -> None:
    one = Differences(
        feature_map=1e-6,
        proposals=30,
        other_proposals=0,
        proposals_px=0.25,
        features=0.0,
        class_probs=0.0,
        refined_px=0.0,
        regions=9,
        other_regions=2,
    )
    other = dataclasses.replace(one, feature_map=2e-6, other_regions=0)
    header, *rows = (line.split() for line in format_differences(["a.jpg", "b.jpg"], [one, other]))
    assert header[0] == "image" and [row[0] for row in rows] == ["a.jpg", "b.jpg", "largest"]
    largest = dict(zip(header, rows[-1], strict=True))
    assert largest["feature_map"] == "2.0e-06" and largest["other_regions"] == "2"
