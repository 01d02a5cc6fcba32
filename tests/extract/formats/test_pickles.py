"""Strangers' pickles: plain data is read, anything else is refused, nothing is executed."""

import io
import pickle
import pickletools
import struct
import zipfile
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmill.extract.formats import npz
from vlmill.extract.formats.import_file import Import, import_file
from vlmill.extract.formats.pickles import BadPickle, Pickled, loads, plain_value
from vlmill.extract.formats.records import BadRecord
from vlmill.schemas.files.reading import read_table
from vlmill.schemas.tables import REJECTS

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


class Evil:
    """A pickle of this runs a function when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


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
    assert found[0] == 1.5
    assert isinstance(found[1], Pickled) and found[1].value == [{"a": 1}]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_is_executed(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "ran"
    with pytest.raises(BadPickle, match="asks for"):
        loads(pickle.dumps({"image_id": Evil(mark)}, protocol))
    assert not mark.exists()


BUILD_ON_A_NAME = b"cnumpy\ndtype\n}(X\x06\x00\x00\x00_buildK\x01ub."
MEMO_INDEX = b"\x80\x02K\x01r\xff\xff\xff\xff."
RESERVES_MEMORY = b"\x96" + struct.pack("<Q", 2**46) + b"."


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
    with pytest.raises(BadPickle, match="no list"):
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


def npz_bytes(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "x": np.ones((2, 6), np.float32),
        "bbox": np.array([[0, 0, 5, 5], [1, 1, 9, 9]], np.float32),
        "num_bbox": 2,
        "image_h": 10,
        "image_w": 20,
        "info": np.array({"image_id": "a", "objects_id": np.array([1, 2])}, dtype=object),
    }
    return {k: v for k, v in {**values, **changes}.items() if v is not None}


def imported(folder: Path, output: Path) -> list[tuple[str, str, str]]:
    import_file(Import(file=folder, output=output))
    rows = read_table(output, REJECTS).to_pylist()
    return [(row["key"], row["reason"], row["detail"]) for row in rows]


def test_a_malicious_npz_is_a_reject(tmp_path: Path) -> None:
    folder, mark = tmp_path / "npz", tmp_path / "ran"
    folder.mkdir()
    np.savez(folder / "evil.npz", **npz_bytes(info=np.array(Evil(mark), dtype=object)))
    np.savez_compressed(folder / "good.npz", **npz_bytes())
    np.savez_compressed(folder / "no-info.npz", **npz_bytes(info=None))
    np.savez_compressed(folder / "no-x.npz", **npz_bytes(x=None))
    np.savez_compressed(folder / "count.npz", **npz_bytes(num_bbox=3))
    (folder / "text.npz").write_text("no zip")
    with zipfile.ZipFile(folder / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(npz.MAX_MEMBER + 1))
    found = imported(folder, tmp_path / "out")
    assert not mark.exists()
    assert {(key, reason) for key, reason, _ in found} == {
        ("evil.npz", "bad_record"),
        ("no-x.npz", "bad_record"),
        ("a", "bad_record"),
        ("text.npz", "bad_record"),
        ("bomb.npz", "bad_record"),
    }
    assert "asks for" in next(detail for key, _, detail in found if key == "evil.npz")


def test_arrays_whose_header_lies() -> None:
    out = io.BytesIO()
    np.save(out, np.zeros((3, 4), np.float32))
    good = out.getvalue()
    assert npz.array_of(good).shape == (3, 4)
    for wrong in (b"(300, 4)", b"(-3, -4)", b"((3,), 4)", b"3.5"):
        with pytest.raises(BadRecord):
            npz.array_of(good.replace(b"(3, 4)", wrong))
    for wrong in (b"'|V4'", b"[('a',1)]", b"'<M8'", b"9"):
        with pytest.raises(BadRecord):
            npz.array_of(good.replace(b"'<f4'", wrong))
    with pytest.raises(BadRecord):
        npz.array_of(b"\x93NUMPY\x01\x00\xff\xff")


def test_a_malicious_lmdb_is_a_reject(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    with lmdb.open(str(tmp_path / "lmdb")) as environment, environment.begin(write=True) as opened:
        opened.put(b"evil", pickle.dumps(Evil(mark)))
        opened.put(b"keys", pickle.dumps([b"evil", Evil(mark)]))
        opened.put(b"list", pickle.dumps([1]))
        opened.put(b"lacks", pickle.dumps({"image_id": "lacks"}))
        opened.put(b"other", pickle.dumps(dict.fromkeys(("image_id", "image_w"), "x")))
    found = imported(tmp_path / "lmdb", tmp_path / "out")
    assert not mark.exists()
    assert [key for key, _, _ in found] == ["evil", "lacks", "list", "other", "keys"]
    assert {reason for _, reason, _ in found} == {"bad_record"}
