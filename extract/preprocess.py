"""Picture bytes to the network's input: bounded decoding and each detector family's resize.

H0 x W0 is the picture upright, H x W the network's input. Everything that can be wrong with a
picture ends in a ``Rejected`` with a reason of the closed list.
"""

import io
import struct
import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from PIL import ExifTags, Image, UnidentifiedImageError
from torch import Tensor
from torch.nn import functional

from vlmill.extract.config import InputLimits
from vlmill.models.detector_config import DetectorConfig
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
BYTES_PER_CELL = 12  # three float32
Pixels = npt.NDArray[np.uint8]


class Rejected(Exception):
    """A picture that is not looked at, with the reason."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail

    def __reduce__(self) -> tuple[type["Rejected"], tuple[Reason, str]]:
        """Worker processes send it."""
        return Rejected, (self.reason, self.detail)


@dataclass(frozen=True, kw_only=True)
class NetworkInput:
    """A picture as the detector takes it."""

    tensor: Float[Tensor, "1 3 H W"]
    scale: float  # the resize factor that was aimed at
    factors: tuple[float, float]  # network pixels per picture pixel, in x and in y: for boxes
    width: int  # of the picture upright, in its own pixels
    height: int

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the network's input."""
        return self.tensor.shape[2], self.tensor.shape[3]


@dataclass(frozen=True, kw_only=True)
class PixelInput:
    """A decoded picture that a GPU will resize: of 640 x 480 pixels a sixth of the bytes of a
    :class:`NetworkInput`.
    """

    pixels: Pixels  # blue-green-red [H0, W0, 3], or in the detector's order
    size: tuple[int, int]  # height and width of the network's input
    scale: float
    factors: tuple[float, float]
    width: int
    height: int


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


def resize_factor(height: int, width: int, short_side: int, long_side: int) -> float:
    """Brings the short side to ``short_side``, but the long one at most to ``long_side``."""
    factor = short_side / min(height, width)
    if round(factor * max(height, width)) > long_side:
        factor = long_side / max(height, width)
    return factor


def resize_bilinear(picture: Float[Tensor, "H0 W0 3"], factor: float) -> Float[Tensor, "H W 3"]:
    """OpenCV's INTER_LINEAR with one factor for both axes, reproduced to 3e-5 grey levels.

    Samples at (d + 0.5) / factor - 0.5, computed in double and clamped; no averaging when
    shrinking. The size is rounded half to even. torch's interpolate differs: it floors the size.
    """
    height, width = picture.shape[:2]
    across = sample_positions(width, round(width * factor), factor)
    down = sample_positions(height, round(height * factor), factor)
    return interpolated(picture, across, down)


Positions = tuple[Tensor, Tensor, Tensor]


def interpolated(
    picture: Float[Tensor, "H0 W0 3"], across: Positions, down: Positions
) -> Float[Tensor, "H W 3"]:
    """Between the positions of columns, then of rows.

    On a GPU the same numbers bit for bit: each step rounds by itself.
    """
    low, high, weight = across
    rows = picture[:, low] * (1 - weight)[:, None] + picture[:, high] * weight[:, None]
    low, high, weight = down
    return rows[low] * (1 - weight)[:, None, None] + rows[high] * weight[:, None, None]


def sample_positions(size: int, new_size: int, factor: float) -> Positions:
    """Lower and upper neighbour and the upper one's float32 weight, for each new position."""
    at = ((np.arange(new_size) + 0.5) / factor - 0.5).clip(0, size - 1)
    low = np.floor(at).astype(np.int64)
    high = np.minimum(low + 1, size - 1)
    weight = (at - low).astype(np.float32)
    return torch.from_numpy(low), torch.from_numpy(high), torch.from_numpy(weight)


def shortest_edge(height: int, width: int, short_side: int, long_side: int) -> tuple[int, int]:
    """Detectron2's height and width: each side is rounded half up by itself."""
    factor = short_side / min(height, width)
    sides = [
        float(short_side) if height < width else factor * height,
        factor * width if height < width else float(short_side),
    ]
    if max(sides) > long_side:
        factor = long_side / max(sides)
        sides = [side * factor for side in sides]
    return int(sides[0] + 0.5), int(sides[1] + 0.5)


def resize_pillow(pixels: Pixels, height: int, width: int) -> Pixels:
    """Pillow's bilinear resize of 8-bit pixels, which averages when it shrinks."""
    resized = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(resized)


def resize_torch(
    picture: Float[Tensor, "H0 W0 3"], height: int, width: int
) -> Float[Tensor, "H W 3"]:
    """torch's bilinear resize of floating-point pixels, without averaging."""
    batch = picture.permute(2, 0, 1).unsqueeze(0)
    resized = functional.interpolate(batch, (height, width), mode="bilinear", align_corners=False)
    return resized[0].permute(1, 2, 0)


def network_input(pixels: Pixels, spec: DetectorConfig, limits: InputLimits) -> NetworkInput:
    """Resizes and normalises blue-green-red pixels as the detector's own code does.

    Raises Rejected for a picture so thin that less than the network's smallest side is left of it.
    """
    planned = pixel_input(pixels, spec, limits)
    resized = normalised(planned.pixels, planned.scale, planned.size, spec)
    return NetworkInput(
        tensor=resized.permute(2, 0, 1).unsqueeze(0).contiguous(),
        scale=planned.scale,
        factors=planned.factors,
        width=planned.width,
        height=planned.height,
    )


def lighter_input(
    pixels: Pixels, spec: DetectorConfig, limits: InputLimits
) -> NetworkInput | PixelInput:
    """What is fewer bytes of the two: the pixels, but of large pictures the network's input."""
    planned = pixel_input(pixels, spec, limits)
    height, width = planned.size
    if pixels.nbytes <= BYTES_PER_CELL * height * width:
        return planned
    return network_input(pixels, spec, limits)


def pixel_input(pixels: Pixels, spec: DetectorConfig, limits: InputLimits) -> PixelInput:
    """Blue-green-red pixels in the detector's order, and to which size they go. Raises Rejected."""
    height, width = pixels.shape[:2]
    short = spec.short_side if limits.short_side is None else limits.short_side
    long = spec.long_side if limits.long_side is None else limits.long_side
    scale = resize_factor(height, width, short, long)
    if spec.resize == "opencv":
        size = round(height * scale), round(width * scale)
        factors = (scale, scale)
    else:
        size = shortest_edge(height, width, short, long)
        factors = (size[1] / width, size[0] / height)
    if min(size) < spec.min_input_side:
        raise Rejected(
            Reason.TOO_SMALL,
            f"{width} x {height}: at --long-side {long} under {spec.min_input_side} px are left",
        )
    if spec.channel_order == "rgb":
        pixels = np.ascontiguousarray(pixels[:, :, ::-1])
    return PixelInput(
        pixels=pixels, size=size, scale=scale, factors=factors, width=width, height=height
    )


def normalised(
    pixels: Pixels, scale: float, size: tuple[int, int], spec: DetectorConfig
) -> Float[Tensor, "H W 3"]:
    """Resized, minus the mean, in units of the deviation; in the family's order of these steps."""
    mean, std = torch.tensor(spec.pixel_mean), torch.tensor(spec.pixel_std)
    if spec.resize == "opencv":
        return resize_bilinear(torch.from_numpy(pixels).float() - mean, scale) / std
    if spec.resize == "pillow":
        return (torch.tensor(resize_pillow(pixels, *size)).float() - mean) / std
    return (resize_torch(torch.from_numpy(pixels).float(), *size) - mean) / std
