"""Converts the user's images to the bytes that every stage decodes."""

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vlmill.inference.input_checks import warn
from vlmill.runtime.files.paths import read_regular, to_path
from vlmill.schemas.errors import InputError
from vlmill.schemas.images.decode import Bounds, upright
from vlmill.schemas.rejects import Rejected
from vlmill.train.loading.images.crop import BOUNDS

ImageLike = Any  # a path, encoded bytes, a PIL image, or an array uint8 [H, W, 3] or [H, W]


def read_image_bytes(image: ImageLike, bounds: Bounds = BOUNDS) -> bytes:
    """Returns an image's bytes: the bytes of a file, or a PNG of the upright pixels of an image or
    array.

    An unreadable file gives no bytes, which is an error of that image only. Raises InputError for a
    value that is not an image.
    """
    if isinstance(image, bytes):
        return image
    if isinstance(image, str | os.PathLike):
        path = image if isinstance(image, str | Path) else Path(image)
        try:
            return read_regular(to_path(path))
        except OSError as error:
            warn(f"image {image}: {error.strerror or error}")
            return b""
    if isinstance(image, np.ndarray):
        grey_or_rgb = image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)
        if image.dtype != np.uint8 or not grey_or_rgb or not image.size:
            raise InputError(
                f"an image is an array {image.dtype} {list(image.shape)}; expected uint8 "
                "[height, width, 3] in red, green, blue, or [height, width]"
            )
        image = Image.fromarray(image)
    if not isinstance(image, Image.Image):
        raise InputError(
            f"an image is a {type(image).__name__}; give a path, bytes, a PIL image or an array"
        )
    try:
        return encode_png(upright(image, bounds).image)
    except (Rejected, OSError):  # a truncated file that pillow has opened
        return b""


def encode_png(image: Image.Image) -> bytes:
    """Returns an image as a PNG: the same pixels."""
    content = io.BytesIO()
    image.save(content, "PNG", compress_level=1)
    return content.getvalue()


def encode_planes(pixels: NDArray[np.uint8]) -> bytes:
    """Returns pixels [3, H, W] as a PNG."""
    return encode_png(Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))))


def require_list(values: Any, what: str) -> Sequence[Any]:
    """Returns the values as a list. Raises InputError for a single one."""
    single = isinstance(values, str | bytes | os.PathLike | Image.Image | np.ndarray)
    if single and not (isinstance(values, np.ndarray) and values.ndim == 4):
        raise InputError(f"{what}: expected a list, got a single {type(values).__name__}")
    return list(values)
