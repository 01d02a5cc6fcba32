"""Decodes bytes to upright pixels, within limits: for mining, extraction, training, evaluation.

Every problem of an image raises ``Rejected`` with a reason of the closed list.
"""

import ctypes
import functools
import io
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, UnidentifiedImageError, features
from PIL.TiffImagePlugin import TiffImageFile

from vlmill.schemas.images.formats import format_name, other_name
from vlmill.schemas.images.orientation import UPRIGHT, turn_size
from vlmill.schemas.images.structure import canvas_pixels, check_structure, without_texts
from vlmill.schemas.rejects import Reason, Rejected

# Formats that pillow decodes itself; others (EPS, for one) would start external programs. HEIF
# needs the extra `heif`, AVIF a pillow that was built with it.
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "AVIF", "BMP", "TIFF", "HEIF")
_HEIF = ("HEIC", "HEIF")
_NEW_SUBFILE_TYPE, _DNG_VERSION = 254, 50706  # tags of a TIFF
# By EXIF orientation.
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
EXIF_PREFIX = b"Exif\0\0"
BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
SHORT, LONG = 3, 4  # the types of numbers that an orientation is written in


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Holds the limits of an image, which are checked before decoding.

    ``max_bytes`` None: the caller has already limited the bytes.
    """

    max_pixels: int
    max_bytes: int | None
    formats: tuple[str, ...] = FORMATS


class UprightImage(NamedTuple):
    """Holds a decoded image, RGB and upright, and the ``orientation`` that it was stored in."""

    image: Image.Image
    orientation: int


def decode(data: bytes, bounds: Bounds) -> UprightImage:
    """Decodes the first frame, upright.

    Grey, palette and CMYK images are converted, 16 bits are truncated to the upper 8, alpha is
    dropped, like OpenCV's reader for the original detectors. Raises Rejected.
    """
    with open_image(data, bounds) as image:
        return upright(image, bounds)


@contextmanager
def open_image(data: bytes, bounds: Bounds) -> Iterator[Image.Image]:
    """Opens an image: its header has been read, not its pixels. Raises Rejected.

    Its first bytes select the decoder, and its parts are counted before decoding. Pillow's errors
    inside the block are also raised as Rejected.
    """
    if not data:
        raise Rejected(Reason.EMPTY, "no bytes")
    if bounds.max_bytes is not None and len(data) > bounds.max_bytes:
        raise Rejected(Reason.TOO_LARGE, f"{len(data)} bytes, limit {bounds.max_bytes}")
    Image.init()  # pillow would otherwise know only the formats of earlier images
    silence_libtiff()
    name = format_name(data)
    if name in _HEIF:
        register_heif()
    decoder = "HEIF" if name in _HEIF else name
    if decoder is None or decoder not in bounds.formats or decoder not in Image.OPEN:
        raise describe_unidentified(data, name, bounds)
    check_structure(data, name)
    if (pixels := canvas_pixels(data, name)) > bounds.max_pixels:
        raise Rejected(Reason.TOO_LARGE, f"{pixels} pixels, limit {bounds.max_pixels} altogether")
    try:
        stream = io.BytesIO(without_texts(data) if name == "PNG" else data)
        with QUIET, Image.open(stream, formats=[decoder]) as image:
            check_photograph(image)
            yield image
    except Rejected:
        raise
    except Image.DecompressionBombError as error:
        raise Rejected(Reason.TOO_LARGE, str(error)) from None
    except UnidentifiedImageError:
        raise describe_unidentified(data, name, bounds) from None
    except MemoryError:
        raise Rejected(Reason.TOO_EXPENSIVE, "needs more memory than there is") from None
    except Exception as error:
        # Decoders raise OSError, SyntaxError, ValueError, struct.error, EOFError, ... on damaged
        # input, and no list of them is complete.
        raise Rejected(Reason.UNREADABLE_IMAGE, f"{type(error).__name__}: {error}") from None


@functools.cache
def silence_libtiff() -> None:
    """Stops libtiff from writing to the standard error stream: Pillow reports its errors.

    Its messages about damaged files would appear between the lines of a job. Other libraries that
    Pillow uses write nothing. Without ``/proc`` (not Linux) the messages stay.
    """
    with suppress(OSError, AttributeError):
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
            names = {line.split(maxsplit=5)[-1].strip() for line in lines if "libtiff" in line}
        for name in names:
            library = ctypes.CDLL(name)
            library.TIFFSetErrorHandler(None)
            library.TIFFSetWarningHandler(None)


@functools.cache
def register_heif() -> None:
    """Registers HEIC and HEIF with Pillow, if the extra `heif` is installed."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return  # such a file is then rejected with the name of the extra
    register_heif_opener()


def check_photograph(image: Image.Image) -> None:
    """Raises Rejected for a raw file of a camera: a TIFF decoder would read only its thumbnail."""
    if image.format != "TIFF":
        return
    tags: dict[int, object] = image.tag_v2  # type: ignore[attr-defined] # of TiffImageFile
    subfile = tags.get(_NEW_SUBFILE_TYPE, 0)
    if _DNG_VERSION in tags:
        raise Rejected(Reason.UNSUPPORTED_FORMAT, "camera raw (DNG)")
    if isinstance(subfile, int) and subfile & 1:
        detail = "camera raw, or another TIFF of a thumbnail"
        raise Rejected(Reason.UNSUPPORTED_FORMAT, detail)


def describe_unidentified(data: bytes, name: str | None, bounds: Bounds) -> Rejected:
    """Returns why no decoder accepts a file that begins like the format ``name``, or None."""
    known = ", ".join(bounds.formats)
    if name in _HEIF and "HEIF" not in Image.OPEN:
        remedy = "run pip install -e '.[heif]' in the checkout to read it"
        return Rejected(Reason.UNSUPPORTED_FORMAT, f"{name}: {remedy}")
    if name == "AVIF" and not features.check("avif"):
        return Rejected(Reason.UNSUPPORTED_FORMAT, "AVIF: this pillow was built without it")
    decoder = "HEIF" if name in _HEIF else name
    if decoder in bounds.formats:
        return Rejected(Reason.UNREADABLE_IMAGE, f"begins like {name}; its header is damaged")
    if description := name or other_name(data):
        return Rejected(Reason.UNSUPPORTED_FORMAT, f"{description}: none of {known}")
    return Rejected(Reason.UNSUPPORTED_FORMAT, f"none of {known}")


def upright(image: Image.Image, bounds: Bounds) -> UprightImage:
    """Decodes an opened image, upright. Raises Rejected."""
    stored, left = load(image, bounds)
    return UprightImage(image=turn_upright(to_rgb(image), left), orientation=stored)


def check_size(image: Image.Image, bounds: Bounds) -> None:
    """Checks the limits in the header, before decoding needs memory. Raises Rejected."""
    if image.width * image.height > bounds.max_pixels:
        raise Rejected(
            Reason.TOO_LARGE,
            f"{image.width} x {image.height} pixels, limit {bounds.max_pixels} altogether",
        )


def load(image: Image.Image, bounds: Bounds) -> tuple[int, int]:
    """Decodes an opened image; returns its stored orientation and the part that remains to apply.

    They differ if pillow has rotated the image itself: for a TIFF nothing remains. Raises Rejected.
    """
    check_size(image, bounds)
    before = read_orientation(image)
    image.load()
    if image.format == "TIFF":
        return before, read_orientation(image)
    stored = read_orientation(image)  # a PNG may store it after the pixels
    return stored, stored


def upright_size(image: Image.Image, bounds: Bounds) -> tuple[int, int]:
    """Returns an opened image's upright width and height; decodes it, to check that it is complete.

    Raises Rejected.
    """
    _, left = load(image, bounds)
    return turn_size(image.width, image.height, left)


def turn_upright(image: Image.Image, orientation: int) -> Image.Image:
    """Returns a stored image upright; the same object if it already is."""
    turn = TURNS.get(orientation)
    return image if turn is None else image.transpose(turn)


def read_orientation(image: Image.Image) -> int:
    """Returns the orientation of an opened image; 1 if it has no readable one.

    A PNG may store it after the pixels, where it is known only after decoding. A TIFF loses its
    orientation when it is decoded, because pillow rotates it then.
    """
    if isinstance(image, TiffImageFile):
        return known_orientation(image.tag_v2.get(ExifTags.Base.Orientation))
    block = image.info.get("exif")
    if block is None and (text := image.info.get("Raw profile type exif")):
        block = profile_block(text)
    return orientation_in(block) if isinstance(block, bytes) else UPRIGHT


def profile_block(text: object) -> bytes:
    """Parses the text block that ImageMagick writes to PNGs: three header lines, then hex."""
    try:
        return bytes.fromhex("".join(str(text).split("\n")[3:]))
    except ValueError:
        return b""  # a broken block does not affect the pixels, which are fine


def orientation_in(block: bytes) -> int:
    """Returns the orientation in an EXIF block, 1 if there is none or the block is broken.

    Only the numbers of the first directory are read. Pillow's own reader copies the target of each
    entry: a PNG of 1 MB can make it copy 65,535 times as much.
    """
    start = 0
    while block.startswith(EXIF_PREFIX, start):  # some writers have it twice
        start += len(EXIF_PREFIX)
    order = BYTE_ORDERS.get(block[start : start + 4])
    if order is None:
        return UPRIGHT
    try:
        (offset,) = struct.unpack_from(order + "L", block, start + 4)
        (count,) = struct.unpack_from(order + "H", block, start + offset)
        for entry in range(start + offset + 2, start + offset + 2 + 12 * count, 12):
            tag, kind, values = struct.unpack_from(order + "HHL", block, entry)
            if tag == ExifTags.Base.Orientation and values == 1 and kind in (SHORT, LONG):
                number = order + ("H" if kind == SHORT else "L")
                return known_orientation(struct.unpack_from(number, block, entry + 8)[0])
    except struct.error:
        return UPRIGHT  # a broken block does not affect the pixels, which are fine
    return UPRIGHT


def known_orientation(value: object) -> int:
    """Returns the value if it is an orientation, else 1."""
    return value if isinstance(value, int) and value in TURNS else UPRIGHT


def to_rgb(image: Image.Image) -> Image.Image:
    """Converts any mode to RGB; an RGB image is decoded and returned itself.

    Raises Rejected for floating-point pixels: of unknown range.
    """
    if image.mode == "RGB":
        image.load()
        return image
    if image.mode.startswith("I"):  # 16-bit grey, held in 16 or 32 bits
        return Image.fromarray(upper_bits(np.asarray(image))).convert("RGB")
    if image.mode == "F":
        raise Rejected(Reason.UNSUPPORTED_FORMAT, "pixels are floating-point numbers")
    return image.convert("RGBA").convert("RGB") if image.mode == "P" else image.convert("RGB")


def upper_bits(grey: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Returns the upper 8 of 16 bits, uint8 [H, W]; row by row, since full copies are gigabytes."""
    upper = np.empty(grey.shape, dtype=np.uint8)
    for row, values in zip(upper, grey, strict=True):
        row[:] = values.astype(np.int64).clip(0, 65535) >> 8
    return upper


class SilencedWarnings:
    """Silences pillow's warnings about unusual files while any thread is inside.

    With several threads ``warnings.catch_warnings`` would leave its filters active: the first
    thread to enter must be the last to leave.
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


QUIET = SilencedWarnings()
