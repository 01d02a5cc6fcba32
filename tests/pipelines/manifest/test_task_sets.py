"""Sets of tasks in their published layouts, from their files to tables by the command."""

import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.manifest.running import reasons
from tests.pipelines.manifest.running import rows as rows_of
from tests.pipelines.manifest.task_layouts import (
    METADATA,
    image,
    lines,
    vcr_line,
    write,
    write_refcoco,
    write_vqa,
)

from vlmill.models.convert import unpickling
from vlmill.pipelines.manifest.__main__ import main
from vlmill.runtime.files.manifest import read_manifest, verify_folder
from vlmill.schemas.tables import BOXES, CHOICES, EXPRESSIONS, IMAGES, QUESTIONS, REGIONS
from vlmill.schemas.tables import STATEMENTS as STATEMENTS_TABLE


def made(name: str, folder: Path, output: Path, *flags: str) -> Mapping[str, Any]:
    assert main([name, "--input", str(folder), "--output", str(output), *flags]) == 0
    verify_folder(output)
    funnel = json.loads((output / "funnel.json").read_text())
    assert all(stage["in"] == stage["out"] + sum(stage["rejects"].values()) for stage in funnel)
    assert (output / "report.html").stat().st_size
    return read_manifest(output)


# VQA


def test_questions_with_labels_of_their_own_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_vqa(tmp_path / "vqa")
    manifest = made("vqa2", tmp_path / "vqa", tmp_path / "out")
    rows = rows_of(tmp_path / "out", QUESTIONS)
    assert [row["question_id"] for row in rows] == [
        *(f"vqa2/{10000 + k}" for k in range(9)),
        "vqa2/99000",
    ]
    # "Yes" is no label: labels are processed, and answers are compared as typed.
    assert json.loads((tmp_path / "out" / "labels.json").read_text()) == ["yes"]
    assert (rows[0]["label_ids"], rows[0]["label_scores"]) == ([0], [pytest.approx(0.6)])
    assert rows[0]["answers"][-1] == "" and rows[0]["split"] == "train2014"
    assert rows[-1]["answers"] is None and rows[-1]["split"] == "test2015"
    assert dict(reasons(tmp_path / "out")) == {
        "v2_OpenEnded_mscoco_train2014_questions.json:9": "bad_row",  # has no annotation
        "v2_OpenEnded_mscoco_train2014_questions.json:10": "duplicate",
        "v2_OpenEnded_mscoco_train2014_questions.json:11": "id_conflict",
        "v2_mscoco_train2014_annotations.json:10": "duplicate",
        "v2_mscoco_train2014_annotations.json:1": "bad_reference",  # has no question
        "coco/000000000099": "image_missing",
    }
    assert [row["image_id"] for row in rows_of(tmp_path / "out", IMAGES)] == ["coco/000000000010"]
    assert manifest["counts"][0][:2] == ["v2_OpenEnded_mscoco_train2014_questions.json", 12]
    said = capsys.readouterr()
    assert "labels: 1 answers that 9 or more questions" in said.out + said.err


def test_a_list_of_labels_decides_the_numbers(tmp_path: Path) -> None:
    write_vqa(tmp_path / "vqa")
    expected = {
        "list.json": '["no", "Yes", ""]',
        "dict.json": '{"no": 0, "": 2, "Yes": 1}',
        "plain.txt": "no\nYes\n\n",
    }
    digests = set()
    for name, content in expected.items():
        write(tmp_path / name, content)
        made("vqa2", tmp_path / "vqa", tmp_path / f"out-{name}", "--labels", str(tmp_path / name))
        row = rows_of(tmp_path / f"out-{name}", QUESTIONS)[0]
        assert row["label_ids"] == [0, 1, 2], name
        assert row["label_scores"] == pytest.approx([0.3, 1.0, 0.3])
        digests.add(read_manifest(tmp_path / f"out-{name}")["settings"]["labels_sha256"])
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no labels"),
        ("[1]", "must be text"),
        ('["a", "a"]', "the label 'a' twice"),
        ('{"a": 1}', "must be 0 to 0"),
        ('["a"', "not JSON"),
    ],
)
def test_lists_of_labels_that_are_none(
    content: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_vqa(tmp_path / "vqa")
    write(tmp_path / "labels", content)
    words = ["vqa2", "--input", str(tmp_path / "vqa"), "--output", str(tmp_path / "out")]
    assert main([*words, "--labels", str(tmp_path / "labels")]) == 2
    error = capsys.readouterr().err
    assert said in error and "labels" in error and len(error.splitlines()) == 1


def test_questions_of_visual_genome(tmp_path: Path) -> None:
    folder = tmp_path / "vg"
    url = "https://example.org/VG_100K_2/7.jpg"
    image = {"image_id": 7, "url": url, "width": 40, "height": 30, "coco_id": 5, "flickr_id": None}
    write(folder / "image_data.json", [image])
    qas = [
        {"qa_id": 3, "image_id": 7, "question": "What color?", "answer": "Green."},
        {"qa_id": 4, "image_id": 7, "question": "What?", "answer": "A thing."},
        {"qa_id": 5, "image_id": 8, "question": "What?", "answer": "Green."},
    ]
    write(folder / "question_answers.json", [{"id": 7, "qas": qas}, {"id": 8}])
    write(tmp_path / "labels.txt", "red\ngreen\n")
    made("vgqa", folder, tmp_path / "out", "--labels", str(tmp_path / "labels.txt"))
    (row,) = rows_of(tmp_path / "out", QUESTIONS)
    assert (row["question_id"], row["label_ids"], row["label_scores"]) == ("vgqa/3", [1], [1.0])
    assert dict(reasons(tmp_path / "out")) == {
        "question_answers.json:0.1": "label_unknown",
        "question_answers.json:0.2": "bad_reference",
        "question_answers.json:1": "bad_row",
    }


# VCR


def test_vcr_from_its_archives(tmp_path: Path) -> None:
    folder = tmp_path / "vcr"
    folder.mkdir()
    with zipfile.ZipFile(folder / "vcr1annots.zip", "w") as archive:
        listed = [
            vcr_line("val-0", "val-0"),
            vcr_line("val-1", "val-0", question=["Why", [2]]),
            vcr_line("val-2", "val-5"),
            vcr_line("val-3", "val-0", img_fn="../../x.jpg", metadata_fn="../../x.json"),
        ]
        archive.writestr("val.jsonl", lines(listed) + "{broken\n")
        archive.writestr("test.jsonl", lines([vcr_line("test-0", "test-0")]))
    for name in ("val-0", "test-0"):
        write(folder / "vcr1images" / "m" / f"{name}@1.json", METADATA)
        write(folder / "vcr1images" / "m" / f"{name}@1.jpg", image())
    made("vcr", folder, tmp_path / "out")
    rows = rows_of(tmp_path / "out", CHOICES)
    assert [row["example_id"] for row in rows] == [
        *("vcr/val-0/q2a", "vcr/val-0/qa2r", "vcr/test-0/q2a"),
        *(f"vcr/test-0/qa2r/{answer}" for answer in range(4)),
    ]
    assert rows[1]["question"] == "What is [0] ? [MARK] a [1]" and rows[1]["label"] == 3
    assert rows[0]["boxes"][:4] == [1, 2, 11, 22] and json.loads(rows[0]["segms"])[1] == []
    assert dict(reasons(tmp_path / "out")) == {
        "val.jsonl:1": "bad_reference",
        "val.jsonl:2": "image_missing",  # of the metadata file
        "val.jsonl:3": "unsafe_path",
        "val.jsonl:4": "bad_row",
    }
    assert {row["image_id"] for row in rows_of(tmp_path / "out", IMAGES)} == {
        "vcr/val-0",
        "vcr/test-0",
    }


# RefCOCO


def test_refcoco_with_the_detections_of_mattnet(tmp_path: Path) -> None:
    write_refcoco(tmp_path / "refcoco+")
    manifest = made("refcoco+", tmp_path / "refcoco+", tmp_path / "out")
    rows = rows_of(tmp_path / "out", EXPRESSIONS)
    assert [(row["expression_id"], row["text"], row["split"]) for row in rows] == [
        ("refcoco+/20", "left man", "testA"),
        ("refcoco+/21", "", "testA"),  # scored as published
        ("refcoco+/22", "dog", "train"),
    ]
    assert rows[0]["box"] == [30, 10, 40, 20]  # cut
    assert rows[2]["box"] == [30 - 24, 2, 30 - 4, 12]  # turned with its image, by a quarter
    assert (rows[0]["split_by"], rows[2]["category_id"]) == ("unc", 90)
    assert dict(reasons(tmp_path / "out")) == {
        "instances.json:annotations:3": "bad_reference",
        "refcoco+/23": "empty_text",
        "refcoco+/20": "id_conflict",
        "refcoco+/24": "empty_box",
        "refcoco+/25": "bad_reference",
        "res101_coco_minus_refer_notime_dets.json:1": "bad_reference",
        "coco/000000000009": "image_missing",
    }
    regions = rows_of(tmp_path / "out", REGIONS)
    assert [(row["image_id"][-3:], row["num_boxes"], row["width"]) for row in regions] == [
        ("009", 1, 40),
        ("010", 0, 30),  # upright
    ]
    boxes = rows_of(tmp_path / "out", BOXES)  # all annotated objects, whether named or not
    assert [(row["image_id"][-3:], len(row["boxes"]), row["class_ids"]) for row in boxes] == [
        ("009", 1, [1]),
        ("010", 1, [90]),
    ]
    assert regions[0]["boxes"] == [[1, 2, 4, 6]] and regions[0]["class_ids"] == [2]
    assert manifest["notes"] == {"box_clipped": 2, "object_without_area": 1}


def test_a_foreign_pickle_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Harmful:
        def __reduce__(self) -> Any:
            return (write, (tmp_path / "ran", "x"))

    write_refcoco(tmp_path / "refcoco")
    write(tmp_path / "refcoco" / "refs(unc).p", pickle.dumps([Harmful()]))
    words = ["refcoco", "--input", str(tmp_path / "refcoco"), "--output", str(tmp_path / "out")]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "refs(unc).p is not a pickle of plain data" in error and "task_layouts.write" in error
    assert not (tmp_path / "ran").exists()
    monkeypatch.setattr(unpickling, "MEMORY", 32 << 20)
    write(tmp_path / "refcoco" / "refs(unc).p", b"\x80\x02" + b"]" * 1_000_000)
    assert main([*words, "--fresh"]) == 2
    assert "refs(unc).p is not a pickle of plain data (it needs more" in capsys.readouterr().err
    write(tmp_path / "refcoco" / "refs(google).p", b"")
    assert main([*words, "--fresh"]) == 2
    assert "splits of unc and google; choose one with --split-by" in capsys.readouterr().err


# NLVR2


def test_nlvr2_names_its_images_whatever_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "nlvr2"

    def statement(identifier: str, label: str, **more: Any) -> dict[str, Any]:
        urls = {"left_url": "http://a/1.jpg", "right_url": "http://b/2.jpg"}
        return {"identifier": identifier, "sentence": "Two dogs.", "label": label, **urls, **more}

    train = [statement("train-1-0-0", "True", directory=4), statement("train-1-0-1", "no")]
    dev = [statement("dev-12-3-1", "False"), statement("dev-12-3-1", "False")]
    write(folder / "data" / "train.json", lines(train))
    write(folder / "data" / "dev.json", lines([*dev, statement("dev-12-3-1", "True")]))
    write(folder / "images" / "train" / "4" / "train-1-0-img0.png", image())  # JPEG inside
    write(folder / "dev" / "dev-12-3-img1.png", image())
    made("nlvr2", folder, tmp_path / "out")
    rows = rows_of(tmp_path / "out", STATEMENTS_TABLE)
    assert [(row["example_id"], row["label_id"]) for row in rows] == [
        ("nlvr2/train-1-0-0", 1),
        ("nlvr2/dev-12-3-1", 0),
    ]
    assert rows[0]["image_ids"] == ["nlvr2/train-1-0-img0", "nlvr2/train-1-0-img1"]
    images = rows_of(tmp_path / "out", IMAGES)
    assert [(row["image_id"], row["source_url"]) for row in images] == [
        ("nlvr2/train-1-0-img0", "http://a/1.jpg"),
        ("nlvr2/dev-12-3-img1", "http://b/2.jpg"),
    ]
    assert sorted(dict(reasons(tmp_path / "out")).values()) == [
        *("duplicate", "id_conflict", "image_missing", "image_missing", "label_unknown")
    ]


# GLUE


def test_glue_by_the_names_of_its_columns(tmp_path: Path) -> None:
    folder = tmp_path / "glue"
    write(folder / "CoLA" / "train.tsv", 'x01\t1\t\tThe "cat sleeps.\nx01\t0\t*\tCat the.\n')
    write(folder / "CoLA" / "test.tsv", "index\tsentence\n0\tWho?\n")
    write(
        folder / "QQP" / "train.tsv",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\ta\tb\t0\n4\t5\n",
    )
    mnli = "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\ta\tb\tneutral\tcontradiction\n"
    write(folder / "MNLI" / "dev_matched.tsv", mnli)
    write(folder / "STS-B" / "dev.tsv", "index\tsentence1\tsentence2\tscore\n0\ta\tb\t3.25\n")
    manifest = made("glue", folder, tmp_path / "out")
    rows = rows_of(tmp_path / "out", STATEMENTS_TABLE)
    assert [(row["example_id"], row["label"], row["label_id"]) for row in rows] == [
        ("glue/cola/train/0", "1", 1),
        ("glue/cola/train/1", "0", 0),
        ("glue/cola/test/0", None, -1),
        ("glue/sts-b/dev/0", "3.25", -1),
        ("glue/qqp/train/0", "0", 0),
        ("glue/mnli/dev_matched/0", "contradiction", 2),
    ]
    assert rows[0]["text_a"] == 'The "cat sleeps.' and rows[3]["score"] == 3.25
    assert rows[0]["image_ids"] == [] and rows[0]["text_b"] is None
    assert dict(reasons(tmp_path / "out")) == {"QQP/train.tsv:2": "bad_row"}
    assert manifest["counts"][0][:3] == ["CoLA/train.tsv", 2, 8_551]


def test_files_that_are_no_glue_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "glue"
    words = ["glue", "--input", str(folder), "--output", str(tmp_path / "out")]
    write(folder / "MRPC" / "msr_paraphrase_train.txt", "x")
    assert main(words) == 2
    assert "msr_paraphrase_*.txt" in capsys.readouterr().err
    write(folder / "RTE" / "dev.tsv", "index\tsentence1\tlabel\n0\ta\tb\n")
    write(folder / "MRPC" / "dev.tsv", "Quality\t#1 String\t#2 String\n1\ta\tb\n")
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "RTE/dev.tsv has no column sentence2" in error and len(error.splitlines()) == 1
