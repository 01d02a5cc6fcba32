"""VCR's figures of both sub-tasks, the scores of another model, and the leaderboard's file."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.train.tasks.choices import choice_row, write_choices

from vlmill.schemas.errors import InputError
from vlmill.train.tasks.vcr import evaluation
from vlmill.train.tasks.vcr.evaluation import SCORES, evaluate_predictions, make_case, write_scores

SIZE = (200, 100)


def logits(place: int) -> NDArray[np.float64]:
    scores: NDArray[np.float64] = np.eye(4)[place]
    return scores


def test_the_scores_of_two_models_are_joined_by_question(tmp_path: Path) -> None:
    rows = [choice_row(n, task) for n in (3, 7) for task in ("q2a", "qa2r")]
    examples = write_choices(tmp_path, rows)
    right = {row["example_id"]: row["label"] for row in rows}
    answers = {key: logits(label) for key, label in right.items() if key.endswith("q2a")}
    wrong = "vcr/val-7/qa2r"
    rationales = {
        key: logits((label + (key == wrong)) % 4)
        for key, label in right.items()
        if key.endswith("qa2r")
    }
    write_scores(tmp_path, scores=rationales)
    sizes = dict.fromkeys(answers, SIZE)
    whole = evaluate_predictions(examples, answers, sizes, str(tmp_path))
    named = {name: whole.figures[f"vcr/val/{name}"] for name in ("q_a", "qa_r", "q_ar")}
    assert named == {"q_a": 1.0, "qa_r": 0.5, "q_ar": 0.5}
    assert [case.example_id for case in whole.cases] == list(answers)
    alone = evaluate_predictions(examples, answers, sizes, None)
    assert alone.headline == ["vcr/val/q_a"] and "vcr/val/q_ar" not in alone.figures
    with pytest.raises(InputError, match="vcr/val-3/qa2r has scores in both evaluations"):
        evaluate_predictions(examples, rationales, sizes, str(tmp_path))
    (tmp_path / SCORES).write_text(json.dumps({"a": [1, 2]}))
    with pytest.raises(InputError, match="a does not have 4 logits"):
        evaluate_predictions(examples, answers, sizes, str(tmp_path))
    with pytest.raises(InputError, match=f"{SCORES} cannot be read"):
        evaluate_predictions(examples, answers, sizes, str(tmp_path / "nowhere"))


def test_a_case_tells_the_right_and_the_chosen_choice_and_what_is_given() -> None:
    row = choice_row(3, "qa2r", label=1, choices=["a .", "b .", "c .", "d ."])
    wrong, right = (make_case(row, logits(place), SIZE) for place in (3, 1))
    assert wrong.choices == ("a .", "b . (right)", "c .", "d . (chosen)")
    assert right.choices == ("a .", "b . (right and chosen)", "c .", "d .")
    question, _, answer = row["question"].partition(" [MARK] ")
    assert right.text == f"{question} Given: {answer}"
    assert make_case(choice_row(3), logits(0), SIZE).text == question


def test_a_split_without_labels_has_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_test = {"split": "test", "label": -1}
    rows = [choice_row(0, "q2a", **of_test, example_id="vcr/test-0/q2a")]
    given = [f"vcr/test-0/qa2r/{answer}" for answer in range(4)]
    rows += [choice_row(0, "qa2r", **of_test, example_id=example_id) for example_id in given]
    scores = {row["example_id"]: logits(number % 4) for number, row in enumerate(rows)}
    outcome = evaluate_predictions(write_choices(tmp_path, rows), scores, {}, None)
    assert outcome.figures == {"vcr/test/q_a": None, "vcr/test/qa_r": None}
    monkeypatch.setattr(evaluation, "TEST_QUESTIONS", 1)
    for write in outcome.files:
        write(tmp_path)
    header, row = csv.reader((tmp_path / "vcr_test.csv").open())
    assert header == list(evaluation.HEADER) and row[0] == "test-0"
    values = np.array(row[1:], dtype=np.float64).reshape(5, 4)
    assert values.argmax(1).tolist() == [0, 1, 2, 3, 0]
    del scores["vcr/test-0/qa2r/2"]
    lacking = evaluate_predictions(str(tmp_path / "choices"), scores, {}, None)
    with pytest.raises(InputError, match="missing"):
        lacking.files[-1](tmp_path)
