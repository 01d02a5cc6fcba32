"""Caffe's files by their bytes: every legal encoding, and bytes that are none."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tests.models.convert import caffe_bytes as wire

from vlmill.models.convert import caffe_file
from vlmill.models.convert.caffe_file import parse_layers, read_caffe_layers
from vlmill.models.convert.files import Unreadable

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3) / 7


def only(data: bytes) -> npt.NDArray[np.float32]:
    """The one blob of the one layer of a file."""
    ((blob,),) = parse_layers(data).values()
    return blob


def in_layer(content: bytes) -> bytes:
    return wire.layer("a", [content])


SHAPE = wire.message(7, wire.message(1, b"\x02\x03"))
PACKED = wire.message(5, wire.floats(VALUES))
ENCODINGS = {
    "shape and packed values": wire.blob(VALUES),
    "values before the shape": PACKED + SHAPE,
    "values in pieces": SHAPE
    + wire.message(5, wire.floats(VALUES[:1]))
    + wire.message(5, wire.floats(VALUES[1:])),
    "values and sides one by one": wire.message(7, wire.number(1, 2) + wire.number(1, 3))
    + b"".join(wire.single(5, value) for value in VALUES.ravel()),
    "values both ways": SHAPE
    + wire.single(5, VALUES[0, 0])
    + wire.message(5, wire.floats(VALUES.ravel()[1:])),
    "a shape in pieces": wire.message(7, wire.message(1, b"\x02"))
    + wire.message(7, wire.message(1, b"\x03"))
    + PACKED,
    "double before float": SHAPE
    + wire.message(5, wire.floats(VALUES + 1))
    + wire.message(8, VALUES.astype("<f8").tobytes()),
    "unknown fields and differences": wire.number(77, 5)
    + wire.message(6, wire.floats(VALUES + 9))
    + wire.single(78, 1.0)
    + SHAPE
    + PACKED,
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding_gives_the_same_blob(name: str) -> None:
    blob = only(in_layer(ENCODINGS[name]))
    assert blob.dtype == np.float32 and np.array_equal(blob, VALUES)


def test_the_old_shape_counts_and_lacks_nothing() -> None:
    assert only(in_layer(wire.old_blob(VALUES))).shape == (1, 1, 2, 3)
    both = SHAPE + wire.old_blob(VALUES)
    assert only(in_layer(both)).shape == (1, 1, 2, 3)
    with pytest.raises(Unreadable, match="6 values for a shape of 0"):
        only(in_layer(wire.number(4, 6) + PACKED))  # the other three are 0
    assert only(in_layer(wire.message(5, wire.floats(VALUES[0, :1])))).shape == ()


def test_old_and_new_layers_and_those_without_blobs(tmp_path: Path) -> None:
    path = tmp_path / "a.caffemodel"
    path.write_bytes(
        wire.message(1, b"net")
        + wire.layer("data", [])
        + wire.layer("old", [wire.old_blob(VALUES)], field=2)
        + wire.layer("new", [wire.blob(VALUES), wire.blob(VALUES[0])])
    )
    layers = read_caffe_layers(path)
    assert [(name, [b.shape for b in blobs]) for name, blobs in layers.items()] == [
        ("old", [(1, 1, 2, 3)]),
        ("new", [(2, 3), (3,)]),
    ]


FILE = wire.caffemodel({"a": [VALUES], "b": [VALUES, VALUES[0]]})
V0 = wire.message(2, wire.message(1, wire.message(1, b"conv")))
BAD = {
    "ends after the end of its message": wire.varint(100 << 3 | 2) + wire.varint(10**6) + b"\x0a",
    "does not end": wire.varint(100 << 3 | 2) + b"\xff" * 11,
    "wire type 3": b"\x0b",
    "has field 0": b"\x00\x00",
    "first form": V0,
    "no layer has weights": wire.message(1, b"net"),
    "two layers with weights are called 'a'": 2 * in_layer(wire.blob(VALUES)),
    "ends within a number": in_layer(SHAPE + wire.message(5, wire.floats(VALUES)[:-1])),
    "5 values for a shape of 6": in_layer(SHAPE + wire.message(5, wire.floats(VALUES.ravel()[:5]))),
    "0 values for a shape of 6": in_layer(SHAPE),
    "is not valid": in_layer(wire.number(1, -1) + PACKED),
    "over 32 dimensions": in_layer(wire.message(7, wire.message(1, b"\x01" * 33)) + PACKED),
    "not UTF-8": wire.message(100, wire.message(1, b"\xff") + wire.message(7, wire.blob(VALUES))),
    "cannot mmap an empty file": b"",
}


@pytest.mark.parametrize("said", BAD)
def test_bytes_that_are_no_weights_are_refused(said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.caffemodel"
    path.write_bytes(BAD[said])
    with pytest.raises(Unreadable, match=said):
        read_caffe_layers(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="No such file"):
        read_caffe_layers(tmp_path / "a.caffemodel")


def test_the_number_of_fields_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caffe_file, "MAX_FIELDS", 100)
    with pytest.raises(Unreadable, match="over 100 fields"):
        parse_layers(wire.number(77, 0) * 101)
    with pytest.raises(Unreadable, match="over 100 fields"):  # of all messages together
        parse_layers(wire.message(100, wire.number(77, 0) * 40) * 3)


def changed(data: bytes, seed: int) -> bytes:
    """A file with some bytes changed, or cut off."""
    rng = np.random.default_rng(seed)
    out = bytearray(data[: int(rng.integers(1, len(data) + 1))])
    for place in rng.integers(0, len(out), int(rng.integers(0, 4))):
        out[place] = int(rng.integers(0, 256))
    return bytes(out)


@pytest.mark.parametrize("first", range(0, 600, 200))
def test_damage_is_refused_or_read(first: int) -> None:
    """Nothing else is raised, whatever the bytes."""
    for seed in range(first, first + 200):
        data = changed(FILE, seed)
        try:
            layers = parse_layers(data)
        except Unreadable:
            continue
        assert sum(total(blobs) for blobs in layers.values()) * 4 <= len(data)


def total(blobs: Sequence[npt.NDArray[np.float32]]) -> int:
    return sum(blob.size for blob in blobs)
