"""VLMo's RandAugment (arXiv:1909.13719; the operations and the level of VLMo's code).

An image is uint8 [H, W, 3]. Geometric operations interpolate bilinearly and fill with grey.
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
OPERATIONS_A_IMAGE = 2
SHARE_APPLIED = 0.5
LEVEL = 0.7  # 7 of 10


def rand_augment(image: Pixels, draws: Draws) -> Pixels:
    """Two operations of :data:`OPERATIONS`, drawn with replacement, each applied every other time.

    Operations with a direction go either way, with equal chance.
    """
    names = list(OPERATIONS)
    chosen = [names[int(draws.integers(0, len(names)))] for _ in range(OPERATIONS_A_IMAGE)]
    for name in chosen:
        if draws.random() < SHARE_APPLIED:
            operate, directed = OPERATIONS[name]
            image = operate(image, -1 if directed and draws.random() < 0.5 else 1)
    return image


def auto_contrast(image: Pixels, sign: int = 1) -> Pixels:
    """Each channel stretched to 0..255; as it was meant: the published code overflows."""
    low = image.min(axis=(0, 1)).astype(np.float64)
    high = image.max(axis=(0, 1)).astype(np.float64)
    scale = np.where(high > low, 255 / np.maximum(high - low, 1), 1.0)
    offset = np.where(high > low, low, 0.0)
    return ((image - offset) * scale).clip(0, 255).astype(np.uint8)


def equalize(image: Pixels, sign: int = 1) -> Pixels:
    """Each channel's histogram made even; a channel of too few values stays as it is."""
    return np.stack([_equalized(image[..., i]) for i in range(image.shape[2])], axis=2)


def _equalized(channel: Pixels) -> Pixels:
    counts = np.bincount(channel.ravel(), minlength=256)
    step = int(counts[counts > 0][:-1].sum()) // 255
    if not step:
        return channel
    before = np.cumsum(counts) - counts
    table = ((step // 2 + before) // step).clip(0, 255).astype(np.uint8)
    return table[channel]


def brightness(image: Pixels, sign: int = 1) -> Pixels:
    """Multiplies all values by 1.36, cut to whole numbers."""
    table = (np.arange(256) * (LEVEL * 1.8 + 0.1)).clip(0, 255).astype(np.uint8)
    return table[image]


def sharpness(image: Pixels, sign: int = 1) -> Pixels:
    """Away from the blurred image by a factor of 1.36; the border stays as it is."""
    if min(image.shape[:2]) < 3:
        return image
    height, width = image.shape[0] - 2, image.shape[1] - 2
    values = image.astype(np.float64)
    around = sum(values[i : i + height, j : j + width] for i in range(3) for j in range(3))
    inner = values[1:-1, 1:-1]
    blurred = np.rint((around + 4 * inner) / 13)
    sharp = image.copy()
    factor = LEVEL * 1.8 + 0.1
    sharp[1:-1, 1:-1] = (blurred + factor * (inner - blurred)).clip(0, 255).astype(np.uint8)
    return sharp


def shear_x(image: Pixels, sign: int = 1) -> Pixels:
    """Rows moved to the side by 0.21 of their height in the image."""
    return _warped(image, [[1, sign * LEVEL * 0.3, 0], [0, 1, 0]])


def shear_y(image: Pixels, sign: int = 1) -> Pixels:
    """Columns moved by 0.21 of their distance from the left."""
    return _warped(image, [[1, 0, 0], [sign * LEVEL * 0.3, 1, 0]])


def translate_x(image: Pixels, sign: int = 1) -> Pixels:
    """Moves an image to the left by 7 pixels, whatever its size."""
    return _warped(image, [[1, 0, -sign * LEVEL * 10], [0, 1, 0]])


def translate_y(image: Pixels, sign: int = 1) -> Pixels:
    """Moves an image up by 7 pixels."""
    return _warped(image, [[1, 0, 0], [0, 1, -sign * LEVEL * 10]])


def rotate(image: Pixels, sign: int = 1) -> Pixels:
    """Turns an image by 21 degrees about (W/2, H/2), anticlockwise."""
    angle = math.radians(sign * LEVEL * 30)
    a, b = math.cos(angle), math.sin(angle)
    x, y = image.shape[1] / 2, image.shape[0] / 2
    return _warped(image, [[a, b, (1 - a) * x - b * y], [-b, a, b * x + (1 - a) * y]])


def _warped(image: Pixels, forward: list[list[float]]) -> Pixels:
    """The image whose pixel at ``forward`` (x, y, 1) is that at (x, y), between pixels linear."""
    height, width = image.shape[:2]
    back = np.linalg.inv(np.array([*forward, [0, 0, 1]], dtype=np.float64))[:2]
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    coordinates = np.stack([x, y, np.ones_like(x)], axis=-1) @ back.T
    # To the ends of the axes as grid_sample counts them: -1 and 1 are the outer pixels' centres.
    grid = coordinates / np.maximum([width - 1, height - 1], 1) * 2 - 1
    # Around zero, with which grid_sample fills.
    values = torch.from_numpy(image.astype(np.float32)).permute(2, 0, 1)[None] - FILL
    samples = F.grid_sample(
        values, torch.from_numpy(grid.astype(np.float32))[None], "bilinear", align_corners=True
    )
    pixels = (samples[0] + FILL).round().clamp(0, 255).to(torch.uint8)
    return pixels.permute(1, 2, 0).contiguous().numpy()


def identity(image: Pixels, sign: int = 1) -> Pixels:
    """The image as it is."""
    return image


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
