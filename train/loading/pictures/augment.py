"""VLMo's RandAugment (arXiv:1909.13719; the operations and the level of VLMo's code).

A picture is uint8 [H, W, 3]. Geometric operations interpolate bilinearly and fill with grey.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from vlmill.train.loading.random import Draws

Pixels = npt.NDArray[np.uint8]

FILL = 128
OPERATIONS_A_PICTURE = 2
SHARE_APPLIED = 0.5
LEVEL = 0.7  # 7 of 10


def rand_augment(picture: Pixels, draws: Draws) -> Pixels:
    """Two operations of :data:`OPERATIONS`, drawn with replacement, each applied every other time.

    Operations with a direction go either way, with equal chance.
    """
    names = list(OPERATIONS)
    chosen = [names[int(draws.integers(0, len(names)))] for _ in range(OPERATIONS_A_PICTURE)]
    for name in chosen:
        if draws.random() < SHARE_APPLIED:
            operate, directed = OPERATIONS[name]
            picture = operate(picture, -1 if directed and draws.random() < 0.5 else 1)
    return picture


def auto_contrast(picture: Pixels, sign: int = 1) -> Pixels:
    """Each channel stretched to 0..255; as it was meant: the published code overflows."""
    low = picture.min(axis=(0, 1)).astype(np.float64)
    high = picture.max(axis=(0, 1)).astype(np.float64)
    scale = np.where(high > low, 255 / np.maximum(high - low, 1), 1.0)
    offset = np.where(high > low, low, 0.0)
    return ((picture - offset) * scale).clip(0, 255).astype(np.uint8)


def equalize(picture: Pixels, sign: int = 1) -> Pixels:
    """Each channel's histogram made even; a channel of too few values stays as it is."""
    return np.stack([_equalized(picture[..., i]) for i in range(picture.shape[2])], axis=2)


def _equalized(channel: Pixels) -> Pixels:
    counts = np.bincount(channel.ravel(), minlength=256)
    step = int(counts[counts > 0][:-1].sum()) // 255
    if not step:
        return channel
    before = np.cumsum(counts) - counts
    table = ((step // 2 + before) // step).clip(0, 255).astype(np.uint8)
    return table[channel]


def brightness(picture: Pixels, sign: int = 1) -> Pixels:
    """Multiplies all values by 1.36, cut to whole numbers."""
    table = (np.arange(256) * (LEVEL * 1.8 + 0.1)).clip(0, 255).astype(np.uint8)
    return table[picture]


def sharpness(picture: Pixels, sign: int = 1) -> Pixels:
    """Away from the blurred picture by a factor of 1.36; the border stays as it is."""
    if min(picture.shape[:2]) < 3:
        return picture
    height, width = picture.shape[0] - 2, picture.shape[1] - 2
    values = picture.astype(np.float64)
    around = sum(values[i : i + height, j : j + width] for i in range(3) for j in range(3))
    inner = values[1:-1, 1:-1]
    blurred = np.rint((around + 4 * inner) / 13)
    sharp = picture.copy()
    factor = LEVEL * 1.8 + 0.1
    sharp[1:-1, 1:-1] = (blurred + factor * (inner - blurred)).clip(0, 255).astype(np.uint8)
    return sharp


def shear_x(picture: Pixels, sign: int = 1) -> Pixels:
    """Rows moved to the side by 0.21 of their height in the picture."""
    return _warped(picture, [[1, sign * LEVEL * 0.3, 0], [0, 1, 0]])


def shear_y(picture: Pixels, sign: int = 1) -> Pixels:
    """Columns moved by 0.21 of their distance from the left."""
    return _warped(picture, [[1, 0, 0], [sign * LEVEL * 0.3, 1, 0]])


def translate_x(picture: Pixels, sign: int = 1) -> Pixels:
    """Moves a picture to the left by 7 pixels, whatever its size."""
    return _warped(picture, [[1, 0, -sign * LEVEL * 10], [0, 1, 0]])


def translate_y(picture: Pixels, sign: int = 1) -> Pixels:
    """Moves a picture up by 7 pixels."""
    return _warped(picture, [[1, 0, 0], [0, 1, -sign * LEVEL * 10]])


def rotate(picture: Pixels, sign: int = 1) -> Pixels:
    """Turns a picture by 21 degrees about (W/2, H/2), anticlockwise."""
    angle = math.radians(sign * LEVEL * 30)
    a, b = math.cos(angle), math.sin(angle)
    x, y = picture.shape[1] / 2, picture.shape[0] / 2
    return _warped(picture, [[a, b, (1 - a) * x - b * y], [-b, a, b * x + (1 - a) * y]])


def _warped(picture: Pixels, forward: list[list[float]]) -> Pixels:
    """The picture whose pixel at ``forward`` (x, y, 1) is that at (x, y), between pixels linear."""
    height, width = picture.shape[:2]
    back = np.linalg.inv(np.array([*forward, [0, 0, 1]], dtype=np.float64))[:2]
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    coordinates = np.stack([x, y, np.ones_like(x)], axis=-1) @ back.T
    # To the ends of the axes as grid_sample counts them: -1 and 1 are the outer pixels' centres.
    grid = coordinates / np.maximum([width - 1, height - 1], 1) * 2 - 1
    # Around zero, with which grid_sample fills.
    values = torch.from_numpy(picture.astype(np.float32)).permute(2, 0, 1)[None] - FILL
    samples = F.grid_sample(
        values, torch.from_numpy(grid.astype(np.float32))[None], "bilinear", align_corners=True
    )
    pixels = (samples[0] + FILL).round().clamp(0, 255).to(torch.uint8)
    return pixels.permute(1, 2, 0).contiguous().numpy()


def identity(picture: Pixels, sign: int = 1) -> Pixels:
    """The picture as it is."""
    return picture


# Each with whether it goes one of two ways.
OPERATIONS: dict[str, tuple[Callable[[Pixels, int], Pixels], bool]] = {
    "Identity": (identity, False),
    "AutoContrast": (auto_contrast, False),
    "Equalize": (equalize, False),
    "Brightness": (brightness, False),
    "Sharpness": (sharpness, False),
    "ShearX": (shear_x, True),
    "ShearY": (shear_y, True),
    "TranslateX": (translate_x, True),
    "TranslateY": (translate_y, True),
    "Rotate": (rotate, True),
}
