"""Batches in tensors of fixed sizes: rows as of each image alone, and a host that never waits."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.extract.host_waits import as_on_a_gpu, refusing_waits

from vlmill.extract.config import ExtractConfig, InputLimits, Selection, Storage
from vlmill.extract.detect import predict
from vlmill.extract.detect.detector import Detector, open_detector
from vlmill.extract.detect.predict import choose_chunk_size, compute, computing, start_batch
from vlmill.extract.detect.rows import Query
from vlmill.extract.detect.transfer import upload_batch
from vlmill.extract.images.decode import decode
from vlmill.extract.images.resize import network_input
from vlmill.models.detector.config import CONVENTIONS, DetectorConfig, airsplay_pairs
from vlmill.models.detector.roi_heads import RoiHeads
from vlmill.runtime.readers.regions import RegionRow

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
    conventions = CONVENTIONS[family]()
    own = ATTRIBUTES if conventions.num_attributes else {}
    own = own | ({"groups": 2} if conventions.groups > 1 else {})
    if conventions.fpn_channels:
        own |= {"fpn_channels": 6, "fc_channels": 10, "rpn_channels": 6}
    return open_detector(CONVENTIONS[family](**{**SIZES, "depth": 50, **own}), None, seed=1)


def config_for(detector: Detector, **storage: Any) -> ExtractConfig:
    """A grid has no region that is the full image."""
    own = {"global_feature": detector.model.config.regions != "grid", **storage}
    return dataclasses.replace(CONFIG, storage=dataclasses.replace(CONFIG.storage, **own))


def queries(
    jpeg: Callable[[int], bytes], spec: DetectorConfig, numbers: range = range(3)
) -> list[Query]:
    """Images of one input shape, of two own sizes."""
    found = []
    for number in numbers:
        pixels = decode(jpeg(number), CONFIG.limits)
        if number % 2:
            pixels = pixels.repeat(2, axis=0).repeat(2, axis=1)
        image = network_input(pixels, spec, CONFIG.limits)
        found.append(Query(image_id=str(number), image=image))
    assert len({query.image.size for query in found}) == 1
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
    config = config_for(detector, class_probs=probs)
    asked = queries(jpeg, detector.model.config)
    alone = [start_batch([query], detector, config)()[0] for query in asked]
    assert len({len(row.boxes) for row in rows(alone)} - {0}) > 0
    assert_same_rows(rows(start_batch(asked, detector, config)()), rows(alone))


def test_given_boxes_of_several_numbers(jpeg: Callable[[int], bytes]) -> None:
    detector = small("milvlg")
    boxes = [[[3, 4, 60, 50], [20, 10, 90, 70]], [], [[0, 0, 10, 10]]]
    asked = [
        dataclasses.replace(query, boxes=np.array(own, np.float32).reshape(-1, 4))
        for query, own in zip(queries(jpeg, detector.model.config), boxes, strict=True)
    ]
    alone = [start_batch([query], detector, CONFIG)()[0] for query in asked]
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
    config = config_for(detector, class_probs="topk:3")
    if boxes and detector.model.config.regions == "grid":
        pytest.skip("a grid takes no boxes")
    asked = queries(jpeg, detector.model.config)
    if boxes:
        own = np.array([[3, 4, 60, 50]], np.float32)
        asked = [dataclasses.replace(query, boxes=own) for query in asked]
    batch = upload_batch(asked, detector.model.config, detector.device)
    with computing(precision, detector.device), refusing_waits():
        compute(batch, detector, config)


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


@pytest.mark.parametrize(
    ("free_gib", "total_gib", "chunk"),
    [
        (78, 79.1, 2400),  # H100
        (138, 139.8, 2400),  # H200
        (35, 79.1, 2400),
        (30, 79.1, 1200),  # most of it is another process's
        (3, 79.1, 600),
        (39, 39.4, 1200),
        (23, 23.6, 600),
        (7, 8, 600),
    ],
)
def test_the_card_decides_how_many_regions_are_computed_together(
    free_gib: float, total_gib: float, chunk: int
) -> None:
    assert choose_chunk_size(int(free_gib * 2**30), int(total_gib * 2**30)) == chunk


def test_rows_do_not_depend_on_how_many_regions_are_computed_together(
    jpeg: Callable[[int], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RoiHeads, "region_features", as_on_a_gpu)
    found = small("milvlg")
    ours = queries(jpeg, found.model.config)
    rows = []
    for chunk in (36, 7, 12):
        monkeypatch.setattr(predict, "get_chunk_size", lambda _, chunk=chunk: chunk)
        rows.append(start_batch(ours, found, CONFIG)())
    for other in rows[1:]:
        for row, expected in zip(other, rows[0], strict=True):
            assert isinstance(row, RegionRow) and isinstance(expected, RegionRow)
            np.testing.assert_array_equal(row.class_ids, expected.class_ids)
            np.testing.assert_array_equal(row.boxes, expected.boxes)
            assert row.features is not None and expected.features is not None
            np.testing.assert_allclose(row.features, expected.features, rtol=1e-5, atol=1e-6)
