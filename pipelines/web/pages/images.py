"""Decodes images with bounds, measures them, and returns why others are dropped.

The header is checked first (format, size, pixels, animation), the full decode is last: it is the
only proof that an image is complete, and the most expensive step.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from PIL import Image

from vlmill.pipelines.judging import ImageJudge
from vlmill.runtime.bounded_calls import BoundedPool, CallLimits
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.ids import compute_image_id
from vlmill.schemas.images.decode import (
    Bounds,
    check_size,
    open_image,
    read_orientation,
    turn_upright,
    upright_size,
)
from vlmill.schemas.images.formats import format_name
from vlmill.schemas.images.hashes import perceptual_hash
from vlmill.schemas.images.headers import read_header
from vlmill.schemas.images.orientation import turn_size
from vlmill.schemas.images.structure import check_structure
from vlmill.schemas.rejects import Reason, Rejected

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "AVIF", "BMP", "TIFF")
"""What every consumer downstream decodes, too. Vector graphics and icons are no photographs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """Holds a readable image's facts: SHA-256 of the bytes, upright size in pixels, format.

    The format is in lower case. ``phash`` is the perceptual hash, if that was requested. The image
    filters that are on give the scores, 0 to 1.
    """

    image_id: str
    width: int
    height: int
    format: str
    phash: int | None = None
    nsfw_score: float | None = None
    realism_score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedImage:
    """Holds an accepted image, and its location: the record at ``offset`` of ``archive``.

    The scores have the same meaning as in ImageFacts, and stay None until the image is decoded.
    """

    image_id: str
    url: str
    width: int
    height: int
    format: str
    phash: int | None  # vlmill.schemas.images.hashes; None until it has been decoded
    archive: str
    offset: int
    nsfw_score: float | None = None
    realism_score: float | None = None


# Formats whose further frames are an animation. A TIFF's frames are pages, and a camera's JPEG
# (MPO) contains a preview or a gain map in addition to the image.
_ANIMATED = frozenset(("GIF", "WEBP", "PNG", "AVIF"))
_FLAT_HASHES = frozenset((0, 1 << 63))  # of images whose grey has only its mean frequency
_ONE_COLOUR = 3  # levels between the darkest and the brightest pixel of each channel

Outcomes = list["ImageFacts | Drop"]
BATCH, BATCH_BYTES = 32, 1 << 20  # images and bytes that are sent to a process together


class ImageBatch:
    """Holds images that are sent to a process together, and their outcomes when they are known."""

    def __init__(self) -> None:
        self.images: list[bytes] = []
        self.size = 0
        self._lock = threading.Lock()
        self._future: Future[Outcomes] | None = None
        self._outcomes: Outcomes | None = None

    def add(self, data: bytes) -> int:
        """Adds an image; returns its number in the batch."""
        self.images.append(data)
        self.size += len(data)
        return len(self.images) - 1

    def begin(self, pool: BoundedPool[list[bytes], Outcomes]) -> None:
        """Sends the images to a process."""
        self._future = pool.submit(self.images)

    def wait(self, pool: BoundedPool[list[bytes], Outcomes]) -> Outcomes:
        """Returns the outcomes; if the batch costs too much, each image is examined alone."""
        assert self._future is not None
        with self._lock:
            if self._outcomes is None:
                self._outcomes = settle(self.images, self._future, pool)
                self.images = []
        return self._outcomes


def settle(
    images: list[bytes], future: "Future[Outcomes]", pool: BoundedPool[list[bytes], Outcomes]
) -> Outcomes:
    """Waits for images; images of a rejected batch are sent one by one."""
    try:
        return future.result()
    except Rejected as why:
        if len(images) == 1:
            return [Drop(why.reason, why.detail)]
    return [settle([data], pool.submit([data]), pool)[0] for data in images]


class Examiner:
    """Examines images by :func:`examine_images` in processes that can be killed. Thread-safe.

    Images are sent in batches: sent one by one, small images take a quarter longer.
    """

    def __init__(self, pool: BoundedPool[list[bytes], Outcomes]) -> None:
        self._pool, self._lock, self._batch = pool, threading.Lock(), ImageBatch()

    def submit(self, data: bytes) -> Callable[[], ImageFacts | Drop]:
        """Submits an image; returns a function that waits for its facts, or for its Drop."""
        with self._lock:
            batch = self._batch
            number = batch.add(data)
            if len(batch.images) == BATCH or batch.size > BATCH_BYTES:
                self._send(batch)

        def wait() -> ImageFacts | Drop:
            with self._lock:
                self._send(batch)
            return batch.wait(self._pool)[number]

        return wait

    def examine(self, data: bytes) -> ImageFacts | Drop:
        """Returns an image's facts, or why it is dropped."""
        return self.submit(data)()

    @property
    def process_ids(self) -> list[int]:
        """Returns the ids of the running processes."""
        return self._pool.process_ids

    def _send(self, batch: ImageBatch) -> None:
        """Sends a batch that has not been sent."""
        if batch is self._batch:
            batch.begin(self._pool)
            self._batch = ImageBatch()


@contextmanager
def open_examiner(
    workers: int = 1, limits: CallLimits | None = None, **settings: Any
) -> Iterator[Examiner]:
    """Opens an examiner with the settings of :func:`examine_images`.

    Its processes start with the first image.
    """
    with BoundedPool[list[bytes], Outcomes](
        workers, start_examining, settings, limits=limits
    ) as pool:
        yield Examiner(pool)


def start_examining(settings: dict[str, Any]) -> Callable[[list[bytes]], Outcomes]:
    """Returns the function by which a process examines images."""
    return lambda images: examine_images(images, **settings)


def examine_images(
    images: Sequence[bytes], *, judge: ImageJudge | None = None, **settings: Any
) -> Outcomes:
    """Returns the result of :func:`examine_image` for each image. Never raises.

    ``judge`` sees each image that is accepted, as it is decoded, and then judges all of them.
    """
    outcomes: Outcomes = []
    inputs: dict[int, Any] = {}
    for number, data in enumerate(images):
        on_decoded = None if judge is None else partial(_prepare, judge, inputs, number)
        outcomes.append(examine_image(data, on_decoded=on_decoded, **settings))
    if judge is not None and inputs:
        for number, verdict in zip(inputs, judge.judge(list(inputs.values())), strict=True):
            facts = outcomes[number]
            if isinstance(verdict, Drop) or isinstance(facts, Drop):
                outcomes[number] = verdict if isinstance(verdict, Drop) else facts
            else:
                outcomes[number] = replace(
                    facts, nsfw_score=verdict.nsfw_score, realism_score=verdict.realism_score
                )
    return outcomes


def _prepare(judge: ImageJudge, inputs: dict[int, Any], number: int, image: Image.Image) -> None:
    inputs[number] = judge.prepare(image)


def examine_image(
    data: bytes,
    *,
    min_side_px: int,
    max_pixels: int,
    hashed: bool = False,
    headers: bool = False,
    blank: bool = True,
    formats: tuple[str, ...] = FORMATS,
    on_decoded: Callable[[Image.Image], None] | None = None,
) -> ImageFacts | Drop:
    """Returns facts about the image in ``data``, or why it is dropped. Never raises.

    Both sides must be above ``min_side_px`` (ImageBERT, arXiv:2001.07966, section 3: larger than
    300 pixels). The image is decoded once. An animation is dropped: the text may describe any of
    its frames. ``hashed`` requests the perceptual hash. ``headers`` decodes only images that seem
    to be cut. An image of one colour is dropped unless ``blank`` is true. ``formats`` are the
    accepted formats. ``on_decoded`` receives the decoded image, as it is stored, if it is accepted.
    """
    bounds = Bounds(max_pixels=max_pixels, max_bytes=None, formats=formats)
    try:
        with open_image(data, bounds) as image:
            drop = header_drop(image, bounds, min_side_px)
            if drop is not None:
                return drop
            name = "jpeg" if image.format == "MPO" else str(image.format).lower()
            if headers and not seems_cut(data, name):
                width, height = turn_size(*image.size, read_orientation(image))
                return ImageFacts(
                    image_id=compute_image_id(data), width=width, height=height, format=name
                )
            width, height = upright_size(image, bounds)
            phash = upright_hash(image) if hashed else None
            # All pixels are compared only if the hash shows no contrast.
            if not blank and phash in _FLAT_HASHES | {None} and _is_blank(image):
                return Drop(Reason.BLANK_IMAGE, f"{width}x{height}")
            if on_decoded is not None:
                on_decoded(image)
    except Rejected as why:
        if why.reason in (Reason.EMPTY, Reason.UNSUPPORTED_FORMAT) and format_name(data) is None:
            return Drop(Reason.UNREADABLE_IMAGE)  # usually not an image file
        return Drop(why.reason, why.detail)
    return ImageFacts(
        image_id=compute_image_id(data), width=width, height=height, format=name, phash=phash
    )


def measure_header(data: bytes, *, min_side_px: int, max_pixels: int) -> ImageFacts | Drop | None:
    """Returns the result of :func:`examine_image` with ``headers`` for common files, else None.

    No decoder is used, so this needs no separate process. The size is that of the stored image.
    """
    header = read_header(data)
    if header is None:
        return None
    size = f"{header.width}x{header.height}"
    if min(header.width, header.height) <= min_side_px:
        return Drop(Reason.TOO_SMALL, size)
    if header.width * header.height > max_pixels:
        return Drop(Reason.TOO_LARGE, f"{size} pixels, limit {max_pixels} altogether")
    if header.is_animated:
        return Drop(Reason.ANIMATED, size)
    # A damaged file is recognised by decoding it, and an animated GIF when it is decoded later.
    if seems_cut(data, header.format):
        return None
    try:
        check_structure(data, header.format.upper())
    except Rejected as why:
        return Drop(why.reason, why.detail)
    return ImageFacts(
        image_id=compute_image_id(data),
        width=header.width,
        height=header.height,
        format=header.format,
    )


_TAIL = 256  # bytes that hold the end of a complete file; a file with a longer tail is decoded


def seems_cut(data: bytes, name: str) -> bool:
    """Returns whether an image's end is missing, as far as its bytes show without decoding."""
    match name:
        case "jpeg":
            return b"\xff\xd9" not in data[-_TAIL:]
        case "png":
            return b"IEND" not in data[-_TAIL:]
        case "gif":
            return data[-1:] != b";"
        case "webp":
            return int.from_bytes(data[4:8], "little") + 8 > len(data)
        case "avif":
            return _last_box_end(data) > len(data)
        case _:
            return True  # rare formats are decoded immediately


def _last_box_end(data: bytes) -> int:
    """Returns where the boxes of ISO's base media format end, according to their sizes."""
    offset = 0
    while offset + 8 <= len(data):
        size = int.from_bytes(data[offset : offset + 4], "big")
        if size == 1:
            size = int.from_bytes(data[offset + 8 : offset + 16], "big")
        if size == 0:  # to the end of the file
            return len(data)
        offset += max(size, 8)
    return offset


def _is_blank(image: Image.Image) -> bool:
    """Returns whether all pixels of a decoded image have one colour."""
    extrema: Any = image.getextrema()
    ranges = [extrema] if isinstance(extrema[0], int | float) else extrema
    return all(high - low <= _ONE_COLOUR for low, high in ranges)


def upright_hash(image: Image.Image) -> int:
    """Returns the perceptual hash of a decoded image in upright orientation."""
    return perceptual_hash(turn_upright(image, read_orientation(image)))


def header_drop(image: Image.Image, bounds: Bounds, min_side_px: int) -> Drop | None:
    """Returns why the header rules the image out, or None. Raises Rejected for too many pixels."""
    size = f"{image.width}x{image.height}"
    if min(image.size) <= min_side_px:
        return Drop(Reason.TOO_SMALL, size)
    check_size(image, bounds)
    if image.format in _ANIMATED and getattr(image, "is_animated", False):
        return Drop(Reason.ANIMATED, size)
    return None
