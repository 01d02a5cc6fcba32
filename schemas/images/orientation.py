"""Converts sizes and boxes of stored images to those of the upright ones.

An EXIF orientation is a number from 1 to 8; 1 is upright. "Stored" means as in the file.
"""

import numpy as np
import numpy.typing as npt

Boxes = npt.NDArray[np.float32]

UPRIGHT = 1
LYING = (5, 6, 7, 8)  # width and height are swapped first; then boxes are mirrored
MIRRORED_X = (2, 3, 6, 7)
MIRRORED_Y = (3, 4, 7, 8)


def turn_size(width: int, height: int, orientation: int) -> tuple[int, int]:
    """Converts width and height of the stored image to those of the upright one (and back)."""
    return (height, width) if orientation in LYING else (width, height)


def turn_boxes(boxes: Boxes, orientation: int, width: int, height: int) -> Boxes:
    """Converts boxes [N, 4] (x1, y1, x2, y2) of a stored image to those of the upright one.

    ``width`` and ``height`` are the upright image's. Corners are between pixels: the full image is
    (0, 0, width, height) in any orientation.
    """
    if orientation == UPRIGHT:
        return boxes
    x1, y1, x2, y2 = boxes.T
    if orientation in LYING:
        x1, y1, x2, y2 = y1, x1, y2, x2
    if orientation in MIRRORED_X:
        x1, x2 = width - x2, width - x1
    if orientation in MIRRORED_Y:
        y1, y2 = height - y2, height - y1
    return np.stack([x1, y1, x2, y2], axis=1).astype(np.float32, copy=False)
