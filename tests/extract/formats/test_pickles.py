"""Records that hold pickles: what is no plain data is a reject, and nothing is executed."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from tests.factories import Call

from vlmill.extract.formats import arrays
from vlmill.extract.formats.import_file import Import, import_file
from vlmill.extract.formats.records import BadRecord
from vlmill.runtime.files.reading import read_table
from vlmill.schemas.tables import REJECTS


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
    import_file(Import(files=[folder], output=output))
    rows = read_table(output, REJECTS).to_pylist()
    return [(row["key"], row["reason"], row["detail"]) for row in rows]


def test_a_malicious_npz_is_a_reject(tmp_path: Path) -> None:
    folder, mark = tmp_path / "npz", tmp_path / "ran"
    folder.mkdir()
    np.savez(folder / "evil.npz", **npz_bytes(info=np.array(Call(Path.touch, mark), dtype=object)))
    np.savez_compressed(folder / "good.npz", **npz_bytes())
    np.savez_compressed(folder / "no-info.npz", **npz_bytes(info=None))
    np.savez_compressed(folder / "no-x.npz", **npz_bytes(x=None))
    np.savez_compressed(folder / "count.npz", **npz_bytes(num_bbox=3))
    (folder / "text.npz").write_text("no zip")
    with zipfile.ZipFile(folder / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(arrays.MAX_MEMBER + 1))
    found = imported(folder, tmp_path / "out")
    assert not mark.exists()
    assert {(key, reason) for key, reason, _ in found} == {
        ("evil.npz", "bad_record"),
        ("no-x.npz", "bad_record"),
        ("a", "bad_record"),
        ("text.npz", "bad_record"),
        ("bomb.npz", "too_large"),
    }
    assert "asks for" in next(detail for key, _, detail in found if key == "evil.npz")


def test_arrays_whose_header_lies() -> None:
    out = io.BytesIO()
    np.save(out, np.zeros((3, 4), np.float32))
    good = out.getvalue()
    assert arrays.parse_array(good).shape == (3, 4)
    for wrong in (b"(300, 4)", b"(-3, -4)", b"((3,), 4)", b"3.5"):
        with pytest.raises(BadRecord):
            arrays.parse_array(good.replace(b"(3, 4)", wrong))
    for sides in ((0, 10**25), (0,) * 70):
        empty = io.BytesIO()
        facts = {"descr": "<f4", "fortran_order": False, "shape": sides}
        np.lib.format.write_array_header_1_0(empty, facts)
        with pytest.raises(BadRecord, match="an array of shape"):
            arrays.parse_array(empty.getvalue())
    for wrong in (b"'|V4'", b"[('a',1)]", b"'<M8'", b"9"):
        with pytest.raises(BadRecord):
            arrays.parse_array(good.replace(b"'<f4'", wrong))
    with pytest.raises(BadRecord):
        arrays.parse_array(b"\x93NUMPY\x01\x00\xff\xff")


def test_a_malicious_lmdb_is_a_reject(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    with lmdb.open(str(tmp_path / "lmdb")) as environment, environment.begin(write=True) as opened:
        opened.put(b"evil", pickle.dumps(Call(Path.touch, mark)))
        opened.put(b"keys", pickle.dumps([b"evil", Call(Path.touch, mark)]))
        opened.put(b"list", pickle.dumps([1]))
        opened.put(b"lacks", pickle.dumps({"image_id": "lacks"}))
        opened.put(b"other", pickle.dumps(dict.fromkeys(("image_id", "image_w"), "x")))
    found = imported(tmp_path / "lmdb", tmp_path / "out")
    assert not mark.exists()
    assert [key for key, _, _ in found] == ["evil", "lacks", "list", "other", "keys"]
    assert {reason for _, reason, _ in found} == {"bad_record"}
