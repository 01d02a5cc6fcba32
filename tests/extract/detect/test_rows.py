"""Rows: what the stored type cannot hold is seen on the device, by the writer's own rule."""

from typing import Any

import numpy as np
import pytest
import torch

from vlmill.extract.config import Storage
from vlmill.extract.detect.rows import Query, as_stored, finite_images, make_outcomes
from vlmill.extract.images.resize import PixelInput
from vlmill.runtime.readers.regions import RegionRow
from vlmill.schemas.rejects import Reason, Rejected

NAN, INFINITY = float("nan"), float("inf")
# Beyond float16, at the border of what is stored at all, and halves of it in bfloat16.
NUMBERS = (0.0, -1.5, 65504.0, 65520.0, 9.96e9, 9.98e9, 1e10, 1.001e10, -1e10, 3e38)


def stores(value: float, dtype: str) -> bool:
    try:
        as_stored(np.array([value], np.float32), dtype)
    except Rejected:
        return False
    return True


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", ["features", "class_probs", "global_feature"])
@pytest.mark.parametrize("value", [*NUMBERS, NAN, INFINITY, -INFINITY])
def test_the_device_refuses_what_the_writer_refuses(value: float, name: str, dtype: str) -> None:
    values = torch.ones(2, 3) if name == "global_feature" else torch.ones(2, 4, 3)
    values[1].flatten()[-2] = value
    stored = values.half() if dtype == "float16" else values
    finite = finite_images({name: stored}, torch.ones(2, 4, dtype=torch.bool), dtype)
    assert finite.tolist() == [True, stores(value, dtype)]


def test_places_that_are_not_taken_may_hold_anything() -> None:
    features = torch.ones(2, 3, 5)
    features[0, 2], features[1, 0] = NAN, INFINITY
    taken = torch.tensor([[True, True, False], [False, True, True]])
    assert finite_images({"features": features}, taken, "float32").all()
    assert finite_images({"features": features}, ~taken, "float32").tolist() == [False, False]
    assert finite_images({}, taken, "float32").all()


def make_query(name: str) -> Query:
    pixels = np.zeros((6, 8, 3), np.uint8)
    image = PixelInput(pixels=pixels, size=(6, 8), scale=1.0, factors=(1.0, 1.0), width=8, height=6)
    return Query(image_id=name, image=image)


def test_rows_hold_the_places_that_are_taken_of_the_images_that_are_finite() -> None:
    arrays: dict[str, Any] = {
        "boxes": np.arange(36, dtype=np.float32).reshape(3, 3, 4),
        "features": np.arange(18, dtype=np.float16).reshape(3, 3, 2),
        "class_prob_ids": np.arange(9).reshape(3, 3, 1),
        "global_feature": np.arange(6, dtype=np.float16).reshape(3, 2),
        "taken": np.array([[True] * 3, [True, False, True], [True] * 3]),
        "finite": np.array([True, True, False]),
    }
    queries = [make_query(name) for name in "abc"]
    whole, part, bad = make_outcomes(queries, arrays, Storage())
    assert isinstance(whole, RegionRow) and isinstance(part, RegionRow)
    assert (whole.image_id, whole.width, whole.height) == ("a", 8, 6)
    assert whole.features is not None and np.shares_memory(whole.features, arrays["features"])
    assert part.features is not None and part.features.tolist() == [[6, 7], [10, 11]]
    assert part.class_prob_ids is not None and part.class_prob_ids.dtype == np.uint16
    assert part.class_prob_ids.tolist() == [[3], [5]]
    assert part.global_feature is not None and part.global_feature.tolist() == [2, 3]
    assert isinstance(bad, Rejected) and bad.reason is Reason.NOT_FINITE
    assert bad.detail == (
        "a feature or probability: values that float16 cannot hold, or above 1e+10"
    )
