"""Images: decode with bounds, measure, and say why not.

The header decides first (format, size, pixels, animation), the full decode comes last: it is the
only proof that an image is whole, and the most expensive step.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from PIL import Image

from vlmill.pipelines.counting.funnel import Drop
from vlmill.runtime.bounded_calls import BoundedPool
from vlmill.schemas.ids import compute_image_id
from vlmill.schemas.images.decode import Bounds, check_size, open_image, upright_size
from vlmill.schemas.images.formats import format_name
from vlmill.schemas.images.hashes import perceptual_hash
from vlmill.schemas.images.orientation import read_orientation, turn_upright
from vlmill.schemas.rejects import Reason, Rejected

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "AVIF")
"""What every consumer downstream decodes, too. Vector graphics and icons are no photographs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """A readable image: SHA-256 of its bytes, upright size in pixels, format in lower case.

    ``phash`` is its perceptual hash, where that was asked for.
    """

    image_id: str
    width: int
    height: int
    format: str
    phash: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedImage:
    """An image that passed, and where its bytes lie: the record at ``offset`` of ``archive``."""

    image_id: str
    url: str
    width: int
    height: int
    format: str
    phash: int  # vlmill.schemas.images.hashes
    archive: str
    offset: int


Examine = Callable[[bytes], ImageFacts | Drop]


@contextmanager
def open_examiner(workers: int = 1, **settings: Any) -> Iterator[Examine]:
    """Gives :func:`examine_image` with these settings, computed in processes that can be killed.

    It is thread-safe. Processes start with the first image.
    """
    with BoundedPool[bytes, ImageFacts | Drop](workers, start_examining, settings) as pool:

        def examine(data: bytes) -> ImageFacts | Drop:
            try:
                return pool.call(data)
            except Rejected as why:
                return Drop(why.reason, why.detail)

        yield examine


def start_examining(settings: dict[str, Any]) -> Examine:
    """Returns what a process examines images with."""
    return partial(examine_image, **settings)


def examine_image(
    data: bytes,
    *,
    min_side_px: int,
    max_pixels: int,
    hashed: bool = False,
    formats: tuple[str, ...] = FORMATS,
    judge: Callable[[Image.Image], Drop | None] | None = None,
) -> ImageFacts | Drop:
    """Facts about the image in ``data``, or why it is dropped. Never raises. Decodes it once.

    Both sides must be above ``min_side_px`` (ImageBERT, arXiv:2001.07966, section 3: larger than
    300 pixels). An animation is dropped: which of its frames the text means is unknown. ``hashed``
    asks for the perceptual hash. ``formats`` are those that are accepted. ``judge`` looks at the
    decoded image, as it is stored, and says why it is dropped, or None.
    """
    bounds = Bounds(max_pixels=max_pixels, max_bytes=None, formats=formats)
    try:
        with open_image(data, bounds) as image:
            drop = header_drop(image, bounds, min_side_px)
            if drop is not None:
                return drop
            name = str(image.format).lower()
            width, height = upright_size(image, bounds)
            phash = upright_hash(image) if hashed else None
            if judge is not None and (drop := judge(image)) is not None:
                return drop
    except Rejected as why:
        if why.reason in (Reason.EMPTY, Reason.UNSUPPORTED_FORMAT) and format_name(data) is None:
            return Drop(Reason.UNREADABLE_IMAGE)  # mostly not an image at all
        return Drop(why.reason, why.detail)
    return ImageFacts(
        image_id=compute_image_id(data), width=width, height=height, format=name, phash=phash
    )


def upright_hash(image: Image.Image) -> int:
    """Returns the perceptual hash of a decoded image as it is shown."""
    return perceptual_hash(turn_upright(image, read_orientation(image)))


def header_drop(image: Image.Image, bounds: Bounds, min_side_px: int) -> Drop | None:
    """Says what the header alone rules out. Raises Rejected for too many pixels."""
    size = f"{image.width}x{image.height}"
    if image.format not in bounds.formats:
        return Drop(Reason.UNSUPPORTED_FORMAT, image.format)
    if min(image.size) <= min_side_px:
        return Drop(Reason.TOO_SMALL, size)
    check_size(image, bounds)
    if getattr(image, "is_animated", False):
        return Drop(Reason.ANIMATED, size)
    return None
