"""Outlines are rastered into the cells of their boxes, by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from vlmill.train.tasks.vcr.outlines import fill_polygon, instance_masks, parse_outlines, raster_box

TRIANGLE = np.array([[0, 0], [3, 0], [0, 3]], dtype=np.float32)
LOWER = [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]]


def test_edges_and_corners_belong_to_a_polygon() -> None:
    assert fill_polygon(TRIANGLE, 4).astype(int).tolist() == LOWER
    assert fill_polygon(TRIANGLE[::-1], 4).astype(int).tolist() == LOWER  # either way round
    point, line = np.array([[2, 1]], np.float32), np.array([[0, 2], [3, 2]], np.float32)
    assert np.argwhere(fill_polygon(point, 4)).tolist() == [[1, 2]]
    assert fill_polygon(line, 4).sum(axis=1).tolist() == [0, 0, 4, 0]


def test_a_hollow_polygon_is_not_filled_where_it_is_hollow() -> None:
    horseshoe = [[0, 0], [4, 0], [4, 4], [3, 4], [3, 1], [1, 1], [1, 4], [0, 4]]
    inside = fill_polygon(np.array(horseshoe, np.float32), 5)
    assert inside[3].astype(int).tolist() == [1, 1, 0, 1, 1] and inside[:2].all()


def test_an_outline_is_of_its_box_and_mirrored_with_it() -> None:
    box = np.array([10, 20, 17, 27], np.float32)  # of eight pixels a side, for four cells
    corners = np.array([[10, 20], [16, 20], [10, 26]], np.float32)
    assert raster_box([corners], box, 4).tolist() == LOWER
    both = raster_box([corners, np.array([[16, 26]], np.float32)], box, 4)
    assert both.sum() == sum(map(sum, LOWER)) + 1 and both[3, 3]
    masks = instance_masks([[corners], ()], np.stack([box, box]), 4, mirrored=True)
    assert masks[0].all() and masks[2].all()  # the full image, and one without a polygon
    assert masks[1].tolist() == [row[::-1] for row in LOWER]


@pytest.mark.parametrize(
    ("segms", "said"),
    [
        ("[[[[0, 1], [2, 3]]]]", "segms of 1 objects, expected 2"),
        ("[[], [[]]]", "a polygon of object 1 has no points"),
        ("[[], [[[0, 1, 2]]]]", "segms: "),
        ("[[], [[[0, NaN]]]]", "not finite"),
        ("[[], 7]", "segms: "),
        ("{", "segms: "),
        ("[" * 100_000, "segms: nested more than 100 levels deep"),
        (f"[[], [[[0, {10**400}]]]]", "segms: int too large"),
        (f"[[], [[{', '.join(['[0, 1]'] * 10_001)}]]]", "has 10001 points, expected at most 10000"),
    ],
)
def test_what_is_no_outline_is_said(segms: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_outlines(segms, 2)


def test_an_object_may_have_none() -> None:
    assert parse_outlines(None, 2) == [(), ()]
    first, second = parse_outlines(json.dumps([[], [[[0, 1], [2, 3], [4, 5]]]]), 2)
    assert first == [] and second[0].tolist() == [[0, 1], [2, 3], [4, 5]]
