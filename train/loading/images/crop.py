"""Decodes, crops, mirrors and augments images. S pixels per side.

RandAugment is VLMo's (arXiv:1909.13719; the operations and the level of VLMo's code).

An image is uint8 [H, W, 3]. Geometric operations interpolate bilinearly and fill with grey.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance

from vlmill.schemas.errors import InputError
from vlmill.schemas.images.decode import Bounds
from vlmill.schemas.images.decode import decode as decode_upright
from vlmill.schemas.rejects import Rejected
from vlmill.train.loading.random import Draws, Uniforms
from vlmill.train.settings.parts import Feeding

Pixels = npt.NDArray[np.uint8]

FILL = 128
OPERATIONS_A_IMAGE = 2
SHARE_APPLIED = 0.5
LEVEL = 0.7  # 7 of 10


def rand_augment(image: Pixels, draws: Draws) -> Pixels:
    """Applies two operations of :data:`OPERATIONS`, sampled with replacement, each with chance 1/2.

    Operations with a direction use either direction with equal chance.
    """
    names = list(OPERATIONS)
    chosen = [names[int(draws.integers(0, len(names)))] for _ in range(OPERATIONS_A_IMAGE)]
    for name in chosen:
        if draws.random() < SHARE_APPLIED:
            operate, directed = OPERATIONS[name]
            image = operate(image, -1 if directed and draws.random() < 0.5 else 1)
    return image


def auto_contrast(image: Pixels, sign: int = 1) -> Pixels:
    """Stretches each channel to 0..255, as intended by the published code, which overflows."""
    low = image.min(axis=(0, 1)).astype(np.float64)
    high = image.max(axis=(0, 1)).astype(np.float64)
    scale = np.where(high > low, 255 / np.maximum(high - low, 1), 1.0)
    offset = np.where(high > low, low, 0.0)
    return ((image - offset) * scale).clip(0, 255).astype(np.uint8)


def equalize(image: Pixels, sign: int = 1) -> Pixels:
    """Equalises each channel's histogram; a channel with too few values stays unchanged."""
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
    """Sharpens by a factor of 1.36 relative to the blurred image; the border stays unchanged."""
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
    """Shifts rows sideways by 0.21 of their vertical position in the image."""
    return _warp(image, [[1, sign * LEVEL * 0.3, 0], [0, 1, 0]])


def shear_y(image: Pixels, sign: int = 1) -> Pixels:
    """Shifts columns by 0.21 of their distance from the left."""
    return _warp(image, [[1, 0, 0], [sign * LEVEL * 0.3, 1, 0]])


def translate_x(image: Pixels, sign: int = 1) -> Pixels:
    """Moves an image to the left by 7 pixels, regardless of its size."""
    return _warp(image, [[1, 0, -sign * LEVEL * 10], [0, 1, 0]])


def translate_y(image: Pixels, sign: int = 1) -> Pixels:
    """Moves an image up by 7 pixels."""
    return _warp(image, [[1, 0, 0], [0, 1, -sign * LEVEL * 10]])


def rotate(image: Pixels, sign: int = 1) -> Pixels:
    """Turns an image by 21 degrees about (W/2, H/2), anticlockwise."""
    angle = math.radians(sign * LEVEL * 30)
    a, b = math.cos(angle), math.sin(angle)
    x, y = image.shape[1] / 2, image.shape[0] / 2
    return _warp(image, [[a, b, (1 - a) * x - b * y], [-b, a, b * x + (1 - a) * y]])


def _warp(image: Pixels, forward: list[list[float]]) -> Pixels:
    """Moves pixel (x, y) to ``forward`` (x, y, 1); interpolates linearly."""
    height, width = image.shape[:2]
    back = np.linalg.inv(np.array([*forward, [0, 0, 1]], dtype=np.float64))[:2]
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    coordinates = np.stack([x, y, np.ones_like(x)], axis=-1) @ back.T
    # Scaled to grid_sample's axes: -1 and 1 are the outer pixels' centres.
    grid = coordinates / np.maximum([width - 1, height - 1], 1) * 2 - 1
    # Around zero, which is grid_sample's fill value.
    values = torch.from_numpy(image.astype(np.float32)).permute(2, 0, 1)[None] - FILL
    samples = F.grid_sample(
        values, torch.from_numpy(grid.astype(np.float32))[None], "bilinear", align_corners=True
    )
    pixels = (samples[0] + FILL).round().clamp(0, 255).to(torch.uint8)
    return pixels.permute(1, 2, 0).contiguous().numpy()


def identity(image: Pixels, sign: int = 1) -> Pixels:
    """Returns the image unchanged."""
    return image


# Each with whether its direction is random.
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


BOUNDS = Bounds(max_pixels=1 << 28, max_bytes=1 << 28)
ATTEMPTS = 10
ASPECT = (3 / 4, 4 / 3)


class UndecodableImage(InputError):
    """Names an image that cannot be decoded; ``cause`` is the reason from the closed list."""

    def __init__(self, image_id: str, cause: Rejected) -> None:
        super().__init__(f"--images: {image_id} cannot be decoded ({cause}); remove its pairs")
        self.image_id, self.cause = image_id, cause


def decode(data: bytes | None, image_id: str) -> Image.Image:
    """Returns an image as RGB, upright as its regions' boxes are.

    Raises UndecodableImage for an undecodable image, and InputError if the table has no bytes.
    """
    if data is None:
        raise InputError(f"--images: {image_id} has no bytes; give a table that holds them")
    try:
        return decode_upright(data, BOUNDS).image
    except Rejected as why:
        raise UndecodableImage(image_id, why) from None


def training_images(
    data: bytes | None, image_id: str, draws: Uniforms, feeding: Feeding
) -> tuple[Pixels, Pixels | None]:
    """Returns a crop as uint8 [3, S, S] and, if the feeding has a ``token_size``, at that size too.

    VLMo (its code): random crop, bicubic, mirrored with chance 1/2, RandAugment. BEiT: the same
    crop for the tokenizer of images, with Lanczos's filter.
    """
    image = decode(data, image_id)
    if feeding.jitter:
        image = jitter_colors(image, draws, feeding.jitter)
    image = image.crop(random_crop(image.size, draws, feeding.crop))
    if draws.random() < feeding.flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    side = (feeding.image_size, feeding.image_size)
    pixels = np.asarray(image.resize(side, Image.Resampling.BICUBIC))
    if feeding.augment:
        pixels = rand_augment(pixels, draws)
    if feeding.token_size is None:
        return planes(pixels), None
    small = image.resize((feeding.token_size, feeding.token_size), Image.Resampling.LANCZOS)
    return planes(pixels), planes(np.asarray(small))


def evaluation_image(data: bytes | None, image_id: str, size: int) -> Pixels:
    """Returns the full image at S x S (the aspect is not kept), bicubic: uint8 [3, S, S]."""
    image = decode(data, image_id).resize((size, size), Image.Resampling.BICUBIC)
    return planes(np.asarray(image))


DecodePixels = Callable[[bytes | None, str, int], Pixels]
"""What :func:`evaluation_image` does, here or in other processes"""


def planes(pixels: npt.NDArray[np.uint8]) -> Pixels:
    """Transposes uint8 [H, W, 3] to [3, H, W]."""
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def random_crop(
    size: tuple[int, int], draws: Uniforms, share: tuple[float, float]
) -> tuple[int, int, int, int]:
    """Returns left, top, right, bottom of a crop with a ``share`` of the area and an aspect near 1.

    It follows torchvision's RandomResizedCrop: area uniform, aspect uniform in its logarithm, ten
    attempts; then the largest centred crop with an allowed aspect.
    """
    width, height = size
    for _ in range(ATTEMPTS):
        area = width * height * (share[0] + (share[1] - share[0]) * draws.random())
        low, high = math.log(ASPECT[0]), math.log(ASPECT[1])
        aspect = math.exp(low + (high - low) * draws.random())
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = draws.integers(0, width - w + 1), draws.integers(0, height - h + 1)
            return left, top, left + w, top + h
    w = max(min(width, round(height * ASPECT[1])), 1)
    h = max(min(height, round(width / ASPECT[0])), 1)
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def jitter_colors(image: Image.Image, draws: Uniforms, strength: float) -> Image.Image:
    """Multiplies brightness, contrast and saturation by 1 - ``strength`` to 1 + ``strength``, in
    random order.
    """
    changes = [ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color]
    order = [0, 1, 2]
    draws.shuffle(order)
    for index in order:
        factor = 1 - strength + 2 * strength * draws.random()
        image = changes[index](image).enhance(factor)
    return image
