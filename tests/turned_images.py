"""Images stored rotated, as by cameras, for tests of their rotation."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image

Array = npt.NDArray[Any]

# How the array of an upright image [H, W, ...] is stored in each orientation (EXIF 2.3, fig. 8).
STORED: dict[int, Callable[[Any], Any]] = {
    1: lambda upright: upright,
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.swapaxes(0, 1),
    6: lambda upright: np.rot90(upright, 1),
    7: lambda upright: upright[::-1, ::-1].swapaxes(0, 1),
    8: lambda upright: np.rot90(upright, -1),
}
# Options that keep every pixel, and for JPEG most of it.
LOSSLESS: dict[str, dict[str, Any]] = {
    "PNG": {},
    "WEBP": {"lossless": True},
    "TIFF": {},
    "JPEG": {"quality": 100, "subsampling": 0},
}


def encoded(pixels: Array, orientation: int | None, kind: str = "PNG") -> bytes:
    """A file of the image that is upright as ``pixels`` say; None: without any EXIF."""
    options = dict(LOSSLESS[kind])
    if orientation is not None:
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        options["exif"] = exif
    stored = STORED[orientation or 1](pixels)
    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(stored)).save(out, kind, **options)
    return out.getvalue()


def stored_box(mask: Array, orientation: int) -> list[int]:
    """The box around what ``mask`` [H, W] marks in the upright image, in the stored one."""
    return box_around(STORED[orientation](mask))


def box_around(mask: Array) -> list[int]:
    """The box (x1, y1, x2, y2) around what is marked; x2 and y2 are where it ends."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return [int(v) for v in (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)]
