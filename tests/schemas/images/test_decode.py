"""Opened and decoded: the bounds, silence, and files that say late how they lie."""

import io
import pickle
import struct
import threading
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image
from tests.turned_images import STORED, encoded

from vlmill.schemas.images.decode import QUIET, Bounds, decode, open_image, upright_size
from vlmill.schemas.rejects import Reason, Rejected

BOUNDS = Bounds(max_pixels=10_000, max_bytes=1_000_000)
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)


def with_late_exif(data: bytes) -> bytes:
    """The PNG with its EXIF chunk behind the pixels, where the format allows it, too."""
    start, chunks = data[:8], []
    at = 8
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        chunks.append(data[at : at + size + 12])
        at += size + 12
    late = [chunk for chunk in chunks if chunk[4:8] == b"eXIf"]
    assert late
    others = [chunk for chunk in chunks if chunk not in late]
    return start + b"".join([*others[:-1], *late, others[-1]])


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", list(STORED))
def test_the_orientation_comes_with_the_pixels(kind: str, orientation: int) -> None:
    """Of a TIFF, too, which pillow turns by itself."""
    image = decode(encoded(PIXELS, orientation, kind), BOUNDS)
    assert image.orientation == orientation
    np.testing.assert_array_equal(np.asarray(image.image), PIXELS)


def test_a_png_may_say_it_behind_its_pixels() -> None:
    data = with_late_exif(encoded(PIXELS, 6))
    decoded_png = decode(data, BOUNDS)
    assert decoded_png.orientation == 6
    np.testing.assert_array_equal(np.asarray(decoded_png.image), PIXELS)
    with open_image(data, BOUNDS) as image:
        assert upright_size(image, BOUNDS) == (9, 6)


def test_a_cut_png_is_refused_however_it_is_asked() -> None:
    data = encoded(np.random.default_rng(0).integers(0, 256, (80, 90, 3), dtype=np.uint8), None)
    for ask in (decode, size_of):
        with pytest.raises(Rejected) as rejected:
            ask(data[: len(data) // 2], BOUNDS)
        assert rejected.value.reason is Reason.UNREADABLE_IMAGE


def size_of(data: bytes, bounds: Bounds) -> tuple[int, int]:
    with open_image(data, bounds) as image:
        return upright_size(image, bounds)


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        (Bounds(max_pixels=53, max_bytes=None), Reason.TOO_LARGE),
        (Bounds(max_pixels=54, max_bytes=20), Reason.TOO_LARGE),
        (Bounds(max_pixels=54, max_bytes=None, formats=("JPEG",)), Reason.UNSUPPORTED_FORMAT),
    ],
)
def test_the_callers_bounds(bounds: Bounds, reason: Reason) -> None:
    data = encoded(PIXELS, 1)
    for ask in (decode, size_of):
        with pytest.raises(Rejected) as rejected:
            ask(data, bounds)
        assert rejected.value.reason is reason
    decode(data, Bounds(max_pixels=54, max_bytes=len(data)))


def test_a_profile_that_inflates_is_refused() -> None:
    """A compressed text chunk of 80 MB: pillow's own limit of texts ends in a reason."""
    plain = encoded(PIXELS, None)
    body = b"Raw profile type exif\0\0" + zlib.compress(bytes(80_000_000))
    chunk = b"zTXt" + body
    bomb = struct.pack(">I", len(body)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    with pytest.raises(Rejected) as rejected:
        decode(plain[:33] + bomb + plain[33:], BOUNDS)
    assert rejected.value.reason is Reason.UNREADABLE_IMAGE


def test_what_is_rejected_travels_between_processes() -> None:
    again = pickle.loads(pickle.dumps(Rejected(Reason.EMPTY, "no bytes")))
    assert (again.reason, again.detail, str(again)) == (Reason.EMPTY, "no bytes", "no bytes")


def test_oddities_of_a_file_are_silent_and_others_are_not() -> None:
    out = io.BytesIO()
    Image.new("RGB", (8, 8)).save(out, "TIFF")
    cut = out.getvalue()[:-193]  # in the middle of its directory
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with pytest.raises((OSError, SyntaxError)):
            Image.open(io.BytesIO(cut)).load()
        by_pillow = len(heard)
        with pytest.raises(Rejected):
            decode(cut, BOUNDS)
        with QUIET:
            warnings.warn("of somebody else", stacklevel=1)
    assert by_pillow
    assert [str(one.message) for one in heard[by_pillow:]] == ["of somebody else"]


def test_threads_leave_the_filters_of_warnings_as_they_were() -> None:
    """The one that enters first leaves first: by itself catch_warnings would leave a filter."""
    before = list(warnings.filters)
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with QUIET:
            entered.set()
            assert leave.wait(20)

    thread = threading.Thread(target=other)
    with QUIET:
        thread.start()
        assert entered.wait(20)
    assert list(warnings.filters) != before  # the other is still inside
    leave.set()
    thread.join()
    assert list(warnings.filters) == before


def test_libtiff_writes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Its messages about damaged files would appear between the lines of a job."""
    out = io.BytesIO()
    Image.effect_noise((70, 60), 90).save(out, "TIFF", compression="tiff_lzw")
    damaged = bytearray(out.getvalue())
    for offset in range(200, len(damaged) - 200, 50):
        damaged[offset] ^= 0xFF
    with pytest.raises(Rejected):
        decode(bytes(damaged), BOUNDS)
    assert capfd.readouterr() == ("", "")
