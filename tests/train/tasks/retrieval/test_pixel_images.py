"""Pixels of images that were decoded to check for a fault are not decoded again."""

from collections import Counter
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from vlmill.runtime.readers.images import ImageReader
from vlmill.schemas.rejects import Reason
from vlmill.train.settings.parts import Feeding
from vlmill.train.tasks.retrieval.inputs import PixelImages

SIDE = 16


def read_bytes(number: int) -> bytes:
    """Stands in for a table of images: the bytes of an image are its name."""
    return b"" if number == 3 else str(number).encode()


def open_images(monkeypatch: pytest.MonkeyPatch, decoded: Counter[str]) -> PixelImages:
    def decode(data: bytes | None, image_id: str, size: int) -> Any:
        assert data is not None
        decoded[image_id] += 1
        return np.full((3, size, size), int(data), np.uint8)

    join = SimpleNamespace(find=lambda ids: np.array([int(i) for i in ids]))
    monkeypatch.setattr("vlmill.train.tasks.retrieval.inputs.Join", lambda *_, **__: join)
    table, feeding = Mock(spec=ImageReader, index=None), Mock(spec=Feeding, image_size=SIDE)
    table.read_bytes = read_bytes
    return PixelImages(table, feeding, decode)


def batch_pixels(images: PixelImages, names: list[str]) -> dict[str, Any]:
    """The pixels of a batch, before they are collated."""
    return {name: images._load_kept(name) for name in names}


def test_no_image_is_decoded_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = Counter[str]()
    images = open_images(monkeypatch, decoded)
    names = [str(number) for number in range(100)]
    faults = {name: images.fault(name) for name in names}
    assert {name for name, fault in faults.items() if fault} == {"3"}
    assert faults["3"] is Reason.EMPTY
    good = [name for name in names if name != "3"]
    for name, pixels in batch_pixels(images, good).items():
        assert (pixels == int(name)).all() and pixels.shape == (3, SIDE, SIDE)
    assert set(decoded.values()) == {1}


def test_a_stream_of_images_uses_the_space_of_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = Counter[str]()
    images = open_images(monkeypatch, decoded)
    for first in range(10, 200, 10):
        names = [str(number) for number in range(first, first + 10)]
        assert not any(map(images.fault, names))
        for name, pixels in batch_pixels(images, names).items():
            assert (pixels == int(name)).all()
    assert images._file is not None
    assert images._file.seek(0, 2) == 10 * 3 * SIDE * SIDE
    assert set(decoded.values()) == {1}


def test_a_full_disk_costs_a_second_decoding_only(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = Counter[str]()
    images = open_images(monkeypatch, decoded)

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", refuse)
        assert images.fault("1") is None
    assert images.fault("2") is None
    batch = batch_pixels(images, ["1", "2"])
    assert [pixels[0, 0, 0] for pixels in batch.values()] == [1, 2]
    assert decoded == {"1": 2, "2": 1}
