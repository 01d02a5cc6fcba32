"""Converts, resizes and compares boxes.

R regions. Boxes are (x1, y1, x2, y2) in pixels.
"""

from dataclasses import dataclass

import numpy as np

from vlmill.train.loading.arrays import Array, Flags


def overlaps(boxes: Array, *, pixel: tuple[float, float] = (0.0, 0.0)) -> Array:
    """Computes the intersection over union of each two boxes [R, 4] (x1, y1, x2, y2): [R, R].

    ``pixel`` is added to widths and heights. It is the size of a pixel in the boxes' unit, for the
    convention that x2 and y2 belong to the box. Boxes without an area overlap with nothing.
    """
    boxes = boxes.astype(np.float64)
    sizes = np.maximum(boxes[:, 2:] - boxes[:, :2] + pixel, 0)
    low = np.maximum(boxes[:, None, :2], boxes[:, :2])
    high = np.minimum(boxes[:, None, 2:], boxes[:, 2:])
    shared = np.maximum(high - low + pixel, 0).prod(-1)
    areas = sizes.prod(-1)
    union = areas[:, None] + areas - shared
    ratio: Array = np.divide(shared, union, out=np.zeros_like(union), where=union > 0).astype("f4")
    return ratio


def overlapping(
    masked: Flags, overlap: Array, *, threshold: float = 0.4, inclusive: bool = False
) -> Flags:
    """Returns ``masked`` [R] and the regions that overlap with a masked one.

    This is 12-in-1's rule for ViLBERT (arXiv:1912.02315): with these hidden too, a masked region
    cannot be inferred from its neighbours. ViLBERT and VL-BERT themselves have no such rule.
    """
    near = overlap >= threshold if inclusive else overlap > threshold
    reached: Flags = masked | (near & masked).any(axis=1)
    return reached


@dataclass(frozen=True, kw_only=True)
class Size:
    """Holds an image's width and height in pixels."""

    width: int
    height: int

    def resized(self, shortest: int, longest: int) -> "Size":
        """Scales to a short side of ``shortest``, or less if the long one would pass
        ``longest``.
        """
        short, long = sorted((self.width, self.height))
        if long / short * shortest > longest:
            shortest = int(longest * short / long)
        other = int(shortest * long / short)
        if self.width < self.height:
            return Size(width=shortest, height=other)
        return Size(width=other, height=shortest)


def scales(size: Size, new: Size) -> Array:
    """Returns the factors [2] of widths and heights."""
    old = np.array([size.width, size.height], dtype=np.float32)
    # By the inverse, as PyTorch divides a tensor: at x = 1000 the last bit is 6e-5 pixels.
    factors: Array = np.array([new.width, new.height], dtype=np.float32) * (np.float32(1) / old)
    return factors


def resized_boxes(boxes: Array, size: Size, new: Size, *, mirrored: bool) -> Array:
    """Returns boxes [N, 4] of the resized image, mirrored if requested, clamped to the image."""
    boxes = boxes * np.tile(scales(size, new), 2)
    if mirrored:
        left, right = new.width - 1 - boxes[:, 2], new.width - 1 - boxes[:, 0]
        boxes = np.stack([left, boxes[:, 1], right, boxes[:, 3]], axis=1)
    ends = np.array([new.width - 1, new.height - 1] * 2, dtype=np.float32)
    clamped: Array = np.clip(boxes, 0, ends)
    return clamped
