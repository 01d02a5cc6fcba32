"""Files of other projects in their own layouts, as their scripts write them."""

import base64
import dataclasses
import gzip
import json
import mmap
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
from tests.extract.formats.test_import_export import DIM, make_row

from vlmill.extract.cli import command
from vlmill.extract.formats import parts
from vlmill.extract.formats.hdf5 import map_dataset
from vlmill.extract.formats.import_file import Import, import_file
from vlmill.extract.verify import verify
from vlmill.runtime.console.command import run_command
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.readers.regions import RegionReader, RegionRow
from vlmill.runtime.units import unit
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import REJECTS

WIDTH, HEIGHT = 200, 100


def text(array: Any, kind: str = "<f4") -> str:
    return base64.b64encode(np.asarray(array, kind).tobytes()).decode()


def rows_of(output: Path, *files: Path | str, **options: Any) -> RegionReader:
    import_file(Import(files=files, output=output, **options))
    assert verify(output) == []
    return RegionReader(output)


def assert_row(found: RegionRow, expected: RegionRow, *columns: str, exact: bool = True) -> None:
    assert (found.width, found.height) == (expected.width, expected.height)
    for name in ("boxes", "features", *columns):
        left, right = getattr(found, name), getattr(expected, name)
        np.testing.assert_allclose(left, right, rtol=0 if exact else 1e-2, atol=0 if exact else 1)


def write_lmdb(folder: Path, items: dict[str, Any], keys: bool = True) -> Path:
    with lmdb.open(str(folder), map_size=2**24) as opened, opened.begin(write=True) as put:
        for key, item in items.items():
            put.put(key.encode(), pickle.dumps(item))
        if keys:
            put.put(b"keys", pickle.dumps([key.encode() for key in items]))
    return folder


# --- LMDB -----------------------------------------------------------------------------------------


def volta_item(row: RegionRow) -> dict[str, Any]:
    return {
        "features": row.features,
        "boxes": row.boxes,
        "obj_id": np.asarray(row.class_ids, np.int64),
        "obj_conf": row.class_scores,
        "attr_id": np.asarray(row.attribute_ids, np.int64),
        "attr_conf": row.attribute_scores,
        "img_w": np.int64(WIDTH),
        "img_h": np.int64(HEIGHT),
        "img_id": row.image_id,
    }


OF_OBJECTS = ("class_ids", "class_scores", "attribute_ids", "attribute_scores")


def test_volta_lmdb_without_num_boxes(tmp_path: Path) -> None:
    rows = [make_row("9", 3), make_row("25", 1)]
    encoded = volta_item(rows[1])
    for name in ("features", "boxes"):  # npy_to_lmdb.py: bytes of base64
        encoded[name] = base64.b64encode(encoded[name])
    path = write_lmdb(tmp_path / "db", {"9": volta_item(rows[0]), "25": encoded})
    reader = rows_of(tmp_path / "out", path)
    for row in rows:
        assert_row(reader[row.image_id], row, *OF_OBJECTS)


def test_vilbert_multi_task_lmdb_with_a_lower_num_boxes(tmp_path: Path) -> None:
    row = make_row("100", 4)
    item = {
        "image_id": np.int64(100),
        "image_h": HEIGHT,
        "image_w": float(WIDTH),
        "num_boxes": 3,  # boxes without a confidence are not counted, and are there
        "boxes": row.boxes,
        "features": row.features,
    }
    reader = rows_of(tmp_path / "out", write_lmdb(tmp_path / "db", {"100": item}, keys=False))
    assert_row(reader["100"], row)


def mmf_item(row: RegionRow, **changes: Any) -> dict[str, Any]:
    item = {
        "feature_path": row.image_id,
        "features": row.features,
        "image_height": HEIGHT,
        "image_width": WIDTH,
        "num_boxes": len(row.boxes),
        "objects": np.asarray(row.class_ids, np.int64),
        "cls_prob": None,
        "bbox": row.boxes,
    }
    return {**item, **changes}


@pytest.mark.parametrize(
    ("key", "stated", "is_row"), [("9.jpg", "9", True), ("COCO_val2014_000000000009", 9, True),
                                  ("9", "19", False)]
)  # fmt: skip
def test_the_key_of_an_lmdb_is_the_id(
    tmp_path: Path, key: str, stated: object, is_row: bool
) -> None:
    row = make_row(key, 3)
    path = write_lmdb(tmp_path / "db", {key: {**volta_item(row), "img_id": stated}})
    job = Import(files=[path], output=tmp_path / "out")
    assert import_file(job) == (int(is_row), int(not is_row))
    if is_row:
        assert_row(RegionReader(tmp_path / "out")[key], row, *OF_OBJECTS)


def test_lists_instead_of_arrays(tmp_path: Path) -> None:
    row = make_row("9", 3)
    item = {
        **volta_item(row),
        "boxes": row.boxes.tolist(),
        "features": list(np.asarray(row.features)),
    }
    item["obj_conf"] = np.asarray(row.class_scores).tolist()
    path = write_lmdb(tmp_path / "db", {"9": item})
    assert_row(rows_of(tmp_path / "out", path)["9"], row, *OF_OBJECTS)


def test_mmf_lmdb_with_keys_that_are_paths(tmp_path: Path) -> None:
    row = make_row("train2014/COCO_train2014_000000000009", 3)
    reader = rows_of(tmp_path / "out", write_lmdb(tmp_path / "db", {row.image_id: mmf_item(row)}))
    assert_row(reader[row.image_id], row, "class_ids")


def test_an_lmdb_without_sizes_asks_for_them_once(tmp_path: Path) -> None:
    row = make_row("9", 3)
    items = {"9": mmf_item(row, image_height=None, image_width=None)}
    path = write_lmdb(tmp_path / "db", items)
    with pytest.raises(InputError, match=r"an LMDB of features, without the sizes.*--sizes FILE"):
        rows_of(tmp_path / "none", path)
    reader = rows_of(tmp_path / "out", path, sizes=f"{WIDTH}x{HEIGHT}")
    assert_row(reader["9"], row, "class_ids")
    (tmp_path / "sizes.json").write_text(json.dumps({"10": [WIDTH, HEIGHT]}))
    sizes = str(tmp_path / "sizes.json")
    assert import_file(Import(files=[path], output=tmp_path / "other", sizes=sizes)) == (0, 1)
    [invalid] = read_table(tmp_path / "other", REJECTS).to_pylist()
    assert invalid["reason"] == Reason.NO_IMAGE
    assert "no size of this image in --sizes" in invalid["detail"]


@pytest.mark.parametrize(
    "value", [{"image": b"jpeg", "label": 3}, {"features": np.ones((2, 6))}, [1, 2], b"bytes"]
)
def test_an_lmdb_of_other_values_is_named_once(tmp_path: Path, value: Any) -> None:
    path = write_lmdb(tmp_path / "db", {"a": value, "b": value})
    with pytest.raises(InputError, match="is an LMDB of unknown values: a is"):
        rows_of(tmp_path / "out", path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (b"CC_1.npz", b"PK\x03\x04rest", "CC_1.npz is a compressed .npz, as in UNITER's"),
        (b"coco_1.npz", b'["a"]', "__keys__ is the list of keys of UNITER's or tensorpack's"),
        (
            b"00000000",
            b"\x83\xa6img_id\xa31",
            "00000000 is msgpack, as in UNITER's and tensorpack's",
        ),
        (b"00000000", b"\x97\xa31", "00000000 is msgpack"),
        (b"1", b"\xff\xd8\xff\xe0", r"1 is an image \(JPEG\)"),
    ],
)
def test_an_lmdb_of_no_pickles_is_named_once(
    tmp_path: Path, key: bytes, value: bytes, message: str
) -> None:
    with lmdb.open(str(tmp_path / "db")) as opened, opened.begin(write=True) as put:
        put.put(key, value)
        put.put(b"__keys__", b'["a"]')
    with pytest.raises(InputError, match=f"another type of LMDB: {message}"):
        rows_of(tmp_path / "out", tmp_path / "db")


# --- npy and npz ----------------------------------------------------------------------------------


def test_npy_of_vilbert_multi_task_in_split_folders(tmp_path: Path) -> None:
    row = make_row("a.b", 3)
    entries = {n: v for n, v in mmf_item(row).items() if n not in ("feature_path", "cls_prob")}
    (tmp_path / "npy" / "train").mkdir(parents=True)
    file = tmp_path / "npy" / "train" / "a.npy"
    objects = np.arange(2)  # the script leaves out one object
    np.save(file, {**entries, "image_id": "a.b", "objects": objects})  # type: ignore[arg-type]
    assert_row(rows_of(tmp_path / "out", tmp_path / "npy")["a.b"], row)


def test_npy_of_mmf_with_info(tmp_path: Path) -> None:
    row = make_row("train2014/x_9", 3)
    (tmp_path / "npy" / "train2014").mkdir(parents=True)
    assert row.features is not None
    np.save(tmp_path / "npy" / "train2014" / "x_9.npy", row.features)
    info = {n: v for n, v in mmf_item(row).items() if n not in ("feature_path", "features")}
    np.save(tmp_path / "npy" / "train2014" / "x_9_info.npy", info)  # type: ignore[arg-type]
    assert_row(rows_of(tmp_path / "out", tmp_path / "npy")["train2014/x_9"], row, "class_ids")


def test_npy_of_mmf_with_scores_and_the_largest_number(tmp_path: Path) -> None:
    row = make_row("9", 3)  # what extract_features_frcnn.py saves
    assert row.class_scores is not None
    info = mmf_item(row) | {"num_boxes": 100, "cls_prob": row.class_scores}
    (tmp_path / "npy").mkdir()
    np.save(tmp_path / "npy" / "9_info.npy", info)  # type: ignore[arg-type]
    for files in (tmp_path / "npy", tmp_path / "npy" / "9_info.npy"):
        with pytest.raises(InputError, match=r"boxes without features .*ID\.npy"):
            rows_of(tmp_path / "out", files)
    np.save(tmp_path / "npy" / "9.npy", np.asarray(row.features))
    (tmp_path / "npy" / "9_full.npy").write_bytes(b"\x93NUMPY of torch's tensors")
    for number, files in enumerate((tmp_path / "npy", tmp_path / "npy" / "*.npy")):
        reader = rows_of(tmp_path / f"out-{number}", files)
        assert_row(reader["9"], row, "class_ids", "class_scores")
        assert reader["9"].class_probs is None


def test_a_folder_is_given_by_a_dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = make_row("9", 3)
    for end in ("att", "box"):
        (tmp_path / f"cocobu_{end}").mkdir()
    arrays: dict[str, Any] = {"feat": row.features}
    np.savez(tmp_path / "cocobu_att" / "9.npz", **arrays)
    np.save(tmp_path / "cocobu_box" / "9.npy", row.boxes)
    monkeypatch.chdir(tmp_path / "cocobu_att")
    for number, given in enumerate((".", "9.npz", "../cocobu_att", "..")):
        output = tmp_path / f"out-{number}"
        assert_row(rows_of(output, given, sizes=f"{WIDTH}x{HEIGHT}")["9"], row)


def test_arrays_without_boxes_are_named_once(tmp_path: Path) -> None:
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.ones((3, 4)))
    with pytest.raises(InputError, match=r"0.npy is an array \[3, 4\] without 0_info.npy"):
        rows_of(tmp_path / "out", tmp_path)


def uniter(folder: Path, row: RegionRow) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    corners = row.boxes / np.array([WIDTH, HEIGHT] * 2)
    fractions = np.hstack([corners, corners[:, 2:] - corners[:, :2]])
    arrays: dict[str, Any] = {"norm_bb": fractions, "features": row.features}
    arrays |= {"conf": row.class_scores, "soft_labels": row.class_probs}
    halves = {name: array.astype(np.float16) for name, array in arrays.items()}
    np.savez(folder / f"{row.image_id}.npz", **halves)


def test_uniter_asks_for_sizes_once_and_takes_them_in_every_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [make_row("nlvr2_dev-1-0-img0", 3), make_row("nlvr2_dev-1-0-img1", 2)]
    for row in rows:
        uniter(tmp_path / "nlvr2" / "dev", row)
    arguments = ["import", str(tmp_path / "nlvr2"), "--output", str(tmp_path / "none")]
    assert run_command(command, arguments) == 2
    assert capsys.readouterr().err.count("UNITER's npz, whose boxes are fractions") == 1
    names = [row.image_id for row in rows]
    sizes = [f"{name}.png" for name in names]
    files = {
        "map.json": json.dumps({name: [WIDTH, HEIGHT] for name in names}),
        "gqa.json": json.dumps({n: {"width": WIDTH, "height": HEIGHT} for n in names}),
        "coco.json": json.dumps(
            {"images": [{"file_name": n, "width": WIDTH, "height": HEIGHT} for n in sizes]}
        ),
        "lines.tsv": "".join(f"{name}\t{WIDTH}.0\t{HEIGHT}\n" for name in names),
        "lines.csv": "id,width,height\n" + "".join(f"{n},{WIDTH},{HEIGHT}\n" for n in names),
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    for argument in (f"{WIDTH}x{HEIGHT}", *(str(tmp_path / name) for name in files)):
        output = tmp_path / f"out-{Path(argument).name}"
        reader = rows_of(output, tmp_path / "nlvr2", sizes=argument)
        assert_row(reader[names[0]], rows[0], "class_ids", exact=False)
    (tmp_path / "map.json").write_text(json.dumps({names[0]: [WIDTH, HEIGHT]}))
    job = Import(
        files=[tmp_path / "nlvr2"], output=tmp_path / "one", sizes=str(tmp_path / "map.json")
    )
    assert import_file(job) == (1, 1)
    with pytest.raises(InputError, match="--sizes 0x3"):
        rows_of(tmp_path / "zero", tmp_path / "nlvr2", sizes="0x3")


@pytest.mark.parametrize("given", ["cocobu_att", "."])
@pytest.mark.parametrize("name", ["feat", "z"])
def test_cocobu_features_take_their_boxes_from_the_next_folder(
    tmp_path: Path, given: str, name: str
) -> None:
    row = make_row("9", 3)
    for end in ("att", "box", "fc"):
        (tmp_path / "in" / f"cocobu_{end}").mkdir(parents=True)
    arrays: dict[str, Any] = {name: row.features}
    np.savez_compressed(tmp_path / "in" / "cocobu_att" / "9.npz", **arrays)
    np.save(tmp_path / "in" / "cocobu_box" / "9.npy", row.boxes)
    np.save(tmp_path / "in" / "cocobu_fc" / "9.npy", row.boxes.mean(0))
    reader = rows_of(tmp_path / "out", tmp_path / "in" / given, sizes=f"{WIDTH}x{HEIGHT}")
    assert_row(reader["9"], row)
    folders = str(tmp_path / "in" / "cocobu_*")  # the boxes complete the features
    assert_row(rows_of(tmp_path / "all", folders, sizes=f"{WIDTH}x{HEIGHT}")["9"], row)
    with pytest.raises(InputError, match=r"has the boxes .* of the features in .*cocobu_att"):
        rows_of(tmp_path / "box", tmp_path / "in" / "cocobu_box")


def test_npz_of_boxes_or_of_nothing_known_are_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2):
        np.savez(tmp_path / f"{number}.npz", bbox=np.ones((1, 4)), num_bbox=1)
    assert run_command(command, ["import", str(tmp_path), "--output", str(tmp_path / "out")]) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if "error:" in x]
    assert "0.npz has no features" in line and "boxes without features" in line


# --- HDF5 -----------------------------------------------------------------------------------------


def write_butd(path: Path, rows: list[RegionRow], index: bytes | None, **more: Any) -> Path:
    def spatial(row: RegionRow) -> Any:
        x, y = row.boxes[:, 0::2] / WIDTH, row.boxes[:, 1::2] / HEIGHT
        sides = [x[:, 1] - x[:, 0], y[:, 1] - y[:, 0]]
        return np.stack([x[:, 0], y[:, 0], x[:, 0] + sides[0], y[:, 0] + sides[1], *sides], axis=1)

    join = np.concatenate if "pos_boxes" in more else np.stack
    with h5py.File(path, "w") as file:
        file["image_features"] = join([np.asarray(row.features) for row in rows])
        file["image_bb"] = join([row.boxes for row in rows])
        file["spatial_features"] = join([spatial(row).astype(np.float32) for row in rows])
        for name, value in more.items():
            file[name] = value
    if index is not None:
        path.with_name(f"{path.stem}_imgid2idx.pkl").write_bytes(index)
    return path


def test_bottom_up_attention_vqa_with_its_pickle(tmp_path: Path) -> None:
    rows = [make_row("9", 3), make_row("25", 3)]
    index = b"(dp0\nI9\nI0\nsI25\nI1\ns."  # of Python 2
    reader = rows_of(tmp_path / "out", write_butd(tmp_path / "train36.hdf5", rows, index))
    assert reader.image_ids == ["9", "25"]
    assert_row(reader["25"], rows[1])


def test_ban_adaptive_with_rows_that_no_image_has(tmp_path: Path) -> None:
    rows = [make_row("9", 3), make_row("25", 5)]
    ranges = np.array([[0, 3], [3, 8], [0, 0]], np.int32)
    index = pickle.dumps({np.int64(25): np.int32(1), "9": 0})
    path = write_butd(tmp_path / "train.hdf5", rows, index, pos_boxes=ranges)
    reader = rows_of(tmp_path / "out", path)
    assert reader.image_ids == ["9", "25"]
    assert_row(reader["25"], rows[1])


@pytest.mark.parametrize("stored", ["mapped", "in chunks", "after a user block", "big-endian"])
def test_every_way_to_store_a_data_set_gives_the_same_rows(tmp_path: Path, stored: str) -> None:
    rows = [make_row(str(number), 3) for number in range(20)]
    path = write_butd(tmp_path / "train36.hdf5", rows, pickle.dumps({n: n for n in range(20)}))
    with h5py.File(path) as file:
        arrays = {name: file[name][:] for name in file}
    block = 512 if stored == "after a user block" else 0
    with h5py.File(path, "w", userblock_size=block) as file:
        for name, array in arrays.items():
            kind = array.dtype.newbyteorder(">" if stored == "big-endian" else "<")
            chunks = (8, *array.shape[1:]) if stored == "in chunks" else None
            file.create_dataset(name, data=array.astype(kind), chunks=chunks)
        file.flush()
        with path.open("rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        is_mapped = [isinstance(map_dataset(file[name], mapped), np.ndarray) for name in arrays]
    assert is_mapped == [stored != "in chunks"] * len(arrays)
    reader = rows_of(tmp_path / "out", path)
    for row in rows:
        assert_row(reader[row.image_id], row)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (None, "has no ids; .* keep them in train36_imgid2idx.pkl"),
        (pickle.dumps({9: 7}), "refers to image 7"),
        (pickle.dumps([1]), "is not a dict of row numbers"),
        (pickle.dumps(Path("a")), "asks for pathlib"),
    ],
)
def test_an_index_that_does_not_fit_is_named(
    tmp_path: Path, index: bytes | None, message: str
) -> None:
    path = write_butd(tmp_path / "train36.hdf5", [make_row("9", 3)], index)
    with pytest.raises(InputError, match=message):
        rows_of(tmp_path / "out", path)


def test_volta_hdf5_has_a_group_an_image(tmp_path: Path) -> None:
    rows = [make_row("9", 3), make_row("train/25", 2)]
    with h5py.File(tmp_path / "coco.h5", "w") as file:
        for row in rows:
            group = file.create_group(row.image_id)
            for name, value in volta_item(row).items():
                if name != "img_id":
                    group[name] = value
            group.create_group("others")["caption"] = "a cat"
        file.create_group("1")["boxes"] = np.ones((1, 4))  # the first one
        file["link"] = h5py.ExternalLink("/etc/hostname", "x")
    import_file(Import(files=[tmp_path / "coco.h5"], output=tmp_path / "out"))
    reader = RegionReader(tmp_path / "out")
    for row in rows:
        assert_row(reader[row.image_id], row, *OF_OBJECTS)
    rejects = read_table(tmp_path / "out", REJECTS).to_pylist()
    assert {row["key"] for row in rejects} == {"1", "link"}


def test_visdial_hdf5(tmp_path: Path) -> None:
    row = make_row("378466", 3)
    with h5py.File(tmp_path / "visdial.h5", "w") as file:
        file["image_id"] = np.array([378466])
        file["features"], file["boxes"] = np.asarray(row.features)[None], row.boxes[None]
    with pytest.raises(InputError, match="HDF5, without the sizes of the images; give --sizes"):
        rows_of(tmp_path / "out", tmp_path / "visdial.h5")
    reader = rows_of(tmp_path / "out", tmp_path / "visdial.h5", sizes=f"{WIDTH}x{HEIGHT}")
    assert_row(reader["378466"], row)
    with h5py.File(tmp_path / "visdial.h5", "r+") as file:
        del file["image_id"]
        file["image_id"] = np.array([b""])
    job = Import(files=[tmp_path / "visdial.h5"], output=tmp_path / "no id", sizes="999x999")
    assert import_file(job) == (0, 1)
    (reject,) = read_table(job.output, REJECTS).to_pylist()
    assert reject["detail"] == "no id"
    with h5py.File(tmp_path / "visdial.h5", "r+") as file:
        del file["features"]
        file.create_dataset("features", (1,), dtype=h5py.vlen_dtype(np.dtype("<f4")))
    with pytest.raises(InputError, match="features has arrays of different lengths"):
        rows_of(tmp_path / "lengths", tmp_path / "visdial.h5")


def test_gqa_hdf5_with_its_list_of_images(tmp_path: Path) -> None:
    rows = [make_row(image_id, number) for image_id, number in (("n1", 3), ("25", 0), ("9", 2))]
    entries: dict[str, Any] = {
        row.image_id: {
            **{"file": number % 2, "idx": number // 2, "objectsNum": len(row.boxes)},
            **{"width": row.width, "height": row.height},
        }
        for number, row in enumerate(rows)
    }
    for file, held in enumerate((rows[::2], rows[1::2])):
        boxes, features = np.zeros((len(held), 5, 4)), np.zeros((len(held), 5, 6))
        for number, row in enumerate(held):
            boxes[number, : len(row.boxes)] = row.boxes
            features[number, : len(row.boxes)] = row.features
        with h5py.File(tmp_path / f"gqa_objects_{file}.h5", "w") as target:
            target["bboxes"], target["features"] = boxes, features
    with pytest.raises(InputError, match=r"GQA in gqa_objects_info\.json"):
        rows_of(tmp_path / "none", tmp_path / "gqa_objects_0.h5")
    info = tmp_path / "gqa_objects_info.json"
    info.write_text(json.dumps(entries))
    reader = rows_of(tmp_path / "out", str(tmp_path / "gqa_objects_*.h5"))
    assert sorted(reader.image_ids) == ["25", "9", "n1"]
    for row in rows:
        assert_row(reader[row.image_id], row)
    entries["9"]["objectsNum"] = 6
    info.write_text(json.dumps(entries))
    assert import_file(Import(files=[tmp_path / "gqa_objects_0.h5"], output=tmp_path / "b")) == (
        1,
        1,
    )
    info.write_text('{"9": {"file": "a"}}')
    with pytest.raises(InputError, match="is not GQA's list of images"):
        rows_of(tmp_path / "c", tmp_path / "gqa_objects_0.h5")


# --- Oscar and VinVL ------------------------------------------------------------------------------


def objects_of(row: RegionRow, names: list[str], features: bool) -> list[dict[str, Any]]:
    assert row.class_scores is not None and row.features is not None
    return [
        {
            "rect": [float(x) for x in row.boxes[number]],
            "class": names[number],
            "conf": float(row.class_scores[number]),
            "attributes": ["red", "big"],
            "attr_scores": [0.1, 0.7],
            **({"feature": text(row.features[number])} if features else {}),
        }
        for number in range(len(row.boxes))
    ]


def with_spatial(row: RegionRow) -> Any:
    corners = row.boxes / np.array([WIDTH, HEIGHT] * 2, np.float32)
    sides = corners[:, 2:] - corners[:, :2]
    return np.hstack([np.asarray(row.features), corners, sides]).astype(np.float32)


def test_predictions_with_features(tmp_path: Path) -> None:
    row = make_row("9", 2)
    sizes = {"image_h": HEIGHT, "image_w": WIDTH, "num_boxes": 2}
    value = {**sizes, "objects": objects_of(row, ["dog", "cat"], True)}
    (tmp_path / "predictions.tsv").write_text(f"9\t{json.dumps(value)}\n")
    reader = rows_of(tmp_path / "out", tmp_path / "predictions.tsv")
    assert_row(reader["9"], row, "class_scores")
    np.testing.assert_array_equal(reader["9"].class_ids, [0, 1])
    np.testing.assert_array_equal(reader["9"].attribute_ids, [0, 0])
    assert json.loads((tmp_path / "out" / "classes.json").read_text()) == ["dog", "cat"]
    assert json.loads((tmp_path / "out" / "attributes.json").read_text()) == ["big"]
    (tmp_path / "names.txt").write_text("cat\ndog\nbird\n")
    names = str(tmp_path / "names.txt")
    named = rows_of(tmp_path / "named", tmp_path / "predictions.tsv", classes=names)
    np.testing.assert_array_equal(named["9"].class_ids, [1, 0])
    (tmp_path / "names.txt").write_text("cat\n")
    job = Import(files=[tmp_path / "predictions.tsv"], output=tmp_path / "few", classes=names)
    assert import_file(job) == (0, 1)
    (reject,) = read_table(tmp_path / "few", REJECTS).to_pylist()
    assert reject["reason"] == "label_unknown" and "'dog' is not in --classes" in reject["detail"]


@pytest.mark.parametrize("columns", [2, 3])
@pytest.mark.parametrize("labels", ["label", "predictions", "none"])
def test_features_with_their_labels(tmp_path: Path, columns: int, labels: str) -> None:
    row = make_row("9", 3)
    array = text(with_spatial(row))
    value = f"3\t{array}" if columns == 3 else json.dumps({"num_boxes": 3, "features": array})
    (tmp_path / "train.feature.tsv").write_text(f"9\t{value}\n")
    objects = objects_of(row, ["a", "b", "a"], False)
    if labels == "label":
        (tmp_path / "train.label.tsv").write_text(f"x\t[]\n9\t{json.dumps(objects)}\n")
    elif labels == "predictions":
        whole = json.dumps({"image_h": HEIGHT, "image_w": WIDTH, "objects": objects})
        (tmp_path / "predictions.tsv").write_text(f"9\t{whole}\n")
    sizes = f"{WIDTH}x{HEIGHT}" if labels == "none" else None
    reader = rows_of(tmp_path / "out", tmp_path, sizes=sizes)
    assert_row(reader["9"], row, exact=labels != "none")
    if labels != "none":
        np.testing.assert_array_equal(reader["9"].class_ids, [0, 1, 0])


@pytest.mark.parametrize("is_spatial", [False, True])
def test_an_image_without_its_line_of_labels_is_a_reject(tmp_path: Path, is_spatial: bool) -> None:
    row = make_row("9", 3)
    array = text(with_spatial(row) if is_spatial else row.features)
    value = json.dumps({"num_boxes": 3, "features": array})
    (tmp_path / "feature.tsv").write_text(f"8\t{value}\n9\t{value}\n7\t{value}\n")
    objects = objects_of(row, ["a", "b", "a"], False)
    (tmp_path / "label.tsv").write_text(f"9\t{json.dumps(objects)}\n")
    size = f'[{{"height": {HEIGHT}, "width": {WIDTH}}}]'
    (tmp_path / "hw.tsv").write_text(f"9\t{size}\n" + ("" if is_spatial else f"7\t{size}\n"))
    assert import_file(Import(files=[tmp_path], output=tmp_path / "out")) == (1, 2)
    assert_row(RegionReader(tmp_path / "out")["9"], row)
    rejects = read_table(tmp_path / "out", REJECTS).to_pylist()
    assert [row["key"] for row in rejects] == ["8", "7"]
    assert "no line of label.tsv or hw.tsv has this id" in rejects[0]["detail"]


def test_a_record_without_a_size_is_a_reject_after_others_with_one(tmp_path: Path) -> None:
    items = {key: volta_item(make_row(key, 2)) for key in ("1", "2", "3")}
    del items["2"]["img_w"]
    path = write_lmdb(tmp_path / "db", items)
    assert import_file(Import(files=[path], output=tmp_path / "out")) == (2, 1)
    (reject,) = read_table(tmp_path / "out", REJECTS).to_pylist()
    assert reject["key"] == "2" and "give --sizes" in reject["detail"]


@pytest.mark.parametrize("file", ["hw.tsv", "train.hw.tsv", "--sizes"])
@pytest.mark.parametrize("is_list", [True, False])
def test_predictions_whose_sizes_are_in_another_file(
    tmp_path: Path, file: str, is_list: bool
) -> None:
    row = make_row("9", 3)
    values = {"8": [], "9": objects_of(row, ["a", "b", "a"], True)}  # the first without objects
    lines = (f"{key}\t{json.dumps({'objects': v, 'relations': None})}" for key, v in values.items())
    (tmp_path / "predictions.tsv").write_text("\n".join(lines))
    size: Any = {"height": HEIGHT, "width": WIDTH}
    text_ = json.dumps([size] if is_list else size)
    (tmp_path / "other").mkdir()
    path = tmp_path / "other" / "a.tsv" if file == "--sizes" else tmp_path / file
    path.write_text(f"9\t{text_}\n8\t{text_}\n")
    sizes = str(path) if file == "--sizes" else None
    reader = rows_of(tmp_path / "out", tmp_path / "predictions.tsv", sizes=sizes)
    assert_row(reader["9"], row)
    assert len(reader["8"].boxes) == 0


def test_labels_alone_are_named_once(tmp_path: Path) -> None:
    value = json.dumps(objects_of(make_row("9", 2), ["a", "b"], False))
    (tmp_path / "train.label.tsv").write_text(f"9\t{value}\n10\t{value}\n")
    with pytest.raises(InputError, match="it has objects without features"):
        rows_of(tmp_path / "out", tmp_path / "train.label.tsv")


# --- VL-BERT --------------------------------------------------------------------------------------


@pytest.mark.parametrize("zipped", [True, False])
def test_vl_bert_json(tmp_path: Path, zipped: bool) -> None:
    row = make_row("9", 3)
    value: dict[str, Any] = {"image_id": 9, "image_w": WIDTH, "image_h": HEIGHT, "num_boxes": 3}
    value |= {"boxes": text(row.boxes), "features": text(row.features)}
    folder = tmp_path / "frcnn" / "trainval"
    folder.mkdir(parents=True)
    (folder / "000000000009.json").write_text(json.dumps(value))
    (folder / "000000000010.json").write_text('{"image_id": 10}')
    path = folder.parent
    if zipped:
        path = tmp_path / "trainval.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("__MACOSX/trainval/._000000000009.json", b"\0\5\x16\7")
            for file in sorted(folder.iterdir()):
                archive.write(file, f"trainval/{file.name}")
    import_file(Import(files=[path], output=tmp_path / "out"))
    assert_row(RegionReader(tmp_path / "out")["9"], row)
    (reject,) = read_table(tmp_path / "out", REJECTS).to_pylist()
    assert reject["key"] == "000000000010" and "no boxes" in reject["detail"]


def test_a_zip_of_other_json_is_named_once(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.json", '{"images": []}')
    with pytest.raises(InputError, match=r"a.json is not VL-BERT's JSON \(an object of images\)"):
        rows_of(tmp_path / "out", tmp_path / "a.zip")


def test_vl_bert_json_of_lists(tmp_path: Path) -> None:
    row = make_row("9", 3)
    sizes = {"image_w": WIDTH, "image_h": HEIGHT}
    value: dict[str, Any] = {**sizes, "boxes": row.boxes.tolist()}
    value["features"] = np.asarray(row.features).tolist()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "9.json").write_text(json.dumps(value))
    (tmp_path / "in" / "bad.json").write_text(json.dumps({**value, "boxes": {"x1": 1}}))
    assert import_file(Import(files=[tmp_path / "in"], output=tmp_path / "out")) == (1, 1)
    assert_row(RegionReader(tmp_path / "out")["9"], row)


# --- TSV ------------------------------------------------------------------------------------------


def tsv_line(row: RegionRow, width: object = WIDTH, payload: Any = text, key: str = "") -> str:
    fields = [key or row.image_id, width, HEIGHT, len(row.boxes)]
    return "\t".join(map(str, [*fields, payload(row.boxes), payload(row.features)]))


def wrapped(array: Any) -> str:
    return '"' + base64.encodebytes(np.asarray(array, "<f4").tobytes()).decode() + '"'


FIRST, SECOND = make_row("COCO_val2014_000000000042.jpg", 36), make_row("b", 3)
QUIRKS = {
    "mark": f"\ufeff{tsv_line(FIRST)}\n{tsv_line(SECOND)}\n",
    "header and mark": "\ufeffimage_id\timage_w\timage_h\tnum_boxes\tboxes\tfeatures\n"
    f"{tsv_line(FIRST)}\n{tsv_line(SECOND)}\n",
    "floats": f"{tsv_line(FIRST, 200.0)}\r\n{tsv_line(SECOND, '2e2')}\r\n",
    "bytes": "\n".join(
        tsv_line(r, payload=lambda a: str(text(a).encode()), key=str(r.image_id.encode()))
        for r in (FIRST, SECOND)
    ),
    "wrapped bytes": "\n".join(
        tsv_line(r, payload=lambda a: repr(base64.encodebytes(np.asarray(a, "<f4").tobytes())))
        for r in (FIRST, SECOND)
    ),
    "wrapped": f"{tsv_line(FIRST, payload=wrapped)}\n{tsv_line(SECOND, payload=wrapped)}\n",
    "quoted": "\n".join(
        "\t".join(f'"{field}"' for field in tsv_line(r).split("\t")) for r in (FIRST, SECOND)
    ),
}


@pytest.mark.parametrize("name", QUIRKS)
def test_what_python_left_in_a_tsv(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.tsv").write_text(QUIRKS[name], newline="")
    reader = rows_of(tmp_path / "out", tmp_path / "a.tsv")
    assert reader.image_ids == [FIRST.image_id, SECOND.image_id]
    for row in (FIRST, SECOND):
        assert_row(reader[row.image_id], row)


@pytest.mark.parametrize("kind", ["<f8", "<f2"])
@pytest.mark.parametrize("names", [{"features"}, {"features", "boxes"}])
def test_payloads_of_other_types(tmp_path: Path, kind: str, names: set[str]) -> None:
    rows = [make_row(str(number), 3) for number in range(4)]
    table = [
        [r.image_id, WIDTH, HEIGHT, 3]
        + [text(getattr(r, n), kind if n in names else "<f4") for n in ("boxes", "features")]
        for r in rows
    ]
    lines = ["\t".join(map(str, fields)) for fields in table]
    (tmp_path / "a.tsv").write_text("\n".join(lines))
    reader = rows_of(tmp_path / "out", tmp_path / "a.tsv")
    for row in rows:
        assert_row(reader[row.image_id], row, exact=kind == "<f8")


def test_fractions_instead_of_pixels_are_rejects(tmp_path: Path) -> None:
    rows = [make_row(name, 3) for name in "abc"]
    boxes = [
        rows[0].boxes / np.array([WIDTH, HEIGHT] * 2),
        np.zeros((3, 4)),  # rows without a region, as some files have
        rows[2].boxes,
    ]
    rows = [dataclasses.replace(r, boxes=b) for r, b in zip(rows, boxes, strict=True)]
    (tmp_path / "a.tsv").write_text("\n".join(tsv_line(row) for row in rows))
    assert import_file(Import(files=[tmp_path / "a.tsv"], output=tmp_path / "out")) == (2, 1)
    (reject,) = read_table(tmp_path / "out", REJECTS).to_pylist()
    assert (reject["key"], reject["reason"]) == ("a", "bad_boxes")
    assert "fractions" in reject["detail"]


@pytest.mark.parametrize("scale", [1e-20, 1e-12, 1e-9, 1e9])
def test_features_of_any_scale_stay_float32(tmp_path: Path, scale: float) -> None:
    features = np.random.default_rng(0).normal(size=(10, 64)) * scale
    row = dataclasses.replace(make_row("a", 10), features=features.astype(np.float32))
    (tmp_path / "a.tsv").write_text(tsv_line(row))
    assert_row(rows_of(tmp_path / "out", tmp_path / "a.tsv")["a"], row)


def test_ids_of_other_types(tmp_path: Path) -> None:
    row = make_row("a", 3)
    kinds = {"class_ids": "<i4", "class_scores": "<f8", "attribute_ids": "<i2"}
    names = [*kinds, "attribute_scores"]
    payloads = [text(getattr(row, name), kinds.get(name, "<f4")) for name in names]
    fields = ["a", HEIGHT, WIDTH, *payloads, 3, text(row.boxes), text(row.features)]
    (tmp_path / "a.tsv").write_text("\t".join(map(str, fields)))
    assert_row(rows_of(tmp_path / "out", tmp_path / "a.tsv")["a"], row, *OF_OBJECTS)


def test_a_header_decides_the_order_of_the_fields(tmp_path: Path) -> None:
    rows = [make_row(name, 3) for name in "abc"]
    order = ["image_id", "image_h", "image_w", "num_boxes", "split", "boxes", "features"]
    header, lines = "\t".join(order), []
    for row in rows:
        boxes, features = text(row.boxes), text(row.features)
        fields = [row.image_id, HEIGHT, WIDTH, 3, "train", boxes, features]
        lines.append("\t".join(map(str, fields)))
    # Two files that were concatenated.
    (tmp_path / "a.tsv").write_text("\n".join([header, *lines[:2], header, lines[2]]))
    reader = rows_of(tmp_path / "out", tmp_path / "a.tsv")
    assert reader.image_ids == ["a", "b", "c"]
    for row in rows:
        assert_row(reader[row.image_id], row)


def test_a_quote_that_is_never_closed_costs_its_line_alone(tmp_path: Path) -> None:
    cut = tsv_line(FIRST, payload=wrapped)[:-300]
    (tmp_path / "a.tsv").write_text(f"{tsv_line(SECOND)}\n{cut}\n{tsv_line(FIRST)}\n")
    job = Import(files=[tmp_path / "a.tsv"], output=tmp_path / "out")
    assert import_file(job) == (2, 1)


def test_parts_folders_and_globs_become_one_table(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number, row in enumerate((FIRST, SECOND)):
        (folder / f"train.tsv.{number}").write_text(tsv_line(row) + "\n")
    (folder / "readme.txt").write_text("hello")
    (folder / "train.tsv.0.json").write_text("{}")
    files = [folder / "train.tsv.0", folder / "train.tsv.1"]
    forms = {"files": files, "folder": [folder], "glob": [folder / "train.tsv.?"]}
    for name, paths in forms.items():
        reader = rows_of(tmp_path / name, *paths)
        assert reader.image_ids == [FIRST.image_id, SECOND.image_id]
    assert reader.producer["file"] == ["train.tsv.0", "train.tsv.1"]


def test_different_formats_in_one_command(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(tsv_line(SECOND))
    db = write_lmdb(tmp_path / "db", {"9": volta_item(make_row("9", 3))})
    assert rows_of(tmp_path / "out", tmp_path / "a.tsv", db).image_ids == ["b", "9"]


def test_a_wrong_format_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.tsv").write_text(f"{tsv_line(FIRST)}\n{tsv_line(SECOND)}\n")
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    wrong = {"tsv": "tsv6", "lmdb": "tsv6 by its content, not lmdb", "npz": "not npz"}
    for name, message in wrong.items():
        arguments = ["import", str(tmp_path / "a.tsv"), "--format", name]
        assert run_command(command, [*arguments, "--output", str(tmp_path / name)]) == 2
        (line,) = [x for x in capsys.readouterr().err.splitlines() if "error:" in x]
        assert message in line
    arguments = ["import", str(tmp_path / "a.png"), "--output", str(tmp_path / "png")]
    assert run_command(command, arguments) == 2
    assert "it is PNG, not a file of features" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            gzip.compress(b"a\tb", mtime=0),
            "it is a gzip archive, not a file of features; unpack it first",
        ),
        (b"<!DOCTYPE html><html>", "it is an HTML page, not a file of features"),
        (bytes(9000), "it begins with 4,096 zeros; copy or download it again"),
        (f"{tsv_line(SECOND)}\n".encode("utf-16"), "it is text in UTF-16; convert it to UTF-8"),
        (
            b"hello\n",
            "not a file of features (its first line has 1 field separated by tabs, not 6, 7 or 10)",
        ),
        (b"\x80\x03}q\x00.", "it is a Python pickle; write its features in one of the known"),
        (b'{"images": []}', "it is JSON, without the features of an image"),
        # A compressed file whose first lines have six tabs, and no zero.
        (
            b"\x1f\x8b\x08\x08" + b"a\tb\tc\td\te\tf\xff\n" * 20,
            "it is a gzip archive, not a file of features; unpack it first",
        ),
    ],
)
def test_the_content_of_an_unknown_file_is_named(
    tmp_path: Path, content: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b.tsv").write_bytes(content)
    arguments = ["import", str(tmp_path / "in" / "b.tsv"), "--output", str(tmp_path / "out")]
    assert run_command(command, arguments) == 2
    assert f"b.tsv: {message}" in capsys.readouterr().err
    (tmp_path / "in" / "a.tsv").write_text(tsv_line(FIRST))
    assert rows_of(tmp_path / "out", tmp_path / "in").image_ids == [FIRST.image_id]
    assert "1 file not imported, such as b.tsv: " in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["npz", "npy", "json"])
def test_a_file_name_that_is_not_utf8_is_a_reject(tmp_path: Path, ending: str) -> None:
    row = make_row("b", 3)
    item = mmf_item(row)
    arrays: dict[str, Any] = {"x": row.features, "bbox": row.boxes, "num_bbox": 3}
    value = {"boxes": text(row.boxes), "features": text(row.features), "num_boxes": 3}
    (tmp_path / "in").mkdir()
    for name in (os.fsdecode(b"k\xe4se"), "b"):
        file = tmp_path / "in" / f"{name}.{ending}"
        if ending == "npz":
            np.savez(file, **arrays, image_w=WIDTH, image_h=HEIGHT)
        elif ending == "npy":
            np.save(file, item)  # type: ignore[arg-type]
        else:
            file.write_text(json.dumps({**value, "image_w": WIDTH, "image_h": HEIGHT}))
    assert import_file(Import(files=[tmp_path / "in"], output=tmp_path / "out")) == (1, 1)
    assert RegionReader(tmp_path / "out").image_ids == ["b"]
    (reject,) = read_table(tmp_path / "out", REJECTS).to_pylist()
    assert "k?se" in reject["key"] and "not text in UTF-8" in reject["detail"]


def test_links_to_nothing_and_pipes_stop_no_import(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.tsv").write_text(tsv_line(FIRST))
    (tmp_path / "in" / "lost.tsv").symlink_to("/nowhere")
    os.mkfifo(tmp_path / "in" / "pipe.tsv")
    arrays: dict[str, Any] = {"x": np.ones((1, DIM)), "bbox": np.ones((1, 4)), "num_bbox": 1}
    np.savez(tmp_path / "in" / "b.npz", **arrays, image_w=9, image_h=9)
    (tmp_path / "in" / "lost.npz").symlink_to("/nowhere")
    assert import_file(Import(files=[tmp_path / "in"], output=tmp_path / "out")) == (2, 1)
    (reject,) = read_table(tmp_path / "out", REJECTS).to_pylist()
    assert (reject["key"], reject["detail"]) == ("lost.npz", "it is a link to a missing file")
    for lost in (tmp_path / "in" / "lost.tsv", ""):
        with pytest.raises(InputError, match=r"no such file|FILE is empty"):
            rows_of(tmp_path / "lost", lost)


def test_zeros_after_the_lines_of_a_tsv_are_one_reject(tmp_path: Path) -> None:
    content = f"{tsv_line(FIRST)}\n{tsv_line(SECOND)[:60]}".encode() + bytes(10_000)
    (tmp_path / "a.tsv").write_bytes(content)
    assert import_file(Import(files=[tmp_path / "a.tsv"], output=tmp_path / "out")) == (1, 1)
    lines = f"{tsv_line(FIRST)}\n{tsv_line(SECOND)}\n".encode()
    (tmp_path / "a.tsv").write_bytes(lines[:60] + bytes(99) + lines[159:])  # in the first line
    assert import_file(Import(files=[tmp_path / "a.tsv"], output=tmp_path / "first")) == (1, 1)
    (tmp_path / "b.bin").write_bytes(b"a\0b" + b"\tx" * 5 + b"\n\xff" + b"\tx" * 5)
    with pytest.raises(InputError, match="not a file of features"):
        rows_of(tmp_path / "binary", tmp_path / "b.bin")


# --- Kills ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", range(1, 7))
def test_an_import_that_is_killed_anywhere_gives_the_same_rows(
    tmp_path: Path, stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [make_row(str(number), number % 3) for number in range(6)]
    lines = [tsv_line(row) for row in rows]
    (tmp_path / "a.tsv").write_text("\n".join([*lines[:3], "x\t1", lines[1], ""]))
    (tmp_path / "b.tsv").write_text("\n".join([*lines[3:], lines[0], ""]))
    files = [tmp_path / "a.tsv", tmp_path / "b.tsv"]
    expected = Import(files=files, output=tmp_path / "whole", images_per_shard=2)
    assert import_file(expected) == (6, 3)
    killed = Import(files=files, output=tmp_path / "killed", images_per_shard=2)
    written = 0

    def write_record(*arguments: Any) -> None:
        nonlocal written
        written += 1
        if written == stop:
            raise KeyboardInterrupt
        unit.write_record(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(parts, "write_record", write_record)
        if stop <= 4:
            with pytest.raises(KeyboardInterrupt):
                import_file(killed)
    assert import_file(killed) == (6, 3)
    for path in sorted((tmp_path / "whole").glob("*.parquet")):
        assert (tmp_path / "killed" / path.name).read_bytes() == path.read_bytes()


def test_boxes_in_the_padding_of_a_detector_are_clipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """vqa-maskrcnn's boxes end up to 31 pixels of its input beyond the image: here 14.5."""
    inside, padding, far, left = (
        [10, 10, 90, 50],
        [490, 20, 514, 389],
        [490, 20, 515, 50],
        [-3, 0, 9, 9],
    )
    (tmp_path / "npy").mkdir()
    for number, box in enumerate((inside, padding, far, left)):
        entries = {"image_id": str(number), "image_width": 500, "image_height": 375}
        boxes = np.array([inside, box], np.float32)
        entries |= {"bbox": boxes, "features": np.ones((2, 4), np.float32), "num_boxes": 2}
        np.save(tmp_path / "npy" / f"{number}.npy", entries)  # type: ignore[arg-type]
    assert import_file(Import(files=[tmp_path / "npy"], output=tmp_path / "back")) == (2, 2)
    reader = RegionReader(tmp_path / "back")
    np.testing.assert_array_equal(reader["0"].boxes, [inside, inside])
    np.testing.assert_array_equal(reader["1"].boxes, [inside, [490, 20, 500, 375]])
    reasons = {row["reason"] for row in read_table(tmp_path / "back", REJECTS).to_pylist()}
    assert reasons == {"bad_boxes"}
    assert "1 image has boxes that reach into the padding" in capsys.readouterr().err


def test_features_of_a_grid_are_named_once(tmp_path: Path) -> None:
    (tmp_path / "grid").mkdir()
    for number in range(3):  # as OpenVQA's GQA reader has in addition to those of regions
        np.savez(tmp_path / "grid" / f"{number}.npz", x=np.ones((49, 8), np.float32))
    with pytest.raises(InputError, match=r"features without boxes .*grid"):
        import_file(Import(files=[tmp_path / "grid"], output=tmp_path / "back"))


def test_sizes_of_images_without_boxes_in_hdf5(tmp_path: Path) -> None:
    boxes = np.array([[0, 0, 250, 300], [10, 20, 500, 375]], np.float32)
    spatial = boxes / np.array([500, 375, 500, 375], np.float32)
    with h5py.File(tmp_path / "train.hdf5", "w") as file:
        file["image_features"], file["image_bb"] = np.ones((2, 4), np.float16), boxes
        file["spatial_features"] = np.hstack([spatial, spatial[:, 2:] - spatial[:, :2]])
        file["pos_boxes"] = np.array([[0, 2], [2, 2]])
    index = pickle.dumps({7: 0, 8: 1}, protocol=2)
    (tmp_path / "train_imgid2idx.pkl").write_bytes(index)
    job = Import(files=[tmp_path / "train.hdf5"], output=tmp_path / "without")
    assert import_file(job) == (1, 1)
    (row,) = read_table(tmp_path / "without", REJECTS).to_pylist()
    assert row["key"] == "8" and "--sizes" in row["detail"]
    job = Import(files=job.files, output=tmp_path / "with", sizes="640x480")
    assert import_file(job) == (2, 0)
    reader = RegionReader(tmp_path / "with")
    assert [(reader[i].width, reader[i].height) for i in ("7", "8")] == [(500, 375), (640, 480)]


@pytest.mark.parametrize("transposed", [False, True])
def test_npz_without_sizes_asks_for_them_once(tmp_path: Path, transposed: bool) -> None:
    rows = [make_row("9", 3), make_row("25", 6)]  # features [6, 6] have the side of the others
    (tmp_path / "npz").mkdir()
    for row in rows:
        features = np.asarray(row.features)
        arrays = {"x": features.T if transposed else features, "bbox": row.boxes}
        np.savez_compressed(tmp_path / "npz" / f"{row.image_id}.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"features in \.npz, without the sizes"):
        rows_of(tmp_path / "out", tmp_path / "npz")
    reader = rows_of(tmp_path / "out", tmp_path / "npz", sizes=f"{WIDTH}x{HEIGHT}")
    for row in rows:
        assert_row(reader[row.image_id], row)


def test_texts_in_npz(tmp_path: Path) -> None:
    row = make_row("9", 3)
    sizes = {"image_w": WIDTH, "image_h": HEIGHT}
    arrays: dict[str, Any] = {
        "x": row.features,
        "bbox": row.boxes,
        **sizes,
        "names": np.array(["cat", "dog"]),
    }
    np.savez(tmp_path / "a.npz", **arrays, image_id=np.array(["9"]), info=np.array("{}"))
    assert_row(rows_of(tmp_path / "out", tmp_path)["9"], row)


@pytest.mark.parametrize("ending", ["npz", "npy"])
def test_one_other_file_at_the_start_costs_no_row(tmp_path: Path, ending: str) -> None:
    row = make_row("b", 3)
    sizes = {"image_width": WIDTH, "image_height": HEIGHT}
    entries: Any = {"features": row.features, "bbox": row.boxes, **sizes}
    (tmp_path / "in").mkdir()
    if ending == "npz":
        np.savez(tmp_path / "in" / "a.npz", other=row.boxes)
        np.savez(tmp_path / "in" / "b.npz", **entries)
    else:  # features without _info.npy
        np.save(tmp_path / "in" / "a.npy", np.asarray(row.features))
        np.save(tmp_path / "in" / "b.npy", entries)
    assert import_file(Import(files=[tmp_path / "in"], output=tmp_path / "out")) == (1, 1)
    assert_row(RegionReader(tmp_path / "out")["b"], row)


def test_sizes_in_arrays_of_one_number(tmp_path: Path) -> None:
    arrays = {"x": np.ones((1, 4), np.float16), "bbox": np.array([[0, 0, 9, 9]], np.float32)}
    np.savez(tmp_path / "a.npz", **arrays, num_bbox=[1], image_h=np.array([375]), image_w=500)  # type: ignore[arg-type]
    assert import_file(Import(files=[tmp_path / "a.npz"], output=tmp_path / "back")) == (1, 0)
