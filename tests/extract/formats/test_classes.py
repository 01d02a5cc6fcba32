"""How a file counts classes: background, first number, and features with their sides swapped."""

import pickle
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
from tests.extract.formats.test_import_export import make_row

from vlmill.extract.cli import command
from vlmill.extract.formats.export_file import export_file
from vlmill.extract.formats.import_file import Import, import_file
from vlmill.extract.show import get_name
from vlmill.runtime.console.command import run_command
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.files.shards import ShardWriter
from vlmill.runtime.readers.regions import RegionReader, encode_regions, region_arrays
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import REGIONS, REJECTS

DIM = 6


def distributions(count: int, columns: int) -> Any:
    """Rows whose first column is their highest, and whose last one is the lowest."""
    random = np.random.default_rng(columns)
    probs = np.sort(random.random((count, columns)).astype(np.float32), axis=1)[:, ::-1]
    probs[:, 1:-1] = random.permuted(probs[:, 1:-1], axis=1)
    return probs / columns


def table(folder: Path, columns: int, background: str = "first") -> Path:
    probs = distributions(3, columns)
    own = probs[:, 1:] if background == "first" else probs
    row = make_row(
        "a",
        3,
        class_probs=probs,
        class_ids=own.argmax(axis=1).astype(np.int16),
        class_scores=own.max(axis=1),
    )
    arrays = region_arrays(
        dtype="float32", feature_dim=DIM, class_probs_dim=columns, background=background
    )
    with ShardWriter(folder, REGIONS, 0, 1, arrays=arrays) as writer:
        writer.write(encode_regions([row], dtype="float32"))
    return folder


def write_npz(folder: Path, name: str, **changes: Any) -> None:
    values: dict[str, Any] = {
        "x": np.ones((2, DIM), np.float32),
        "bbox": np.array([[0, 0, 5, 5], [1, 1, 9, 9]], np.float32),
        "num_bbox": 2,
        "image_h": 10,
        "image_w": 20,
    }
    folder.mkdir(exist_ok=True)
    values = {n: v for n, v in {**values, **changes}.items() if v is not None}
    if isinstance(info := values.get("info"), dict):
        values["info"] = np.array(info, dtype=object)
    np.savez(folder / f"{name}.npz", **values)


def read_rows(path: Path, output: Path, **options: Any) -> RegionReader:
    import_file(Import(files=[path], output=output, **options))
    return RegionReader(output)


# --- Background -----------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [2, 21, 34, 81, 101, 1595, 1600, 1601, 1602])
@pytest.mark.parametrize("name", ["tsv7", "lmdb", "npz", "hdf5"])
@pytest.mark.parametrize("background", ["first", "none"])
def test_own_exports_come_back_equal_for_any_number_of_classes(
    tmp_path: Path, columns: int, name: str, background: str, capfd: pytest.CaptureFixture[str]
) -> None:
    source = table(tmp_path / "source", columns, background)
    if (name, background) == ("tsv7", "none"):
        with pytest.raises(InputError, match=r"without background.*--format lmdb, npz or hdf5"):
            export_file(source, tmp_path / "file", name)
        return
    export_file(source, tmp_path / "file", name)
    capfd.readouterr()
    assert import_file(Import(files=[tmp_path / "file"], output=tmp_path / "back")) == (1, 0)
    left, right = RegionReader(source), RegionReader(tmp_path / "back")
    for column in ("class_ids", "class_scores", "class_probs"):
        np.testing.assert_array_equal(getattr(left["a"], column), getattr(right["a"], column))
    assert right.arrays["class_probs"]["background"] == background
    assert "note:" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("columns", "flag", "column"),
    [
        (1601, None, 1),
        (1600, None, 0),
        (81, "first", 1),
        (81, "none", 0),
        (1595, "last", 0),
        (1601, "none", 0),
        (1600, "first", 1),
    ],
)
def test_classes_are_counted_without_background(
    tmp_path: Path, columns: int, flag: str | None, column: int
) -> None:
    probs = distributions(2, columns)
    write_npz(tmp_path / "npz", "a", info={"cls_prob": probs})
    row = read_rows(tmp_path / "npz", tmp_path / "back", background=flag)["a"]
    own = probs[:, :-1] if flag == "last" else probs[:, column:]
    np.testing.assert_array_equal(row.class_ids, own.argmax(axis=1))
    np.testing.assert_array_equal(row.class_scores, own.max(axis=1))
    expected = np.roll(probs, 1, axis=1) if flag == "last" else probs
    np.testing.assert_array_equal(row.class_probs, expected)
    stored = RegionReader(tmp_path / "back").arrays["class_probs"]["background"]
    assert stored == ("none" if column == 0 and flag != "last" else "first")


def test_a_guess_is_said_and_what_cannot_be_guessed_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for columns in (1600, 1601, 81):
        folder = tmp_path / str(columns)
        write_npz(folder, "a", info={"cls_prob": distributions(2, columns)})
        status = run_command(
            command, ["import", str(folder), "--output", str(tmp_path / f"out-{columns}")]
        )
        printed = capsys.readouterr().err
        if columns == 81:
            assert status == 2
            assert f"error: FILE {folder}: cls_prob has 81 columns" in printed
            assert "give --background first, last or none" in printed
        else:
            assert status == 0
            guess = {1600: "none", 1601: "first"}[columns]
            assert f"read as --background {guess}" in printed


def test_a_flag_overrides_the_layout_of_tsv7(tmp_path: Path) -> None:
    source = table(tmp_path / "source", 1600)
    export_file(source, tmp_path / "file", "tsv7")
    probs = distributions(3, 1600)
    first = read_rows(tmp_path / "file", tmp_path / "first")["a"]
    np.testing.assert_array_equal(first.class_ids, probs[:, 1:].argmax(axis=1))
    none = read_rows(tmp_path / "file", tmp_path / "none", background="none")["a"]
    np.testing.assert_array_equal(none.class_ids, probs.argmax(axis=1))


def test_ids_of_a_file_need_no_background(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = {"cls_prob": distributions(2, 81), "objects_id": np.array([3, 80])}
    write_npz(tmp_path / "npz", "a", info=info)
    reader = read_rows(tmp_path / "npz", tmp_path / "back")
    np.testing.assert_array_equal(reader["a"].class_ids, [3, 80])
    assert "background" not in reader.arrays["class_probs"]
    assert "nothing states which of the 81 columns" in capsys.readouterr().err


def test_files_that_state_different_backgrounds_are_not_mixed(tmp_path: Path) -> None:
    for name, background in (("a", "first"), ("b", "none")):
        info = {"cls_prob": distributions(2, 9), "background": background}
        write_npz(tmp_path / "npz", name, info=info)
    reader = read_rows(tmp_path / "npz", tmp_path / "back")
    assert reader.image_ids == ["a"]
    (reject,) = read_table(tmp_path / "back", REJECTS).to_pylist()
    assert (reject["key"], reject["detail"]) == ("b", "background is none, of those before first")


def test_numbers_that_are_not_probabilities_are_rejects(tmp_path: Path) -> None:
    for name, probs in (("a", distributions(2, 9)), ("b", np.full((2, 9), 3.5, np.float32))):
        write_npz(tmp_path / "npz", name, info={"cls_prob": probs, "background": "first"})
    assert read_rows(tmp_path / "npz", tmp_path / "back").image_ids == ["a"]
    (reject,) = read_table(tmp_path / "back", REJECTS).to_pylist()
    assert reject["detail"] == "cls_prob has a number outside 0..1; it must be after the softmax"


# --- The first class ------------------------------------------------------------------------------


def old_port(folder: Path, name: str, ids: list[int], attributes: list[int]) -> None:
    info = {
        "objects_id": np.array(ids),
        "objects_conf": np.ones(2, np.float32),
        "attrs_id": np.array(attributes),
        "attrs_conf": np.ones(2, np.float32),
    }
    write_npz(folder, name, info=info)


@pytest.mark.parametrize(("ids", "attributes"), [([1600, 9], [1, 2]), ([4, 9], [400, 2])])
def test_an_id_that_no_class_has_shows_that_ids_count_from_one(
    tmp_path: Path, ids: list[int], attributes: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    old_port(tmp_path / "npz", "a", [7, 0], [0, 3])  # 0: the background, no attribute
    old_port(tmp_path / "npz", "b", ids, attributes)
    reader = read_rows(tmp_path / "npz", tmp_path / "back")
    np.testing.assert_array_equal(reader["a"].class_ids, [6, -1])
    np.testing.assert_array_equal(reader["a"].attribute_ids, [-1, 2])
    np.testing.assert_array_equal(reader["b"].class_ids, np.array(ids) - 1)
    np.testing.assert_array_equal(reader["b"].attribute_ids, np.array(attributes) - 1)
    assert reader.producer["classes_from"] == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "note:" in line]
    assert "of b shows that classes are counted from 1" in line


def test_what_ids_do_not_show_is_assumed_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old_port(tmp_path / "npz", "a", [7, 1599], [0, 399])
    reader = read_rows(tmp_path / "npz", tmp_path / "back")
    np.testing.assert_array_equal(reader["a"].class_ids, [7, 1599])
    printed = capsys.readouterr().err
    assert "0 is assumed" in printed and "--classes-from 1" in printed
    for first in (0, 1):
        reader = read_rows(tmp_path / "npz", tmp_path / f"back-{first}", classes_from=first)
        np.testing.assert_array_equal(reader["a"].class_ids, np.array([7, 1599]) - first)
    assert "note:" not in capsys.readouterr().err


def test_ids_of_a_larger_vocabulary_show_nothing(tmp_path: Path) -> None:
    old_port(tmp_path / "larger", "a", [1847, 3], [1, 2])
    old_port(tmp_path / "larger", "b", [1600, 3], [1, 2])
    reader = read_rows(tmp_path / "larger", tmp_path / "back")
    np.testing.assert_array_equal(reader["b"].class_ids, [1600, 3])
    old_port(tmp_path / "later", "a", [1600, 3], [1, 2])
    old_port(tmp_path / "later", "b", [1847, 3], [1, 2])
    with pytest.raises(InputError, match=r"b has an id above.*give --classes-from 0 or 1"):
        read_rows(tmp_path / "later", tmp_path / "refused")


def test_the_columns_of_a_distribution_show_the_first_number(tmp_path: Path) -> None:
    info = {"cls_prob": distributions(2, 81), "objects_id": np.array([80, 1])}
    write_npz(tmp_path / "npz", "a", info=info)
    reader = read_rows(tmp_path / "npz", tmp_path / "back", background="first")
    np.testing.assert_array_equal(reader["a"].class_ids, [79, 0])


@pytest.mark.parametrize("first", [0, 1])
def test_ids_that_are_columns_of_a_distribution_count_from_one(
    tmp_path: Path, first: int, capsys: pytest.CaptureFixture[str]
) -> None:
    probs = np.roll(distributions(3, 1601), 1, axis=1)  # the highest column is the second one
    probs[2] = np.roll(probs[2], -1)  # or the background, in the last box
    for name, part in (("a", slice(0, 0)), ("b", slice(0, 3)), ("c", slice(2, 3))):
        ids = probs[part].argmax(axis=1) if first else probs[part, 1:].argmax(axis=1)
        item = {
            "image_id": name,
            "features": np.ones((len(ids), DIM), np.float32),
            "bbox": np.tile(np.array([[0, 0, 5, 5]], np.float32), (len(ids), 1)),
            "image_width": 20,
            "image_height": 10,
            "cls_prob": probs[part],
            "objects": ids,
        }
        (tmp_path / "npy").mkdir(exist_ok=True)
        np.save(tmp_path / "npy" / f"{name}.npy", item)  # type: ignore[arg-type]
    reader = read_rows(tmp_path / "npy", tmp_path / "back")
    background = -1 if first else probs[2, 1:].argmax()
    np.testing.assert_array_equal(reader["b"].class_ids, [0, 0, background])
    np.testing.assert_array_equal(reader["c"].class_ids, [background])
    shown = "the distribution of b, whose largest columns are its class ids, shows that"
    assert (shown in capsys.readouterr().err) == bool(first)


@pytest.mark.parametrize("name", ["tsv", "lmdb", "npz", "hdf5"])
def test_regions_of_the_background_go_there_and_back(tmp_path: Path, name: str) -> None:
    old_port(tmp_path / "npz", "a", [1600, 0], [0, 400])
    read_rows(tmp_path / "npz", tmp_path / "regions")
    export_file(tmp_path / "regions", tmp_path / "file", name)
    row = read_rows(tmp_path / "file", tmp_path / "back")["a"]
    np.testing.assert_array_equal(row.class_ids, [1599, -1])
    np.testing.assert_array_equal(row.attribute_ids, [-1, 399])


def test_lmdb_and_hdf5_exports_state_how_they_count(tmp_path: Path) -> None:
    source = table(tmp_path / "source", 9, "none")
    export_file(source, tmp_path / "lmdb", "lmdb")
    export_file(source, tmp_path / "hdf5", "hdf5")
    with h5py.File(tmp_path / "hdf5") as file:
        assert (file.attrs["background"], file.attrs["classes_from"]) == ("none", 0)
    with lmdb.open(str(tmp_path / "lmdb"), lock=False) as opened, opened.begin() as transaction:
        item = pickle.loads(transaction.get(b"a", b""))
    assert (item["background"], item["classes_from"]) == ("none", 0)


# --- Sides ----------------------------------------------------------------------------------------


def sides(count: int, width: int = DIM) -> Any:
    return np.arange(count * width, dtype=np.float32).reshape(count, width)


def boxes(count: int) -> Any:
    return np.tile(np.array([0, 0, 5, 5], np.float32), (count, 1))


@pytest.mark.parametrize("count", [1, 3, 10])
def test_transposed_features_are_turned(tmp_path: Path, count: int) -> None:
    x, bbox = sides(count), boxes(count)
    write_npz(tmp_path / "npz", "there", x=x, bbox=bbox, num_bbox=count)
    write_npz(tmp_path / "npz", "turned", x=x.T, bbox=bbox.T, num_bbox=count)
    reader = read_rows(tmp_path / "npz", tmp_path / "back")
    for name in ("there", "turned"):
        np.testing.assert_array_equal(reader[name].features, x)
        np.testing.assert_array_equal(reader[name].boxes, bbox)


@pytest.mark.parametrize("shape", [(5, DIM), (DIM, 5), (2, 3, DIM), (2, DIM, 2)])
def test_features_without_a_side_of_boxes_are_rejects(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    count = 4 if len(shape) == 2 else 2
    x = np.ones(shape, np.float32)
    write_npz(tmp_path / "npz", "a", x=x, bbox=boxes(count), num_bbox=count)
    write_npz(tmp_path / "npz", "b")
    assert read_rows(tmp_path / "npz", tmp_path / "back").image_ids == ["b"]
    (reject,) = read_table(tmp_path / "back", REJECTS).to_pylist()
    assert (reject["key"], reject["reason"]) == ("a", "bad_record")
    assert f"features is {' x '.join(map(str, shape))}" in reject["detail"]


def test_square_features_are_as_the_others_of_their_folder(tmp_path: Path) -> None:
    x, square = sides(3), sides(DIM)
    for folder, turned in (("port", False), ("openvqa", True)):
        for name, features in (("a", square), ("b", x)):
            count = len(features)
            stored = features.T if turned else features
            write_npz(tmp_path / folder, name, x=stored, bbox=boxes(count), num_bbox=count)
        row = read_rows(tmp_path / folder, tmp_path / f"out-{folder}")["a"]
        np.testing.assert_array_equal(row.features, square)
    write_npz(tmp_path / "alone", "a", x=square, bbox=boxes(DIM), num_bbox=DIM)
    row = read_rows(tmp_path / "alone", tmp_path / "out-alone")["a"]
    np.testing.assert_array_equal(row.features, square)


def test_gqa_files_of_openvqa(tmp_path: Path) -> None:
    sizes = {"num_bbox": None, "image_h": None, "image_w": None, "width": 20, "height": 10}
    write_npz(tmp_path / "npz", "2370799", **sizes)
    row = read_rows(tmp_path / "npz", tmp_path / "back")["2370799"]
    assert (row.width, row.height, len(row.boxes)) == (20, 10, 2)


def test_names_of_regions_of_the_background() -> None:
    assert [get_name(["a", "b"], number, "class") for number in (-1, 1, 2)] == [
        "no class",
        "b",
        "class 2",
    ]
