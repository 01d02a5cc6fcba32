"""Regions of a batch on the device, all sizes fixed, against those of each image on the CPU.

Rounding may turn a decision between nearly equal scores or overlaps, after which other regions
follow: one in twenty may differ. All others agree to the tolerances below.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from tests.extract.host_waits import refusing_waits
from tests.gpu.device import DEVICE, assert_near

from vlmill.extract.config import ExtractConfig, InputLimits, Selection, Storage
from vlmill.extract.detect.detector import Detector, open_detector
from vlmill.extract.detect.predict import compute, computing, start_batch
from vlmill.extract.detect.rows import Query
from vlmill.extract.detect.transfer import images_on_device, upload_batch
from vlmill.extract.images.resize import NetworkInput, PixelInput, network_input, pixel_input
from vlmill.models.detector.config import (
    DetectorConfig,
    airsplay,
    airsplay_pairs,
    detectron2,
    milvlg,
)
from vlmill.runtime.readers.regions import RegionRow

pytestmark = pytest.mark.gpu
SIZES: dict[str, Any] = {
    "depth": 50,
    "stem_channels": 8,
    "res2_channels": 16,
    "res2_width": 4,
    "rpn_channels": 16,
    "num_classes": 20,
    "post_nms_top": 40,
    "pre_nms_top": 400,
    "min_proposal_size": 7.0,
}
ATTRIBUTES = {"num_attributes": 5, "class_embedding_size": 6, "attribute_hidden_size": 8}
# One family for each rule of selection, both poolings, both places of the background.
SPECS: dict[str, DetectorConfig] = {
    "class-confidence": milvlg(**SIZES, **ATTRIBUTES),
    "best-class": airsplay(**SIZES, **ATTRIBUTES),
    "class-pairs": airsplay_pairs(**SIZES, **ATTRIBUTES),
    "aligned": detectron2(**SIZES),
}
CONFIG = ExtractConfig(
    selection=Selection(threshold=0.1, min_boxes=5, max_boxes=20),
    limits=InputLimits(short_side=96, long_side=160),
    storage=Storage(dtype="float32", class_probs="topk:3", global_feature=True),
)
BOX_PX, PROBABILITY, FEATURE = 0.05, 1e-3, 1e-3
MAY_DIFFER = 0.05


def detector_on(name: str, device: torch.device) -> Detector:
    return open_detector(SPECS[name], None, seed=1, device=str(device))


def queries(spec: DetectorConfig, count: int = 3) -> list[Query]:
    """Images of blobs, of one input shape and two sizes of their own."""
    asked = []
    for number in range(count):
        blobs = np.random.default_rng(number).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        pixels = blobs.repeat(12 + 12 * (number % 2), axis=0).repeat(12 + 12 * (number % 2), axis=1)
        image = network_input(pixels, spec, CONFIG.limits)
        asked.append(Query(image_id=str(number), image=image))
    return asked


def test_images_resized_there_are_those_resized_here_bit_for_bit() -> None:
    spec = SPECS["class-confidence"]
    rng = np.random.default_rng(0)
    sizes = ((72, 97), (144, 194), (110, 148))
    pixels = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    here = [network_input(one, spec, CONFIG.limits) for one in pixels]
    there = [pixel_input(one, spec, CONFIG.limits) for one in pixels]
    assert [one.size for one in there] == [(96, 129)] * 3
    resized = images_on_device(there, spec, DEVICE).cpu()
    assert torch.equal(resized, torch.cat([one.tensor for one in here]))
    mixtures: list[list[NetworkInput | PixelInput]] = [
        [*here],
        [here[0], there[1], here[2]],
        [there[0], here[1], there[2]],
    ]
    for mixed in mixtures:
        assert torch.equal(images_on_device(mixed, spec, DEVICE).cpu(), resized)


def rows(outcomes: Any) -> list[RegionRow]:
    assert all(isinstance(one, RegionRow) for one in outcomes)
    return list(outcomes)


def partners(found: RegionRow, expected: RegionRow) -> dict[int, int]:
    """Which region of ``found`` is which expected one: nearly its box, and its class."""
    assert found.class_ids is not None and expected.class_ids is not None
    pairs: dict[int, int] = {}
    for number, box in enumerate(expected.boxes):
        near = np.abs(found.boxes - box).max(axis=1) <= BOX_PX
        same = np.nonzero(near & (found.class_ids == expected.class_ids[number]))[0]
        if len(same):
            pairs[number] = int(same[0])
    return pairs


def expect_same_regions(found: list[RegionRow], expected: list[RegionRow]) -> None:
    """Nearly all, with the same numbers."""
    missing = total = 0
    for one, want in zip(found, expected, strict=True):
        pairs = partners(one, want)
        total += len(want.boxes)
        missing += abs(len(one.boxes) - len(want.boxes)) + len(want.boxes) - len(pairs)
        ours, theirs = list(pairs.values()), list(pairs)
        for name, tolerance in (("features", FEATURE), ("class_scores", PROBABILITY)):
            a, b = getattr(one, name), getattr(want, name)
            assert_near(torch.from_numpy(a[ours]), torch.from_numpy(b[theirs]), tolerance, name)
        assert one.global_feature is not None and want.global_feature is not None
        whole = torch.from_numpy(one.global_feature), torch.from_numpy(want.global_feature)
        assert_near(*whole, FEATURE, "global_feature")
    assert total > 20
    assert missing <= MAY_DIFFER * total, f"{missing} of {total} regions are others"


@pytest.mark.parametrize("name", SPECS)
def test_a_batch_has_the_regions_of_each_alone(name: str) -> None:
    asked = queries(SPECS[name])
    here = detector_on(name, torch.device("cpu"))
    expected = [start_batch([one], here, CONFIG)()[0] for one in asked]
    found = start_batch(asked, detector_on(name, DEVICE), CONFIG)()
    expect_same_regions(rows(found), rows(expected))


def given_boxes(spec: DetectorConfig) -> list[Query]:
    """Queries about the same boxes: nothing is selected, so nothing can turn."""
    boxes = np.array([[3, 4, 60, 50], [20, 10, 90, 70], [0, 0, 95, 71]], np.float32)
    return [dataclasses.replace(query, boxes=boxes) for query in queries(spec)]


@pytest.mark.parametrize("name", ["class-confidence", "aligned"])
def test_given_boxes_are_described_alike(name: str) -> None:
    asked = given_boxes(SPECS[name])
    here = detector_on(name, torch.device("cpu"))
    expected = [start_batch([one], here, CONFIG)()[0] for one in asked]
    for one, want in zip(
        rows(start_batch(asked, detector_on(name, DEVICE), CONFIG)()), rows(expected), strict=True
    ):
        assert np.array_equal(one.boxes, want.boxes)
        assert one.features is not None and want.features is not None
        assert_near(torch.from_numpy(one.features), torch.from_numpy(want.features), FEATURE)


def test_fast_features_point_where_exact_ones_do() -> None:
    """bfloat16 keeps 8 bits: after 50 layers the least cosine is above 0.9999 on a CPU."""
    asked = given_boxes(SPECS["class-confidence"])
    detector = detector_on("class-confidence", DEVICE)
    fast = dataclasses.replace(CONFIG, precision="fast")
    for one, want in zip(
        rows(start_batch(asked, detector, fast)()),
        rows(start_batch(asked, detector, CONFIG)()),
        strict=True,
    ):
        assert one.features is not None and want.features is not None
        a, b = torch.from_numpy(one.features), torch.from_numpy(want.features)
        assert torch.nn.functional.cosine_similarity(a, b).min() > 0.99
        assert not torch.equal(a, b)  # it did compute otherwise


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_the_host_never_waits_within_a_batch(name: str, precision: Any) -> None:
    detector = detector_on(name, DEVICE)
    config = dataclasses.replace(CONFIG, precision=precision)
    batch = upload_batch(queries(SPECS[name]), SPECS[name], DEVICE)
    with computing(precision, DEVICE):
        compute(batch, detector, config)  # the first time libraries are loaded
        with refusing_waits():
            results = compute(batch, detector, config)
    assert results["taken"].any()
