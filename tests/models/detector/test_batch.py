"""Suppression and detection in tensors of fixed sizes, against those of one picture."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from vlmill.models.detector.batch import detect_batch
from vlmill.models.detector.config import CONVENTIONS
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.nms import first_survivors, float32_limit, nms_by_class
from vlmill.models.detector.random_weights import randomise

SIZES = {
    "depth": 50,
    "stem_channels": 4,
    "res2_channels": 8,
    "res2_width": 4,
    "num_classes": 6,
    "num_attributes": 0,
    "rpn_channels": 8,
    "min_proposal_size": 20.0,
    "pre_nms_top": 60,
    "post_nms_top": 40,
}


@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.4, 0.5, 0.6, 0.7, 0.9])
def test_a_limit_decides_as_the_double_does(threshold: float) -> None:
    near = np.float32(threshold)
    for overlap in (np.nextafter(near, np.float32(0)), near, np.nextafter(near, np.float32(1))):
        limit = torch.tensor(float32_limit(threshold, inclusive=False))
        assert bool(torch.tensor(overlap) > limit) == (float(overlap) > threshold)
        limit = torch.tensor(float32_limit(threshold, inclusive=True))
        assert bool(torch.tensor(overlap) > limit) == bool(overlap >= near)


@given(
    seed=st.integers(0, 2**16),
    pictures=st.integers(1, 3),
    rows=st.integers(1, 9),
    classes=st.integers(1, 3),
    own_boxes=st.booleans(),
    count=st.integers(0, 12),
    offset=st.sampled_from([0.0, 1.0]),
    inclusive=st.booleans(),
    whole=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_first_survivors_are_those_of_each_class(
    seed: int,
    pictures: int,
    rows: int,
    classes: int,
    own_boxes: bool,
    count: int,
    offset: float,
    inclusive: bool,
    whole: bool,
) -> None:
    """``whole`` numbers make overlaps equal to thresholds, empty boxes and equal boxes."""
    rng = torch.Generator().manual_seed(seed)
    low = torch.rand(pictures, rows, classes if own_boxes else 1, 2, generator=rng) * 6
    boxes = torch.cat((low, low + torch.rand(low.shape, generator=rng) * 6), dim=3)
    boxes = boxes.round() if whole else boxes
    scores = torch.rand(pictures, rows, classes, generator=rng)
    scores[torch.rand(scores.shape, generator=rng) < 0.2] = -torch.inf
    thresholds, rules = (0.3, 0.5), {"offset": offset, "inclusive": inclusive}
    places, values = first_survivors(boxes, scores, thresholds, count, **rules)  # type: ignore[arg-type]
    for picture in range(pictures):
        ids, of_class = torch.nonzero(scores[picture] > -torch.inf, as_tuple=True)
        own = boxes[picture, ids, of_class if own_boxes else torch.zeros_like(of_class)]
        for number, threshold in enumerate(thresholds):
            alive = scores[picture, ids, of_class]
            kept = by_class(own, alive, of_class, threshold, rules)[:count]
            found = places[picture, number][values[picture, number] > -torch.inf]
            assert found.tolist() == (ids * classes + of_class)[kept].tolist()
            assert values[picture, number, : len(kept)].tolist() == alive[kept].tolist()


def by_class(boxes: Any, scores: Any, classes: Any, threshold: float, rules: Any) -> Any:
    """The survivors of every class by itself: batched_nms moves boxes apart, which rounds."""
    kept = []
    for one in classes.unique():
        own = torch.nonzero(classes == one)[:, 0]
        alone = nms_by_class(boxes[own], scores[own], torch.zeros_like(own), threshold, **rules)
        kept.append(own[alone])
    every = torch.cat(kept) if kept else torch.zeros(0, dtype=torch.long)
    return every[scores[every].sort(descending=True, stable=True).indices]


@pytest.mark.parametrize("family", ["milvlg", "airsplay", "detectron2"])
def test_proposals_of_a_batch_are_those_of_each_picture(family: str) -> None:
    model = FasterRCNN(CONVENTIONS[family](**SIZES)).eval()
    randomise(model, 2)
    coarse = torch.randn(3, 3, 6, 8, generator=torch.Generator().manual_seed(1)) * 64
    pictures = torch.nn.functional.interpolate(coarse, size=(96, 128), mode="bilinear")
    scales = [1.0, 2.0, 0.5]
    sides = torch.tensor([model.config.min_input_size(scale) for scale in scales])
    with torch.inference_mode():
        batch = detect_batch(model, pictures, sides, whole=True, chunk=50)
        assert batch.whole is not None
        counts = []
        for number, scale in enumerate(scales):
            picture = pictures[number : number + 1]
            alone = model(picture, scale)
            taken = batch.taken[number]
            boxes = batch.found.boxes.view(*batch.taken.shape, 4)[number]
            torch.testing.assert_close(boxes[taken], alone.boxes, rtol=1e-4, atol=1e-3)
            features = batch.found.features.view(*batch.taken.shape, -1)[number][taken]
            torch.testing.assert_close(features, alone.features, rtol=1e-4, atol=1e-4)
            whole = model.whole_image(model.feature_map(picture), 96, 128)
            torch.testing.assert_close(batch.whole[number], whole, rtol=1e-4, atol=1e-4)
            counts.append(len(alone.boxes))
    assert len(set(counts)) > 1  # some places stay free
