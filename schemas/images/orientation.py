"""Reads the EXIF orientation of stored images and rotates images, sizes and boxes.

An orientation is a number from 1 to 8; 1 is upright. "Stored" means as in the file.
"""

import struct

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image
from PIL.TiffImagePlugin import TiffImageFile

Boxes = npt.NDArray[np.float32]

UPRIGHT = 1
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
LYING = (5, 6, 7, 8)  # width and height are swapped first; then boxes are mirrored
MIRRORED_X = (2, 3, 6, 7)
MIRRORED_Y = (3, 4, 7, 8)
PREFIX = b"Exif\0\0"
BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
SHORT, LONG = 3, 4  # the types of numbers that an orientation is written in


def turn_upright(image: Image.Image, orientation: int) -> Image.Image:
    """Returns a stored image upright; the same object if it already is."""
    turn = TURNS.get(orientation)
    return image if turn is None else image.transpose(turn)


def turn_size(width: int, height: int, orientation: int) -> tuple[int, int]:
    """Converts width and height of the stored image to those of the upright one (and back)."""
    return (height, width) if orientation in LYING else (width, height)


def turn_boxes(boxes: Boxes, orientation: int, width: int, height: int) -> Boxes:
    """Converts boxes [N, 4] (x1, y1, x2, y2) of a stored image to those of the upright one.

    ``width`` and ``height`` are the upright image's. Corners are between pixels: the full image is
    (0, 0, width, height) in any orientation.
    """
    if orientation == UPRIGHT:
        return boxes
    x1, y1, x2, y2 = boxes.T
    if orientation in LYING:
        x1, y1, x2, y2 = y1, x1, y2, x2
    if orientation in MIRRORED_X:
        x1, x2 = width - x2, width - x1
    if orientation in MIRRORED_Y:
        y1, y2 = height - y2, height - y1
    return np.stack([x1, y1, x2, y2], axis=1).astype(np.float32, copy=False)


def read_orientation(image: Image.Image) -> int:
    """Returns the orientation of an opened image; 1 if it has no readable one.

    A PNG may store it after the pixels, where it is known only after decoding. A TIFF loses its
    orientation when it is decoded, because pillow rotates it then.
    """
    if isinstance(image, TiffImageFile):
        return valid(image.tag_v2.get(ExifTags.Base.Orientation))
    block = image.info.get("exif")
    if block is None and (text := image.info.get("Raw profile type exif")):
        block = profile_block(text)
    return orientation_in(block) if isinstance(block, bytes) else UPRIGHT


def profile_block(text: object) -> bytes:
    """Parses the text block that ImageMagick writes to PNGs: three header lines, then hex."""
    try:
        return bytes.fromhex("".join(str(text).split("\n")[3:]))
    except ValueError:
        return b""  # a broken block does not affect the pixels, which are fine


def orientation_in(block: bytes) -> int:
    """Returns the orientation in an EXIF block, 1 if there is none or the block is broken.

    Only the numbers of the first directory are read. Pillow's own reader copies the target of each
    entry: a PNG of 1 MB can make it copy 65,535 times as much.
    """
    start = 0
    while block.startswith(PREFIX, start):  # some writers have it twice
        start += len(PREFIX)
    order = BYTE_ORDERS.get(block[start : start + 4])
    if order is None:
        return UPRIGHT
    try:
        (offset,) = struct.unpack_from(order + "L", block, start + 4)
        (count,) = struct.unpack_from(order + "H", block, start + offset)
        for entry in range(start + offset + 2, start + offset + 2 + 12 * count, 12):
            tag, kind, values = struct.unpack_from(order + "HHL", block, entry)
            if tag == ExifTags.Base.Orientation and values == 1 and kind in (SHORT, LONG):
                number = order + ("H" if kind == SHORT else "L")
                return valid(struct.unpack_from(number, block, entry + 8)[0])
    except struct.error:
        return UPRIGHT  # a broken block does not affect the pixels, which are fine
    return UPRIGHT


def valid(value: object) -> int:
    """Returns the value if it is an orientation, else 1."""
    return value if isinstance(value, int) and value in TURNS else UPRIGHT
