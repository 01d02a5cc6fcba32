"""Resizes and re-encodes images, in the modes of img2dataset.

It runs in processes that can be killed, because the images are untrusted.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from vlmill.pipelines.web.pages.images import header_drop
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.images.decode import (
    Bounds,
    check_size,
    load,
    open_image,
    read_orientation,
    to_rgb,
    turn_upright,
)
from vlmill.schemas.images.orientation import turn_size
from vlmill.schemas.rejects import Rejected

MODES = ("keep_ratio", "border", "center_crop", "keep_ratio_largest", "no")
ENCODINGS = {"jpeg": 95, "webp": 95, "png": 6}  # with the default quality, for PNG the compression
_WHITE = (255, 255, 255)
_LARGEST = ("border", "keep_ratio_largest")  # modes in which SIZE is the larger side


@dataclass(frozen=True, kw_only=True)
class ResizeRule:
    """Holds how images are resized and encoded.

    ``size``: in pixels, of the smaller side; of the larger side with border and keep_ratio_largest;
    None resizes nothing. ``encoding`` None keeps images as received unless they are resized, which
    gives JPEG.
    """

    size: int | None = None
    mode: str = MODES[0]
    only_larger: bool = False
    encoding: str | None = None
    quality: int | None = None

    @property
    def is_off(self) -> bool:
        """Returns whether all images stay as received."""
        return (self.size is None or self.mode == "no") and self.encoding is None

    def target(self, width: int, height: int) -> tuple[int, int] | None:
        """Returns the size of the scaled image, before a border or a crop; None to leave it."""
        if self.size is None or self.mode == "no":
            return None
        side = max(width, height) if self.mode in _LARGEST else min(width, height)
        if self.only_larger and side <= self.size:
            return None
        scale = self.size / side
        return max(1, round(width * scale)), max(1, round(height * scale))


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedImage:
    """Holds an image as it is stored: its upright size in pixels, and format in lower case.

    ``content`` None: the bytes stay as received.
    """

    content: bytes | None
    width: int
    height: int
    format: str


def start_encoding(
    rule: ResizeRule, settings: dict[str, Any]
) -> Callable[[Sequence[bytes]], list[EncodedImage | Drop]]:
    """Returns the function by which a process encodes images."""
    return lambda images: [encode_image(data, rule, **settings) for data in images]


def encode_image(
    data: bytes, rule: ResizeRule, *, min_side_px: int, bounds: Bounds
) -> EncodedImage | Drop:
    """Returns the resized image, or why it is dropped. Never raises.

    The image is upright afterwards, and transparent parts are white.
    """
    try:
        with open_image(data, bounds) as image:
            if (drop := header_drop(image, bounds, min_side_px)) is not None:
                return drop
            name = "jpeg" if image.format == "MPO" else str(image.format).lower()
            width, height = turn_size(*image.size, read_orientation(image))
            target = rule.target(width, height)
            if target is None and rule.encoding in (None, name):
                load(image, bounds)  # proves that the file is complete
                return EncodedImage(content=None, width=width, height=height, format=name)
            return _encode(_scale(image, rule, target, bounds), rule)
    except Rejected as why:
        return Drop(why.reason, why.detail)


def _scale(
    image: Image.Image, rule: ResizeRule, target: tuple[int, int] | None, bounds: Bounds
) -> Image.Image:
    """Decodes and scales an opened image."""
    check_size(image, bounds)
    orientation = read_orientation(image)
    if target is not None and image.format == "JPEG":
        # The decoder itself halves the size, as long as the result is not below the target.
        image.draft(image.mode, turn_size(*target, orientation))
    profile = image.info.get("icc_profile") if image.mode == "RGB" else None
    _, left = load(image, bounds)
    pixels = turn_upright(_without_alpha(image), left)
    if target is not None:
        shrinks = target[0] <= pixels.width
        # The mean of the covered area, as img2dataset's default.
        method = Image.Resampling.BOX if shrinks else Image.Resampling.LANCZOS
        pixels = _frame(pixels.resize(target, method), rule)
    pixels.info = {} if profile is None else {"icc_profile": profile}
    return pixels


def _without_alpha(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return to_rgb(image)
    layer = image.convert("RGBA")
    ground = Image.new("RGBA", layer.size, (*_WHITE, 255))
    return Image.alpha_composite(ground, layer).convert("RGB")


def _frame(pixels: Image.Image, rule: ResizeRule) -> Image.Image:
    """Adds the border, or crops the centre."""
    assert rule.size is not None
    if rule.mode not in ("border", "center_crop"):
        return pixels
    square = (rule.size, rule.size)
    left, top = (rule.size - pixels.width) // 2, (rule.size - pixels.height) // 2
    if rule.mode == "center_crop":
        return pixels.crop((-left, -top, rule.size - left, rule.size - top))
    framed = Image.new("RGB", square, _WHITE)
    framed.paste(pixels, (left, top))
    return framed


def _encode(pixels: Image.Image, rule: ResizeRule) -> EncodedImage:
    name = rule.encoding or "jpeg"
    quality = ENCODINGS[name] if rule.quality is None else rule.quality
    settings = {"compress_level": quality} if name == "png" else {"quality": quality}
    stream = io.BytesIO()
    pixels.save(stream, name.upper(), icc_profile=pixels.info.get("icc_profile"), **settings)
    width, height = pixels.size
    return EncodedImage(content=stream.getvalue(), width=width, height=height, format=name)
