"""Picture bytes become upright pixels here, within bounds.

H0 x W0 is the picture upright. Everything that can be wrong with a picture ends in a ``Rejected``
with a reason of the closed list.
"""

import io
import struct
import warnings

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, UnidentifiedImageError

from vlmill.extract.config import InputLimits
from vlmill.schemas.rejects import Reason

# Formats that pillow decodes by itself; others (EPS, for one) would start foreign programs.
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF")
# What broken files make pillow raise while it opens or decodes them.
DECODE_ERRORS = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    LookupError,
    TypeError,
    struct.error,
    OverflowError,
    MemoryError,
    NotImplementedError,
)
TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


Pixels = npt.NDArray[np.uint8]


class Rejected(Exception):
    """A picture that is not looked at, with the reason."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail

    def __reduce__(self) -> tuple[type["Rejected"], tuple[Reason, str]]:
        """Worker processes send it."""
        return Rejected, (self.reason, self.detail)


def decode(data: bytes, limits: InputLimits) -> Pixels:
    """The first frame as upright blue-green-red uint8 [H0, W0, 3].

    Grey, palette and CMYK pictures are converted, 16 bits are cut to the upper 8, alpha is dropped:
    what OpenCV's reader gives the original detector. Raises Rejected.
    """
    if not data:
        raise Rejected(Reason.EMPTY, "no bytes")
    if len(data) > limits.max_bytes:
        raise Rejected(Reason.TOO_LARGE, f"{len(data)} bytes, limit {limits.max_bytes}")
    Image.init()  # pillow would otherwise know only the formats that it has met
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # oddities of the file; the pixel limit is checked here
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                check_size(image, limits)
                return upright_pixels(image)
    except Image.DecompressionBombError as error:
        raise Rejected(Reason.TOO_LARGE, str(error)) from None
    except UnidentifiedImageError:
        raise Rejected(Reason.UNSUPPORTED_FORMAT, f"none of {', '.join(FORMATS)}") from None
    except DECODE_ERRORS as error:
        raise Rejected(Reason.UNREADABLE_IMAGE, f"{type(error).__name__}: {error}") from None


def check_size(image: Image.Image, limits: InputLimits) -> None:
    """Refuse by the header alone: decoding is what would cost the memory."""
    if image.width * image.height > limits.max_pixels:
        raise Rejected(
            Reason.TOO_LARGE,
            f"{image.width} x {image.height} pixels, limit {limits.max_pixels} altogether",
        )


def upright_pixels(image: Image.Image) -> Pixels:
    """An opened picture's pixels as blue-green-red, turned as its EXIF orientation says."""
    image.load()
    turn = TRANSPOSE.get(orientation(image))
    rgb = to_rgb(image)
    if turn is not None:
        rgb = rgb.transpose(turn)
    return np.ascontiguousarray(np.asarray(rgb)[:, :, ::-1])


def orientation(image: Image.Image) -> int:
    """EXIF orientation, 1..8; 1 where there is none or the EXIF block is broken."""
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except DECODE_ERRORS:
        return 1  # a broken EXIF block says nothing about the pixels, which are fine
    return value if isinstance(value, int) else 1


def to_rgb(image: Image.Image) -> Image.Image:
    """Any mode as RGB."""
    if image.mode.startswith("I"):  # 16-bit grey, held in 16 or 32 bits
        grey = np.asarray(image).astype(np.int64).clip(0, 65535) >> 8
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise Rejected(Reason.UNSUPPORTED_FORMAT, "pixels are floating-point numbers")
    return image.convert("RGBA").convert("RGB") if image.mode == "P" else image.convert("RGB")
