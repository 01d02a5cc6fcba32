"""Examples of tasks, each as its data set publishes it, as rows of our tables."""

from typing import Any

import pytest

from vlmill.pipelines.manifest.layouts import instances as of_coco
from vlmill.pipelines.manifest.layouts import vqa_answers
from vlmill.pipelines.manifest.layouts.boxes import Frame
from vlmill.pipelines.manifest.sets import glue, nlvr2, refcoco, vcr, vgqa, vqa
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import CHOICES, EXPRESSIONS, QUESTIONS, STATEMENTS, table_of_rows


def reason(result: object) -> Reason:
    assert isinstance(result, Drop), result
    return result.reason


# VQA

QUESTION = {"question_id": 203564000, "image_id": 203564, "question": "What is\nred?"}
ANNOTATION = {
    "question_id": 203564000,
    "image_id": 203564,
    "question_type": "what is",
    "answer_type": "other",
    "multiple_choice_answer": "bus",
    "answers": [{"answer": "bus", "answer_id": i} for i in range(1, 9)]
    + [{"answer": "red\tbus", "answer_id": 9}, {"answer": "Bus", "answer_id": 10}],
}


def annotations(record: Any = ANNOTATION) -> dict[int, vqa_answers.Annotation]:
    entry = vqa_answers.parse_annotation(record)
    assert not isinstance(entry, Drop)
    return dict([entry])


def test_a_question_with_its_answers_and_soft_scores() -> None:
    numbers = {"bus": 17, "red bus": 402, "": 0}
    row = vqa.question_row(QUESTION, annotations().get, numbers, split="train2014", source="vqa2")
    assert isinstance(row, dict)
    assert row == {
        "question_id": "vqa2/203564000",
        "image_id": "coco/000000203564",
        "question": "What is red?",
        "question_type": "what is",
        "answer_type": "other",
        "answer": "bus",
        "answers": ["bus"] * 8 + ["red bus", "Bus"],
        "label_ids": [17, 402],
        "label_scores": [1.0, pytest.approx(0.3)],
        "split": "train2014",
        "source": "vqa2",
    }
    table_of_rows([row], QUESTIONS)


def test_questions_of_test_sets_have_no_answers() -> None:
    row = vqa.question_row(QUESTION, None, {"bus": 0}, split="test2015", source="vqa1")
    assert isinstance(row, dict) and "answers" not in row and row["question_id"][:5] == "vqa1/"
    assert table_of_rows([row], QUESTIONS).column("label_ids").to_pylist() == [None]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"image_id": "203564"}, Reason.BAD_ROW),
        ({"question": None}, Reason.BAD_ROW),
        ({"question": " \n"}, Reason.EMPTY_TEXT),
        ({"question_id": 7}, Reason.BAD_ROW),  # has no annotation
    ],
)
def test_questions_that_are_none(change: dict[str, Any], expected: Reason) -> None:
    row = vqa.question_row(QUESTION | change, annotations().get, {}, split="val2014", source="vqa2")
    assert reason(row) is expected
    assert reason(vqa.question_row([], None, {}, split="val2014", source="vqa2")) is Reason.BAD_ROW


@pytest.mark.parametrize(
    "change",
    [{"answers": []}, {"answers": [{}]}, {"question_id": "1"}, {"answers": [{"answer": 1}]}],
)
def test_annotations_that_are_none(change: dict[str, Any]) -> None:
    assert reason(vqa_answers.parse_annotation(ANNOTATION | change)) is Reason.BAD_ROW


VG_QUESTION = {"qa_id": 3, "image_id": 7, "question": "What color is it?", "answer": "Light Green."}


def test_an_answer_of_visual_genome_is_a_label_or_the_question_goes() -> None:
    row = vgqa.vg_question_row(VG_QUESTION, {"light green": 5})
    assert isinstance(row, dict)
    assert (row["question_id"], row["image_id"], row["answer"]) == (
        "vgqa/3",
        "vg/7",
        "Light Green.",
    )
    assert (row["label_ids"], row["label_scores"]) == ([5], [1.0])
    table_of_rows([row], QUESTIONS)
    assert reason(vgqa.vg_question_row(VG_QUESTION, {"green": 5})) is Reason.LABEL_UNKNOWN
    assert reason(vgqa.vg_question_row(VG_QUESTION | {"answer": 1}, {})) is Reason.BAD_ROW


# VCR

LINE = {
    "annot_id": "val-9",
    "img_id": "val-4",
    "objects": ["person", "cup"],
    "question": ["What", "is", [0], "holding", "?"],
    "answer_choices": [["a", [1], "."], ["[0]", "nothing"], [[0, 1]], ["it"]],
    "rationale_choices": [["because", str(i)] for i in range(4)],
    "answer_label": 2,
    "rationale_label": 1,
}
METADATA = {
    "boxes": [[10.5, 20.0, 110.0, 240.0, 0.98], [1, 2, 3, 4, 0.5]],
    "segms": [[[[11, 20], [90, 25], [60, 200]]], []],
    "width": 1920,
    "height": 1080,
}


def objects(change: dict[str, Any] | None = None) -> vcr.Objects:
    made = vcr.parse_objects(METADATA | (change or {}))
    assert isinstance(made, vcr.Objects)
    return made


def test_a_question_of_vcr_asks_for_the_answer_and_for_its_rationale() -> None:
    rows = vcr.choice_rows(LINE, objects())
    assert isinstance(rows, list)
    first, second = rows
    assert (first["example_id"], second["example_id"]) == ("vcr/val-9/q2a", "vcr/val-9/qa2r")
    assert first["question"] == "What is [0] holding ?"
    assert first["question_tags"] == [[-1], [-1], [0], [-1], [-1]]
    assert first["choices"] == ["a [1] .", "[0] nothing", "[0,1]", "it"]
    # A word that looks like a reference is none: the tags tell.
    assert first["choice_tags"] == [[[-1], [1], [-1]], [[-1], [-1]], [[0, 1]], [[-1]]]
    assert second["question"] == "What is [0] holding ? [MARK] [0,1]"
    assert second["question_tags"][-2:] == [[-1], [0, 1]]
    assert (first["label"], second["label"]) == (2, 1)
    assert first["boxes"] == [10.5, 20.0, 110.0, 240.0, 1, 2, 3, 4]
    assert (first["split"], first["image_id"]) == ("val", "vcr/val-4")
    table_of_rows(rows, CHOICES)


def test_without_labels_a_rationale_is_asked_for_each_answer() -> None:
    line = {key: value for key, value in LINE.items() if not key.endswith("_label")}
    rows = vcr.choice_rows(line | {"annot_id": "test-0"}, objects())
    assert isinstance(rows, list)
    assert [row["example_id"] for row in rows] == [
        "vcr/test-0/q2a",
        *(f"vcr/test-0/qa2r/{answer}" for answer in range(4)),
    ]
    assert {row["label"] for row in rows} == {-1} and rows[4]["question"].endswith("[MARK] it")
    table_of_rows(rows, CHOICES)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"question": ["What", [2]]}, Reason.BAD_REFERENCE),
        ({"question": ["What", [-1]]}, Reason.BAD_REFERENCE),
        ({"question": []}, Reason.EMPTY_TEXT),
        ({"question": ["What", {}]}, Reason.BAD_ROW),
        ({"question": ["What", [True]]}, Reason.BAD_ROW),
        ({"objects": ["person"]}, Reason.BAD_ROW),
        ({"answer_choices": [["a"]] * 3}, Reason.BAD_ROW),
        ({"answer_label": 4}, Reason.LABEL_UNKNOWN),
        ({"answer_label": True}, Reason.LABEL_UNKNOWN),
        ({"rationale_label": -1}, Reason.BAD_ROW),
        ({"img_id": 4}, Reason.BAD_ROW),
    ],
)
def test_lines_of_vcr_that_are_none(change: dict[str, Any], expected: Reason) -> None:
    assert reason(vcr.choice_rows(LINE | change, objects())) is expected
    assert reason(vcr.choice_rows(None, objects())) is Reason.BAD_ROW


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"boxes": [[1, 2, 3]]}, Reason.BAD_ROW),
        ({"boxes": [[1, 2, float("nan"), 4]]}, Reason.BAD_ROW),
        ({"boxes": [[5, 2, 3, 4]]}, Reason.EMPTY_BOX),
        ({"width": 0}, Reason.BAD_ROW),
        ({"boxes": None}, Reason.BAD_ROW),
        ({"segms": [[]]}, Reason.BAD_ROW),
        ({"segms": [[[1, 2]], []]}, Reason.BAD_ROW),
        ({"segms": [[[]], []]}, Reason.BAD_ROW),  # a polygon without points
    ],
)
def test_metadata_that_is_none(change: dict[str, Any], expected: Reason) -> None:
    assert reason(vcr.parse_objects(METADATA | change)) is expected


def test_boxes_and_polygons_are_turned_with_their_image() -> None:
    turned = vcr.turn_objects(objects(), Frame(1920, 1080, 6))  # by a quarter to the right
    assert (turned.width, turned.height) == (1080, 1920)
    assert turned.boxes[1] == (1080 - 4, 1, 1080 - 2, 3)
    assert turned.segms == [[[[1060, 11], [1055, 90], [880, 60]]], []]


# RefCOCO

SIZES = {380440: (640, 480)}
ANNOTATED = {"id": 491042, "image_id": 380440, "category_id": 1, "bbox": [600.0, 10.5, 50.0, 20.0]}
REF = {
    "ref_id": 8,
    "ann_id": 491042,
    "image_id": 380440,
    "category_id": 1,
    "split": "testA",
    "file_name": "COCO_train2014_000000380440_491042.jpg",
    "sent_ids": [20, 21],
    "sentences": [
        {"sent_id": 20, "raw": "Man, left", "sent": "man left", "tokens": ["man", "left"]},
        {"sent_id": 21, "raw": "!!", "sent": "", "tokens": []},
    ],
}


def instances() -> dict[int, of_coco.Instance]:
    entry = of_coco.parse_instance(ANNOTATED, SIZES)
    assert not isinstance(entry, Drop)
    return dict([entry])


def expressions(ref: Any) -> list[dict[str, Any] | Drop]:
    frame = Frame(640, 480)
    rows = refcoco.expression_rows(
        ref, instances(), lambda _: frame, source="refcoco+", split_by="unc"
    )
    return [row for _, row, _ in rows]


def test_each_text_of_an_object_is_a_row() -> None:
    rows = expressions(REF)
    assert isinstance(rows[0], dict) and isinstance(rows[1], dict)
    assert rows[0] == {
        "expression_id": "refcoco+/20",
        "ref_id": "8",
        "ann_id": "491042",
        "image_id": "coco/000000380440",  # file_name is no file
        "text": "man left",
        "box": [600.0, 10.5, 640.0, 30.5],
        "category_id": 1,
        "split": "testA",
        "source": "refcoco+",
        "split_by": "unc",
    }
    assert rows[1]["text"] == "!!"  # as typed, where cleaning left nothing
    table_of_rows([rows[0], rows[1]], EXPRESSIONS)


def test_texts_without_words_stay_where_they_are_scored() -> None:
    bare = {"sentences": [{"sent_id": 1, "raw": "", "sent": ""}]}
    (kept,) = expressions(REF | bare)
    assert isinstance(kept, dict) and kept["text"] == ""
    assert [reason(row) for row in expressions(REF | bare | {"split": "train"})] == [
        Reason.EMPTY_TEXT
    ]


def test_bytes_of_a_pickle_of_python_2_are_text() -> None:
    ref = {key.encode(): value for key, value in REF.items()} | {b"split": b"val"}
    ref[b"sentences"] = [{b"sent_id": 5, b"sent": "café".encode(), b"raw": b"caf\xe9"}]
    (row,) = expressions(ref)
    assert isinstance(row, dict) and (row["text"], row["split"]) == ("café", "val")
    ref[b"sentences"] = [{b"sent_id": 5, b"sent": b"caf\xe9"}]
    (row,) = expressions(ref)
    assert isinstance(row, dict) and row["text"] == "café"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"ann_id": 1}, Reason.BAD_REFERENCE),
        ({"ann_id": []}, Reason.BAD_REFERENCE),
        ({"image_id": 1}, Reason.BAD_REFERENCE),
        ({"sentences": [{"sent": "a"}]}, Reason.BAD_ROW),
        ({"sentences": [7]}, Reason.BAD_ROW),
        ({"sentences": None}, Reason.BAD_ROW),
        ({"split": 3}, Reason.BAD_ROW),
    ],
)
def test_refs_that_are_none(change: dict[str, Any], expected: Reason) -> None:
    assert {reason(row) for row in expressions(REF | change)} == {expected}


@pytest.mark.parametrize(
    ("bbox", "expected"),
    [
        ([700, 0, 10, 10], Reason.EMPTY_BOX),
        ([1, 1, 0, 10], Reason.EMPTY_BOX),
        ([1, 1, 5], Reason.BAD_ROW),
        ([1, 1, 5, float("inf")], Reason.BAD_ROW),
        ([1, 1, 5, "5"], Reason.BAD_ROW),
    ],
)
def test_boxes_that_are_none(bbox: list[Any], expected: Reason) -> None:
    assert reason(of_coco.clip_bbox(bbox, Frame(640, 480))) is expected
    assert reason(of_coco.parse_instance(ANNOTATED | {"bbox": None}, SIZES)) is Reason.BAD_ROW
    assert (
        reason(of_coco.parse_instance(ANNOTATED | {"image_id": 1}, SIZES)) is Reason.BAD_REFERENCE
    )


def test_a_detection_is_of_a_listed_image() -> None:
    detection = {"image_id": 380440, "box": [12.0, 30, 800, 20], "category_id": 1, "score": 0.9}
    frame = Frame(640, 480)
    assert refcoco.parse_detection(detection, SIZES, lambda _: frame) == (
        380440,
        ((12.0, 30.0, 640.0, 50.0), 1, 0.9),
    )
    for change, expected in (
        ({"image_id": 1}, Reason.BAD_REFERENCE),
        ({"score": 2}, Reason.BAD_ROW),
        ({"category_id": -1}, Reason.BAD_ROW),
        ({"box": [700, 0, 5, 5]}, Reason.EMPTY_BOX),
        ({"box": 4}, Reason.BAD_ROW),
    ):
        dropped = refcoco.parse_detection(detection | change, SIZES, lambda _: frame)
        assert reason(dropped) is expected


# NLVR2

STATEMENT = {"identifier": "dev-12-3-1", "sentence": "At least  two dogs sleep.", "label": "True"}


def test_a_statement_names_its_two_images() -> None:
    row = nlvr2.statement_row(STATEMENT, "dev")
    assert isinstance(row, dict)
    assert row["image_ids"] == ["nlvr2/dev-12-3-img0", "nlvr2/dev-12-3-img1"]
    assert (row["label"], row["label_id"], row["text_a"]) == ("True", 1, "At least two dogs sleep.")
    table_of_rows([row], STATEMENTS)
    hidden = nlvr2.statement_row({k: v for k, v in STATEMENT.items() if k != "label"}, "dev")
    assert isinstance(hidden, dict) and hidden["label_id"] == -1


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"identifier": "dev-12-3"}, Reason.BAD_ROW),
        ({"identifier": "test1-12-3-1"}, Reason.BAD_ROW),  # of another file
        ({"identifier": None}, Reason.BAD_ROW),
        ({"label": "yes"}, Reason.LABEL_UNKNOWN),
        ({"label": 1}, Reason.LABEL_UNKNOWN),
        ({"sentence": " "}, Reason.EMPTY_TEXT),
    ],
)
def test_statements_that_are_none(change: dict[str, Any], expected: Reason) -> None:
    assert reason(nlvr2.statement_row(STATEMENT | change, "dev")) is expected


# GLUE

TASKS = {task.folder: task for task in glue.TASKS}


def test_labels_go_by_their_names() -> None:
    mnli = TASKS["MNLI"]
    columns = ["index", "sentence1", "sentence2", "label1", "gold_label"]
    fields = ["9", 'He said "no', "He spoke.", "neutral", "contradiction"]
    row = glue.statement_row(mnli, "dev_matched", 9, columns, fields)
    assert isinstance(row, dict)
    assert row["example_id"] == "glue/mnli/dev_matched/9" and row["source"] == "glue/mnli"
    assert (row["label"], row["label_id"], row["text_a"]) == ("contradiction", 2, 'He said "no')
    hidden = glue.statement_row(mnli, "test_matched", 9, columns[:3], fields[:3])
    assert isinstance(hidden, dict) and (hidden["label"], hidden["label_id"]) == (None, -1)
    table_of_rows([row, hidden], STATEMENTS)


def test_scores_are_no_classes() -> None:
    row = glue.label_columns(TASKS["STS-B"], "4.200")
    assert row == {"label": "4.200", "label_id": -1, "score": 4.2}
    for label in ("5.1", "nan", "", "-0.5"):
        assert reason(glue.label_columns(TASKS["STS-B"], label)) is Reason.LABEL_UNKNOWN


def test_cola_has_a_header_in_its_test_file_alone() -> None:
    cola = TASKS["CoLA"]
    assert glue.get_header(cola, "dev") == ("source", "label", "mark", "sentence")
    assert glue.get_header(cola, "test") is None and glue.get_header(TASKS["RTE"], "dev") is None
    row = glue.statement_row(
        cola, "train", 0, glue.COLA_COLUMNS, ["x01", "1", "", "The cat sleeps."]
    )
    assert isinstance(row, dict) and (row["label_id"], row["text_b"]) == (1, None)


def test_rows_of_glue_that_are_none() -> None:
    qqp, columns = TASKS["QQP"], ["id", "question1", "question2", "is_duplicate"]
    assert reason(glue.statement_row(qqp, "train", 0, columns, ["1", "a"])) is Reason.BAD_ROW
    bare = ["1", "a", " ", "0"]
    assert reason(glue.statement_row(qqp, "train", 0, columns, bare)) is Reason.EMPTY_TEXT
    assert isinstance(glue.statement_row(qqp, "dev", 0, columns, bare), dict)  # it is scored
    assert reason(glue.statement_row(qqp, "dev", 0, columns, [*bare[:3], "2"])) is (
        Reason.LABEL_UNKNOWN
    )
