"""Strangers' pickles: plain data is read, anything else is refused, nothing is executed."""

import io
import pickle
import pickletools
import struct
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories import Call

from vlmill.models.convert import plain_pickle, unpickling
from vlmill.models.convert.plain_pickle import BadPickle, Pickled, load, loads, plain_value
from vlmill.models.convert.unpickling import check_bounds, read_pickled_list

PLAIN_MODULES = {"builtins", "numpy", Pickled.__module__}  # of the types that may come out
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


class EvilDtype:
    """Forges the flags of a type of objects, so that numpy would take numbers for pointers."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (np.dtype, ("O8", False, True), (3, "|", None, None, None, -1, -1, 0))


@settings(max_examples=150, deadline=None)
@given(value=plain, protocol=st.sampled_from(PROTOCOLS))
def test_plain_data_comes_back(value: object, protocol: int) -> None:
    assert loads(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype="<f4").reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype="<i8").reshape(2, 3)),
        np.arange(4, dtype=">i2"),
        np.zeros((0, 5), np.float16),
        np.array(7),
        np.array(["a", "bc"]),
    ],
)
def test_arrays_come_back(array: np.ndarray[Any, Any], protocol: int) -> None:
    found = plain_value(loads(pickle.dumps({"x": array}, protocol))["x"])
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_numbers_of_numpy_and_arrays_of_objects(protocol: int) -> None:
    found = loads(pickle.dumps([np.float32(1.5), np.array({"a": 1}, dtype=object)], protocol))
    assert found[0] == 1.5 and plain_value(found[0]) == 1.5
    assert isinstance(found[1], Pickled) and found[1].value == [{"a": 1}]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_is_executed(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "ran"
    with pytest.raises(BadPickle, match="asks for"):
        loads(pickle.dumps({"image_id": Call(Path.touch, mark)}, protocol))
    assert not mark.exists()


BUILD_ON_A_NAME = b"cnumpy\ndtype\n}(X\x06\x00\x00\x00_buildK\x01ub."
MEMO_INDEX = b"\x80\x02K\x01r\xff\xff\xff\xff."
RESERVES_MEMORY = b"\x96" + struct.pack("<Q", 2**46) + b"."
# A tuple of twice the same tuple of twice the same ..., whose hash takes for ever, as a dict's key.
DEEP_KEY = b"\x80\x02})" + b"q\x01h\x01\x86" * 200


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"cos\nsystem\n(S'true'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"c__builtin__\ngetattr\n.",
        BUILD_ON_A_NAME,
        RESERVES_MEMORY,
        b"cbuiltins\nbytes\n(I1000000000000\ntR.",
        pickle.dumps(np.zeros(3, [("a", "<i4")])),
        pickle.dumps(np.array([1], "datetime64[s]")),
        pickle.dumps(np.arange(3))[:-4],
        DEEP_KEY + b"Ns.",
        b"(" + DEEP_KEY[2:].replace(b"}", b"", 1) + b"Nd.",
        DEEP_KEY[:2] + b"\x8f(" + DEEP_KEY[3:] + b"\x90.",
        pickle.dumps({frozenset()}, 4),
        b"\x82\x01.",
        b"Pnothing\n.",
        b"c_codecs\nencode\n(S'a'\nS'zlib'\ntR.",
        b"ccollections\nOrderedDict\n)R}S'items'\nK\x01sb.",
        b"ccollections\nOrderedDict\n(K\x05tR.",
        b"ccollections\nOrderedDict\n((lp0\nK\x01atR.",
    ],
)
def test_bad_pickles_are_refused(data: bytes) -> None:
    with pytest.raises(BadPickle):
        loads(data)


def test_a_wild_memo_index_costs_nothing() -> None:
    assert loads(MEMO_INDEX) == 1


def test_forged_arrays_of_pointers_never_reach_numpy() -> None:
    """numpy's own __setstate__ would take these bytes for objects' addresses."""
    state = (1, (2,), EvilDtype(), False, b"A" * 16)
    parts = [pickle.dumps(v, 2)[2:-1] for v in (state,)]
    array = b"\x80\x02cnumpy\nndarray\n)R" + parts[0] + b"b."
    pickletools.dis(array, io.StringIO())
    with pytest.raises(BadPickle, match="without a list"):
        loads(array)


def test_nested_sharing_is_no_value() -> None:
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep, deep]
    assert plain_value(loads(pickle.dumps(deep))) is None


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_mutated_pickles_are_read_or_refused(seed: int) -> None:
    random = np.random.default_rng(seed)
    item = {"image_id": "a", "features": "AAAA", "x": np.arange(5), "o": np.array({}, dtype=object)}
    data = bytearray(pickle.dumps(item, int(random.integers(0, 6))))
    for _ in range(int(random.integers(1, 6))):
        data[int(random.integers(0, len(data)))] = int(random.integers(0, 256))
    try:
        found = loads(bytes(data[: int(random.integers(1, 2 * len(data)))]))
    except BadPickle:
        return
    assert type(found).__module__ in PLAIN_MODULES


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_ordered_dicts_come_back_with_what_torch_notes_of_modules(protocol: int) -> None:
    ordered = OrderedDict({"b": 1, "a": np.arange(2)})
    ordered._metadata = {"": {"version": 1}}  # type: ignore[attr-defined]
    content = loads(pickle.dumps(ordered, protocol))
    assert list(content) == ["b", "a"] and content["b"] == 1
    assert content._metadata == {"": {"version": 1}}


def test_ordered_dicts_of_python_2() -> None:
    assert loads(b"ccollections\nOrderedDict\n((lp0\n(lp1\nS'a'\naI5\naatR.") == {"a": 5}


def test_a_record_is_bounded_and_a_checkpoint_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickle.dumps({"a": np.arange(100)})
    monkeypatch.setattr(plain_pickle, "MAX_RECORD", 100)
    with pytest.raises(BadPickle, match="limit 100"):
        loads(data)
    assert list(load(io.BytesIO(data), len(data))["a"].value) == list(range(100))


@pytest.mark.parametrize("code", [b"\x8e", b"\x8d", b"\x96", b"\x80\x04\x95"])
def test_a_file_is_never_asked_for_more_than_it_has(code: bytes) -> None:
    """bytes, text, a bytearray and a frame of 2**46 bytes."""

    class Asked(io.BytesIO):
        largest = 0

        def read(self, count: int | None = -1) -> bytes:
            assert count is not None
            self.largest = max(self.largest, count)
            return super().read(count)

    data = code + struct.pack("<Q", 2**46) + b"aaaa."
    file = Asked(data)
    with pytest.raises(BadPickle):
        load(file, len(data))
    assert 0 < file.largest <= len(data)


def test_it_needs_no_torch() -> None:
    code = f"import sys, {plain_pickle.__name__}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("instruction", [b"\x94", b"}", b"]", b"2", b"N"])
def test_instructions_are_counted_as_each_costs_memory(
    monkeypatch: pytest.MonkeyPatch, instruction: bytes
) -> None:
    monkeypatch.setattr(plain_pickle, "MAX_INSTRUCTIONS", 1_000)
    few, many = (b"\x80\x04]" + instruction * count + b"." for count in (900, 1_000))
    loads(few)
    with pytest.raises(BadPickle, match="more than 1000 instructions"):
        loads(many)


LISTS = b"\x80\x02" + b"]" * 1_000_000  # one in the other's place, 56 bytes each
NONES = b"\x80\x02" + b"N0" * 9_000_000 + b"]."


def test_a_list_of_plain_data_comes_back() -> None:
    listed: list[Any] = [{b"a": 1.5, b"\xc3\xa9": [b"x", None]}, "\ud800", 2**70, (True,)]
    assert list(read_pickled_list(pickle.dumps(listed), encoding="bytes")) == listed
    begun = read_pickled_list(pickle.dumps([1, 2]))
    assert next(begun) == 1
    begun.close()  # its process ends with it


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (pickle.dumps(print), "asks for builtins.print"),
        (pickle.dumps({"a": 1}), "holds a dict, expected a list"),
        (pickle.dumps([1])[:-2], "a damaged pickle"),
        (b"", "a damaged pickle: it is cut"),
        (b"[1]", "a damaged pickle, or none"),
        (pickle.dumps([np.zeros(2)]), "an element is not plain data"),
    ],
)
def test_anything_else_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(BadPickle, match=said):
        list(read_pickled_list(content))


def test_memory_and_time_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpickling, "MEMORY", 32 << 20)
    for read in (check_bounds, lambda content: list(read_pickled_list(content))):
        with pytest.raises(BadPickle, match="needs more memory than the limit"):
            read(LISTS)
    monkeypatch.undo()
    monkeypatch.setattr(unpickling, "SECONDS", 1)
    with pytest.raises(BadPickle, match="more than 1 seconds of processor time"):
        check_bounds(NONES)
