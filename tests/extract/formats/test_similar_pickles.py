"""Pickles with the instructions of an earlier one are read like the first, and as safely."""

import pickle
import re
from typing import Any

import numpy as np
import pytest

from vlmill.extract.formats import similar_pickles
from vlmill.extract.formats.pickled import dict_parts
from vlmill.extract.formats.similar_pickles import SimilarPickles
from vlmill.models.convert.plain_pickle import BadPickle, Pickled, loads, plain_value


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


def only_plain(value: Any) -> Any:
    """A value with arrays as lists, for comparison; Pickled or not."""
    plain = value.value if isinstance(value, Pickled) else value
    if isinstance(plain, np.ndarray | np.generic):
        return plain.tolist()
    if isinstance(plain, dict):
        return {only_plain(key): only_plain(entry) for key, entry in plain.items()}
    if isinstance(plain, list | tuple):
        return type(plain)(map(only_plain, plain))
    return bytes(plain) if isinstance(plain, memoryview) else plain


def describe(data: bytes, read: Any) -> str:
    try:
        return re.sub("0x[0-9a-f]+", "address", repr(only_plain(read(data))))
    except BadPickle:
        return "refused"


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_changed_bytes_give_what_the_safe_reader_gives(protocol: int) -> None:
    random = np.random.default_rng(protocol)
    item = {"nested": [make_item(7), (1, "a text", 700)], "score": np.float32(0.5)}
    good = pickle.dumps(np.array(item, dtype=object), protocol=protocol)
    outcomes = set()
    for _ in range(400):
        reader = SimilarPickles()
        reader.loads(good)
        changed = bytearray(good)
        changed[random.integers(len(good))] = random.integers(256)
        outcome = describe(bytes(changed), reader.loads)
        assert outcome == describe(bytes(changed), loads)
        outcomes.add(outcome == "refused")
    assert outcomes == {True, False}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_the_instructions_of_a_kind_are_executed_once(
    protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = SimilarPickles()
    first, second = (
        pickle.dumps(np.array({**make_item(n), "score": np.float64(n)}, object), protocol=protocol)
        for n in (1, 2)
    )
    reader.loads(first)
    expected = only_plain(loads(second))
    monkeypatch.setattr(similar_pickles, "loads", None)
    assert only_plain(reader.loads(second)) == expected


def test_lists_of_twice_the_same_list_are_left_to_the_safe_reader() -> None:
    value: Any = "the text"
    for _ in range(60):
        value = [value, value]
    reader = SimilarPickles()
    for _ in range(2):
        assert len(reader.loads(pickle.dumps(value))) == 2
    assert not reader._kinds


def test_a_large_index_is_never_repeated() -> None:
    reader = SimilarPickles()
    data = b"\x80\x03}r" + (2**31).to_bytes(4, "little") + b"."
    for _ in range(2):
        assert reader.loads(data) == {}
    assert not reader._kinds
