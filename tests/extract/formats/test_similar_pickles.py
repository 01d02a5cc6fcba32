"""Pickles with the instructions of an earlier one are read like the first, and as safely."""

import pickle
from typing import Any

import numpy as np
import pytest

from vlmill.extract.formats.pickled import dict_parts
from vlmill.extract.formats.similar_pickles import SimilarPickles
from vlmill.models.convert.plain_pickle import BadPickle, loads, plain_value


def make_item(number: int, count: int = 3) -> dict[str, Any]:
    random = np.random.default_rng(number)
    return {
        "image_id": f"COCO_{number}" + "x" * number,
        "image_w": 640 + number,
        "num_boxes": count,
        "features": random.random((count, 100), np.float32),
        "objects_id": random.integers(0, 9, count),
        "cls_prob": None,
        "raw": bytes(range(256)) * 2,
    }


def plain(item: Any) -> dict[str, Any]:
    return {name: plain_value(value) for name, value in item.items()}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5, "own"])
def test_values_are_those_of_the_safe_reader(protocol: int | str) -> None:
    reader = SimilarPickles()
    for number in range(40):
        item = make_item(number, 3 if number % 5 else 300)
        data = (
            b"".join(dict_parts(item))
            if protocol == "own"
            else pickle.dumps(item, protocol=int(protocol))
        )
        read, expected = plain(reader.loads(data)), plain(loads(data))
        assert read.keys() == item.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(read[name], value)
            assert type(read[name]) is type(value)
        np.testing.assert_array_equal(read["features"], item["features"])


def test_another_name_or_a_cut_after_a_good_pickle_is_refused() -> None:
    reader = SimilarPickles()
    good = pickle.dumps(make_item(1), protocol=4)
    reader.loads(good)
    reader.loads(pickle.dumps(make_item(2), protocol=4))
    for old, new in ((b"numpy", b"posix"), (b"ndarray", b"getpid1"), (b"dtype", b"abort")):
        with pytest.raises(BadPickle):
            reader.loads(good.replace(old, new))
    with pytest.raises(BadPickle):  # a shape that the bytes do not fill
        reader.loads(good.replace(b"K\x03Kd\x86", b"K\x05Kd\x86"))
    for end in range(0, len(good) - 1, 13):
        with pytest.raises(BadPickle):
            reader.loads(good[:end])


def test_a_large_index_is_never_left_to_pythons_unpickler() -> None:
    reader = SimilarPickles()
    data = b"\x80\x03}r" + (2**31).to_bytes(4, "little") + b"."
    for _ in range(2):
        assert reader.loads(data) == {}
    assert not any(reader._kinds)
