"""Batches in tensors of fixed sizes, as on a GPU: the same rows, and a host that never waits."""

import dataclasses
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from tests.extract.host_waits import refusing_waits

from vlmill.extract.config import ExtractConfig, InputLimits, Selection, Storage
from vlmill.extract.detect.detector import Detector, open_detector
from vlmill.extract.detect.precision import computing
from vlmill.extract.detect.predict import Query, frame_of, predict
from vlmill.extract.detect.predict_fixed import (
    compute,
    frames_of,
    measures_of,
    start_batch,
    uploaded,
)
from vlmill.extract.detect.selection import select
from vlmill.extract.detect.selection_fixed import select_fixed
from vlmill.extract.pictures.decode import decode
from vlmill.extract.pictures.resize import NetworkInput, network_input
from vlmill.models.detector.batch import BatchDetections
from vlmill.models.detector.config import CONVENTIONS, DetectorConfig, airsplay_pairs
from vlmill.models.detector.faster_rcnn import Detections
from vlmill.schemas.readers.regions import RegionRow

SIZES = {
    "stem_channels": 8,
    "res2_channels": 16,
    "res2_width": 4,
    "rpn_channels": 16,
    "num_classes": 20,
    "post_nms_top": 12,
    "pre_nms_top": 200,
    "min_proposal_size": 7.0,
}
ATTRIBUTES = {"num_attributes": 5, "class_embedding_size": 6, "attribute_hidden_size": 8}
CONFIG = ExtractConfig(
    selection=Selection(threshold=0.1, min_boxes=3, max_boxes=7),
    limits=InputLimits(short_side=64, long_side=112),
    storage=Storage(dtype="float32", class_probs="full", global_feature=True),
)


def small(family: str) -> Detector:
    attributes = {} if family == "detectron2" else ATTRIBUTES
    return open_detector(CONVENTIONS[family](**SIZES, **attributes), None, seed=1)


def queries(
    jpeg: Callable[[int], bytes], spec: DetectorConfig, numbers: range = range(3)
) -> list[Query]:
    """Pictures of one input shape, of two own sizes."""
    found = []
    for number in numbers:
        pixels = decode(jpeg(number), CONFIG.limits)
        if number % 2:
            pixels = pixels.repeat(2, axis=0).repeat(2, axis=1)
        picture = network_input(pixels, spec, CONFIG.limits)
        found.append(Query(image_id=str(number), picture=picture))
    assert len({query.picture.size for query in found}) == 1
    return found


def rows(outcomes: Any) -> list[RegionRow]:
    assert all(isinstance(one, RegionRow) for one in outcomes)
    return list(outcomes)


def assert_same_rows(found: list[RegionRow], expected: list[RegionRow]) -> None:
    for one, want in zip(found, expected, strict=True):
        for field in dataclasses.fields(RegionRow):
            a, b = getattr(one, field.name), getattr(want, field.name)
            if isinstance(b, np.ndarray) and b.size and b.dtype.kind == "f":
                assert a.shape == b.shape, field.name
                assert np.abs(a - b).max() <= 1e-5 * max(np.abs(b).max(), 1e-3), field.name
            else:
                np.testing.assert_array_equal(a, b, err_msg=field.name)


ALL = [*CONVENTIONS, "airsplay-pairs"]


def detector_of(name: str) -> Detector:
    if name != "airsplay-pairs":
        return small(name)
    return open_detector(airsplay_pairs(depth=50, **SIZES, **ATTRIBUTES), None, seed=1)


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("probs", ["full", "topk:3"])
def test_a_batch_gives_the_rows_of_each_alone(
    jpeg: Callable[[int], bytes], family: str, probs: str
) -> None:
    detector = detector_of(family)
    storage = dataclasses.replace(CONFIG.storage, class_probs=probs)
    config = dataclasses.replace(CONFIG, storage=storage)
    asked = queries(jpeg, detector.model.config)
    alone = [predict([query], detector, config)[0] for query in asked]
    assert len({len(row.boxes) for row in rows(alone)} - {0}) > 0
    assert_same_rows(rows(start_batch(asked, detector, config)()), rows(alone))
    assert_same_rows(rows(predict(asked, detector, config)), rows(alone))


def test_given_boxes_of_several_numbers(jpeg: Callable[[int], bytes]) -> None:
    detector = small("milvlg")
    boxes = [[[3, 4, 60, 50], [20, 10, 90, 70]], [], [[0, 0, 10, 10]]]
    asked = [
        dataclasses.replace(query, boxes=np.array(own, np.float32).reshape(-1, 4))
        for query, own in zip(queries(jpeg, detector.model.config), boxes, strict=True)
    ]
    alone = [predict([query], detector, CONFIG)[0] for query in asked]
    found = rows(start_batch(asked, detector, CONFIG)())
    assert [row.boxes.tolist() for row in found] == boxes
    assert_same_rows(found, rows(alone))
    (empty,) = rows(start_batch(asked[1:2], detector, CONFIG)())
    assert empty.boxes.shape == (0, 4) and empty.global_feature is not None


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("boxes", [False, True])
@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_nothing_between_upload_and_download_makes_the_host_wait(
    jpeg: Callable[[int], bytes], family: str, boxes: bool, precision: Any
) -> None:
    detector = detector_of(family)
    storage = Storage(dtype="float32", class_probs="topk:3", global_feature=True)
    config = dataclasses.replace(CONFIG, storage=storage)
    asked = queries(jpeg, detector.model.config)
    if boxes:
        own = np.array([[3, 4, 60, 50]], np.float32)
        asked = [dataclasses.replace(query, boxes=own) for query in asked]
    sent = uploaded(asked, detector)

    with computing(precision, detector.device), refusing_waits():
        compute(*sent, detector, config)


def test_the_refusal_refuses() -> None:
    flags = torch.tensor([True, False])
    for bad in (
        lambda: flags[flags],
        lambda: flags.any().item(),
        lambda: flags.new_tensor([1]),
        lambda: flags.nonzero(),
        lambda: int(flags.sum()),
    ):
        with pytest.raises(AssertionError, match="makes the host wait"), refusing_waits():
            bad()


def frame(width: int, height: int, own: float) -> NetworkInput:
    return NetworkInput(
        tensor=torch.zeros(1, 3, height, width),
        scale=1 / own,
        factors=(1 / own, 1 / own),
        width=round(width * own),
        height=round(height * own),
    )


@given(
    seed=st.integers(0, 2**16),
    selection=st.sampled_from(["class-confidence", "best-class", "class-pairs"]),
    refined=st.booleans(),
    background=st.sampled_from(["first", "last"]),
    offset=st.sampled_from([0.0, 1.0]),
    inclusive=st.booleans(),
    specific=st.booleans(),
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    bounds=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    threshold=st.sampled_from([0.0, 0.2, 0.5]),
    thresholds=st.sampled_from([(0.3,), (0.3, 0.5, 0.9)]),
)
@settings(max_examples=150, deadline=None)
def test_every_rule_chooses_the_same_in_fixed_sizes(
    seed: int,
    selection: Any,
    refined: bool,
    background: Any,
    offset: float,
    inclusive: bool,
    specific: bool,
    counts: list[int],
    bounds: tuple[int, int],
    threshold: float,
    thresholds: tuple[float, ...],
) -> None:
    """Against the rules for one picture, with rubbish in the places that are not taken."""
    spec = DetectorConfig(
        selection=selection,
        written_boxes="refined" if refined else "proposals",
        background=background,
        box_offset=offset,
        nms_inclusive=inclusive,
        class_specific_boxes=specific,
        class_nms_thresholds=thresholds,
        num_classes=3,
    )
    rule = Selection(
        threshold=threshold, min_boxes=bounds[0], max_boxes=max(1, bounds[0] + bounds[1])
    )
    rng = torch.Generator().manual_seed(seed)
    places = max(counts) + 1
    low = torch.rand(len(counts), places, 2, generator=rng) * torch.tensor([70.0, 50.0])
    boxes = torch.cat((low, low + torch.rand(low.shape, generator=rng) * 40), dim=2)
    probs = (torch.randn(len(counts), places, 4, generator=rng) * 2).softmax(dim=2)
    deltas = torch.randn(len(counts), places, 4 * spec.num_regressed, generator=rng) * 0.2
    pictures = [frame(100, 80, 1 + number / 3) for number in range(len(counts))]
    asked = [Query(image_id="x", picture=picture) for picture in pictures]
    batch = BatchDetections(
        found=Detections(
            boxes=boxes.flatten(0, 1),
            features=boxes.flatten(0, 1),
            class_probs=probs.flatten(0, 1),
            box_deltas=deltas.flatten(0, 1),
        ),
        taken=torch.arange(places) < torch.tensor(counts)[:, None],
        whole=None,
    )
    frames = frames_of(torch.tensor([measures_of(query, spec) for query in asked]))
    chosen = select_fixed(batch, spec, frames, rule)
    for number, count in enumerate(counts):
        found = Detections(
            boxes=boxes[number, :count],
            features=boxes[number, :count],
            class_probs=probs[number, :count],
            box_deltas=deltas[number, :count],
        )
        want = select(found, spec, frame_of(pictures[number]), rule)
        taken = chosen.taken[number]
        assert chosen.ids[number][taken].tolist() == want.ids.tolist()
        assert chosen.class_ids[number][taken].tolist() == want.class_ids.tolist()
        torch.testing.assert_close(chosen.class_scores[number][taken], want.class_scores)
        torch.testing.assert_close(chosen.boxes[number][taken], want.boxes, rtol=1e-5, atol=1e-4)
