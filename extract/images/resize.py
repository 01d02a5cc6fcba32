"""Resizes upright pixels to the network's input by the rules of each detector family.

H0 x W0 is the image upright, H x W the network's input.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Num
from PIL import Image
from torch import Tensor
from torch.nn import functional

from vlmill.extract.config import InputLimits
from vlmill.extract.images.decode import Pixels
from vlmill.models.detector.config import DetectorConfig
from vlmill.schemas.rejects import Reason, Rejected

BYTES_PER_CELL = 12  # three float32


@dataclass(frozen=True, kw_only=True)
class NetworkInput:
    """Holds an image in the detector's input format."""

    tensor: Float[Tensor, "1 3 H W"]
    scale: float  # the intended resize factor
    factors: tuple[float, float]  # network pixels per image pixel, in x and in y: for boxes
    width: int  # of the upright image, in its own pixels
    height: int

    @property
    def size(self) -> tuple[int, int]:
        """Returns the height and width of the network's input."""
        return self.tensor.shape[2], self.tensor.shape[3]


@dataclass(frozen=True, kw_only=True)
class PixelInput:
    """Holds a decoded image that a GPU will resize: for 640 x 480 pixels a sixth of the bytes of a
    :class:`NetworkInput`.
    """

    pixels: Pixels  # blue-green-red [H0, W0, 3], or in the detector's order
    size: tuple[int, int]  # height and width of the network's input
    scale: float
    factors: tuple[float, float]
    width: int
    height: int


def resize_factor(height: int, width: int, short_side: int, long_side: int) -> float:
    """Scales the short side to ``short_side``, but the long side at most to ``long_side``."""
    factor = short_side / min(height, width)
    if round(factor * max(height, width)) > long_side:
        factor = long_side / max(height, width)
    return factor


def resize_bilinear(
    image: Num[Tensor, "H0 W0 3"], factor: float, mean: Float[Tensor, "3"] | None = None
) -> Float[Tensor, "H W 3"]:
    """Resizes like OpenCV's INTER_LINEAR, with one factor for both axes, reproduced to 3e-5 grey
    levels, after subtracting ``mean``.

    Samples at (d + 0.5) / factor - 0.5, computed in double and clamped; no averaging when
    shrinking. The size is rounded half to even. torch's interpolate differs: it floors the size.
    Only the rows used for interpolation become float32: all rows of 50 megapixels, and their
    differences from the mean, would be 1.2 GB.
    """
    height, width = image.shape[:2]
    across = sample_positions(width, round(width * factor), factor)
    low, high, weight = sample_positions(height, round(height * factor), factor)
    rows, places = torch.unique(torch.stack((low, high)), return_inverse=True)
    values = image.index_select(0, rows).float()
    values = values if mean is None else values - mean
    return interpolate(values, across, (places[0], places[1], weight))


Positions = tuple[Tensor, Tensor, Tensor]


def interpolate(
    images: Float[Tensor, "*N H0 W0 3"], across: Positions, down: Positions
) -> Float[Tensor, "*N H W 3"]:
    """Interpolates between the positions of columns, then of rows, of one image or of N.

    The result on a GPU is the same bit for bit: each step rounds separately.
    """
    low, high, weight = across
    low_values, high_values = images.index_select(-2, low), images.index_select(-2, high)
    rows = low_values * (1 - weight)[:, None] + high_values * weight[:, None]
    low, high, weight = down
    low_values, high_values = rows.index_select(-3, low), rows.index_select(-3, high)
    return low_values * (1 - weight)[:, None, None] + high_values * weight[:, None, None]


def sample_positions(size: int, new_size: int, factor: float) -> Positions:
    """Returns the lower and upper neighbour and the upper one's float32 weight, for each new
    position.
    """
    positions = ((np.arange(new_size) + 0.5) / factor - 0.5).clip(0, size - 1)
    low = np.floor(positions).astype(np.int64)
    high = np.minimum(low + 1, size - 1)
    weight = (positions - low).astype(np.float32)
    return torch.from_numpy(low), torch.from_numpy(high), torch.from_numpy(weight)


def shortest_edge(height: int, width: int, short_side: int, long_side: int) -> tuple[int, int]:
    """Returns Detectron2's height and width: each side is rounded half up separately."""
    factor = short_side / min(height, width)
    sides = [
        float(short_side) if height < width else factor * height,
        factor * width if height < width else float(short_side),
    ]
    if max(sides) > long_side:
        factor = long_side / max(sides)
        sides = [side * factor for side in sides]
    return int(sides[0] + 0.5), int(sides[1] + 0.5)


def truncated_edge(height: int, width: int, short_side: int, long_side: int) -> tuple[int, int]:
    """Returns maskrcnn-benchmark's height and width: the long side is truncated to an integer."""
    low, high = sorted((height, width))
    if high / low * short_side > long_side:
        short_side = round(long_side * low / high)
    if low == short_side:
        return height, width
    if width < height:
        return int(short_side * height / width), short_side
    return short_side, int(short_side * width / height)


def resize_pillow(pixels: Pixels, height: int, width: int) -> Pixels:
    """Resizes 8-bit pixels by pillow's bilinear rule, which averages when it shrinks."""
    resized = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(resized)


def resize_torch(
    image: Float[Tensor, "H0 W0 3"], height: int, width: int
) -> Float[Tensor, "H W 3"]:
    """Resizes floating-point pixels by torch's bilinear rule, without averaging.

    torch needs all pixels as float32: 0.6 GB for 50 megapixels, the default of ``--max-pixels``. A
    part of the rows, or one channel, would give other numbers (by 4e-3 grey levels).
    """
    batch = image.permute(2, 0, 1).unsqueeze(0)
    resized = functional.interpolate(batch, (height, width), mode="bilinear", align_corners=False)
    return resized[0].permute(1, 2, 0)


def network_input(pixels: Pixels, spec: DetectorConfig, limits: InputLimits) -> NetworkInput:
    """Resizes and normalises BGR pixels like the detector's own code.

    Raises Rejected for an image so thin that its resized side is below the network's minimum.
    """
    planned = pixel_input(pixels, spec, limits)
    resized = normalise_pixels(planned.pixels, planned.scale, planned.size, spec)
    return NetworkInput(
        tensor=resized.permute(2, 0, 1).unsqueeze(0).contiguous(),
        scale=planned.scale,
        factors=planned.factors,
        width=planned.width,
        height=planned.height,
    )


def max_input_bytes(spec: DetectorConfig, limits: InputLimits) -> int:
    """Returns the maximum bytes that :func:`network_input` and :func:`lighter_input` return."""
    short, long = max_sides(spec, limits)
    return BYTES_PER_CELL * short * long


def max_sides(spec: DetectorConfig, limits: InputLimits) -> tuple[int, int]:
    """Returns the maximum pixels of the short and the long side of the network's input."""
    short = spec.short_side if limits.short_side is None else limits.short_side
    long = spec.long_side if limits.long_side is None else limits.long_side
    return short, long


def lighter_input(
    pixels: Pixels, spec: DetectorConfig, limits: InputLimits
) -> NetworkInput | PixelInput:
    """Returns the pixels, or for large images the network's input, which then has fewer bytes."""
    planned = pixel_input(pixels, spec, limits)
    height, width = planned.size
    if pixels.nbytes <= BYTES_PER_CELL * height * width:
        return planned
    return network_input(pixels, spec, limits)


def pixel_input(pixels: Pixels, spec: DetectorConfig, limits: InputLimits) -> PixelInput:
    """Returns BGR pixels in the detector's order, and their target size. Raises Rejected."""
    height, width = pixels.shape[:2]
    short, long = max_sides(spec, limits)
    scale = resize_factor(height, width, short, long)
    if spec.resize == "opencv":
        size = round(height * scale), round(width * scale)
        factors = (scale, scale)
    else:
        edge = truncated_edge if spec.truncated_sides else shortest_edge
        size = edge(height, width, short, long)
        factors = (size[1] / width, size[0] / height)
    if min(size) < spec.min_input_side:
        raise Rejected(
            Reason.TOO_SMALL,
            f"{width} x {height}: with --long-side {long} the short side is below "
            f"{spec.min_input_side} px",
        )
    if spec.channel_order == "rgb":
        pixels = np.ascontiguousarray(pixels[:, :, ::-1])
    return PixelInput(
        pixels=pixels, size=size, scale=scale, factors=factors, width=width, height=height
    )


def normalise_pixels(
    pixels: Pixels, scale: float, size: tuple[int, int], spec: DetectorConfig
) -> Float[Tensor, "H W 3"]:
    """Resizes, subtracts the mean and divides by the deviation, in the family's order."""
    mean, std = torch.tensor(spec.pixel_mean), torch.tensor(spec.pixel_std)
    if spec.resize == "opencv":
        return resize_bilinear(torch.from_numpy(pixels), scale, mean) / std
    if spec.resize == "pillow":
        return (torch.tensor(resize_pillow(pixels, *size)).float() - mean) / std
    return (resize_torch(torch.from_numpy(pixels).float(), *size) - mean) / std
