"""VCR's accuracies and its leaderboard's file."""

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmill.schemas.errors import InputError
from vlmill.train.tasks.vcr.evaluation import HEADER, leaderboard_rows, vcr_hits, write_leaderboard

SCORES = st.lists(st.integers(-2, 2), min_size=4, max_size=4)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(SCORES, SCORES, st.integers(0, 3), st.integers(0, 3)), min_size=1))
def test_both_right_is_no_more_than_either(
    questions: list[tuple[list[int], list[int], int, int]],
) -> None:
    answers = {i: np.array(q[0], float) for i, q in enumerate(questions)}
    rationales = {i: np.array(q[1], float) for i, q in reversed(list(enumerate(questions)))}
    labels = {i: (q[2], q[3]) for i, q in enumerate(questions)}
    figures = vcr_hits(answers, rationales, labels).figures("val")
    q_a, qa_r, q_ar = (figures[f"vcr/val/{name}"] for name in ("q_a", "qa_r", "q_ar"))
    assert q_a is not None and qa_r is not None and q_ar is not None
    assert max(q_a + qa_r - 1, 0) - 1e-9 <= q_ar <= min(q_a, qa_r)


def test_the_first_of_equal_scores_counts() -> None:
    scores = {"a": np.zeros(4), "b": np.array([0.0, 1, 1, 0])}
    hits = vcr_hits(scores, scores, {"a": (0, 1), "b": (1, 2)})
    assert hits.answers == {"a": True, "b": True}
    assert hits.rationales == {"a": False, "b": False}
    assert hits.figures("val")["vcr/val/q_ar_n"] == 2


def test_scores_of_other_questions_are_refused() -> None:
    one, other = {"a": np.zeros(4)}, {"b": np.zeros(4)}
    with pytest.raises(InputError, match="rationales: a missing; b not among"):
        vcr_hits(one, other, {"a": (0, 0)})
    with pytest.raises(InputError, match="answers: a with NaN"):
        vcr_hits({"a": np.full(4, np.nan)}, one, {"a": (0, 0)})


def test_the_leaderboards_file(tmp_path: Path) -> None:
    answers = {"b": np.zeros(4), "a": np.array([0.0, 1000, 0, 0])}
    rationales = {"a": np.arange(16.0).reshape(4, 4), "b": np.zeros((4, 4))}
    rows = leaderboard_rows(answers, rationales, ["b", "a"])
    path = tmp_path / "leaderboard.csv"
    with pytest.raises(InputError, match="2 questions; the leaderboard expects the 25263"):
        write_leaderboard(path, rows)
    with pytest.raises(InputError, match="c missing"):
        write_leaderboard(path, rows, official={"a", "b", "c"})
    write_leaderboard(path, rows, official={"a", "b"})
    header, first, second = csv.reader(path.read_text().splitlines())
    assert header == list(HEADER) and len(header) == 21
    assert first == ["b", *["0.25"] * 20]
    assert second[:5] == ["a", "0", "1", "0", "0"]
    assert np.array(second[5:], float).reshape(4, 4).sum(axis=1) == pytest.approx(1)
