"""manifest own on questions, statements, labels, and files of other programs."""

import codecs
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vlmill.pipelines.manifest.__main__ import main
from vlmill.pipelines.manifest.own.command import pack_row, unpack_row
from vlmill.pipelines.manifest.own.job import JudgedRow
from vlmill.pipelines.manifest.spooled import read_frames, write_frames
from vlmill.runtime.files.manifest import verify_folder
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.ids import compute_image_id
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import IMAGES, LABELS, PAIRS, QUESTIONS, REJECTS, STATEMENTS, Table

CAPTIONS = ("--text-column", "caption", "--image-column", "image")
QA = ("--question-column", "question", "--answer-column", "answer", "--image-column", "image")
CLASSES = ("--label-column", "label", "--image-column", "image")
CLAIMS = ("--statement-column", "text", *CLASSES)


@pytest.fixture
def own(tmp_path: Path) -> Callable[..., int]:
    """Writes a file and runs the command on it; the tables are in ``out``."""

    def run(name: str, content: bytes | str, *flags: str) -> int:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        words = ["own", "--input", str(path), "--output", str(tmp_path / "out"), "--fresh"]
        return main([*words, "--workers", "1", *flags])

    return run


def rows(tmp_path: Path, table: Table, *columns: str) -> list[Any]:
    """Returns the values of columns, of one column unpacked."""
    lists = [read_table(tmp_path / "out", table).column(name).to_pylist() for name in columns]
    return list(lists[0]) if len(columns) == 1 else list(zip(*lists, strict=True))


def reasons(tmp_path: Path) -> list[str]:
    return rows(tmp_path, REJECTS, "reason")


def labels(tmp_path: Path) -> list[str]:
    names: list[str] = json.loads((tmp_path / "out" / "labels.json").read_text())
    return names


# Captions of other programs' files


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "excel.csv",
            codecs.BOM_UTF16_LE + "image\tcaption\r\na.jpg\tcafé\r\n".encode("utf-16-le"),
        ),
        ("excel8.csv", "\ufeffimage;caption\r\na.jpg;café\r\n"),
        ("sep.csv", "sep=|\r\nimage|caption\r\na.jpg|café\r\n"),
        ("latin.csv", "image,caption\na.jpg,café\n".encode("cp1252")),
        ("tabs.csv", "image\tcaption\na.jpg\tcafé\n"),
        ("commas.tsv", 'image,caption\na.jpg,"café"\n'),
        ("list.json", '[{"image": "a.jpg", "caption": "café"}]'),
        ("lines.json", '{"image": "a.jpg", "caption": "café"}\n{"image": "a.jpg"}\n'),
        ("nan.json", '[{"image": "a.jpg", "caption": "café"}, {"image": "a", "caption": NaN}]'),
        ("captions.txt", "image,caption\na.jpg,café\n"),
        ("null.jsonl", '{"image": "a.jpg", "caption": "café"}\n{"image": null, "caption": "x"}\n'),
        ("pretty.json", '\ufeff[\n  {\n    "image": "a.jpg",\n    "caption": "café"\n  }\n]\n'),
        ("trailing.csv", "image,caption,\na.jpg,café,\n"),
        ("one.json", '{"image": "a.jpg", "caption": ["café"]}\n{"image": "a.jpg"}\n'),
        ("data.json", '{"info": 1, "data": [{"image": "a.jpg", "caption": "café"}]}'),
        ("keys.json", '{"7": {"image": "a.jpg", "caption": "café"}}'),
        ("nested.json", '[{"image": {"id": 3, "file_name": "a.jpg"}, "caption": "café"}]'),
        ("list.csv", "image,caption\na.jpg,\"['café']\"\n"),
        ("list2.csv", 'image,caption\na.jpg,"[""café""]"\n'),
        ("dicts.json", '[{"image": "a.jpg", "caption": [{"caption": "café", "id": 1}]}]'),
        (
            "llava.json",
            '[{"id": "1", "image": "a.jpg", "caption": [{"from": "human", "value": "Describe."},'
            ' {"from": "gpt", "value": "café"}]}]',
        ),
    ],
)
def test_captions_of_many_files(
    own: Callable[..., int], tmp_path: Path, name: str, content: bytes | str
) -> None:
    assert own(name, content, *CAPTIONS) == 0
    assert rows(tmp_path, PAIRS, "image_id", "text") == [("a.jpg", "café")]
    assert set(reasons(tmp_path)) <= {"no_text", "no_id"}


def test_what_was_detected_is_said(
    own: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert own("a.csv", "image;caption\na;caf\xe9 b\n".encode("cp1252"), *CAPTIONS) == 0
    assert (
        "separated by semicolon (--delimiter overrides), encoding cp1252" in capsys.readouterr().err
    )


def test_encodings_that_cannot_be_told_apart_are_refused(
    own: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    content = "image,caption\na.jpg,一只狗在跑\n".encode("gb18030")
    assert own("a.csv", content, *CAPTIONS) == 2
    assert "is not UTF-8; name its encoding" in capsys.readouterr().err
    assert own("a.csv", content, *CAPTIONS, "--encoding", "gb18030") == 0


def test_a_few_broken_lines_do_not_change_the_encoding(
    own: Callable[..., int], tmp_path: Path
) -> None:
    content = "image,caption\na,café\nb,größe\n".encode() + b"c,caf\xe9\n"
    assert own("a.csv", content, *CAPTIONS) == 0
    assert rows(tmp_path, PAIRS, "text") == ["café", "größe"]
    assert reasons(tmp_path) == ["bad_encoding"]


def test_columns_of_captions_and_splits_of_a_json_object(
    own: Callable[..., int], tmp_path: Path
) -> None:
    record = {"image": "a", "c1": "one", "c2": "two"}
    content = json.dumps({"train": [record], "test": [record | {"image": "b"}]})
    flags = ("--text-column", "c1", "--text-column", "c2", "--image-column", "image")
    assert own("x.json", content, *flags) == 0
    assert rows(tmp_path, PAIRS, "image_id", "text", "split") == [
        ("a", "one", "train"),
        ("a", "two", "train"),
        ("b", "one", "test"),
        ("b", "two", "test"),
    ]


def test_ids_of_rows_with_several_captions_are_numbered(
    own: Callable[..., int], tmp_path: Path
) -> None:
    content = '[{"n": 7, "image": "a", "caption": ["x", "y"]}, {"n": 8, "image": "a"}]'
    assert own("x.json", content, *CAPTIONS, "--id-column", "n") == 0
    assert rows(tmp_path, PAIRS, "pair_id") == ["7#0", "7#1"]
    assert reasons(tmp_path) == ["no_text"]


def test_coco_s_layout_is_sent_to_its_own_command(
    own: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert own("x.json", '{"images": [], "annotations": []}', *CAPTIONS) == 2
    assert "manifest coco-json" in capsys.readouterr().err


# Names of images


def test_names_of_windows_of_other_folders_and_addresses(
    own: Callable[..., int], tmp_path: Path, image: Callable[..., bytes]
) -> None:
    root = tmp_path / "photos"
    (root / "deep").mkdir(parents=True)
    for name in ("a.jpg", "deep/b.jpg", "cafe\u0301.jpg"):
        (root / name).write_bytes(image(8, 8, seed=len(name)))
    names = [f"{root}/a.jpg", "deep\\b.jpg", "caf\u00e9.jpg", "D:\\x\\a.jpg", "http://h/a.jpg"]
    content = json.dumps([{"image": name, "caption": "x"} for name in [*names, "./a.jpg"]])
    assert own("x.json", content, *CAPTIONS, "--image-root", str(root)) == 0
    assert rows(tmp_path, PAIRS, "image_id") == [*names[:3], "./a.jpg"]
    assert reasons(tmp_path) == ["unsafe_path", "missing_image"]
    assert (
        own("x.json", content, *CAPTIONS, "--image-root", str(root), "--image-prefix", "D:\\x") == 0
    )
    assert "D:\\x\\a.jpg" in rows(tmp_path, PAIRS, "image_id")


def hub_file(path: Path, table: pa.Table, **classes: list[str]) -> None:
    """Writes a Parquet file with the hub's names of classes."""
    features = {n: {"names": names, "_type": "ClassLabel"} for n, names in classes.items()}
    about = json.dumps({"info": {"features": features}})
    pq.write_table(table.replace_schema_metadata({"huggingface": about}), path)


def test_images_inside_parquet_with_classes_of_the_hub(
    own: Callable[..., int], tmp_path: Path, image: Callable[..., bytes]
) -> None:
    photos = [image(9, 7), image(8, 8, seed=2), b"no image"]
    cells = [
        {"bytes": photos[0], "path": "a.jpg"},
        {"bytes": photos[1], "path": None},
        {"bytes": photos[2], "path": "c.jpg"},
        {"bytes": photos[1], "path": "a.jpg"},
        None,
    ]
    table = pa.table({"image": cells, "label": [1, 0, 0, 1, 2], "split": [0, 1, 0, 0, 0]})
    hub_file(tmp_path / "x", table, label=["cat", "dog", "cow"], split=["train", "test"])
    assert own("x.parquet", (tmp_path / "x").read_bytes(), *CLASSES) == 0
    digest = compute_image_id(photos[1])
    assert rows(tmp_path, LABELS, "image_ids", "labels", "label_ids", "split") == [
        (["a.jpg"], ["dog"], [1], "train"),
        ([digest], ["cat"], [0], "test"),
    ]
    assert labels(tmp_path) == ["cat", "dog", "cow"]
    assert rows(tmp_path, IMAGES, "image_id", "width") == [("a.jpg", 9), (digest, 8)]
    assert reasons(tmp_path) == ["unreadable_image", "id_conflict", "no_id"]
    assert verify_folder(tmp_path / "out") == []


# Questions


def test_answers_of_one_several_and_no_annotators(own: Callable[..., int], tmp_path: Path) -> None:
    content = """question,answer,image,split
What is it?,A dog.,a,train
What is it?,"[""cat"", ""cat"", ""dog""]",b,validation
What is it?,,c,train
What is it?,,d,test
,yes,a,train
What is it?,A dog.,a,train
"""
    assert own("qa.csv", content, *QA) == 0
    assert rows(tmp_path, QUESTIONS, "image_id", "answers", "label_ids", "label_scores") == [
        ("a", ["A dog."], [0], [1.0]),
        ("b", ["cat", "cat", "dog"], [0, 1], [0.5, 1.0]),
        ("d", None, None, None),
    ]
    assert labels(tmp_path) == ["dog", "cat"]
    assert reasons(tmp_path) == ["no_text", "no_text", "duplicate"]
    assert rows(tmp_path, QUESTIONS, "answer", "source") == [
        ("A dog.", "own"),
        ("cat", "own"),
        (None, "own"),
    ]


def test_answers_in_columns_in_cells_and_in_objects(
    own: Callable[..., int], tmp_path: Path
) -> None:
    several = ("--answer-column", "a2", "--list-separator", ";")
    assert own("x.csv", "question,answer,a2,image\nq,x; y,z,i\n", *QA, *several) == 0
    assert rows(tmp_path, QUESTIONS, "answers") == [["x", "y", "z"]]
    answers = [{"answer": "yes", "answer_confidence": "yes"}] * 9 + [{"answer": "no"}]
    content = json.dumps([{"question": "q", "answer": answers, "image": "i"}])
    assert own("x.json", content, *QA) == 0
    assert rows(tmp_path, QUESTIONS, "answers") == [["yes"] * 9 + ["no"]]
    assert rows(tmp_path, QUESTIONS, "label_scores") == [[1.0]]  # "no" is no most frequent answer


def test_scores_and_objects_of_lists_are_answers(own: Callable[..., int], tmp_path: Path) -> None:
    answers = [{"yes": 1, "no": 0.3}, {"answer": ["cat", "dog"], "answer_id": [1, 2]}, {"a": 0}]
    content = json.dumps(
        [{"question": "q", "answer": a, "image": f"{k}"} for k, a in enumerate(answers)]
    )
    assert own("lxmert.json", content, *QA) == 0
    assert labels(tmp_path) == ["yes", "no", "cat", "dog"]
    assert rows(tmp_path, QUESTIONS, "label_scores") == [[1.0, pytest.approx(0.3)], [1.0, 1.0]]
    assert reasons(tmp_path) == ["no_text"]


def test_a_list_of_answers_numbers_them(own: Callable[..., int], tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_text("no\nyes\n")
    content = "question,answer,image\nq,yes,a\nq,maybe,b\n"
    assert own("x.csv", content, *QA, "--labels", str(tmp_path / "l.txt")) == 0
    assert rows(tmp_path, QUESTIONS, "label_ids") == [[1], []]
    assert own("x.csv", content, *QA, "--min-questions", "2") == 0
    assert labels(tmp_path) == []


def test_conversations_are_questions(own: Callable[..., int], tmp_path: Path) -> None:
    turns = [
        {"from": "human", "value": "<image>\nWhat is it?"},
        {"from": "gpt", "value": "A dog."},
        {"from": "human", "value": "Is it big?"},
        {"from": "gpt", "value": "Yes."},
    ]
    content = json.dumps([{"id": "9", "image": "a", "c": turns}, {"id": "8", "c": turns}])
    flags = ("--question-column", "c", "--image-column", "image", "--id-column", "id")
    assert own("x.json", content, *flags) == 0
    assert rows(tmp_path, QUESTIONS, "question_id", "question", "answer") == [
        ("9#0", "What is it?", "A dog."),
        ("9#1", "Is it big?", "Yes."),
    ]
    assert reasons(tmp_path) == ["no_id"]


# Statements and labels


@pytest.mark.parametrize(
    ("values", "names", "ids"),
    [
        (["false", "TRUE", "False"], ["False", "True"], [0, 1, 0]),
        ([True, False], ["False", "True"], [1, 0]),
        ([1, 0, 1.0], ["0", "1"], [1, 0, 1]),
        (["10", "9"], ["9", "10"], [1, 0]),
        (
            ["Contradiction", "neutral", "ENTAILMENT"],
            ["entailment", "neutral", "contradiction"],
            [2, 1, 0],
        ),
    ],
)
def test_spellings_of_labels(
    own: Callable[..., int], tmp_path: Path, values: list[Any], names: list[str], ids: list[int]
) -> None:
    content = "\n".join(
        json.dumps({"image": f"{k}", "text": "x", "label": value}) for k, value in enumerate(values)
    )
    assert own("x.jsonl", content + "\n", *CLAIMS) == 0
    assert labels(tmp_path) == names
    assert rows(tmp_path, STATEMENTS, "label_id") == ids


def test_statements_about_two_images(own: Callable[..., int], tmp_path: Path) -> None:
    content = (
        "image,right,text,label,split\na,b,same,true,train\na,b,same,false,train\na,c,x,,test\n"
    )
    assert own("x.csv", content, *CLAIMS, "--image-column", "right") == 0
    assert rows(tmp_path, STATEMENTS, "image_ids", "text_a", "label_id") == [
        (["a", "b"], "same", 1),
        (["a", "c"], "x", -1),
    ]
    assert reasons(tmp_path) == ["id_conflict"]


def test_several_labels_in_a_cell_or_in_columns(
    own: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = "image,label\na,dog; outdoor\nb,dog\nc,\n"
    assert own("x.csv", content, *CLASSES) == 0
    assert "--list-separator ';'" in capsys.readouterr().err
    assert own("x.csv", content, *CLASSES, "--list-separator", ";") == 0
    assert rows(tmp_path, LABELS, "labels", "label_ids") == [
        (["dog", "outdoor"], [0, 1]),
        (["dog"], [0]),
    ]
    assert reasons(tmp_path) == ["label_unknown"]
    content = "image,cat,dog\na,1,1.0\nb,0,\nc,0,2\n"
    flags = ("--image-column", "image", "--label-column", "cat", "--label-column", "dog")
    assert own("x.csv", content.replace("c,0,2\n", ""), *flags) == 0
    assert rows(tmp_path, LABELS, "labels") == [["cat", "dog"], []]
    assert own("x.csv", content, *flags) == 2
    assert "--label-column dog: the value 2" in capsys.readouterr().err


def test_a_text_with_its_image(own: Callable[..., int], tmp_path: Path) -> None:
    assert own("x.csv", "image,text,label\na,a joke,1\n", *CLASSES, "--text-column", "text") == 0
    assert rows(tmp_path, LABELS, "text", "labels") == [("a joke", ["1"])]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--image-column", "image"), "name the column of captions"),
        ((*CLASSES, "--answer-column", "x"), "--answer-column does not go with --label-column"),
        ((*CAPTIONS, "--image-column", "b"), "a row of pairs has one image"),
        ((*CAPTIONS, "--labels", "x"), "--labels goes with"),
        ((*CAPTIONS, "--sheet", "x"), "is no Excel workbook"),
        ((*QA, "--min-questions", "0"), "--min-questions 0"),
    ],
)
def test_flags_that_do_not_go_together(
    own: Callable[..., int], capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], said: str
) -> None:
    assert own("x.csv", "image,caption,label,b,question,answer,x\n", *flags) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


# Excel


def workbook(path: Path) -> bytes:
    book = openpyxl.Workbook()
    book.active.append(["image", "question", "answer"])
    book.active.append(["a", "How many?", 2.0])
    book.active.append([None, None, None])
    book.active.append(["b", "Is it?", True])
    book.create_sheet("more").append(["image", "caption"])
    book.save(path)
    return path.read_bytes()


@pytest.mark.parametrize("name", ["x.xlsx", "x.csv"])
def test_excel_by_its_content(own: Callable[..., int], tmp_path: Path, name: str) -> None:
    assert own(name, workbook(tmp_path / "b.xlsx"), *QA) == 0
    assert rows(tmp_path, QUESTIONS, "image_id", "answers") == [("a", ["2"]), ("b", ["True"])]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--sheet", "x"), "the Excel workbook .* has Sheet, more"),
        (("--delimiter", ";"), "is an Excel workbook; leave out --delimiter"),
        (("--format", "csv"), "is an Excel workbook; leave out the flag"),
        (("--sheet", "more"), "no such column"),
    ],
)
def test_errors_name_excel(
    own: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    said: str,
) -> None:
    assert own("x.xlsx", workbook(tmp_path / "b.xlsx"), *QA, *flags) == 2
    assert re.search(said, capsys.readouterr().err)


@pytest.mark.parametrize("cut", [30, 2_000])
def test_a_cut_workbook_is_refused(
    own: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str], cut: int
) -> None:
    assert own("x.xlsx", workbook(tmp_path / "b.xlsx")[:cut], *QA) == 2
    assert "Excel" in capsys.readouterr().err


def test_a_folder_of_the_hub(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in/data").mkdir(parents=True)
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"):
        table = pa.table({"image": [f"{name}.jpg"], "caption": [name]})
        pq.write_table(table, tmp_path / "in/data" / f"{name}.parquet")
    words = ["own", "--output", str(tmp_path / "out"), "--workers", "1", *CAPTIONS]
    assert main([*words, "--input", str(tmp_path / "in")]) == 0
    splits = ["train", "train", "validation"]
    assert rows(tmp_path, PAIRS, "split") == splits
    assert verify_folder(tmp_path / "out") == []
    assert main([*words, "--input", str(tmp_path / "in/data/train-*.parquet"), "--fresh"]) == 0
    assert rows(tmp_path, PAIRS, "split") == splits[:2]
    pq.write_table(pa.table({"x": [1]}), tmp_path / "in/data/test.parquet")
    assert main([*words, "--input", str(tmp_path / "in"), "--fresh"]) == 2
    assert "train-00000-of-00002.parquet has other columns" in capsys.readouterr().err


def test_rows_travel_between_workers(tmp_path: Path) -> None:
    row = JudgedRow(
        row={"text": "x", "labels": None},
        image_ids=("a", "b"),
        first=("b",),
        images={"b": b"\0\xff"},
    )
    drop = Drop(Reason.NO_ID, "empty")
    write_frames(tmp_path / "x", [pack_row((3, row)), pack_row((4, drop))])
    assert [unpack_row(frame) for frame in read_frames(tmp_path / "x")] == [(3, row), (4, drop)]


def test_a_table_without_rows_ends_with_a_warning(
    own: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert own("a.csv", "image,caption\n", *CAPTIONS) == 0
    captured = capsys.readouterr()
    assert "done: 0 pairs, 0 rejects" in captured.out
    assert "a.csv has no rows below its first line; give a file with rows" in captured.err
