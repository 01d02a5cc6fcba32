"""Parquet files of the hub: their columns of splits, ids, captions and images."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.pipelines.manifest.running import made, reasons, rows

from vlmill.pipelines.manifest.__main__ import main
from vlmill.pipelines.manifest.layouts.hub_columns import split_of_name
from vlmill.pipelines.manifest.reading.sources import Source
from vlmill.runtime.files.manifest import read_manifest
from vlmill.schemas.errors import InputError
from vlmill.schemas.names import Difference, difference
from vlmill.schemas.splits import find_use
from vlmill.schemas.tables import IMAGES, PAIRS

Image = Callable[..., bytes]
Row = dict[str, Any]


def write_rows(path: Path, listed: Sequence[Row], schema: pa.Schema | None = None) -> Path:
    """Writes a Parquet file, and returns the folder of the data set."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(listed), schema=schema), path)
    return path.parents[1]


def hub_rows(image: Image) -> list[Row]:
    """Five images as in Karpathy's splits on the hub: one file, whose name is of one split."""
    splits = ("restval", "train", "test", "val", "test")
    return [
        {
            "image": {"bytes": image(9, 9, seed=n), "path": f"{n}.jpg"},
            "sentences": [f"caption {k} of {n}" for k in range(2)],
            "split": split,
            "cocoid": 391895 + n,
            "filename": f"COCO_val2014_{391895 + n:012d}.jpg",
        }
        for n, split in enumerate(splits)
    ]


FILE = "in/data/train-00000-of-00001.parquet"


def splits_of(out: Path) -> list[str | None]:
    return [row["split"] for row in rows(out, PAIRS)]


def test_the_column_of_splits_wins_over_the_name_of_the_file(
    tmp_path: Path, image: Image, capsys: pytest.CaptureFixture[str]
) -> None:
    out = made("hf", write_rows(tmp_path / FILE, hub_rows(image)))
    expected = [s for s in ("restval", "train", "test", "val", "test") for _ in range(2)]
    assert splits_of(out) == expected
    said = "restval 2, train 2 for training; val 2 for validation; test 4 for test"
    assert f"splits (column split): {said}\n" in capsys.readouterr().out
    assert read_manifest(out)["settings"]["split_column"] == "split"


def test_another_column_of_splits_is_named_and_an_empty_cell_has_its_file_s(
    tmp_path: Path, image: Image
) -> None:
    listed = [row | {"part": part} for row, part in zip(
        hub_rows(image), ("dev", None, "holdout", " ", "test"), strict=True)]  # fmt: skip
    root = write_rows(tmp_path / "in/data/test-00000.parquet", listed)
    out = made("hf", root, "--split-column", "part")
    assert splits_of(out)[::2] == ["dev", "test", "holdout", "test", "test"]
    assert find_use("holdout") is None  # training refuses it by name
    again = made("hf", root, "--split-column", "part", "--split", "val", "--fresh")
    assert splits_of(again)[::2] == ["dev", "val", "holdout", "val", "test"]
    whole = made("hf", root, "--no-split-column", "--split", "val", "--fresh")
    assert set(splits_of(whole)) == {"val"}
    assert set(splits_of(made("hf", root, "--no-split-column", "--fresh"))) == {"test"}


def test_a_split_that_is_a_class_label_has_its_name(tmp_path: Path, image: Image) -> None:
    features = {"split": {"names": ["train", "validation", "test"], "_type": "ClassLabel"}}
    about = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    listed = [{"image": f"{n}.jpg", "text": "a dog", "split": n} for n in (2, 0, 1, -1)]
    schema = pa.schema(
        [("image", pa.string()), ("text", pa.string()), ("split", pa.int64())], metadata=about
    )
    out = made("hf", write_rows(tmp_path / FILE, listed, schema))
    assert splits_of(out) == ["test", "train", "validation"]
    assert ("train-00000-of-00001.parquet:3", "label_unknown") in reasons(out)
    write_rows(tmp_path / "other" / FILE, listed)  # numbers without names
    with_numbers = tmp_path / "other/in"
    assert main(["hf", "--input", str(with_numbers), "--output", str(tmp_path / "o")]) == 2


@pytest.mark.parametrize(
    ("more", "flags", "said"),
    [
        ({"Split": "train"}, (), "has the columns split, Split; name one with"),
        ({}, ("--split", "test"), "has the column split, which gives each row's split; add"),
        ({}, ("--split-column", "part"), "--split-column part: "),
        ({}, ("--id-column", "image"), "the column image is struct"),
        ({"caption": "a dog"}, (), "has the columns caption, sentences; name one with"),
    ],
)
def test_columns_that_are_not_clear_are_refused_in_a_line(
    tmp_path: Path,
    image: Image,
    capsys: pytest.CaptureFixture[str],
    more: Row,
    flags: tuple[str, ...],
    said: str,
) -> None:
    root = write_rows(tmp_path / FILE, [row | more for row in hub_rows(image)])
    made("hf", root, *flags, status=2)
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train-00000-of-00002.parquet", "train"),
        ("flickr30k_test.parquet", "test"),
        ("default/validation/0000.parquet", "validation"),
        ("test0001.parquet", "test"),
        ("testing.parquet", "test"),
        ("Restval-0.parquet", "Restval"),
        ("part-00000.parquet", None),
        ("latest.parquet", None),
    ],
)
def test_a_split_is_a_word_of_a_file_s_name(name: str, split: str | None) -> None:
    assert split_of_name(Source(path=Path(name), name=name, size=1)) == split
    both = Source(path=Path("x"), name="train_test.parquet", size=1)
    with pytest.raises(InputError, match="the splits train and test; name the split"):
        split_of_name(both)


def test_ids_of_a_column_meet_published_features(tmp_path: Path, image: Image) -> None:
    root = write_rows(tmp_path / FILE, hub_rows(image))
    out = made("hf", root, "--id-column", "cocoid")
    ids = [row["image_id"] for row in rows(out, IMAGES)]
    assert ids == [str(391895 + n) for n in range(5)]
    assert [row["pair_id"] for row in rows(out, PAIRS)][:2] == ["391895#0", "391895#1"]
    assert difference(ids[0], "COCO_val2014_000000391895") is Difference.NUMBER
    assert difference(ids[0], "coco/000000391895") is not None
    named = made("hf", root, "--id-column", "filename", "--fresh")
    assert rows(named, IMAGES)[0]["image_id"] == "COCO_val2014_000000391895.jpg"


def test_rows_of_one_id_are_captions_of_one_image(tmp_path: Path, image: Image) -> None:
    one, other = ({"bytes": image(9, 9, seed=n), "path": None} for n in range(2))
    listed = [
        {"image": one, "caption": "a dog", "id": "x"},
        {"image": one, "caption": "a dog runs", "id": "x"},
        {"image": other, "caption": "a cat", "id": "x"},
        {"image": other, "caption": "a cat", "id": " "},
    ]
    out = made("hf", write_rows(tmp_path / FILE, listed), "--id-column", "id")
    assert [row["pair_id"] for row in rows(out, PAIRS)] == ["x#0", "x#1"]
    assert len(rows(out, IMAGES)) == 1
    file = Path(FILE).name
    assert reasons(out) == [(f"{file}:2", "id_conflict"), (f"{file}:3", "no_id")]


@pytest.mark.parametrize(
    "captions",
    [
        {f"caption_{k}": text for k, text in enumerate(("a dog", "", "it runs"))},
        {"caption_10": "it runs", "caption_1": None, "caption_0": "a dog"},
        {"sentences": ["a dog", " ", "it runs"]},
        {"sentences": [{"raw": text, "tokens": []} for text in ("a dog", "", "it runs")]},
    ],
)
def test_every_caption_of_a_row_is_a_pair_or_a_reject(
    tmp_path: Path, image: Image, captions: Row
) -> None:
    content = {"bytes": image(9, 9), "path": "1.jpg"}
    out = made("hf", write_rows(tmp_path / FILE, [{"image": content} | captions]))
    assert [(row["pair_id"], row["text"]) for row in rows(out, PAIRS)] == [
        ("hf/train-00000-of-00001/0#0", "a dog"),
        ("hf/train-00000-of-00001/0#2", "it runs"),
    ]
    assert reasons(out) == [("train-00000-of-00001.parquet:0.1", "empty_text")]
    (stage, _) = json.loads((out / "funnel.json").read_text())
    assert (stage["in"], stage["out"], stage["rejects"]) == (2, 1, {"empty_text": 1})


def test_numbered_columns_are_named_by_what_they_share(tmp_path: Path) -> None:
    row = {"image": "1.jpg", "de_0": "ein Hund", "de_1": "er rennt", "caption_0": "a dog"}
    out = made("hf", write_rows(tmp_path / FILE, [row]), "--text-column", "de")
    assert [pair["text"] for pair in rows(out, PAIRS)] == ["ein Hund", "er rennt"]


def test_paths_of_another_machine_are_found_below_images(
    tmp_path: Path, image: Image, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = ["/home/me/photos/train/1.jpg", "C:\\photos\\val\\1.jpg", "/home/me/gone.jpg"]
    listed = [{"image": {"bytes": None, "path": path}, "caption": "a"} for path in paths]
    root = write_rows(tmp_path / FILE, listed)
    out = made("hf", root)
    assert len(rows(out, PAIRS)) == 3 and len(reasons(out)) == 3
    warning = [line for line in capsys.readouterr().err.splitlines() if "is empty" in line]
    assert len(warning) == 1 and warning[0].startswith("warning: the table of images is empty")
    assert warning[0].endswith("--images DIR")
    for width, split in ((11, "train"), (12, "val")):
        file = tmp_path / "mine" / split / "1.jpg"
        file.parent.mkdir(parents=True)
        file.write_bytes(image(width, 9))
    out = made("hf", root, "--images", str(tmp_path / "mine"), "--fresh")
    assert [row["width"] for row in rows(out, IMAGES)] == [11, 12]
    assert reasons(out) == [("hf/train-00000-of-00001/2", "image_missing")]


def test_files_in_folders_of_splits_keep_their_own_ids(tmp_path: Path) -> None:
    for split in ("test", "train"):
        row = {"image": "1.jpg", "text": f"of {split}"}
        write_rows(tmp_path / f"in/default/{split}/0000.parquet", [row])
    out = made("hf", tmp_path / "in")
    assert [(row["pair_id"], row["split"]) for row in rows(out, PAIRS)] == [
        ("hf/default/test/0000/0#0", "test"),
        ("hf/default/train/0000/0#0", "train"),
    ]
