"""One's own boxes from each layout that they come in: the same table of the same objects."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.pipelines.manifest.layouts import write, write_json

from vlmill.pipelines.manifest.__main__ import main
from vlmill.runtime.files.manifest import read_manifest

EXPECTED = {
    "a.png": ([[10.0, 5.0, 30.0, 25.0], [0.0, 0.0, 40.0, 30.0]], ["dog", "cat"]),
    "b.png": ([[2.0, 3.0, 12.0, 13.0]], ["cat"]),
    "c.png": ([], []),
}


def images(root: Path) -> None:
    """Three images of 40 x 30 pixels."""
    for number, name in enumerate(EXPECTED):
        content = io.BytesIO()
        Image.new("RGB", (40, 30), (40 * number, 9, 9)).save(content, "PNG")
        write(root / name, content.getvalue())


def tsv(root: Path) -> None:
    images(root)
    rows = [
        "image\tx1\ty1\tx2\ty2\tclass\tattributes\tsplit",
        "a.png\t10\t5\t30\t25\tDog\tbrown, small\ttrain",
        "b.png\t2\t3\t12\t13\tcat\t\tval",
        "a.png\t-4\t-9\t60\t30\tcat\t\ttrain",  # cut at the border
        "a.png\t50\t5\t60\t25\tdog\t\ttrain",  # outside
        "a.png\tnan\t5\t60\t25\tdog\t\ttrain",
        "a.png\t1\t2",
        "c.png\t\t\t\t\t\t\ttrain",
    ]
    write(root / "boxes.tsv", "\n".join(rows))


def coco(root: Path) -> None:
    images(root / "images")
    elements = [
        {"id": number, "file_name": name, "width": 40, "height": 30}
        for number, name in enumerate(EXPECTED)
    ]
    categories = [{"id": 17, "name": "cat"}, {"id": 3, "name": "dog"}]
    annotations: list[dict[str, Any]] = [
        {"id": 1, "image_id": 0, "category_id": 3, "bbox": [10, 5, 20, 20], "iscrowd": 0},
        {"id": 2, "image_id": 0, "category_id": 17, "bbox": [0, 0, 40, 30], "iscrowd": 1},
        {"id": 3, "image_id": 1, "category_id": 17, "bbox": [2, 3, 10, 10], "iscrowd": 0},
        {"id": 4, "image_id": 1, "category_id": 99, "bbox": [2, 3, 10, 10], "iscrowd": 0},
        {"id": 5, "image_id": 77, "category_id": 3, "bbox": [2, 3, 10, 10], "iscrowd": 0},
    ]
    file = {"images": elements, "annotations": annotations, "categories": categories}
    write_json(root / "instances_train2017.json", file)


def coco_as_published(root: Path) -> None:
    """The files that cocodataset.org has: annotations apart, keypoints and captions beside."""
    coco(root)
    file = json.loads((root / "instances_train2017.json").read_text())
    (root / "instances_train2017.json").unlink()
    (root / "images").rename(root / "train2017")
    write_json(root / "annotations" / "instances_train2017.json", file)
    write_json(root / "annotations" / "person_keypoints_train2017.json", file)
    write_json(root / "annotations" / "captions_train2017.json", {"images": [], "annotations": []})


def coco_beside_images(root: Path) -> None:
    """As labelling services export it: a folder a split, with its images."""
    coco(root)
    (root / "images").rename(root / "train")
    (root / "instances_train2017.json").rename(root / "train" / "_annotations.coco.json")


def voc(root: Path) -> None:
    images(root / "JPEGImages")
    for name, (boxes, classes) in EXPECTED.items():
        things = "".join(
            f"<object><name>{kind}</name><bndbox><xmin>{x1 + 1:g}</xmin><ymin>{y1 + 1:g}</ymin>"
            f"<xmax>{x2:g}</xmax><ymax>{y2:g}</ymax></bndbox></object>"
            for (x1, y1, x2, y2), kind in zip(boxes, classes, strict=True)
        )
        text = f"<annotation><filename>{name}</filename>{things}</annotation>"
        write(root / "Annotations" / f"{name[0]}.xml", text)
    write(root / "Annotations" / "bad.xml", "<annotation><object>")
    write(root / "ImageSets" / "Main" / "trainval.txt", "a\nb\nc\n")
    write(root / "ImageSets" / "Main" / "val.txt", "b\n")


def yolo(root: Path) -> None:
    images(root / "images" / "train")
    write(root / "data.yaml", "names:\n  0: dog\n  1: cat\n")
    for name, (boxes, classes) in EXPECTED.items():
        lines = [
            f"{('dog', 'cat').index(kind)} {(x1 + x2) / 80} {(y1 + y2) / 60} "
            f"{(x2 - x1) / 40} {(y2 - y1) / 30}"
            for (x1, y1, x2, y2), kind in zip(boxes, classes, strict=True)
        ]
        write(root / "labels" / "train" / f"{name[0]}.txt", "\n".join(lines))


@pytest.mark.parametrize("layout", [tsv, coco, coco_as_published, coco_beside_images, voc, yolo])
def test_every_layout_gives_the_same_boxes(layout: Callable[[Path], None], tmp_path: Path) -> None:
    layout(tmp_path / "in")
    out = tmp_path / "out"
    assert main(["boxes", "--input", str(tmp_path / "in"), "--output", str(out)]) == 0
    names = json.loads((out / "classes.json").read_text())
    assert sorted(names) == ["cat", "dog"]
    rows = table(out, "boxes")
    assert {Path(row["image_id"]).stem for row in rows} == {"a", "b", "c"}
    for row in rows:
        boxes, classes = EXPECTED[f"{Path(row['image_id']).stem}.png"]
        assert [[round(v, 3) for v in box] for box in row["boxes"]] == boxes
        assert [names[number] for number in row["class_ids"]] == classes
        assert (row["width"], row["height"]) == (40, 30)
    assert {row["image_id"] for row in table(out, "images")} == {row["image_id"] for row in rows}


def table(folder: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a table."""
    paths = sorted(folder.glob(f"{name}-*.parquet"))
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


def test_what_a_tsv_has_beside_boxes_and_what_is_left_out(tmp_path: Path) -> None:
    tsv(tmp_path / "in")
    out = tmp_path / "out"
    assert main(["boxes", "--input", str(tmp_path / "in"), "--output", str(out)]) == 0
    assert json.loads((out / "attributes.json").read_text()) == ["brown", "small"]
    first, second, third = table(out, "boxes")
    assert first["attribute_ids"] == [[0, 1], []]
    assert [row["split"] for row in (first, second, third)] == ["train", "val", "train"]
    assert read_manifest(out)["notes"] == {
        "objects skipped, bad_row": 1,
        "objects skipped, empty_box": 1,
        "images without an object": 1,
    }
    assert [row["reason"] for row in table(out, "rejects")] == ["bad_row"]


def test_crowds_unknown_classes_and_loose_annotations_of_coco_are_told(tmp_path: Path) -> None:
    coco(tmp_path / "in")
    out = tmp_path / "out"
    assert main(["boxes", "--input", str(tmp_path / "in"), "--output", str(out)]) == 0
    assert json.loads((out / "classes.json").read_text()) == ["dog", "cat"]  # by their ids
    rows = table(out, "boxes")
    assert [row["is_crowd"] for row in rows] == [[False, True], None, None]
    assert {row["split"] for row in rows} == {"train"}
    assert read_manifest(out)["notes"]["objects skipped, label_unknown"] == 1
    assert [row["reason"] for row in table(out, "rejects")] == ["bad_reference"]


def test_voc_s_lists_say_the_splits(tmp_path: Path) -> None:
    voc(tmp_path / "in")
    assert main(["boxes", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "o")]) == 0
    splits = {row["image_id"]: row["split"] for row in table(tmp_path / "o", "boxes")}
    assert splits == {"a.png": "train", "b.png": "val", "c.png": "train"}


def test_yolo_s_polygons_scores_and_images_without_a_file(tmp_path: Path) -> None:
    yolo(tmp_path / "in")
    labels = tmp_path / "in" / "labels" / "train"
    lines = ["0 0.25 0.5 0.75 0.2 0.5 0.8", "1 0.5 0.5 0.5 0.5 0.9", "0 0.1 0.2", "1 a b c d e f"]
    write(labels / "a.txt", "\n".join(lines))
    (labels / "c.txt").unlink()
    out = tmp_path / "out"
    assert main(["boxes", "--input", str(tmp_path / "in"), "--output", str(out)]) == 0
    boxes = {Path(row["image_id"]).name: row["boxes"] for row in table(out, "boxes")}
    assert [[round(v, 3) for v in box] for box in boxes["a"]] == [
        *([10.0, 6.0, 30.0, 24.0], [10.0, 7.5, 30.0, 22.5])
    ]
    assert boxes["c"] == []
    notes = read_manifest(out)["notes"]
    assert notes == {"objects skipped, bad_row": 2, "images without an object": 1}


def test_a_size_that_is_another_images_is_told_and_boxes_are_drawn(tmp_path: Path) -> None:
    coco(tmp_path / "in")
    file = json.loads((tmp_path / "in" / "instances_train2017.json").read_text())
    file["images"][1] |= {"width": 80, "height": 60}
    write_json(tmp_path / "in" / "instances_train2017.json", file)
    out = tmp_path / "out"
    assert main(["boxes", "--input", str(tmp_path / "in"), "--output", str(out)]) == 0
    assert read_manifest(out)["notes"]["size_differs"] == 1
    assert "Examples of boxes" in (out / "report.html").read_text()


def test_a_vocabulary_of_ones_own_decides_the_numbers(tmp_path: Path) -> None:
    tsv(tmp_path / "in")
    write(tmp_path / "names.txt", "bird\nkitten,cat\n")
    out = tmp_path / "out"
    flags = ["--classes", str(tmp_path / "names.txt")]
    assert main(["boxes", "--input", str(tmp_path / "in"), "--output", str(out), *flags]) == 0
    assert json.loads((out / "classes.json").read_text()) == ["bird", "kitten,cat"]
    assert [row["class_ids"] for row in table(out, "boxes")] == [[1], [1], []]
    assert read_manifest(out)["notes"]["objects skipped, label_unknown"] == 1


def test_a_folder_of_nothing_says_what_is_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images(tmp_path / "in")
    assert main(["boxes", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "o")]) == 2
    assert "Pascal VOC" in capsys.readouterr().err


LISTED = {"id": [1], "name": "bird"}
BAD_CATEGORIES: list[dict[str, Any]] = [{"name": "bird"}, {"id": 5}, LISTED, {"id": 3, "name": "x"}]


@pytest.mark.parametrize("category", BAD_CATEGORIES)
def test_a_category_of_coco_without_its_own_id_and_name_is_refused(
    category: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    coco_with(tmp_path / "in", {"categories": [category]})
    assert main(["boxes", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "o")]) == 2
    assert "instances_train2017.json" in capsys.readouterr().err


def coco_with(root: Path, more: dict[str, list[Any]]) -> None:
    """COCO's layout with further entries."""
    coco(root)
    file = json.loads((root / "instances_train2017.json").read_text())
    write_json(root / "instances_train2017.json", {k: v + more.get(k, []) for k, v in file.items()})


def test_ids_of_coco_that_are_none_or_come_twice_are_rejects(tmp_path: Path) -> None:
    """Two images of one id: the first keeps its boxes."""
    size = {"width": 40, "height": 30}
    thing = {"id": 9, "image_id": 1, "category_id": 3, "bbox": [1, 1, 5, 5]}
    more: dict[str, list[Any]] = {
        "images": [
            {"id": [7], "file_name": "d.png", **size},
            {"file_name": "e.png", **size},
            {"id": 0, "file_name": "f.png", **size},
            {"id": 8, "file_name": "g.png", "width": 10**14, "height": 3},
        ],
        "annotations": [thing | {"image_id": [1]}, thing | {"category_id": [3]}],
        "categories": [{"id": "5", "name": "bird"}],  # a text is an id, too
    }
    coco_with(tmp_path / "in", more)
    out = tmp_path / "out"
    assert main(["boxes", "--input", str(tmp_path / "in"), "--output", str(out)]) == 0
    assert json.loads((out / "classes.json").read_text()) == ["dog", "cat", "bird"]
    rows = {row["image_id"]: row["boxes"] for row in table(out, "boxes")}
    assert rows.keys() == EXPECTED.keys() and rows["a.png"] == EXPECTED["a.png"][0]
    reasons = sorted(row["reason"] for row in table(out, "rejects"))
    expected = ["bad_reference", "bad_reference", "bad_row", "bad_row", "id_conflict"]
    assert reasons == [*expected, "image_missing"]
    assert read_manifest(out)["notes"]["objects skipped, label_unknown"] == 2


def test_numbers_that_no_image_has_are_none(tmp_path: Path) -> None:
    """Pascal VOC and YOLO with 5,000 digits: counted, and nothing breaks."""
    nines = "9" * 5000
    voc(tmp_path / "voc")
    size = f"<size><width>{nines}</width><height>3</height></size>"
    text = f"<annotation><filename>z.png</filename>{size}</annotation>"
    write(tmp_path / "voc" / "Annotations" / "z.xml", text)
    yolo(tmp_path / "yolo")
    write(tmp_path / "yolo" / "labels" / "train" / "a.txt", f"{nines} 0.5 0.5 0.1 0.1\n")
    reasons = {"voc": ["bad_row", "image_missing"], "yolo": []}
    for name, expected in reasons.items():
        out = tmp_path / f"{name}-out"
        assert main(["boxes", "--input", str(tmp_path / name), "--output", str(out)]) == 0
        assert sorted(row["reason"] for row in table(out, "rejects")) == expected
    assert read_manifest(out)["notes"]["objects skipped, label_unknown"] == 1


NO_NAMES = [b"names: 3", b"names:", b"names: {0: a, b: c}", b"names: [[a]]", b"names: [caf\xe9]"]


@pytest.mark.parametrize("names", NO_NAMES)
def test_yolos_names_that_are_none_are_refused(
    names: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    yolo(tmp_path / "in")
    (tmp_path / "in" / "data.yaml").write_bytes(names)
    assert main(["boxes", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "o")]) == 2
    assert "data.yaml" in capsys.readouterr().err


def test_yolos_classes_are_found_by_their_numbers(tmp_path: Path) -> None:
    """Where the numbers have gaps, the place in the file says nothing."""
    yolo(tmp_path / "in")
    write(tmp_path / "in" / "data.yaml", "names:\n  4: bird\n  0: dog\n  1: cat\n")
    line = "4 0.5 0.5 0.5 0.5\n2 0.5 0.5 0.5 0.5\n"
    write(tmp_path / "in" / "labels" / "train" / "c.txt", line)
    out = tmp_path / "out"
    assert main(["boxes", "--input", str(tmp_path / "in"), "--output", str(out)]) == 0
    assert json.loads((out / "classes.json").read_text()) == ["dog", "cat", "bird"]
    classes = {Path(row["image_id"]).name: row["class_ids"] for row in table(out, "boxes")}
    assert classes["c"] == [2]
    assert read_manifest(out)["notes"] == {"objects skipped, label_unknown": 1}
