"""Parts of image files are counted as decoders read them, and too many are refused before that."""

import io
import struct

import numpy as np
import pytest
from PIL import Image
from tests.turned_images import encoded
from worlds import hostile_images as hostile

from vlmill.schemas.images.decode import Bounds, decode, open_image, upright_size
from vlmill.schemas.images.formats import format_name
from vlmill.schemas.images.structure import LIMITS, check_structure, count_parts
from vlmill.schemas.rejects import Reason, Rejected

BOUNDS = Bounds(max_pixels=50_000_000, max_bytes=64 << 20)
REJECTED = {name: image for name, image in hostile.IMAGES.items() if image.reason is not None}


@pytest.mark.parametrize("name", REJECTED)
def test_hostile_image_is_rejected_before_it_is_decoded(name: str) -> None:
    image = REJECTED[name]
    data = image.make()
    with pytest.raises(Rejected) as rejected, open_image(data, BOUNDS) as opened:
        upright_size(opened, BOUNDS)
    assert rejected.value.reason is image.reason
    counts = count_parts(data, format_name(data))
    exceeded = [kind for kind, count in counts.items() if count > LIMITS[kind]]
    assert exceeded == ([] if image.part is None else [image.part])


def test_there_are_forty_kinds_of_all_formats() -> None:
    kinds = [name for name, image in REJECTED.items() if image.reason is Reason.TOO_EXPENSIVE]
    assert len(kinds) >= 40
    assert {name.partition(",")[0] for name in hostile.IMAGES} == {
        *("JPEG", "PNG", "TIFF", "GIF", "BMP", "WebP", "HEIC", "AVIF")
    }


def test_scans_and_markers_of_a_jpeg() -> None:
    image = Image.effect_noise((64, 48), 50).convert("RGB")
    out = io.BytesIO()
    image.save(out, "JPEG", progressive=True)
    parts = count_parts(out.getvalue(), "JPEG")
    assert parts["scans"] == 10  # what libjpeg writes of three components
    # A thumbnail in a segment, and an image after the end, are no scans of this one.
    inside = hostile.segment(0xED, out.getvalue())
    data = out.getvalue()[:2] + inside + out.getvalue()[2:] + out.getvalue()
    assert count_parts(data, "JPEG") == parts + parts.__class__({"markers": 1})


def test_the_limit_of_scans_itself_passes() -> None:
    one = hostile.scan([1], 1, 63, 0, 1)
    decode(hostile.progressive(one * (LIMITS["scans"] - 1)), BOUNDS)
    with pytest.raises(Rejected, match="JPEG of 65 scans, limit 64"):
        decode(hostile.progressive(one * LIMITS["scans"]), BOUNDS)


def test_tags_of_exif_in_segments() -> None:
    data = hostile.with_header(
        hostile.exif_segments(hostile.overlapping(15, 4_000, [(274, 3, 1, 6)]), size=1_000)
    )
    parts = count_parts(data, "JPEG")
    assert (parts["EXIF segments"], parts["directories"], parts["tags"]) == (4, 1, 16)
    assert parts["times the file's bytes in tags"] == 0  # 60,000 bytes: often, but little


@pytest.mark.parametrize("order", ["<", ">"])
def test_tags_and_strips_of_a_tiff(order: str) -> None:
    tags = [(256, 4, 1, 9), (273, 4, 3, 80), (279, 4, 3, 92), (40_000, 5, 2, 60), (40_001, 2, 9, 8)]
    mark, number = {"<": b"II*\0", ">": b"MM\0*"}[order], order + "HHLL"
    packed = b"".join(struct.pack(number, *tag) for tag in tags)
    data = mark + struct.pack(order + "LH", 8, len(tags)) + packed + bytes(100)
    parts = count_parts(data, "TIFF")
    assert parts["tags"] == 5
    assert parts["strips"] == 3
    assert parts["tag values"] == 1 + 3 + 3 + 2
    assert parts["directories"] == 1


def test_tag_outside_of_the_file_ends_its_directory() -> None:
    """As it ends Pillow's reading: EXIF of real cameras has such tags."""
    tags = [(256, 4, 1, 9), (40_000, 7, 4_000_000_000, 8), (273, 4, 3, 80)]
    data = b"II*\0" + struct.pack("<L", 8) + hostile.directory(tags) + bytes(100)
    assert count_parts(data, "TIFF")["tags"] == 1


def test_pages_that_lead_back_are_read_once() -> None:
    data = b"II*\0" + struct.pack("<L", 8) + hostile.directory([(256, 4, 1, 9)], following=8)
    assert count_parts(data, "TIFF")["directories"] == 1


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP", "GIF", "BMP", "AVIF"])
def test_photograph_passes_at_any_size(kind: str) -> None:
    for side in (1, 40, 700):
        data = hostile.photograph(kind, side)
        check_structure(data, kind)
        assert decode(data, BOUNDS).image.size == (side, side)


def test_damage_is_left_to_the_decoder() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    for kind in ("JPEG", "PNG", "TIFF", "WEBP"):
        data = encoded(pixels, 6, kind)
        for end in range(0, len(data), 7):
            check_structure(data[:end], kind)


def test_a_file_of_no_known_format_has_no_parts() -> None:
    assert not count_parts(b"<svg/>", "SVG")
    assert not count_parts(b"", None)
