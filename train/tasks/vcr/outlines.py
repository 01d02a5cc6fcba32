"""Rasters objects' outlines into the cells of their boxes (VL-BERT's code).

V corners of a polygon, P x P cells of a box.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmill.schemas.plain_json import parse_json
from vlmill.train.loading.arrays import Array

Cells = NDArray[np.uint8]
MAX_CORNERS = 10_000  # of a polygon; published ones have some hundred, and memory grows with them
Outline = Sequence[Array]  # polygons [V, 2] of x and y in pixels; none: all of the object's box


def parse_outlines(segms: str | None, num_objects: int) -> list[Outline]:
    """Reads the column ``segms`` of a row of choices: an outline for each object.

    Raises ValueError for anything but a list of polygons of points for each object.
    """
    if segms is None:
        return [()] * num_objects
    try:
        object_polygons: Any = parse_json(segms)
        count = len(object_polygons)
        outlines = [[parse_points(polygon) for polygon in polygons] for polygons in object_polygons]
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"segms: {error}") from None
    if count != num_objects:
        raise ValueError(f"segms of {count} objects, expected {num_objects}")
    for number, polygons in enumerate(outlines):
        if any(not len(points) for points in polygons):
            raise ValueError(f"segms: a polygon of object {number} has no points")
        if (max_points := max(map(len, polygons), default=0)) > MAX_CORNERS:
            raise ValueError(
                f"segms: a polygon of object {number} has {max_points} points, expected at most "
                f"{MAX_CORNERS}"
            )
    return list(outlines)


def chosen_outlines(segms: str | None, objects: Sequence[int]) -> str | None:
    """Returns the column ``segms`` of only these objects, in this order."""
    if segms is None:
        return None
    object_polygons = parse_json(segms)
    return json.dumps([object_polygons[number] for number in objects])


def parse_points(polygon: Any) -> Array:
    """Returns a polygon's corners [V, 2]. Raises ValueError for other values."""
    points = np.array(polygon, dtype=np.float32).reshape(len(polygon), 2)
    if not np.isfinite(points).all():
        raise ValueError("a polygon has a corner that is not finite")
    return points


def instance_masks(
    outlines: Sequence[Outline], boxes: Array, cells: int, *, mirrored: bool
) -> Cells:
    """Returns the full image's mask, which is all 1, then the outlines in their ``boxes`` [R, 4]:
    uint8 [1 + R, P, P], mirrored with the image.
    """
    full_mask = np.ones((cells, cells), dtype=np.uint8)
    objects = zip(outlines, boxes, strict=True)
    masks = np.stack([full_mask, *(raster_box(outline, box, cells) for outline, box in objects)])
    return masks[..., ::-1] if mirrored else masks


def raster_box(outline: Outline, box: Array, cells: int) -> Cells:
    """Returns 1 for the cells of ``box`` (x1, y1, x2, y2) whose corner is inside a polygon, edges
    counted; 1 for all cells of an object without a polygon.

    A box includes its last pixel: a point of it is at (x - x1) P / (x2 - x1 + 1), cut to the cells.
    """
    if not len(outline):
        return np.ones((cells, cells), dtype=np.uint8)
    corner, size = box[:2], box[2:] - box[:2] + 1
    inside = np.zeros((cells, cells), dtype=np.bool_)
    for polygon in outline:
        inside |= fill_polygon(np.clip((polygon - corner) * cells / size, 0, cells - 1), cells)
    return inside.astype(np.uint8)


def fill_polygon(polygon: Array, cells: int) -> NDArray[np.bool_]:
    """Returns which integer points are in a polygon or on its edges: [P, P], rows first."""
    x, y = np.meshgrid(np.arange(cells, dtype=np.float64), np.arange(cells, dtype=np.float64))
    ends = polygon.astype(np.float64)
    starts = np.roll(ends, 1, axis=0)
    x1, y1, x2, y2 = (v[:, None, None] for v in (*starts.T, *ends.T))
    # The side of each edge that a point is on; 0 on its line.
    side = (x2 - x1) * (y - y1) - (x - x1) * (y2 - y1)
    within = (np.minimum(x1, x2) <= x) & (x <= np.maximum(x1, x2))
    within &= (np.minimum(y1, y2) <= y) & (y <= np.maximum(y1, y2))
    on_edge = (side == 0) & within
    # A ray to the right crosses an edge that spans the point's height, its lower end included.
    crosses = ((y1 > y) != (y2 > y)) & ((side > 0) == (y2 > y1))
    inside: NDArray[np.bool_] = (crosses.sum(axis=0) % 2 == 1) | on_edge.any(axis=0)
    return inside
