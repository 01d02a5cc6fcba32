"""Images of retrieval are decoded once, whether they are looked at for a fault or not."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from worlds.hostile_images import photograph

from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.images import ImageReader
from vlmill.schemas.rejects import Reason, Rejected
from vlmill.schemas.tables import IMAGES
from vlmill.train.loading.images.crop import UndecodableImage, evaluation_image
from vlmill.train.settings.parts import Feeding
from vlmill.train.tasks.retrieval.inputs import PixelImages


def test_image_is_decoded_once(tmp_path: Path) -> None:
    decoded: list[str] = []

    def decode(data: bytes | None, image_id: str, size: int) -> NDArray[np.uint8]:
        decoded.append(image_id)
        if image_id == "costly":
            raise UndecodableImage(image_id, Rejected(Reason.TOO_EXPENSIVE, "1,000 scans"))
        return evaluation_image(data, image_id, size)

    empty = dict.fromkeys(IMAGES.schema.names)
    names = ("a", "b", "costly")
    data = photograph("PNG", 40)
    write_shard(tmp_path, IMAGES, [{**empty, "image_id": name, "bytes": data} for name in names])
    images = PixelImages(ImageReader(tmp_path), Feeding(kind="pixels", image_size=16), decode)
    assert images.fault("costly") is Reason.TOO_EXPENSIVE
    for name in ("a", "b"):
        assert images.fault(name) is None
        pixels = images.batch([name]).tensors["pixels"]
        np.testing.assert_array_equal(pixels[0], evaluation_image(data, name, 16))
    assert decoded == ["costly", "a", "b"]
    images.batch(["a", "b"])
    assert decoded[3:] == ["a"]  # a batch had read it, and the pixels of b took its slot
