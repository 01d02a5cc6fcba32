"""Converts the user's images to the bytes that every stage decodes, and warns of invalid inputs."""

import io
import os
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vlmill.runtime.files.paths import read_regular, to_path
from vlmill.schemas.errors import InputError
from vlmill.schemas.images.decode import Bounds, upright
from vlmill.schemas.plurals import format_count
from vlmill.schemas.rejects import Reason, Rejected, reason_counts
from vlmill.train.loading.images.crop import BOUNDS

# A path, encoded bytes, an open binary file, a PIL image, an array uint8 [H, W, 3] or [H, W], or a
# tensor [3, H, W], [1, H, W] or [H, W], of uint8 or of floats from 0 to 1.
ImageLike = Any


def read_image_bytes(image: ImageLike, bounds: Bounds = BOUNDS) -> bytes:
    """Returns an image's bytes: the bytes of a file, or a PNG of the upright pixels of an image,
    array or tensor. An open file is read to its end, from where it is.

    An unreadable file gives no bytes, which is an error of that image only. Raises InputError for a
    value that is not an image.
    """
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, str | os.PathLike):
        path = image if isinstance(image, str | Path) else Path(image)
        try:
            return read_regular(to_path(path))
        except OSError as error:
            warn(f"image {image}: {error.strerror or error}")
            return b""
    if callable(getattr(image, "read", None)) and not isinstance(image, Image.Image):
        return read_open_file(image, bounds.max_bytes)
    if isinstance(image, torch.Tensor):
        image = array_of_tensor(image)
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
            f"an image is a {type(image).__name__}; give a path, bytes, an open file, a PIL image, "
            "an array or a tensor"
        )
    try:
        return encode_png(upright(image, bounds).image)
    except (Rejected, OSError):  # a truncated file that pillow has opened
        return b""


def read_open_file(file: Any, max_bytes: int | None) -> bytes:
    """Returns the rest of an open binary file; no bytes, which is an error of that image only, if
    it cannot be read or has more than ``max_bytes`` (None: no limit). Raises InputError for a file
    of text.
    """
    try:
        content = file.read(-1 if max_bytes is None else max_bytes + 1)
    except (OSError, ValueError) as error:  # closed, or not open for reading
        warn(f"open file {getattr(file, 'name', '')}: {error}")
        return b""
    if not isinstance(content, bytes):
        raise InputError(
            f"an open image gives {type(content).__name__}, not bytes; open it with mode 'rb'"
        )
    if not content or (max_bytes is not None and len(content) > max_bytes):
        why = f"over {max_bytes} bytes" if content else "no bytes left to read"
        warn(f"open file {getattr(file, 'name', '')}: {why}")
        return b""
    return content


def array_of_tensor(image: torch.Tensor) -> NDArray[np.uint8]:
    """Returns a tensor's pixels, uint8 [H, W, 3] or [H, W].

    Raises InputError for another shape, and for floats outside of 0 to 1, such as normalised ones.
    """
    pixels = image.detach().cpu()
    is_image = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[0] in (1, 3))
    if is_image and pixels.numel() and pixels.is_floating_point():
        pixels = pixels.float()
        low, high = float(pixels.min()), float(pixels.max())
        if not (low >= 0 and high <= 1):  # NaN too
            raise InputError(
                f"an image is a tensor of floats from {low:.3g} to {high:.3g}; expected 0 to 1, "
                "before any normalisation, or uint8"
            )
        pixels = (pixels * 255).round().to(torch.uint8)
    if not is_image or pixels.dtype != torch.uint8 or not pixels.numel():
        raise InputError(
            f"an image is a tensor {str(image.dtype).removeprefix('torch.')} {list(image.shape)}; "
            "expected uint8, or floats from 0 to 1, [3, height, width], [1, height, width] or "
            "[height, width]"
        )
    if pixels.ndim == 3:
        pixels = pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)
    array: NDArray[np.uint8] = pixels.contiguous().numpy()
    return array


def encode_png(image: Image.Image) -> bytes:
    """Returns an image as a PNG: the same pixels."""
    content = io.BytesIO()
    image.save(content, "PNG", compress_level=1)
    return content.getvalue()


def require_list(values: Any, what: str) -> Sequence[Any]:
    """Returns the values as a list. Raises InputError for a single one."""
    arrays = (np.ndarray, torch.Tensor)
    single = isinstance(values, (str, bytes, os.PathLike, Image.Image, *arrays))
    single = single or hasattr(values, "read")
    if single and not (isinstance(values, arrays) and values.ndim == 4):
        raise InputError(f"{what}: expected a list, got a single {type(values).__name__}")
    return list(values)


def without_words(count: int, good: Sequence[int]) -> dict[int, Reason]:
    """Returns which of ``count`` texts are not among the ``good`` ones, which have a word."""
    return dict.fromkeys(sorted(set(range(count)) - set(good)), Reason.NO_TEXT)


def warn_faults(what: str, faults: dict[int, Reason]) -> None:
    """Warns about inputs without a result: their number, the reasons and the first ones.

    ``what`` is the noun in the singular, "image" or "text".
    """
    if not faults:
        return
    counts = reason_counts(Counter(faults.values()))
    first = ", ".join(map(str, sorted(faults)[:5]))
    warn(
        f"{format_count(len(faults), what)} without a result ({counts}), NaN instead: {first}"
        f"{' and others' if len(faults) > 5 else ''}"
    )


def warn(message: str) -> None:
    """Warns with the line of the caller outside of this package.

    A line inside the package does not help the user, and Python prints the same text at the same
    line only once.
    """
    frame, level, package_level = sys._getframe().f_back, 2, 1
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == "vlmill":
            package_level = level
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=package_level + 1)
