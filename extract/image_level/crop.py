"""Crops the centre of an image like torchvision's transforms for its ImageNet weights."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Crop:
    """Resizes the short side to ``resize`` pixels and keeps the central square of ``side``."""

    resize: int
    side: int


def middle(pixels: Pixels, crop: Crop) -> Pixels:
    """Returns the RGB crop [side, side, 3] of an upright image's BGR pixels [H, W, 3].

    The result equals torchvision's ImageClassification before normalisation bit for bit, for a PIL
    image: bilinear with averaging, the long side rounded down.
    """
    height, width = pixels.shape[:2]
    short = min(height, width)
    width, height = (int(crop.resize * side / short) for side in (width, height))
    image = Image.fromarray(np.ascontiguousarray(pixels[:, :, ::-1]))
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (round((side - crop.side) / 2) for side in (width, height))
    return np.asarray(resized.crop((left, top, left + crop.side, top + crop.side)))
