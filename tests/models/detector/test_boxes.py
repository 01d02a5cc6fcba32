"""Box geometry and suppression, against recorded operators and naive loops."""

from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from safetensors.torch import load_file
from torch import Tensor

from vlmill.models.detector.boxes import clip_boxes, decode_boxes, pairwise_iou
from vlmill.models.detector.config import MAX_LOG_SCALE
from vlmill.models.detector.nms import class_confidence, first_survivors, nms_every_class, pack_bits
from vlmill.models.detector.proposals import grid_anchors, legacy_cell_anchors
from vlmill.models.detector.resnet import stem_pool

OPS = load_file(Path(__file__).parents[2] / "golden/frcnn/ops/cases.safetensors")


def test_cell_anchors_equal_the_original_generator() -> None:
    cells = legacy_cell_anchors((4.0, 8.0, 16.0, 32.0), (0.5, 1.0, 2.0))
    assert torch.equal(cells, OPS["anchor.out.caffe_4_8_16_32"])


def test_grid_anchors_go_row_by_row() -> None:
    anchors = grid_anchors(torch.tensor([[0.0, 0, 15, 15], [-8.0, 0, 23, 15]]), 2, 3, 16)
    assert anchors.shape == (12, 4)
    assert anchors[2].tolist() == [16, 0, 31, 15]
    assert anchors[7].tolist() == [-8, 16, 23, 31]


@pytest.mark.parametrize(
    ("name", "deltas", "weights", "offset", "bound"),
    [
        ("caffe", "deltas_small", (1.0, 1.0, 1.0, 1.0), 1.0, None),
        ("d2_1_1_1_1", "deltas_small", (1.0, 1.0, 1.0, 1.0), 0.0, MAX_LOG_SCALE),
        ("d2_10_10_5_5", "deltas", (10.0, 10.0, 5.0, 5.0), 0.0, MAX_LOG_SCALE),
    ],
)
def test_box_decoding(
    name: str,
    deltas: str,
    weights: tuple[float, float, float, float],
    offset: float,
    bound: float | None,
) -> None:
    decoded = decode_boxes(
        OPS["coder.in.boxes"],
        OPS[f"coder.in.{deltas}"],
        weights=weights,
        offset=offset,
        max_log_scale=bound,
    )
    torch.testing.assert_close(decoded, OPS[f"coder.out.{name}"], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("size", ["15x20", "16x21", "17x16"])
@pytest.mark.parametrize(("convention", "ceil_pool"), [("caffe", True), ("pad1", False)])
def test_stem_pool(size: str, convention: str, ceil_pool: bool) -> None:
    pooled = stem_pool(OPS[f"pool{size}.in.x"], ceil_pool=ceil_pool)
    assert torch.equal(pooled, OPS[f"pool{size}.out.{convention}"])


@pytest.mark.parametrize("threshold", ["0.3", "0.5", "0.7", "tie"])
@pytest.mark.parametrize("family", ["caffe", "legacy", "tv"])
def test_suppression_equals_the_recorded_lists(family: str, threshold: str) -> None:
    """``legacy`` records indices in index order, the others in score order."""
    limit = OPS["nms.in.tie_threshold"].item() if threshold == "tie" else float(threshold)
    ours = family != "tv"
    kept = one_list(
        OPS["nms.in.boxes"], OPS["nms.in.scores"], limit, offset=float(ours), inclusive=ours
    )
    expected = OPS[f"nms.out.{family}_{threshold}"]
    assert torch.equal(kept.sort().values if family == "legacy" else kept, expected)


def one_list(
    boxes: Tensor, scores: Tensor, threshold: float, *, offset: float, inclusive: bool
) -> Tensor:
    """All survivors of one image and one order, best first."""
    places, values = first_survivors(
        boxes[None, :, None],
        scores[None, :, None],
        (threshold,),
        len(boxes),
        offset=offset,
        inclusive=inclusive,
    )
    return places[values > -torch.inf]


def naive_nms(iou: Tensor, scores: Tensor, threshold: float, inclusive: bool) -> list[int]:
    kept: list[int] = []
    limit = np.float32(threshold)
    for box in sorted(range(len(scores)), key=lambda i: (-scores[i].item(), i)):
        overlaps = iou[box, kept].numpy()
        if not (overlaps >= limit if inclusive else overlaps > limit).any():
            kept.append(box)
    return kept


@st.composite
def boxes_and_scores(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Integer boxes, so that overlaps are exact and ties are frequent."""
    count, classes = draw(st.integers(0, 140)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    low = rng.integers(0, 40, (count, 2))
    boxes = np.concatenate((low, low + rng.integers(0, 30, (count, 2))), axis=1)
    scores = rng.integers(0, 50, (count, classes)) / 50
    return torch.tensor(boxes).float(), torch.tensor(scores).float()


@settings(deadline=None, max_examples=60)
@given(
    case=boxes_and_scores(),
    threshold=st.sampled_from((0.25, 0.3, 0.5, 0.7)),
    offset=st.sampled_from((0.0, 1.0)),
    inclusive=st.booleans(),
)
def test_all_classes_at_once_equals_a_loop(
    case: tuple[Tensor, Tensor], threshold: float, offset: float, inclusive: bool
) -> None:
    boxes, scores = case
    kept = nms_every_class(boxes, scores, threshold, offset=offset, inclusive=inclusive)
    iou = pairwise_iou(boxes, boxes, offset)
    best = torch.zeros(len(boxes))
    for k in range(scores.shape[1]):
        expected = naive_nms(iou, scores[:, k], threshold, inclusive)
        assert torch.nonzero(kept[:, k])[:, 0].tolist() == sorted(expected)
        best[expected] = torch.maximum(best[expected], scores[expected, k])
    confidence = class_confidence(boxes, scores, threshold, offset=offset, inclusive=inclusive)
    assert torch.equal(confidence, best)


@settings(deadline=None, max_examples=60)
@given(case=boxes_and_scores(), inclusive=st.booleans())
def test_one_list_equals_a_loop(case: tuple[Tensor, Tensor], inclusive: bool) -> None:
    boxes, scores = case
    order = torch.arange(len(boxes), 0, -1).float()  # distinct, so the order is decided
    kept = one_list(boxes, order + scores[:, 0] / 2, 0.5, offset=1.0, inclusive=inclusive)
    iou = pairwise_iou(boxes, boxes, 1.0)
    assert kept.tolist() == naive_nms(iou, order, 0.5, inclusive)


def test_iou_by_hand() -> None:
    """Two 10 x 10 squares of pixels that share half of it: 50 / 150."""
    boxes = torch.tensor([[0.0, 0.0, 9.0, 9.0], [5.0, 0.0, 14.0, 9.0]])
    assert pairwise_iou(boxes, boxes, 1.0)[0, 1].item() == pytest.approx(1 / 3)


def test_clipping_by_hand() -> None:
    """Each image to its own border."""
    boxes = torch.tensor([[-3.0, 2.0, 99.0, 40.0], [5.0, 6.0, 7.0, 8.0]])
    limits = torch.tensor([[29.0, 19.0, 29.0, 19.0], [30.0, 7.0, 30.0, 7.0]])
    clipped = clip_boxes(boxes.expand(2, 2, 4), limits[:, None])
    assert clipped[0].tolist() == [[0, 2, 29, 19], [5, 6, 7, 8]]
    assert clipped[1].tolist() == [[0, 2, 30, 7], [5, 6, 7, 7]]


def test_no_boxes_are_decoded_to_none() -> None:
    none, deltas = torch.zeros(0, 4), torch.zeros(0, 8)
    weights = (1.0, 1.0, 1.0, 1.0)
    decoded = decode_boxes(none, deltas, weights=weights, offset=1.0, max_log_scale=None)
    assert decoded.shape == (0, 8)


def test_bits_fill_whole_words() -> None:
    flags = torch.zeros(2, 70, dtype=torch.bool)
    flags[0, [0, 63, 64]] = True
    assert pack_bits(flags).tolist() == [[1 - 2**63, 1], [0, 0]]
