"""Sizes and orientations of published images are read in a process that can be killed."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.schemas.images.test_decode import with_late_exif
from tests.turned_images import encoded

from vlmill.pipelines.manifest.entries import ListedImage
from vlmill.pipelines.manifest.layouts import boxes
from vlmill.pipelines.manifest.layouts.boxes import Frame, read_frame


def image_bytes(kind: str = "JPEG", orientation: int = 1) -> bytes:
    out, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", (40, 30), "red").save(out, kind, exif=exif)
    return out.getvalue()


def listed(content: bytes, **more: Any) -> ListedImage:
    return ListedImage(image_id="a", paths=(), content=content, **more)


def test_no_decoder_opens_a_file_in_the_job_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    folder: Any = Path("unused")
    content = image_bytes("PNG", orientation=6)
    expected = boxes.read_stored_size(content)

    def refuse(*_: object) -> Any:
        raise AssertionError("opened in the job's own process")

    monkeypatch.setattr(boxes, "open_image", refuse)
    assert expected == ((40, 30), 6)
    assert read_frame(folder, listed(content)) == Frame(40, 30, 6)
    assert read_frame(folder, listed(content, width=30, height=40)) == Frame(30, 40)


def test_the_orientation_after_the_pixels_of_a_png_counts() -> None:
    pixels = np.zeros((6, 9, 3), np.uint8)
    late = with_late_exif(encoded(pixels, 6, "PNG"))
    assert boxes.read_stored_size(late) == boxes.read_stored_size(encoded(pixels, 6, "PNG"))
    assert boxes.read_stored_size(late)[1] == 6


def test_a_damaged_file_has_its_published_size() -> None:
    folder: Any = Path("unused")
    cut = image_bytes()[:30]
    assert read_frame(folder, listed(cut)) is None
    assert read_frame(folder, listed(cut, width=8, height=6)) == Frame(8, 6)
