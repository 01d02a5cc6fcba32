"""Converts published x, y, width, height of the stored image to corners in the upright image."""

import atexit
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from vlmill.pipelines.manifest.entries import ListedImage
from vlmill.pipelines.manifest.reading.sources import Folder
from vlmill.runtime.bounded_calls import BoundedPool, CallLimits
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.images.decode import Bounds, load, open_image, read_orientation
from vlmill.schemas.images.orientation import LYING, UPRIGHT, turn_boxes, turn_size
from vlmill.schemas.rejects import Reason, Rejected

Box = tuple[float, float, float, float]  # x1, y1, x2, y2 in pixels, edges
_BOUNDS = Bounds(max_pixels=178_000_000, max_bytes=None)
LIMITS = CallLimits(cpu_seconds=10)

SWAPPED, OTHER_SIZE = "size_swapped", "size_differs"
SLACK_PX = 1.0  # how far a box may exceed an image of the right size


class Frame(NamedTuple):
    """Holds an image's stored size in pixels, its orientation, and the problem of the published
    size: it is swapped, or it is the size of another image.
    """

    width: int
    height: int
    orientation: int = UPRIGHT
    fault: str | None = None

    @property
    def upright_size(self) -> tuple[int, int]:
        """Returns the width and height of the upright image."""
        return turn_size(self.width, self.height, self.orientation)


def read_frame(folder: Folder, image: ListedImage) -> Frame | None:
    """Returns the published size of an image, with the orientation in its file if the file exists.

    Returns None if no size was published and no file is readable. If the published size is the
    upright image's, so are the boxes, and nothing is rotated. A swapped size without such a reason
    is a problem, and the file's own size is used. The same holds for any other size, such as that
    of a scaled image, whose boxes do not fit.
    """
    content = image.content if image.content is not None else folder.image(image.paths)
    published = (image.width, image.height) if image.width and image.height else None
    if isinstance(content, Drop):
        return Frame(*published) if published else None
    try:
        stored, orientation = _header_pool(os.getpid()).call(content)
    except Rejected:
        return Frame(*published) if published else None
    if published and orientation in LYING and published == stored[::-1] != stored:
        return Frame(*published)
    if published is None or published == stored:
        return Frame(*stored, orientation)
    if published == stored[::-1]:
        return Frame(*stored, orientation, SWAPPED)
    return Frame(*published, orientation, OTHER_SIZE)


@functools.cache
def _header_pool(process_id: int) -> BoundedPool[bytes, tuple[tuple[int, int], int]]:
    """Returns this process's pool for headers: a fork must start its own."""
    pool = BoundedPool[bytes, tuple[tuple[int, int], int]](1, _start_reading_headers, limits=LIMITS)
    atexit.register(pool.close)
    return pool


def _start_reading_headers() -> Callable[[bytes], tuple[tuple[int, int], int]]:
    return read_stored_size


def read_stored_size(content: bytes) -> tuple[tuple[int, int], int]:
    """Returns an image's stored width and height, and its orientation, without decoding its pixels
    (except for a PNG whose orientation follows them).

    A decoder may already allocate its canvas when it opens a file, so this runs in a process that
    can be killed. Raises Rejected.
    """
    with open_image(content, _BOUNDS) as image:
        size = image.size
        if image.format == "PNG" and b"eXIf" in content and "exif" not in image.info:
            return size, load(image, _BOUNDS)[0]  # the orientation follows the pixels
        return size, read_orientation(image)


def size_notes(frame: Frame | None, boxes: Iterable[Box | Drop]) -> tuple[str, ...]:
    """Returns notes on an image's size: its problem, or that boxes fit only if it is swapped."""
    if frame is None or frame.fault is not None:
        return () if frame is None or frame.fault is None else (frame.fault,)
    far = [(box[2], box[3]) for box in boxes if not isinstance(box, Drop)]
    right = max((x2 for x2, _ in far), default=0.0) - SLACK_PX
    bottom = max((y2 for _, y2 in far), default=0.0) - SLACK_PX
    outside = right > frame.width or bottom > frame.height
    fits_swapped = right <= frame.height and bottom <= frame.width
    return (SWAPPED,) if outside and fits_swapped else ()


def edges(values: Sequence[object]) -> Box | Drop:
    """Returns x1, y1, x2, y2 of a published x, y, width, height."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(values) != 4 or len(numbers) != 4 or not all(abs(v) < 1e7 for v in numbers):
        return Drop(
            Reason.BAD_ROW, f"a box of {list(values)!a}, expected x, y, width, height"[:200]
        )
    x, y, width, height = map(float, numbers)
    return x, y, x + width, y + height


def clip_box(box: Box, frame: Frame | None) -> tuple[Box, bool] | Drop:
    """Returns a stored image's box clipped to it, rotated upright, and whether it was clipped.

    Returns a Drop if the box is entirely outside the image.
    """
    x1, y1, x2, y2 = box
    if frame is not None:
        x1, x2 = (min(max(x, 0.0), float(frame.width)) for x in (x1, x2))
        y1, y2 = (min(max(y, 0.0), float(frame.height)) for y in (y1, y2))
    if x2 <= x1 or y2 <= y1:
        size = f" of {frame.width} x {frame.height}" if frame is not None else ""
        return Drop(Reason.EMPTY_BOX, f"{', '.join(f'{v:g}' for v in box)} in an image{size}")
    cut = (x1, y1, x2, y2) != box
    if frame is None or frame.orientation == UPRIGHT:
        return (x1, y1, x2, y2), cut
    boxes = np.array([[x1, y1, x2, y2]], dtype=np.float32)
    turned = turn_boxes(boxes, frame.orientation, *frame.upright_size)[0].tolist()
    return (turned[0], turned[1], turned[2], turned[3]), cut
