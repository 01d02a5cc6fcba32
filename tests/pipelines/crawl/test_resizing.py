"""Images are scaled, framed and encoded as the modes say; what cannot be is dropped."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vlmill.pipelines.crawl.__main__ import ENCODINGS, MODES
from vlmill.pipelines.crawl.resizing import ENCODINGS as QUALITIES
from vlmill.pipelines.crawl.resizing import MODES as ALL_MODES
from vlmill.pipelines.crawl.resizing import EncodedImage, ResizeRule, encode_image
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.images.decode import Bounds
from vlmill.schemas.rejects import Reason

BOUNDS = Bounds(max_pixels=1_000_000, max_bytes=None)


def picture(width: int, height: int, kind: str = "JPEG", mode: str = "RGB", **more: Any) -> bytes:
    """A smooth image that is dark on the left and light on the right."""
    grey = np.broadcast_to(np.linspace(0, 255, width, dtype=np.uint8), (height, width))
    stream = io.BytesIO()
    Image.fromarray(grey).convert(mode).save(stream, kind, **more)
    return stream.getvalue()


def encode(data: bytes, min_side_px: int = 0, **rule: Any) -> EncodedImage | Drop:
    return encode_image(data, ResizeRule(**rule), min_side_px=min_side_px, bounds=BOUNDS)


def pixels(image: EncodedImage | Drop) -> Image.Image:
    assert isinstance(image, EncodedImage) and image.content is not None
    opened = Image.open(io.BytesIO(image.content))
    assert opened.size == (image.width, image.height)
    assert str(opened.format).lower() == image.format
    return opened


@pytest.mark.parametrize(
    ("mode", "size"),
    [
        ("keep_ratio", (200, 100)),
        ("keep_ratio_largest", (100, 50)),
        ("border", (100, 100)),
        ("center_crop", (100, 100)),
    ],
)
@pytest.mark.parametrize("scale", [1, 8])
def test_modes(mode: str, size: tuple[int, int], scale: int) -> None:
    """Of an image that is enlarged and one that is shrunk, both twice as wide as high."""
    opened = pixels(encode(picture(60 * scale, 30 * scale), size=100, mode=mode))
    assert opened.size == size and opened.format == "JPEG"
    grey = np.asarray(opened.convert("L"), dtype=int)
    if mode == "border":
        assert grey[:20].min() > 250 and grey[-20:].min() > 250
        grey = grey[30:70]
    low, high = (64, 191) if mode == "center_crop" else (0, 255)
    assert abs(grey[:, 1].mean() - low) < 8 and abs(grey[:, -2].mean() - high) < 8


def test_small_images_stay_as_they_are_if_asked() -> None:
    small = picture(60, 30)
    for mode in ("keep_ratio", "border"):
        image = encode(small, size=100, mode=mode, only_larger=True)
        assert image == EncodedImage(content=None, width=60, height=30, format="jpeg")
    # Its larger side is larger, its smaller one is not.
    wide = picture(150, 80)
    assert pixels(encode(wide, size=100, mode="border", only_larger=True)).size == (100, 100)
    kept = encode(wide, size=100, mode="keep_ratio", only_larger=True)
    assert isinstance(kept, EncodedImage) and kept.content is None


def test_encodings() -> None:
    png = picture(90, 60, "PNG")
    assert pixels(encode(png, size=30)).format == "JPEG"
    assert pixels(encode(png, encoding="webp")).size == (90, 60)
    assert encode(png, encoding="png") == EncodedImage(
        content=None, width=90, height=60, format="png"
    )
    fine, coarse = (encode(png, encoding="jpeg", quality=q) for q in (95, 10))
    assert isinstance(fine, EncodedImage) and isinstance(coarse, EncodedImage)
    assert len(fine.content or b"") > len(coarse.content or b"")
    assert tuple(QUALITIES) == ENCODINGS and MODES == ALL_MODES


def test_images_are_upright_and_transparency_is_white() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    assert pixels(encode(picture(80, 40, exif=exif), size=20)).size == (20, 40)
    clear = Image.new("RGBA", (40, 40), (0, 0, 0, 0))
    stream = io.BytesIO()
    clear.save(stream, "PNG")
    assert pixels(encode(stream.getvalue(), size=20)).getpixel((5, 5)) == (255, 255, 255)
    assert pixels(encode(picture(40, 40, "JPEG", "CMYK"), size=20)).mode == "RGB"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (picture(200, 100)[:-400], Reason.UNREADABLE_IMAGE),
        (b"<html>", Reason.UNSUPPORTED_FORMAT),
        (picture(30, 20), Reason.TOO_SMALL),
        (picture(2000, 1000, "PNG"), Reason.TOO_LARGE),
    ],
)
def test_what_cannot_be_resized_is_dropped(data: bytes, reason: Reason) -> None:
    image = encode(data, size=50, min_side_px=20)
    assert isinstance(image, Drop) and image.reason is reason
