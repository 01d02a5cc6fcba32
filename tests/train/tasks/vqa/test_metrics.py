"""VQA's accuracy by hand, its invariants, and the file of answers; recordings: tests/parity."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmill.schemas.answers import soft_score as score_of_votes
from vlmill.schemas.errors import InputError
from vlmill.train.tasks.vqa.evaluation import write_results
from vlmill.train.tasks.vqa.metrics import (
    Annotation,
    accuracy,
    question_accuracy,
    soft_score,
    soft_scores,
)

YES_AND_NO = Annotation(answers=("yes",) * 7 + ("no",) * 3, answer_type="yes/no")


@pytest.mark.parametrize("votes", range(11))
def test_of_ten_annotators_the_accuracy_is_three_tenths_a_vote(votes: int) -> None:
    annotation = Annotation(answers=("red",) * votes + ("blue",) * (10 - votes))
    assert question_accuracy("red", annotation) == pytest.approx(min(1.0, 0.3 * votes))
    assert question_accuracy("red", annotation) == pytest.approx(score_of_votes(votes))


@pytest.mark.parametrize(
    ("prediction", "answers", "accuracy"),
    [
        ("Yes", ("yes",) * 10, 0.0),  # all alike: nothing is processed
        ("Yes", ("yes",) * 9 + ("no",), 1.0),
        ("yes\n", ("yes",) * 10, 1.0),  # but cleaned
        ("the cat", ("cat",) * 3 + ("a dog",) * 7, 0.9),
        ("two", ("2",) * 2 + ("3",) * 8, 0.6),
    ],
)
def test_processing_by_hand(prediction: str, answers: tuple[str, ...], accuracy: float) -> None:
    annotation = Annotation(answers=answers)
    assert question_accuracy(prediction, annotation) == pytest.approx(accuracy)


def test_one_annotators_equal_answers_leave_together() -> None:
    """Ten equal records are no other annotator's."""
    answers = ("yes",) * 10
    assert question_accuracy("yes", Annotation(answers=answers, annotators=(0,) * 10)) == 0.0
    # Of five twins each has eight others that agree; one left alone has them, too.
    twins = Annotation(answers=answers, annotators=(0, 0, 1, 1, 2, 2, 3, 3, 4, 4))
    assert question_accuracy("yes", twins) == 1.0


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(4)), st.permutations(["a", "b", "b", "c", "d", "d", "d", "e", "f"]))
def test_the_order_changes_nothing(order: Any, answers: list[str]) -> None:
    predictions = {0: "a", 1: "b", 2: "d", 3: "x"}
    annotation = Annotation(answers=tuple(answers))
    scores = accuracy({k: predictions[k] for k in order}, dict.fromkeys(predictions, annotation))
    # One, two, three and no annotator of nine, each left out in turn.
    assert scores.by_question[0] == pytest.approx(8 * (1 / 3) / 9)
    assert scores.by_question[1] == pytest.approx((2 * 1 / 3 + 7 * 2 / 3) / 9)
    assert scores.by_question[2] == pytest.approx((3 * 2 / 3 + 6 * 1) / 9)
    assert scores.by_question[3] == 0.0


def test_figures_by_type() -> None:
    annotations = {
        "vqa2/1": YES_AND_NO,
        "vqa2/2": Annotation(answers=("2",) * 10, answer_type="number"),
        "vqa2/3": Annotation(answers=("cat",) * 10),
    }
    predictions = {"vqa2/2": "3", "vqa2/1": "no", "vqa2/3": "cat"}
    figures = accuracy(predictions, annotations).figures("val")
    assert figures["vqa/val/accuracy"] == pytest.approx((0.9 + 0 + 1) / 3)
    assert figures["vqa/val/accuracy_n"] == 3
    assert figures["vqa/val/accuracy/answer_type/yes/no"] == pytest.approx(0.9)
    assert figures["vqa/val/accuracy/answer_type/number"] == 0.0
    assert not any("question_type" in name for name in figures)


def test_soft_scores_are_the_targets_at_the_label() -> None:
    targets: dict[int, dict[int, float]] = {1: {4: 0.3, 7: 0.9}, 2: {4: 1.0}, 3: {}}
    predictions = {3: 4, 2: 4, 1: 7}
    assert soft_scores(predictions, targets) == {1: 0.9, 2: 1.0, 3: 0.0}
    assert soft_score(predictions, targets, "val")["vqa/val/soft_score"] == pytest.approx(1.9 / 3)


def test_other_ids_are_refused() -> None:
    with pytest.raises(InputError, match=r"predictions: 2 missing; 3 not among"):
        accuracy({1: "a", 3: "b"}, {1: YES_AND_NO, 2: YES_AND_NO})
    with pytest.raises(InputError, match="predictions: 2 missing"):
        soft_score({1: 0}, {1: {}, 2: {}}, "val")
    with pytest.raises(ValueError, match="without answers"):
        question_accuracy("a", Annotation(answers=()))


def test_the_servers_file(tmp_path: Path) -> None:
    predictions = {"vqa2/20": "yes", "vqa2/3": "it's 2"}
    path = write_results(tmp_path, "test", predictions, predictions.keys())
    assert path.name == "vqa_test_result.json"
    assert json.loads(path.read_text()) == [
        {"question_id": 3, "answer": "it's 2"},
        {"question_id": 20, "answer": "yes"},
    ]
    with pytest.raises(InputError, match="vqa2/9 missing"):
        write_results(tmp_path, "test", predictions, {*predictions, "vqa2/9"})
    for bad, message in (({"vgqa/x1": "a"}, "vgqa/x1"), ({"a/1": "b", "b/1": "b"}, "share")):
        with pytest.raises(InputError, match=message):
            write_results(tmp_path, "test", bad, bad.keys())
