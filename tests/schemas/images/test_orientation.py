"""Orientations are read from whatever a file has in EXIF's place, and boxes are turned."""

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vlmill.schemas.images.decode import TURNS, orientation_in, read_orientation
from vlmill.schemas.images.orientation import turn_boxes, turn_size

ORIENTATION, WIDTH_TAG = 0x0112, 0x0100


def block(*entries: tuple[int, int, int, int], order: str = "<") -> bytes:
    """An EXIF block of entries (tag, type, number of values, value)."""
    start = b"II*\0" if order == "<" else b"MM\0*"
    written = struct.pack(order + "LH", 8, len(entries))
    for tag, kind, count, value in entries:
        number = struct.pack(order + ("H" if kind == 3 else "L"), value).ljust(4, b"\0")
        written += struct.pack(order + "HHL", tag, kind, count) + number
    return b"Exif\0\0" + start + written


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [3, 4])
def test_both_byte_orders_and_both_types(order: str, kind: int) -> None:
    entries = [(WIDTH_TAG, 4, 1, 640), (ORIENTATION, kind, 1, 6)]
    assert orientation_in(block(*entries, order=order)) == 6
    assert orientation_in(b"Exif\0\0" + block(*entries, order=order)) == 6
    assert orientation_in(block(*entries, order=order)[6:]) == 6


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"Exif\0\0",
        b"Exif\0\0garbage",
        b"Exif\0\0MM\0*\xff\xff\xff\xffgarbage",
        block((WIDTH_TAG, 4, 1, 640)),
        block((ORIENTATION, 3, 1, 0)),
        block((ORIENTATION, 3, 1, 9)),
        block((ORIENTATION, 3, 2, 6)),
        block((ORIENTATION, 2, 1, 6)),
        block((ORIENTATION, 3, 1, 6))[:-3],
    ],
)
def test_what_says_nothing_is_upright(broken: bytes) -> None:
    assert orientation_in(broken) == 1


@given(st.binary(max_size=60))
def test_any_bytes_are_an_orientation(body: bytes) -> None:
    assert orientation_in(b"MM\0*" + body) in {1, *TURNS}


def test_entries_that_point_to_much_cost_nothing() -> None:
    """Each entry says that it is nearly all of the block: pillow copies 80 MB for these 100."""
    body = struct.pack("<LH", 8, 65_535)
    size = 8 + 2 + 12 * 65_535
    body += b"".join(
        struct.pack("<HHLL", tag, 7, size - 1000, 0) for tag in range(0x0113, 0x0113 + 100)
    )
    large = (b"II*\0" + body).ljust(size, b"\0")
    tracemalloc.start()
    assert orientation_in(large) == 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


def test_the_text_that_imagemagick_writes() -> None:
    image = Image.new("RGB", (2, 2))
    image.info["Raw profile type exif"] = f"\nexif\n  40\n{block((ORIENTATION, 3, 1, 8)).hex()}\n"
    assert read_orientation(image) == 8
    image.info["Raw profile type exif"] = "\nexif\n  40\nno hexadecimal\n"
    assert read_orientation(image) == 1


@pytest.mark.parametrize(
    ("orientation", "want"),
    [
        (1, [10, 20, 30, 60]),
        (2, [70, 20, 90, 60]),
        (3, [70, 140, 90, 180]),
        (4, [10, 140, 30, 180]),
        (5, [20, 10, 60, 30]),
        (6, [40, 10, 80, 30]),
        (7, [40, 170, 80, 190]),
        (8, [20, 170, 60, 190]),
    ],
)
def test_boxes_by_hand(orientation: int, want: list[float]) -> None:
    """10, 20 to 30, 60 in images that are 100 x 200 upright."""
    boxes = np.array([[10, 20, 30, 60]], dtype=np.float32)
    made = turn_boxes(boxes, orientation, 100, 200)
    assert made.tolist() == [want] and made.dtype == np.float32
    assert turn_boxes(boxes[:0], orientation, 100, 200).shape == (0, 4)
    width, height = turn_size(100, 200, orientation)
    whole = np.array([[0, 0, width, height]], dtype=np.float32)
    assert turn_boxes(whole, orientation, 100, 200).tolist() == [[0, 0, 100, 200]]
