"""Rules and scorers of tasks: sets of other sizes, names and options than the recorded ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.parity.finetuning import image_of
from tests.parity.golden import GoldenSet, NotComparable
from tests.parity.handlers import compare
from tests.parity.test_variants_rules import changed_copy, expect_passed
from torch import Tensor

pytestmark = pytest.mark.nightly  # of the comparison itself, as test_harness.py

EXPRESSIONS = "vilbert/data_cases"


def changed_json(golden: GoldenSet, name: str) -> tuple[Path, Any]:
    path = golden.folder / f"{name}.json"
    return path, json.loads(path.read_text())


def expressions(root: Path, tensors: dict[str, Tensor], **changes: Any) -> GoldenSet:
    """ViLBERT's set with other tensors, and other entries of config.json's ``refer``."""
    golden = changed_copy(root, EXPRESSIONS, tensors)
    path, config = changed_json(golden, "config")
    config["refer"] |= changes
    path.write_text(json.dumps(config))
    return golden


def recorded(root: Path) -> dict[str, Tensor]:
    return dict(changed_copy(root / "as it is", EXPRESSIONS, {}).tensors)


@pytest.mark.parametrize("rows", [12, 9, 4])
def test_regions_of_expressions_are_cut_from_the_end(tmp_path: Path, rows: int) -> None:
    """Annotated ones go first, and all that were detected count for the full image."""
    tensors = recorded(tmp_path)
    for key in tensors:
        if key.startswith("refer.") and key.endswith(
            ("features16", "spatials", "image_mask", "target")
        ):
            tensors[key] = tensors[key][:rows]
    expect_passed(expressions(tmp_path, tensors, max_region_num=rows))


@pytest.mark.parametrize("length", [5, 7, 18])
def test_expressions_are_cut_where_the_set_says(tmp_path: Path, length: int) -> None:
    """Shorter than the limit, as long as it, and longer: the reference drops the last pieces."""
    tensors = recorded(tmp_path)
    for key in tensors:
        if key.startswith("refer.") and key.endswith(("caption", "input_mask", "segment_ids")):
            tensors[key] = tensors[key][:length]
    expect_passed(expressions(tmp_path, tensors, max_seq_length=length))


def test_a_wrong_piece_of_a_cut_expression_fails(tmp_path: Path) -> None:
    tensors = recorded(tmp_path)
    key = "refer.val2.out.caption"
    assert int(tensors[key][-1]) != 4  # [SEP] is lost there
    tensors[key][-2] += 1
    result: Any = compare(expressions(tmp_path, tensors))
    assert result["status"] == "failed" and not result["tensors"][key]["ok"]


def test_images_of_any_name_and_as_many_regions(tmp_path: Path) -> None:
    """The record of pretraining is of the image of its size, though another has seven boxes."""
    tensors = recorded(tmp_path)
    renamed = {
        key.replace("det11.", "det7.").replace("gt11.", "gt7."): tensor
        for key, tensor in tensors.items()
    }
    for kind in ("det", "gt"):
        renamed[f"reader.{kind}5.in.wh"] = tensors["reader.det33.in.wh"].clone()
        for name in ("in.boxes", "in.features16"):
            renamed[f"reader.{kind}5.{name}"] = tensors[f"reader.{kind}33.{name}"][:7].clone()
    golden = expressions(tmp_path, renamed)
    path, config = changed_json(golden, "config")
    config["refer"]["refs"]["1"]["image_id"] = 7
    config["vcr"]["annotation"]["img_id"] = "train-7"
    path.write_text(json.dumps(config))
    expect_passed(golden)


def test_the_leaderboard_s_file_is_of_the_case_that_it_fits(tmp_path: Path) -> None:
    """Two cases have the same questions; a set without the file has nothing to compare."""
    golden = changed_copy(tmp_path, "evaluation/vcr", {})
    path, cases = changed_json(golden, "cases")
    (good,) = (case for case in cases if case["name"] == "good")
    others = [row | {"answer_logits": row["answer_logits"][::-1]} for row in good["rows"]]
    path.write_text(json.dumps([{"name": "other", "rows": others}, *cases]))
    expect_passed(golden)
    lines = (golden.folder / "leaderboard.csv").read_text()
    (golden.folder / "leaderboard.csv").write_text(lines.replace("test-1,0.", "test-1,0.1"))
    result: Any = compare(GoldenSet(golden.root, golden.name, golden.entry))
    assert result["status"] == "failed" and "leaderboard:test-1" in result["reason"]
    (golden.folder / "leaderboard.csv").unlink()
    expect_passed(GoldenSet(golden.root, golden.name, golden.entry))


def test_statements_without_a_category_or_a_verdict(tmp_path: Path) -> None:
    """Of no true or false the official script of subsets divides by zero."""
    golden = changed_copy(tmp_path, "evaluation/nlvr2", {})
    row = {"identifier": "test1-3-0-1", "label": "True", "sentence": "a"}
    alone = {"labels": [row], "categories": {}}
    cases = [
        alone | {"name": "one", "predictions": [["test1-3-0-1", "tRUE"]]},
        alone | {"name": "none", "predictions": [["test1-3-0-1", "perhaps"]]},
    ]
    right = {"accuracy": 1.0, "consistency": 1.0, "filtered_accuracy": 100.0, "per_category": {}}
    wrong = {
        "accuracy": 0.0,
        "consistency": 0.0,
        "filtered_accuracy": "ZeroDivisionError: division by zero",
        "per_category": "ValueError: Assignment is not true/false: perhaps",
    }
    (golden.folder / "cases.json").write_text(json.dumps(cases))
    expected = [{"name": "one", **right}, {"name": "none", **wrong}]
    (golden.folder / "expected.json").write_text(json.dumps(expected))
    expect_passed(golden)


def test_the_older_tool_s_file_of_three_classes(tmp_path: Path) -> None:
    """It counts neutral, entailment, contradiction."""
    golden = changed_copy(tmp_path, "evaluation/glue", {})
    lines = ["index\tprediction", "0\tentailment", "1\tcontradiction", "2\tneutral", ""]
    file = {"predictions": [0, 1, 2], "index": [2, 0, 1], "file": "\n".join(lines)}
    (golden.folder / "prediction_files.json").write_text(json.dumps({"mnli": file}))
    expect_passed(golden)


def test_a_sample_s_image_is_that_of_its_table_and_question() -> None:
    rows: list[dict[str, Any]] = [
        {"table_name": "a", "image": b"1", "questions": ["what?"], "question_id": [7]},
        {"table_name": "b", "image": b"2", "questions": ["what?", "why?"], "question_id": [8, 9]},
        {"table_name": "b", "image": None, "caption": ["what?"]},
    ]
    assert image_of(rows, "image", {"text": "what?", "table_name": "a"}) == b"1"
    assert image_of(rows, "image", {"text": "what?", "qid": 8}) == b"2"
    assert image_of(rows, "image", {"text": "why?"}) == b"2"
    with pytest.raises(NotComparable, match="of 2 images"):
        image_of(rows, "image", {"text": "what?"})
