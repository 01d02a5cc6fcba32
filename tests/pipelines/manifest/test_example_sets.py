"""GQA, VizWiz, OK-VQA, SNLI-VE, VSR, Hateful Memes and the hub's GLUE, with the dirt of each."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.pipelines.manifest.running import made, reasons, rows
from tests.pipelines.manifest.task_layouts import annotation, answers, image, lines, write

from vlmill.runtime.files.manifest import verify_folder
from vlmill.schemas.tables import IMAGES, LABELS, QUESTIONS, STATEMENTS


def labels(folder: Path) -> list[str]:
    names: list[str] = json.loads((folder / "labels.json").read_text())
    return names


def gqa_question(answer: str | None, structural: str = "query", **more: Any) -> dict[str, Any]:
    return {
        "imageId": "2354786",
        "question": "What is it?",
        "answer": answer,
        "fullAnswer": "It is.",
        "isBalanced": True,
        "entailed": ["20", "21"],
        "types": {"structural": structural, "semantic": "obj", "detailed": "x"},
        **more,
    }


def test_gqa_keeps_what_its_scorer_reads(tmp_path: Path) -> None:
    root = tmp_path / "gqa"
    questions = {
        "20": gqa_question("t-shirt"),
        "21": gqa_question("yes", "verify", imageId="n161313", isBalanced=False),
        "22": gqa_question(None),
        "23": gqa_question("no", imageId="../x"),
        "24": gqa_question("no", question=" "),
        "25": "broken",
    }
    write(root / "questions1.2" / "val_balanced_questions.json", questions)
    write(root / "testdev_balanced_questions.json", {"30": gqa_question("only here")})
    write(root / "test_balanced_questions.json", {"40": {"imageId": "n1", "question": "What?"}})
    write(root / "images" / "2354786.jpg", image())
    folder = made("gqa", root)
    listed = rows(folder, QUESTIONS)
    assert [(r["question_id"], r["image_id"], r["answers"], r["split"]) for r in listed] == [
        ("gqa/20", "vg/2354786", ["t-shirt"], "val"),
        ("gqa/21", "gqa/n161313", ["yes"], "val"),
        ("gqa/30", "vg/2354786", ["only here"], "testdev"),
        ("gqa/40", "gqa/n1", None, "test"),
    ]
    assert labels(folder) == ["t-shirt", "yes", "no"]  # unchanged: the scorer compares them so
    assert [(r["label_ids"], r["label_scores"]) for r in listed[:3]] == [
        ([0], [1.0]),
        ([1], [1.0]),
        ([], []),
    ]
    assert [r["answer_type"] for r in listed] == ["open", "binary", "open", None]
    assert [r["is_balanced"] for r in listed] == [True, False, True, None]
    assert listed[0]["entailed_ids"] == ["gqa/21"] and listed[0]["question_type"] == "query"
    found = [reason for key, reason in reasons(folder) if key.startswith("val")]
    assert found == ["bad_row", "bad_row", "empty_text", "bad_row"]
    assert [r["image_id"] for r in rows(folder, IMAGES)] == ["vg/2354786"]
    assert verify_folder(folder) == []


def test_all_of_gqa_s_questions_are_in_parts(tmp_path: Path) -> None:
    root = tmp_path / "gqa"
    for part in (0, 3):
        name = f"train_all_questions/train_all_questions_{part}.json"
        write(root / name, {f"{part}": gqa_question("no"), "same": gqa_question("no")})
    write(root / "train_balanced_questions.json", {"9": gqa_question("yes")})
    folder = made("gqa", root, "--questions", "all")
    assert [r["question_id"] for r in rows(folder, QUESTIONS)] == ["gqa/0", "gqa/same", "gqa/3"]
    assert [reason for _, reason in reasons(folder)] == ["duplicate"]


def test_vizwiz_keeps_all_answers(tmp_path: Path) -> None:
    root = tmp_path / "vizwiz"
    first = {
        "image": "VizWiz_train_00000000.jpg",
        "question": "What is this?  ",
        "answers": answers(*["Basil leaves"] * 6, *["basil"] * 3, "unanswerable"),
        "answer_type": "other",
        "answerable": 1,
    }
    second = first | {"image": "VizWiz_train_00000001.jpg", "answerable": 0}
    broken = [first | {"image": None}, second | {"question": "Other?"}, {"image": "x.jpg"}, 7]
    write(root / "Annotations" / "train.json", [first, second, *broken])
    write(root / "test.json", [{"image": "VizWiz_test_00000000.jpg", "question": "What?"}])
    write(root / "train" / "VizWiz_train_00000000.jpg", image())
    folder = made("vizwiz", root)
    listed = rows(folder, QUESTIONS)
    assert [(r["question_id"], r["split"], r["answerable"]) for r in listed] == [
        ("vizwiz/VizWiz_train_00000000", "train", True),
        ("vizwiz/VizWiz_train_00000001", "train", False),
        ("vizwiz/VizWiz_test_00000000", "test", None),
    ]
    assert len(listed[0]["answers"]) == 10 and listed[0]["answer"] == "Basil leaves"
    assert labels(folder) == ["basil leaves"]  # the processed answer of two questions
    assert (listed[0]["label_ids"], listed[0]["label_scores"]) == ([0], [1.0])
    assert listed[2]["answers"] is None and listed[2]["label_ids"] is None
    found = [reason for key, reason in reasons(folder) if key.startswith("train.json")]
    assert found == ["bad_row", "id_conflict", "bad_row", "bad_row"]


def test_okvqa_has_no_most_frequent_answer(tmp_path: Path) -> None:
    root = tmp_path / "okvqa"
    typed = ["racing"] * 4 + ["race"] * 4 + ["Motocross"] * 2
    items = [annotation(k, 7, *typed) | {"question_type": "four"} for k in (1, 2)]
    for item in items:
        del item["multiple_choice_answer"]
    about = {"info": {}, "license": {}, "data_type": "x", "data_subtype": "x"}
    questions = [{"question_id": k, "image_id": 7, "question": "What sport?"} for k in (1, 2, 3)]
    write(
        root / "OpenEnded_mscoco_val2014_questions.json",
        about | {"task_type": "x", "questions": questions},
    )
    write(
        root / "mscoco_val2014_annotations.json",
        about | {"question_types": {"four": "Sports"}, "annotations": items},
    )
    folder = made("okvqa", root)
    listed = rows(folder, QUESTIONS)
    assert [r["question_id"] for r in listed] == ["okvqa/1", "okvqa/2"]
    assert listed[0]["answers"] == typed and listed[0]["answer"] == "racing"
    assert listed[0]["question_type"] == "four" and listed[0]["source"] == "okvqa"
    assert labels(folder) == ["racing"]
    assert listed[0]["label_scores"] == [1.0]
    assert [reason for _, reason in reasons(folder)] == ["bad_row"]


def snli(pair: str, label: str, **more: Any) -> dict[str, Any]:
    return {
        "Flikr30kID": "3416050480.jpg",
        "gold_label": label,
        "pairID": pair,
        "sentence1": "A horse jumps.",
        "sentence2": "A person is outdoors.",
        **more,
    }


def test_snli_ve(tmp_path: Path) -> None:
    root = tmp_path / "snli"
    records = [
        snli("a#1", "entailment"),
        snli("a#2", "contradiction", Flikr30kID="3416050480"),
        snli("a#3", "-"),
        snli("a#4", "neutral", Flikr30kID="../x"),
        snli("a#5", "neutral", sentence2=""),
        snli("a#1", "entailment"),
        snli("a#2", "neutral"),
    ]
    write(root / "snli_ve_train.jsonl", lines(records) + "{broken\n")
    write(root / "snli_ve_test.jsonl", lines([snli("b#1", "neutral", Flickr30K_ID="5")]))
    write(root / "flickr30k-images" / "3416050480.jpg", image())
    folder = made("snli-ve", root)
    listed = rows(folder, STATEMENTS)
    assert [(r["example_id"], r["label_id"], r["image_ids"], r["split"]) for r in listed] == [
        ("snli-ve/a#1", 0, ["flickr30k/3416050480"], "train"),
        ("snli-ve/a#2", 2, ["flickr30k/3416050480"], "train"),
        ("snli-ve/b#1", 1, ["flickr30k/3416050480"], "test"),
    ]
    assert listed[0]["text_a"] == "A person is outdoors." and listed[0]["text_b"] is None
    assert labels(folder) == ["entailment", "neutral", "contradiction"]
    assert [reason for _, reason in reasons(folder)] == [
        *("label_unknown", "bad_row", "empty_text", "duplicate", "id_conflict", "bad_row")
    ]
    assert [r["image_id"] for r in rows(folder, IMAGES)] == ["flickr30k/3416050480"]


def test_e_snli_ve_is_read_from_its_csv(tmp_path: Path) -> None:
    text = """,pairID,Flickr30kID,hypothesis,gold_label,explanation
0,34.jpg#4r1c,34.jpg,"A person, ordering.",contradiction,"No ""horse""."
1,34.jpg#4r1e,34.jpg,Outdoors.,entailment,x
2,34.jpg#4r1n,34.jpg,cut
"""
    write(tmp_path / "e" / "esnlive_dev.csv", text)
    folder = made("snli-ve", tmp_path / "e")
    listed = [(r["text_a"], r["label"]) for r in rows(folder, STATEMENTS)]
    assert listed == [("A person, ordering.", "contradiction"), ("Outdoors.", "entailment")]
    assert [reason for _, reason in reasons(folder)] == ["bad_record"]


def vsr(name: str, label: Any, **more: Any) -> dict[str, Any]:
    return {
        "image": name,
        "image_link": f"http://images.cocodataset.org/train2017/{name}",
        "caption": "The person is ahead of the cow.",
        "label": label,
        "relation": "ahead of",
        "annotator_id": 10,
        "vote_true_validator_id": "[2, 6]",
        "vote_false_validator_id": [],
        **more,
    }


def test_vsr_of_both_variants(tmp_path: Path) -> None:
    root = tmp_path / "vsr"
    records = [
        vsr("000000080336.jpg", 0),
        vsr("000000080336.jpg", 0),  # the published test is scored completely
        vsr("000000080337.jpg", "1"),
        vsr("000000080337.jpg", 2),
        vsr("80337.jpg", 1),
        vsr("000000080337.jpg", 1, caption=None),
    ]
    write(root / "data/splits/random/test.jsonl", lines(records))
    write(root / "data/splits/zeroshot/dev.jsonl", lines(records[:1]))
    write(root / "trainval2017/000000080336.jpg", image())
    folder = made("vsr", root)
    listed = rows(folder, STATEMENTS)
    assert [(r["image_ids"], r["label"], r["label_id"], r["subset"]) for r in listed] == [
        (["coco/000000080336"], "False", 0, "ahead of"),
        (["coco/000000080336"], "False", 0, "ahead of"),
        (["coco/000000080337"], "True", 1, "ahead of"),
    ]
    found = [reason for key, reason in reasons(folder) if key.startswith("test")]
    assert found == ["label_unknown", "bad_row", "bad_row"]
    zeroshot = made("vsr", root, "--variant", "zeroshot", "--fresh")
    assert [r["example_id"] for r in rows(zeroshot, STATEMENTS)] == ["vsr/zeroshot/dev/0"]


def test_hateful_memes(tmp_path: Path) -> None:
    root = tmp_path / "memes"
    meme = {"id": 1235, "img": "img/01235.png", "label": 1, "text": "a joke"}
    train = [meme, meme | {"id": 2, "label": "0"}, meme | {"id": 3, "label": 2}]
    train += [meme | {"id": 4, "label": None}, meme | {"id": 5, "img": None}, meme]
    write(root / "train.jsonl", lines(train))
    write(root / "dev_seen.jsonl", lines([meme]))
    write(root / "dev_unseen.jsonl", lines([meme]))
    write(root / "test_seen.jsonl", lines([{"id": "9", "img": "img/01235.png", "text": "x"}]))
    write(root / "img" / "01235.png", image())
    folder = made("hateful-memes", root)
    listed = rows(folder, LABELS)
    assert [(r["example_id"], r["labels"], r["label_ids"]) for r in listed] == [
        ("hateful-memes/train/1235", ["hateful"], [1]),
        ("hateful-memes/train/2", ["not_hateful"], [0]),
        ("hateful-memes/dev_seen/1235", ["hateful"], [1]),
        ("hateful-memes/dev_unseen/1235", ["hateful"], [1]),
        ("hateful-memes/test_seen/9", None, None),
    ]
    assert labels(folder) == ["not_hateful", "hateful"]
    assert [r["image_id"] for r in rows(folder, IMAGES)] == ["hateful-memes/01235"]
    assert [reason for _, reason in reasons(folder)] == [
        *("label_unknown", "label_unknown", "bad_row", "duplicate")
    ]


def test_glue_of_the_hub(tmp_path: Path) -> None:
    root = tmp_path / "glue"
    tables: dict[str, dict[str, list[Any]]] = {
        "sst2/train-00000-of-00002": {"sentence": ["fine ", "", "x"], "label": [1, 0, 2]},
        "sst2/train-00001-of-00002": {"sentence": ["bad"], "label": [0]},
        "sst2/test-00000-of-00001": {"sentence": ["?"], "label": [-1]},
        "rte/validation-00000-of-00001": {**{"sentence1": ["a"], "sentence2": ["b"], "label": [1]}},
        "mnli/validation_matched-00000-of-00001": {
            **{"premise": ["a"], "hypothesis": ["b"], "label": [2]}
        },
        "stsb/train-00000-of-00001": {
            **{"sentence1": ["a", "c"], "sentence2": ["b", "d"], "label": [4.75, 9.0]}
        },
    }
    for name, columns in tables.items():
        path = root / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        count = len(columns["label"])
        pq.write_table(pa.table(columns | {"idx": list(range(count))}), path)
    folder = made("glue", root)
    listed = {r["example_id"]: (r["label"], r["label_id"]) for r in rows(folder, STATEMENTS)}
    assert listed == {
        "glue/sst-2/train/0": ("1", 1),
        "glue/sst-2/train/3": ("0", 0),
        "glue/sst-2/test/0": (None, -1),
        "glue/rte/dev/0": ("not_entailment", 1),
        "glue/mnli/dev_matched/0": ("contradiction", 2),
        "glue/sts-b/train/0": ("4.750", -1),
    }
    assert {reason for _, reason in reasons(folder)} == {"empty_text", "label_unknown"}


def test_nlvr2_s_labels_in_any_spelling(tmp_path: Path) -> None:
    spelled = ["True", "false", True, "FALSE", " true", None, "maybe", 1]
    records = [
        {"identifier": f"dev-1-0-{k}", "sentence": "x", "label": label, "left_url": "a"}
        for k, label in enumerate(spelled)
    ]
    write(tmp_path / "n" / "data" / "dev.json", lines(records))
    folder = made("nlvr2", tmp_path / "n")
    listed = [(r["label"], r["label_id"]) for r in rows(folder, STATEMENTS)]
    true, false = ("True", 1), ("False", 0)
    assert listed == [true, false, true, false, true, (None, -1)]
    assert [reason for _, reason in reasons(folder)] == ["label_unknown"] * 2
