import io
import os
import signal
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from worlds.hostile_images import IMAGES

from vlmill.pipelines.web.pages.images import ImageFacts, examine_image, open_examiner
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.ids import compute_image_id
from vlmill.schemas.rejects import Reason

Make = Callable[..., bytes]


def examine(data: bytes, side: int = 300, pixels: int = 1_000_000) -> ImageFacts | Reason:
    found = examine_image(data, min_side_px=side, max_pixels=pixels)
    return found.reason if isinstance(found, Drop) else found


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF"])
def test_facts_of_a_good_image(image: Make, format: str) -> None:
    data = image(301, 302, format=format)
    assert examine(data) == ImageFacts(
        image_id=compute_image_id(data), width=301, height=302, format=format.lower()
    )


def test_both_sides_must_be_above_the_limit(image: Make) -> None:
    assert examine(image(300, 400)) == Reason.TOO_SMALL
    assert examine(image(400, 300)) == Reason.TOO_SMALL


def test_reasons(image: Make) -> None:
    assert examine(image(1001, 1000)) == Reason.TOO_LARGE
    assert isinstance(examine(image(400, 400, format="BMP")), ImageFacts)
    assert examine(image(400, 400, format="PPM")) == Reason.UNSUPPORTED_FORMAT
    assert examine(b"<svg xmlns='http://www.w3.org/2000/svg'/>") == Reason.UNSUPPORTED_FORMAT
    assert examine(image(400, 400)[:-600]) == Reason.UNREADABLE_IMAGE
    assert examine(b"") == Reason.UNREADABLE_IMAGE
    assert examine(b"<html>503</html>") == Reason.UNREADABLE_IMAGE


def test_an_animation_goes() -> None:
    frames = [Image.new("L", (400, 400), grey) for grey in (10, 200)]
    out = io.BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
    assert examine(out.getvalue()) == Reason.ANIMATED


def test_huge_dimensions_in_a_header_cost_nothing() -> None:
    header = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (60_000).to_bytes(4, "big") * 2
    header += b"\x08\x02\0\0\0" + b"\0\0\0\0"
    assert examine(header) in (Reason.TOO_LARGE, Reason.UNREADABLE_IMAGE)


REASONS = {
    Reason.UNREADABLE_IMAGE,
    Reason.UNSUPPORTED_FORMAT,
    Reason.TOO_EXPENSIVE,
    Reason.TOO_SMALL,
    Reason.TOO_LARGE,
    Reason.ANIMATED,
}


@given(st.integers(0, 5_000), st.binary(min_size=1, max_size=8))
def test_damage_gives_facts_or_a_reason(position: int, patch: bytes) -> None:
    out = io.BytesIO()
    Image.linear_gradient("L").resize((310, 310)).save(out, "PNG")
    data = bytearray(out.getvalue())
    data[position % len(data) : position % len(data) + len(patch)] = patch
    found = examine(bytes(data))
    if isinstance(found, ImageFacts):
        assert found.image_id == compute_image_id(bytes(data))
        assert found.format == "png"
        assert min(found.width, found.height) > 300
        assert found.width * found.height <= 1_000_000
    else:
        assert found in REASONS


def test_killed_decoder_costs_no_image(image: Make) -> None:
    data = image(301, 302)
    with open_examiner(min_side_px=300, max_pixels=10**6) as examiner:
        facts = examiner.examine(data)
        (process_id,) = examiner.process_ids
        os.kill(process_id, signal.SIGKILL)
        assert examiner.examine(data) == facts == examine(data)


def test_costly_image_is_dropped_and_the_next_one_is_not(image: Make) -> None:
    hostile = IMAGES["JPEG, EXIF of one segment"].make()
    with open_examiner(min_side_px=300, max_pixels=10**6) as examiner:
        drop = examiner.examine(hostile)
        assert isinstance(drop, Drop) and drop.reason is Reason.TOO_EXPENSIVE
        assert isinstance(examiner.examine(image(301, 302)), ImageFacts)


def test_a_camera_s_jpeg_with_a_second_image_is_a_jpeg(image: Make) -> None:
    first, preview = (Image.open(io.BytesIO(image(side, side, seed=side))) for side in (400, 320))
    out = io.BytesIO()
    first.save(out, "MPO", save_all=True, append_images=[preview])
    facts = examine(out.getvalue())
    assert isinstance(facts, ImageFacts) and (facts.width, facts.format) == (400, "jpeg")


def test_the_history_that_an_editor_left_in_a_png_is_not_read(image: Make) -> None:
    info = PngInfo()
    info.add_itxt("XML:com.adobe.xmp", "x" * (2 << 20), zip=True)
    out = io.BytesIO()
    Image.open(io.BytesIO(image(400, 400, format="PNG"))).save(out, "PNG", pnginfo=info)
    assert isinstance(examine(out.getvalue()), ImageFacts)


def test_an_image_of_one_colour_is_refused_where_that_is_asked() -> None:
    out = io.BytesIO()
    Image.new("RGB", (400, 400), (200, 30, 30)).save(out, "JPEG")
    examine_all = partial(examine_image, min_side_px=300, max_pixels=1_000_000)
    found = examine_all(out.getvalue(), blank=False)
    assert isinstance(found, Drop) and found.reason is Reason.BLANK_IMAGE
    assert isinstance(examine_all(out.getvalue()), ImageFacts)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "WEBP", "AVIF", "BMP", "TIFF"])
def test_headers_give_the_size_and_a_cut_is_seen(image: Make, format: str) -> None:
    data = image(400, 420, format=format)
    read = partial(examine_image, min_side_px=300, max_pixels=1_000_000, headers=True)
    facts = read(data)
    assert isinstance(facts, ImageFacts)
    assert (facts.width, facts.height, facts.phash) == (400, 420, None)
    cut = read(data[: len(data) // 2])
    assert isinstance(cut, Drop) and cut.reason is Reason.UNREADABLE_IMAGE
