"""Bytes become upright pixels here, within bounds: for mining, extraction, training, evaluation.

Everything that can be wrong with a picture ends in a ``Rejected`` with a reason of the closed list.
"""

import io
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from vlmill.schemas.pictures.orientation import orientation_of, turned, turned_size
from vlmill.schemas.rejects import Reason, Rejected

# Formats that pillow decodes by itself; others (EPS, for one) would start foreign programs.
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "AVIF", "BMP", "TIFF")


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a picture may cost; all of it is looked at before anything is decoded.

    ``max_bytes`` null: whoever read the bytes has bounded them. ``formats`` null: any header that
    pillow knows is read, so that the format can be named; what is decoded is then up to the caller.
    """

    max_pixels: int
    max_bytes: int | None
    formats: tuple[str, ...] | None = FORMATS


class UprightPicture(NamedTuple):
    """A decoded picture, RGB and upright, and the ``orientation`` in which it was stored."""

    image: Image.Image
    orientation: int


def decode(data: bytes, bounds: Bounds) -> UprightPicture:
    """Decodes the first frame, upright.

    Grey, palette and CMYK pictures are converted, 16 bits are cut to the upper 8, alpha is dropped:
    what OpenCV's reader gives the original detectors. Raises Rejected.
    """
    with opened(data, bounds) as image:
        return upright(image, bounds)


@contextmanager
def opened(data: bytes, bounds: Bounds) -> Iterator[Image.Image]:
    """Opens a picture: its header has been read, not its pixels. Raises Rejected.

    What pillow raises while it is used is raised as Rejected, too.
    """
    if not data:
        raise Rejected(Reason.EMPTY, "no bytes")
    if bounds.max_bytes is not None and len(data) > bounds.max_bytes:
        raise Rejected(Reason.TOO_LARGE, f"{len(data)} bytes, limit {bounds.max_bytes}")
    Image.init()  # pillow would otherwise know only the formats that it has met
    try:
        with QUIET, Image.open(io.BytesIO(data), formats=bounds.formats) as image:
            yield image
    except Rejected:
        raise
    except Image.DecompressionBombError as error:
        raise Rejected(Reason.TOO_LARGE, str(error)) from None
    except UnidentifiedImageError:
        names = ", ".join(bounds.formats or ("the formats that pillow knows",))
        raise Rejected(Reason.UNSUPPORTED_FORMAT, f"none of {names}") from None
    except Exception as error:
        # Decoders raise OSError, SyntaxError, ValueError, struct.error, EOFError, ... on damaged
        # input, and no list of them is complete.
        raise Rejected(Reason.UNREADABLE_IMAGE, f"{type(error).__name__}: {error}") from None


def upright(image: Image.Image, bounds: Bounds) -> UprightPicture:
    """Decodes an opened picture, upright. Raises Rejected."""
    stored, left = load(image, bounds)
    return UprightPicture(image=turned(to_rgb(image), left), orientation=stored)


def check_size(image: Image.Image, bounds: Bounds) -> None:
    """Refuses by the header alone: decoding is what would cost the memory. Raises Rejected."""
    if image.width * image.height > bounds.max_pixels:
        raise Rejected(
            Reason.TOO_LARGE,
            f"{image.width} x {image.height} pixels, limit {bounds.max_pixels} altogether",
        )


def load(image: Image.Image, bounds: Bounds) -> tuple[int, int]:
    """Decodes an opened picture; gives the orientation that it is stored in and what is left of it.

    They differ where pillow has turned the picture itself: of a TIFF nothing is left. Raises
    Rejected.
    """
    check_size(image, bounds)
    before = orientation_of(image)
    image.load()
    if image.format == "TIFF":
        return before, orientation_of(image)
    stored = orientation_of(image)  # a PNG may say it behind the pixels
    return stored, stored


def upright_size(image: Image.Image, bounds: Bounds) -> tuple[int, int]:
    """Returns an opened picture's upright width and height; decodes it, so that it is whole.

    Raises Rejected.
    """
    _, left = load(image, bounds)
    return turned_size(image.width, image.height, left)


def to_rgb(image: Image.Image) -> Image.Image:
    """Converts any mode to RGB. Raises Rejected for floating-point pixels: of unknown range."""
    if image.mode.startswith("I"):  # 16-bit grey, held in 16 or 32 bits
        grey = np.asarray(image).astype(np.int64).clip(0, 65535) >> 8
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise Rejected(Reason.UNSUPPORTED_FORMAT, "pixels are floating-point numbers")
    return image.convert("RGBA").convert("RGB") if image.mode == "P" else image.convert("RGB")


class Quiet:
    """Pillow's warnings about oddities of files are silent while any thread is inside.

    Among threads ``warnings.catch_warnings`` alone would leave its filters behind: the first that
    enters has to be the last that leaves.
    """

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._caught = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._caught = warnings.catch_warnings()
                self._caught.__enter__()
                warnings.filterwarnings("ignore", module=r"PIL\.")
            self._inside += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._caught.__exit__(None, None, None)


QUIET = Quiet()
