"""Every form of non-maximum suppression on the device, against a loop over boxes in float64.

Boxes have whole corners and thresholds no overlap of such boxes comes near, so rounding decides
nothing; scores are permutations, so that none are equal, but where equal ones are meant.
"""

import pytest
import torch
from tests.gpu.device import there
from torch import Tensor

from vlmill.models.detector.nms import class_confidence, first_survivors, nms_every_class

pytestmark = pytest.mark.gpu
THRESHOLD = 0.4 + 1e-4
OFFSETS = pytest.mark.parametrize("offset", [0.0, 1.0])


def crowd(*shape: int, seed: int = 0) -> Tensor:
    """Boxes of whole corners, many of which overlap."""
    rng = torch.Generator().manual_seed(seed)
    low = torch.randint(0, 60, (*shape, 2), generator=rng)
    return torch.cat((low, low + torch.randint(8, 50, low.shape, generator=rng)), dim=-1).float()


def different(*shape: int, seed: int = 1) -> Tensor:
    """Scores in 0..1 of which no two are equal."""
    rng = torch.Generator().manual_seed(seed)
    count = int(torch.tensor(shape).prod())
    return ((torch.randperm(count, generator=rng) + 1) / (count + 1)).view(shape)


def survivors(boxes: Tensor, scores: Tensor, offset: float) -> list[int]:
    """Places in falling order of scores, equal ones in their own."""
    order = sorted(range(len(boxes)), key=lambda i: (-float(scores[i]), i))
    taken: list[int] = []
    for place in order:
        if all(overlap(boxes[place], boxes[other], offset) <= THRESHOLD for other in taken):
            taken.append(place)
    return taken


def overlap(one: Tensor, other: Tensor, offset: float) -> float:
    """Intersection over union."""
    a: list[float] = one.double().tolist()
    b: list[float] = other.double().tolist()
    sides = [max(0.0, min(a[k + 2], b[k + 2]) - max(a[k], b[k]) + offset) for k in (0, 1)]
    areas = [(c[2] - c[0] + offset) * (c[3] - c[1] + offset) for c in (a, b)]
    inter = sides[0] * sides[1]
    return inter / (sum(areas) - inter)


@OFFSETS
def test_one_order(offset: float) -> None:
    boxes, scores = crowd(90), different(90)
    expected = survivors(boxes, scores, offset)
    assert 5 < len(expected) < 80
    places, values = first_survivors(
        there(boxes[None, :, None]),
        there(scores[None, :, None]),
        (THRESHOLD,),
        90,
        offset=offset,
        inclusive=False,
    )
    assert places[values > -torch.inf].tolist() == expected


@OFFSETS
@pytest.mark.parametrize("layers", [1, 3])
def test_first_survivors_of_several_images(offset: float, layers: int) -> None:
    boxes, scores = crowd(2, 40, layers), different(2, 40, 3)
    places, values = first_survivors(
        there(boxes), there(scores), (THRESHOLD,), 30, offset=offset, inclusive=False
    )
    for image in range(2):
        expected = []
        for one in range(3):
            own = boxes[image, :, one if layers > 1 else 0]
            kept = survivors(own, scores[image, :, one], offset)
            expected += [place * 3 + one for place in kept]
        flat = scores[image].flatten()
        expected = sorted(expected, key=lambda place: -float(flat[place]))[:30]
        assert places[image, 0].tolist() == expected
        assert values[image, 0].tolist() == flat[expected].tolist()


@OFFSETS
def test_all_classes_share_the_boxes(offset: float) -> None:
    boxes, scores = crowd(2, 70), different(2, 70, 4).round(decimals=2)  # some are equal
    kept = nms_every_class(
        there(boxes), there(scores), THRESHOLD, offset=offset, inclusive=False
    ).cpu()
    confidence = class_confidence(
        there(boxes), there(scores), THRESHOLD, offset=offset, inclusive=False
    ).cpu()
    expected = torch.zeros_like(kept)
    for image in range(2):
        for one in range(4):
            places = survivors(boxes[image], scores[image, :, one], offset)
            expected[image, places, one] = True
    assert torch.equal(kept, expected)
    assert torch.equal(confidence, scores.where(expected, 0.0).amax(dim=2))


@pytest.mark.parametrize("equal", [False, True])
def test_an_overlap_equal_to_the_threshold(equal: bool) -> None:
    """Half of each other's union, exactly: suppressed where the rule is inclusive."""
    boxes, scores = torch.tensor([[0.0, 0, 3, 1], [1.0, 0, 4, 1]]), torch.tensor([0.9, 0.8])
    expected = [0] if equal else [0, 1]
    places, values = first_survivors(
        there(boxes[None, :, None]),
        there(scores[None, :, None]),
        (0.5,),
        2,
        offset=0.0,
        inclusive=equal,
    )
    assert places[values > -torch.inf].tolist() == expected
    every = nms_every_class(there(boxes), there(scores[:, None]), 0.5, offset=0.0, inclusive=equal)
    assert every[:, 0].nonzero()[:, 0].tolist() == expected
