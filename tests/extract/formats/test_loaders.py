"""Exports are read as each project's loader reads them; the rules are those of its public code."""

import base64
import csv
import dataclasses
import json
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
from tests.extract.formats.test_import_export import (
    CLASSES,
    DIM,
    export,
    make_row,
    write_names,
    write_regions,
)

from vlmill.extract.formats.export_file import export_file
from vlmill.runtime.files.shards import ShardWriter
from vlmill.runtime.readers.regions import RegionRow, encode_regions, region_arrays
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import REGIONS

A, B = make_row("COCO_train2014_000000000009", 3), make_row("COCO_train2014_000000000025", 5)
csv.field_size_limit(sys.maxsize)


def write(folder: Path, name: str, *rows: RegionRow, file: str = "out") -> Path:
    path = folder / file
    export(write_regions(folder / f"source-{name}", list(rows)), path, name)
    return path


def decode(text: Any, count: int) -> Any:
    return np.frombuffer(base64.b64decode(text), np.float32).reshape(count, -1)


def same(left: Any, right: Any) -> None:
    np.testing.assert_array_equal(left, right)


def open_lmdb(path: Path) -> dict[bytes, Any]:
    with lmdb.open(str(path), readonly=True, lock=False) as opened, opened.begin() as transaction:
        return {key: pickle.loads(value) for key, value in transaction.cursor()}


def test_lxmert(tmp_path: Path) -> None:
    names = ["img_id", "img_h", "img_w", "objects_id", "objects_conf", "attrs_id", "attrs_conf"]
    names += ["num_boxes", "boxes", "features"]
    with write(tmp_path, "tsv", A, B).open() as file:
        first, second = csv.DictReader(file, names, delimiter="\t")
    assert (first["img_id"], int(first["img_h"]), int(first["img_w"])) == (A.image_id, 100, 200)
    same(np.frombuffer(base64.b64decode(first["objects_id"]), np.int64), A.class_ids)
    same(decode(second["features"], int(second["num_boxes"])), B.features)


@pytest.mark.parametrize("name", ["tsv6", "tsv7"])
def test_bottom_up_attention_and_vilbert(tmp_path: Path, name: str) -> None:
    names = ["image_id", "image_w", "image_h", "num_boxes", "boxes", "features", "cls_prob"]
    with write(tmp_path, name, A).open() as file:
        (item,) = csv.DictReader(file, names, delimiter="\t")
    assert (float(item["image_w"]), float(item["image_h"])) == (200, 100)
    same(decode(item["boxes"], int(item["num_boxes"])), A.boxes)
    if name == "tsv7":
        same(decode(item["cls_prob"], 3), A.class_probs)


def test_vilbert_beta(tmp_path: Path) -> None:
    items = open_lmdb(write(tmp_path, "lmdb", A, B))
    assert items[b"keys"] == [A.image_id.encode(), B.image_id.encode()]
    item = items[B.image_id.encode()]
    count = int(item["num_boxes"])
    assert (item["image_id"], int(item["image_h"]), int(item["image_w"])) == (B.image_id, 100, 200)
    same(decode(item["features"], count), B.features)
    same(decode(item["boxes"], count), B.boxes)


def test_vilbert_multi_task(tmp_path: Path) -> None:
    item = open_lmdb(write(tmp_path, "lmdb-multitask", A))[A.image_id.encode()]
    assert (item["image_id"], int(item["image_h"]), int(item["image_w"])) == (A.image_id, 100, 200)
    same(item["features"].reshape(-1, DIM), A.features)
    same(item["boxes"].reshape(-1, 4), A.boxes)


def test_volta(tmp_path: Path) -> None:
    item = open_lmdb(write(tmp_path, "lmdb-volta", A))[A.image_id.encode()]
    assert (int(item["img_h"]), int(item["img_w"]), "num_boxes" in item) == (100, 200, False)
    with pytest.raises((TypeError, ValueError)):  # it tries base64 first, then takes the array
        np.frombuffer(base64.b64decode(item["features"]), np.float32).reshape(-1, DIM)
    same(item["features"].reshape(-1, DIM), A.features)
    same(item["obj_id"], A.class_ids)


def test_mmf_lmdb(tmp_path: Path) -> None:
    items = open_lmdb(write(tmp_path, "lmdb-mmf", A, B))
    indices = {key: number for number, key in enumerate(items[b"keys"])}
    asked = b"COCO_train2014_000000000025"  # no key b"25": the path
    item = items[items[b"keys"][indices[asked]]]
    same(item["features"], B.features)
    same(item["bbox"], B.boxes)
    assert (item["image_height"], item["image_width"], item["num_boxes"]) == (100, 200, 5)
    assert item["cls_prob"].shape == (5, CLASSES) and item["features"].size != 1


def test_npy_of_vilbert_multi_task(tmp_path: Path) -> None:
    (file,) = write(tmp_path, "npy", A).glob("*")
    reader = np.load(file, allow_pickle=True)
    assert reader.item().get("image_id") == A.image_id == file.stem
    assert (reader.item().get("image_height"), reader.item().get("image_width")) == (100, 200)
    same(reader.item().get("features"), A.features)
    same(reader.item().get("bbox"), A.boxes)


def test_npy_of_mmf(tmp_path: Path) -> None:
    path = str(write(tmp_path, "npy-mmf", make_row("train2014/a.b", 3)) / "train2014" / "a.b.npy")
    features = np.load(path, allow_pickle=True)
    assert features.ndim == 2
    info = np.load(f"{path.split('.npy')[0]}_info.npy", allow_pickle=True).item()
    assert {"image_height", "image_width", "num_boxes", "objects", "cls_prob", "bbox"} <= set(info)
    assert info["bbox"].shape == (3, 4)


def test_openvqa(tmp_path: Path) -> None:
    (file,) = write(tmp_path, "npz-openvqa", A).glob("*.npz")
    assert str(int(file.name.split("_")[-1].split(".")[0])) == "9"
    arrays = np.load(file)
    same(arrays["x"].transpose((1, 0)), A.features)
    assert (arrays["image_h"], arrays["image_w"]) == (100, 200)
    assert arrays["bbox"].shape == (3, 4)


def test_uniter(tmp_path: Path) -> None:
    (file,) = write(tmp_path, "npz-uniter", A).glob("*.npz")
    dump = np.load(file, allow_pickle=True)
    num_bb = min(100, max(10, int((dump["conf"] > 0.2).sum())))
    for array in dump.values():  # its conversion takes no other arrays
        assert array.ndim in (1, 2) and len(array[:num_bb]) == 3
    same(dump["features"], A.features)
    assert np.allclose(dump["norm_bb"][:, 0], A.boxes[:, 0] / 200)
    assert np.allclose(dump["norm_bb"][:, 5], (A.boxes[:, 3] - A.boxes[:, 1]) / 100)
    same(dump["soft_labels"], A.class_probs)


def test_self_critical(tmp_path: Path) -> None:
    write(tmp_path, "npz-cocobu", make_row("9", 3), file="cocobu")
    row = make_row("9", 3)
    loaded = np.load(tmp_path / "cocobu_att" / "9.npz")
    same(loaded["feat"] if "feat" in loaded else loaded["z"], row.features)
    same(np.load(tmp_path / "cocobu_box" / "9.npy"), row.boxes)
    assert row.features is not None
    same(np.load(tmp_path / "cocobu_fc" / "9.npy"), row.features.mean(0))


def test_bottom_up_attention_vqa(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [make_row(f"COCO_train2014_{number:012}", 4) for number in (9, 25)]
    write(tmp_path, "hdf5", *rows, file="train36.hdf5")
    assert "hdf5-fixed" in capsys.readouterr().err
    index = pickle.loads((tmp_path / "train36_imgid2idx.pkl").read_bytes())
    assert index == {9: 0, 25: 1}
    with h5py.File(tmp_path / "train36.hdf5") as file:
        features, spatials = np.array(file["image_features"]), np.array(file["spatial_features"])
        assert features.shape == (2, 4, DIM) and spatials.shape == (2, 4, 6)
        same(features[index[25]], rows[1].features)


def test_ban_adaptive(tmp_path: Path) -> None:
    write(tmp_path, "hdf5", A, B, file="train.hdf5")
    index = pickle.loads((tmp_path / "train_imgid2idx.pkl").read_bytes())
    with h5py.File(tmp_path / "train.hdf5") as file:
        features, positions = np.array(file["image_features"]), np.array(file["pos_boxes"])
        low, high = positions[index[25]]
        same(features[low:high, :], B.features)
        spatial = np.array(file["spatial_features"])[low:high]
        assert np.allclose(spatial[:, 2], B.boxes[:, 2] / 200)


def test_ids_that_are_no_numbers_stay_keys_of_the_index(tmp_path: Path) -> None:
    write(tmp_path, "hdf5-adaptive", make_row("a", 1), make_row("b", 2), file="x.hdf5")
    assert pickle.loads((tmp_path / "x_imgid2idx.pkl").read_bytes()) == {"a": 0, "b": 1}


class LineReader:
    """Seeks lines as Oscar's and VinVL's TSVFile does."""

    def __init__(self, path: Path) -> None:
        lines = path.with_name(f"{path.stem}.lineidx").read_text().splitlines()
        self.offsets, self.path = [int(line) for line in lines], path

    def seek(self, index: int) -> list[str]:
        with self.path.open() as file:
            file.seek(self.offsets[index])
            return [text.strip() for text in file.readline().split("\t")]


def test_oscar_captioning(tmp_path: Path) -> None:
    folder = write(tmp_path, "oscar", make_row("ü", 3), B)
    features, labels = LineReader(folder / "feature.tsv"), LineReader(folder / "label.tsv")
    keys = {labels.seek(number)[0]: number for number in range(2)}
    info = json.loads(features.seek(keys[B.image_id])[1])
    array = decode(info["features"], info["num_boxes"])
    assert array.shape == (5, DIM + 6)
    same(array[:, :DIM], B.features)
    assert np.allclose(array[:, DIM + 4], (B.boxes[:, 2] - B.boxes[:, 0]) / 200)
    words = [label["class"] for label in json.loads(labels.seek(keys[B.image_id])[1])]
    assert B.class_ids is not None and words == [f"classes {number}" for number in B.class_ids]


def test_oscar_retrieval(tmp_path: Path) -> None:
    rows = [make_row("9", 3), make_row("25", 5)]
    folder = write(tmp_path, "oscar-retrieval", *rows)
    index = json.loads((folder / "imageid2idx.json").read_text())
    row = LineReader(folder / "features.tsv").seek(index["25"])
    same(decode(row[-1], int(row[1]))[:, :DIM], rows[1].features)
    result = json.loads(LineReader(folder / "predictions.tsv").seek(index["25"])[1])
    assert (result["image_h"], result["image_w"], len(result["objects"])) == (100, 200, 5)
    same(np.array([o["rect"] for o in result["objects"]], np.float32), rows[1].boxes)


def test_vl_bert(tmp_path: Path) -> None:
    write(tmp_path, "vl-bert", make_row("9", 3), file="trainval.zip")
    with zipfile.ZipFile(tmp_path / "trainval.zip") as archive:
        data = json.loads(archive.read("trainval/9.json").decode())
    row = make_row("9", 3)
    same(decode(data["boxes"].encode(), data["num_boxes"]), row.boxes)
    same(decode(data["features"].encode(), data["num_boxes"]), row.features)
    same(decode(data["classes"].encode(), data["num_boxes"]), row.class_probs)
    assert (data["image_w"], data["image_h"]) == (200, 100)


# --- Said before the export -----------------------------------------------------------------------


def test_lost_columns_and_missing_ones_are_printed_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "tsv6", A)
    line = "--format tsv6 does not hold class_probs, class_ids, class_scores, attribute_ids"
    assert line in capsys.readouterr().err
    source = tmp_path / "source-tsv6"
    with pytest.raises(InputError, match="give --classes FILE"):
        export_file(source, tmp_path / "o", "oscar")
    with pytest.raises(InputError, match="has 100 names, and the regions have number"):
        names = write_names(tmp_path)
        Path(names["classes"]).write_text("a\n" * 100)
        rows = [make_row("x", 2, class_ids=np.array([0, 300], np.int16))]
        source = write_regions(tmp_path / "s", rows)
        export_file(source, tmp_path / "o", "oscar", classes=names["classes"])
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("name", ["tsv6", "lmdb", "npz", "hdf5", "npz-cocobu", "vl-bert"])
def test_an_export_states_what_made_it_and_warns_of_random_weights(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    producer = {"weights": "random weights, seed 0", "selection": {"max_boxes": 36}}
    arrays = region_arrays(dtype="float32", feature_dim=DIM, class_probs_dim=CLASSES)
    source, path = tmp_path / "source", tmp_path / "out"
    with ShardWriter(source, REGIONS, 0, 1, producer=producer, arrays=arrays) as writer:
        writer.write(encode_regions([A, B], dtype="float32"))
    export_file(source, path, name)
    assert "RANDOM weights" in capsys.readouterr().err
    if name == "hdf5":
        with h5py.File(path) as file:
            record = json.loads(file.attrs["made_by"])
    elif name == "npz":
        info = np.load(path / f"{A.image_id}.npz", allow_pickle=True)["info"].item()
        record = json.loads(info["made_by"])
    else:
        record = json.loads((tmp_path / "out.json").read_text())
    assert record["random_weights"] is True and record["images"] == 2
    assert record["made_by"].items() >= producer.items()


def test_a_part_of_the_distribution_is_not_enough(tmp_path: Path) -> None:
    arrays = region_arrays(dtype="float32", feature_dim=DIM, class_probs_dim=CLASSES, top_k=2)
    assert A.class_probs is not None
    numbers = np.tile(np.array([5, 7], np.uint16), (3, 1))
    row = dataclasses.replace(A, class_probs=A.class_probs[:, :2], class_prob_ids=numbers)
    with ShardWriter(tmp_path / "source", REGIONS, 0, 1, arrays=arrays) as writer:
        writer.write(encode_regions([row], dtype="float32"))
    with pytest.raises(InputError, match=r"has no class_probs.*--class-probs full"):
        export_file(tmp_path / "source", tmp_path / "out", "tsv7")
    assert export_file(tmp_path / "source", tmp_path / "out", "lmdb") == 1


@pytest.mark.parametrize(
    ("name", "image_id"),
    [
        ("tsv6", "a\tb"),
        ("lmdb", "keys"),
        ("lmdb-mmf", "x" * 512),
        ("npz", "x" * 251),
        ("npy", ".hidden"),
        ("oscar", " a"),
        ("vl-bert", "../x" * 80),
        ("npz-uniter", "a\nb"),
        ("hdf5", "a\0b"),
        ("tsv", ""),
    ],
)
def test_ids_that_a_format_cannot_hold_are_named_first(
    tmp_path: Path, name: str, image_id: str
) -> None:
    rows = [A, make_row(image_id, 2)]
    with pytest.raises(InputError, match=r"image_id .* cannot be .*--format"):
        write(tmp_path, name, *rows)
    assert not [p for p in tmp_path.iterdir() if not p.name.startswith(("source", "cl", "attr"))]


def test_boxes_of_different_numbers_are_not_fixed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"3 to 5 boxes an image.*hdf5-adaptive"):
        write(tmp_path, "hdf5-fixed", A, B)


def test_openvqa_for_gqa(tmp_path: Path) -> None:
    (file,) = write(tmp_path, "npz-gqa", make_row("n161313", 3)).glob("*.npz")
    assert file.name.split(".")[0] == "n161313"
    arrays = np.load(file)
    padded = np.pad(arrays["x"][:100], ((0, 100 - len(arrays["x"])), (0, 0)))
    same(padded[:3], make_row("n161313", 3).features)
    assert (float(arrays["height"]), float(arrays["width"])) == (100, 200)
    assert arrays["bbox"].shape == (3, 4)
