"""Files that are not as published: what is lost is named, and nothing is taken for another."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.pipelines.manifest.layouts import write, write_json
from tests.pipelines.manifest.running import made, reasons, rows
from tests.pipelines.manifest.task_layouts import annotation, image, lines, vcr_line

from vlmill.runtime.files.manifest import read_manifest
from vlmill.schemas.tables import CHOICES, EXPRESSIONS, IMAGES, PAIRS, QUESTIONS, STATEMENTS, Table

Files = dict[str, Any]
Image = Callable[..., bytes]


def write_all(root: Path, files: Files) -> Path:
    for name, content in files.items():
        if isinstance(content, bytes | str):
            write(root / name, content)
        else:
            write_json(root / name, content)
    return root


def coco_image(number: int, name: str = "a.jpg") -> dict[str, Any]:
    return {"id": number, "file_name": name, "height": 30, "width": 40}


def caption(number: int, of: int, text: str = "a cat") -> dict[str, Any]:
    return {"id": number, "image_id": of, "caption": text}


def vg_image(number: int, **more: Any) -> dict[str, Any]:
    url = f"http://x/VG_100K/{number}.jpg"
    return {"image_id": number, "url": url, "width": 40, "height": 30} | more


def region(number: int, phrase: str, *box: float) -> dict[str, Any]:
    x, y, width, height = box or (1, 1, 5, 5)
    return {
        "region_id": number, "phrase": phrase, "x": x, "y": y, "width": width, "height": height
    }  # fmt: skip


def statement(number: str, label: object) -> dict[str, Any]:
    return {"identifier": f"dev-1-0-{number}", "sentence": "Two dogs.", "label": label}


COCO_FILE = "annotations/captions_train2014.json"
QUESTIONS_FILE = "v2_OpenEnded_mscoco_train2014_questions.json"
ANNOTATIONS_FILE = "v2_mscoco_train2014_annotations.json"
FLICKR = "http://static.flickr.com/1"
HUGE = "9" * 5_000  # digits, of which int() refuses to make a number

# name, files -> reasons, the table's ids
CASES: dict[str, tuple[str, Files, list[str], tuple[Table, str], list[str]]] = {
    "images that come twice": (
        "coco",
        {COCO_FILE: {
            "images": [*[coco_image(1)] * 2, coco_image(1, "b.jpg"), "none", coco_image(-3)],
            "annotations": [caption(1, 1)],
        }},
        ["duplicate", "id_conflict", "bad_row", "bad_row"],
        (PAIRS, "pair_id"), ["coco/1"],
    ),
    "one id for two images in two files": (
        "coco-json",
        {
            "a.json": {"images": [coco_image(1, "a/1.jpg")], "annotations": [caption(1, 1)]},
            "b.json": {"images": [coco_image(1, "b/1.jpg")], "annotations": [caption(2, 1)]},
        },
        ["id_conflict", "bad_row"],
        (PAIRS, "pair_id"), ["coco-json/1"],
    ),
    "CC3M's file under CC12M's name": (
        "cc12m", {"cc12m.tsv": "a dog\thttp://a/1\nhttp://a/2\ta cat\n"},
        ["bad_row"], (PAIRS, "text"), ["a cat"],
    ),
    "URLs that are none": (
        "sbu",
        {"sbu-captions-all.json": {
            "image_urls": [
                *(f"{FLICKR}/2_a.jpg", f"{FLICKR}/{HUGE}_a.jpg", 7, f"http://x/{HUGE}{HUGE}")
            ],
            "captions": ["a", "b", "c", "d"],
        }},
        ["bad_row", "bad_row"],
        (PAIRS, "image_id"), ["sbu/2", "sbu/row-1"],
    ),
    "numbers of thousands of digits": (
        "flickr30k",
        {"results_20130124.token": f"1.jpg#0\ta\n1.jpg#{HUGE}\tb\n{HUGE}.jpg#1\tc\n1.jpg#٣\td\n"},
        ["bad_row"] * 3, (PAIRS, "pair_id"), ["flickr30k/1#0"],
    ),
    "a results.csv without its header": (
        "flickr30k", {"results.csv": "1.jpg| 0| a cat .\n2.jpg| 4   A dog .\n"},
        [], (PAIRS, "pair_id"), ["flickr30k/1#0", "flickr30k/2#4"],
    ),
    "labels of another kind": (
        "nlvr2",
        {"data/dev.json": lines([statement("0", "True"), statement("1", ["True"]),
                                 statement("2", True)])},
        ["label_unknown"], (STATEMENTS, "example_id"), ["nlvr2/dev-1-0-0", "nlvr2/dev-1-0-2"],
    ),
    "questions of another image than their annotation": (
        "vqa2",
        {
            QUESTIONS_FILE: {"questions": [
                {"question_id": number, "image_id": of, "question": "What?"}
                for number, of in ((1, 10), (2, 20), (3, -7), (-4, 10))
            ]},
            ANNOTATIONS_FILE: {"annotations": [annotation(1, 10, "yes"), annotation(2, 21, "no")]},
        },
        ["bad_reference", "bad_row", "bad_row", "bad_reference"],
        (QUESTIONS, "question_id"), ["vqa2/1"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_rows_that_are_not_as_published_are_named(tmp_path: Path, case: str) -> None:
    name, files, wanted, (table, column), ids = CASES[case]
    out = made(name, write_all(tmp_path / "in", files))
    assert [reason for key, reason in reasons(out) if reason != "image_missing"] == wanted
    assert [row[column] for row in rows(out, table)] == ids


def test_a_phrase_stays_with_the_lowest_region_that_lies_in_the_image(tmp_path: Path) -> None:
    files = {
        "image_data.json": [vg_image(1), vg_image(1), vg_image(1, width=99), {"id": 2}, 7],
        "region_descriptions.json": [
            {"id": 1, "regions": [region(1, "a cat", -50, -50, 5, 5), region(2, "a cat")]}
        ],
    }
    out = made("vg", write_all(tmp_path / "in", files), "--boxes")
    assert [row["pair_id"] for row in rows(out, PAIRS)] == ["vg/2"]
    assert [reason for _, reason in reasons(out)] == [
        *("duplicate", "id_conflict", "bad_row", "empty_box")
    ]


def test_another_answer_to_the_same_question_is_a_conflict(tmp_path: Path) -> None:
    asked = {"qa_id": 1, "image_id": 1, "question": "Which?"}
    answers = [asked | {"answer": text} for text in ("Green.", "Green.", "yes")]
    files = {
        "image_data.json": [vg_image(1)],
        "question_answers.json": [{"id": 1, "qas": answers}],
        "labels/labels.json": ["green", "yes"],
    }
    root = write_all(tmp_path / "in", files)
    out = made("vgqa", root, "--labels", str(root / "labels/labels.json"))
    assert [reason for _, reason in reasons(out)] == ["duplicate", "id_conflict"]


def test_annotations_that_come_twice_do_not_move_a_box(tmp_path: Path) -> None:
    def instance(number: int, x: float) -> dict[str, Any]:
        return {"id": number, "image_id": 9, "category_id": 1, "bbox": [x, 2, 10, 10]}

    def ref(number: object, sent_id: int, text: str) -> dict[str, Any]:
        sentence = {"sent_id": sent_id, "sent": text, "raw": text, "tokens": [text]}
        about = {"ref_id": number, "ann_id": 1, "image_id": 9, "category_id": 1, "split": "train"}
        return about | {"sentences": [sentence]}

    refs = [ref(1, 1, "man"), ref(b"2", 2, "boy"), ref(3, -3, "cup")]
    files = {
        "instances.json": {
            "images": [coco_image(9), coco_image(9), coco_image(9) | {"width": 41}],
            "annotations": [instance(1, 1), instance(1, 1), instance(1, 2), instance(-4, 1)],
        },
        "refs(unc).p": pickle.dumps(refs, 2),
    }
    out = made("refcoco", write_all(tmp_path / "in", files))
    (expression,) = rows(out, EXPRESSIONS)
    assert expression["box"] == [1.0, 2.0, 11.0, 12.0]
    assert [reason for _, reason in reasons(out)] == [
        *("duplicate", "id_conflict"),  # images
        *("duplicate", "id_conflict", "bad_row"),  # annotations
        *("bad_row", "bad_row"),
    ]


def vcr_files(boxes: list[list[float]], *questions: dict[str, Any], **more: Any) -> Files:
    metadata = {"boxes": boxes, "names": ["person", "cup"], "width": 40, "height": 30} | more
    return {
        "val.jsonl": lines(list(questions)),
        "vcr1images/m/val-0@1.json": metadata,
        "vcr1images/m/val-0@1.jpg": image(),
    }


def test_objects_of_vcr_are_cut_to_their_image(tmp_path: Path) -> None:
    boxes = [[1, 2, 11, 22, 0.9], [30, 0, 45.5, 5, 0.5]]
    line = vcr_line("val-0", "val-0")
    other_split, other_words = vcr_line("train-1", "val-0"), line | {"question": ["Why", "?"]}
    for of in (line, other_split, other_words):
        of |= {"metadata_fn": "m/val-0@1.json", "img_fn": "m/val-0@1.jpg"}
    files = vcr_files(boxes, line, line, other_words, other_split)
    out = made("vcr", write_all(tmp_path / "in", files))
    assert rows(out, CHOICES)[0]["boxes"] == [1.0, 2.0, 11.0, 22.0, 30.0, 0.0, 40.0, 5.0]
    assert read_manifest(out)["notes"] == {"box_clipped": 3}
    assert [reason for _, reason in reasons(out)] == ["duplicate", "id_conflict", "bad_row"]

    beyond = vcr_files([[50, 50, 60, 60, 1], [0, 0, 5, 5, 1]], line)
    out = made("vcr", write_all(tmp_path / "beyond", beyond), status=1)
    assert [reason for _, reason in reasons(out)] == ["empty_box"]


@pytest.mark.parametrize(
    ("stored", "size", "box", "note"),
    [
        (None, (30, 40), (20, 5, 19, 20), "size_swapped"),  # fits the other way round alone
        ((30, 40), (40, 30), (1, 1, 20, 35), "size_swapped"),
        ((20, 15), (40, 30), (1, 1, 20, 20), "size_differs"),
        ((40, 30), (40, 30), (1, 1, 20, 20), None),
        (None, (40, 30), (1, 1, 50, 50), None),  # fits neither way
    ],
)
def test_sizes_that_cannot_be_are_warned_of(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    stored: tuple[int, int] | None,
    size: tuple[int, int],
    box: tuple[int, ...],
    note: str | None,
) -> None:
    files: Files = {
        "image_data.json": [vg_image(1, width=size[0], height=size[1])],
        "region_descriptions.json": [{"id": 1, "regions": [region(1, "a cat", *box)]}],
    }
    if stored is not None:
        files["VG_100K/1.jpg"] = image(*stored)
    out = made("vg", write_all(tmp_path / "in", files), "--boxes")
    notes = read_manifest(out)["notes"]
    assert [name for name in notes if name.startswith("size_")] == ([note] if note else [])
    said = [line for line in capsys.readouterr().err.splitlines() if "size_" in line]
    assert len(said) == (note is not None)
    assert all(line.startswith(f"warning: {note} of 1 rows: ") for line in said)
    if stored == (30, 40):  # the file's own size counts, which boxes were drawn on
        assert rows(out, EXPRESSIONS)[0]["box"] == [1.0, 1.0, 21.0, 36.0]


def test_a_name_that_two_synsets_have_is_two_images_and_of_one_synset_one(tmp_path: Path) -> None:
    files = {
        "n01440764/n01440764_1.JPEG": image(40, 30),
        "n01440764/n01440764_1.png": image(9, 9),
        "n01440764/val_2.JPEG": image(11, 11),
        "n01440765/val_2.JPEG": image(12, 12),
    }
    out = made("imagenet22k", write_all(tmp_path / "in", files))
    assert [(row["image_id"], row["width"]) for row in rows(out, IMAGES)] == [
        ("imagenet22k/n01440764_1", 40),
        ("imagenet22k/val_2", 11),
        ("imagenet22k/n01440765/val_2", 12),
    ]
    assert reasons(out) == [("n01440764/n01440764_1.png", "id_conflict")]


def test_a_path_of_another_machine_is_no_file_of_the_same_name_here(tmp_path: Path) -> None:
    paths = ["/data/other/1.jpg", "C:\\data\\1.jpg", None, "1.jpg"]
    (tmp_path / "in").mkdir()
    cells = [{"bytes": None, "path": path} for path in paths]
    table = pa.table({"image": cells, "caption": ["a"] * len(cells)})
    pq.write_table(table, tmp_path / "in/train-0.parquet")
    write(tmp_path / "in/1.jpg", image())
    out = made("hf", tmp_path / "in")
    assert [row["image_id"] for row in rows(out, IMAGES)] == ["hf/train-0/3"]
    assert reasons(out) == [(f"hf/train-0/{n}", "image_missing") for n in range(3)]


KARPATHY_IMAGE = {"filename": "a.jpg", "filepath": "val2014", "split": "test", "sentences": []}


@pytest.mark.parametrize(
    ("name", "files", "flags", "said"),
    [
        ("cc", {"Train_GCC-training.tsv": "a dog\thttp://a/1\n".encode("utf-16")}, (),
         "Train_GCC-training.tsv is UTF-16"),
        ("coco", {COCO_FILE: b'{"images": ["caf\xe9"]}'}, (), "at character 16: no UTF-8"),
        ("sbu", {"sbu-captions-all.json": {"image_urls": ["a"], "captions": ["b"], "user_ids": []}},
         (), "differ in length (image_urls 1, captions 1, user_ids 0)"),
        ("coco-karpathy", {"dataset_coco.json": {"images": [KARPATHY_IMAGE | {"cocoid": "x"}]}},
         ("--exclude-split", "coco-karpathy:test"), "cocoid 'x' is not a number"),
    ],
)  # fmt: skip
def test_files_of_which_nothing_can_be_told_are_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
    name: str, files: Files, flags: tuple[str, ...], said: str,
) -> None:  # fmt: skip
    made(name, write_all(tmp_path / "in", files), *flags, status=2)
    assert said in capsys.readouterr().err
