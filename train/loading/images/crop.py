"""Images as pixels: decoded, cropped, mirrored and augmented.  S pixels a side."""

import math

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageEnhance

from vlmill.schemas.errors import InputError
from vlmill.schemas.images.decode import Bounds
from vlmill.schemas.images.decode import decode as decode_upright
from vlmill.schemas.rejects import Rejected
from vlmill.train.loading.images.augment import rand_augment
from vlmill.train.loading.random import Uniforms
from vlmill.train.settings.parts import Feeding

Pixels = npt.NDArray[np.uint8]
BOUNDS = Bounds(max_pixels=1 << 28, max_bytes=1 << 28)
ATTEMPTS = 10
ASPECT = (3 / 4, 4 / 3)


class UndecodableImage(InputError):
    """Tells which image cannot be decoded; ``cause`` has the reason of the closed list."""

    def __init__(self, image_id: str, cause: Rejected) -> None:
        super().__init__(f"--images: {image_id} cannot be decoded ({cause}); leave its pairs out")
        self.image_id, self.cause = image_id, cause


def decode(data: bytes | None, image_id: str) -> Image.Image:
    """An image as RGB, upright as its regions' boxes are. Raises UndecodableImage, and
    InputError where the table has no bytes.
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
    """A crop as uint8 [3, S, S] and, where the feeding wants one, at the tokenizer's size too.

    VLMo (its code): random crop, bicubic, mirrored every other time, RandAugment. BEiT: the same
    crop for the tokenizer of images, by Lanczos's filter.
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
    """The full image at S x S (the aspect is not kept), bicubic: uint8 [3, S, S]."""
    image = decode(data, image_id).resize((size, size), Image.Resampling.BICUBIC)
    return planes(np.asarray(image))


def planes(pixels: npt.NDArray[np.uint8]) -> Pixels:
    """Turns uint8 [H, W, 3] into [3, H, W]."""
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def random_crop(
    size: tuple[int, int], draws: Uniforms, share: tuple[float, float]
) -> tuple[int, int, int, int]:
    """Left, top, right, bottom of a crop with a ``share`` of the area and an aspect near 1.

    torchvision's RandomResizedCrop: area uniform, aspect uniform in its logarithm, ten attempts;
    then the largest crop in the middle whose aspect is allowed.
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
    """Brightness, contrast and saturation times 1 - ``strength`` to 1 + ``strength``, in any
    order.
    """
    changes = [ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color]
    order = [0, 1, 2]
    draws.shuffle(order)
    for index in order:
        factor = 1 - strength + 2 * strength * draws.random()
        image = changes[index](image).enhance(factor)
    return image
