"""Published boxes: from x, y, width, height of the stored picture to ours of the upright one."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.manifest.entries import Picture
from vlmill.pipelines.manifest.sources import Folder
from vlmill.schemas.pictures.decode import Bounds, opened
from vlmill.schemas.pictures.orientation import (
    LYING,
    UPRIGHT,
    orientation_of,
    turned_boxes,
    turned_size,
)
from vlmill.schemas.rejects import Reason, Rejected

Box = tuple[float, float, float, float]  # x1, y1, x2, y2 in pixels, edges
_BOUNDS = Bounds(max_pixels=178_000_000, max_bytes=None)


class Frame(NamedTuple):
    """A picture's stored size in pixels, and how it is to be turned."""

    width: int
    height: int
    orientation: int = UPRIGHT

    @property
    def upright_size(self) -> tuple[int, int]:
        """Width and height of the upright picture."""
        return turned_size(self.width, self.height, self.orientation)


def frame_of(folder: Folder, picture: Picture) -> Frame | None:
    """The published size of a picture, with the orientation that its file says, if it is there.

    None where no size was published and there is no readable file. A published size of which the
    sides are those of the upright picture: the boxes are, too, and nothing is turned.
    """
    content = picture.content if picture.content is not None else folder.picture(picture.paths)
    published = (picture.width, picture.height) if picture.width and picture.height else None
    if isinstance(content, Drop):
        return Frame(*published) if published else None
    try:
        with opened(content, _BOUNDS) as image:
            stored, orientation = image.size, orientation_of(image)
    except Rejected:
        return Frame(*published) if published else None
    if published and orientation in LYING and published == stored[::-1] != stored:
        return Frame(*published)
    width, height = published or stored
    return Frame(width, height, orientation)


def edges(values: Sequence[object]) -> Box | Drop:
    """x1, y1, x2, y2 of a published x, y, width, height."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(values) != 4 or len(numbers) != 4 or not all(abs(v) < 1e7 for v in numbers):
        return Drop(Reason.BAD_ROW, f"a box of {list(values)!a}, want x, y, width, height"[:200])
    x, y, width, height = map(float, numbers)
    return x, y, x + width, y + height


def clipped(box: Box, frame: Frame | None) -> tuple[Box, bool] | Drop:
    """A stored picture's box inside of it, turned upright, and whether it had to be cut.

    A Drop if nothing of it lies in the picture.
    """
    x1, y1, x2, y2 = box
    if frame is not None:
        x1, x2 = (min(max(x, 0.0), float(frame.width)) for x in (x1, x2))
        y1, y2 = (min(max(y, 0.0), float(frame.height)) for y in (y1, y2))
    if x2 <= x1 or y2 <= y1:
        size = f" of {frame.width} x {frame.height}" if frame is not None else ""
        return Drop(Reason.EMPTY_BOX, f"{', '.join(f'{v:g}' for v in box)} in a picture{size}")
    cut = (x1, y1, x2, y2) != box
    if frame is None or frame.orientation == UPRIGHT:
        return (x1, y1, x2, y2), cut
    boxes = np.array([[x1, y1, x2, y2]], dtype=np.float32)
    turned = turned_boxes(boxes, frame.orientation, *frame.upright_size)[0].tolist()
    return (turned[0], turned[1], turned[2], turned[3]), cut
