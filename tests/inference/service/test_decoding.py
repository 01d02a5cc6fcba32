"""Images of requests are decoded elsewhere, with the pixels that evaluation sees."""

import numpy as np
import pytest
from worlds.hostile_images import IMAGES, photograph

from vlmill.inference.service.computing import PixelDecoder
from vlmill.schemas.rejects import Reason
from vlmill.train.loading.images.crop import UndecodableImage, evaluation_image


def test_pixels_are_those_of_evaluation_and_costly_images_are_refused() -> None:
    decode = PixelDecoder()
    data = photograph("JPEG", 90)
    np.testing.assert_array_equal(decode(data, "a", 32), evaluation_image(data, "a", 32))
    with pytest.raises(UndecodableImage) as raised:
        decode(IMAGES["TIFF, overlapping tags"].make(), "b", 32)
    assert raised.value.cause.reason is Reason.TOO_EXPENSIVE
    with pytest.raises(UndecodableImage) as raised:
        decode(data[:300], "c", 32)
    assert raised.value.cause.reason is Reason.UNREADABLE_IMAGE
