"""GLUE's metrics, averages and files; recordings of two tools: tests/parity."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmill.schemas.errors import InputError
from vlmill.train.tasks.glue.evaluation import prediction_file, write_prediction_file
from vlmill.train.tasks.glue.metrics import (
    INTERBERT,
    OFFICIAL,
    TASKS,
    f1,
    glue_averages,
    glue_metrics,
    matthews,
    spearman,
)

CLASSES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=12)


@settings(max_examples=30, deadline=None)
@given(CLASSES)
def test_matthews_is_the_correlation_of_two_classes(pairs: list[tuple[int, int]]) -> None:
    ours, labels = (np.array(column) for column in zip(*pairs, strict=True))
    if len(set(ours)) == len(set(labels)) == 2:
        assert matthews(ours, labels) == pytest.approx(np.corrcoef(ours, labels)[0, 1])
    else:
        assert matthews(ours, labels) == 0


def test_f1_by_hand() -> None:
    assert f1(np.array([1, 1, 0, 0]), np.array([1, 0, 1, 0])) == 0.5
    assert f1(np.zeros(3), np.zeros(3)) == 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=2, max_size=12))
def test_spearman_knows_ranks_alone(pairs: list[tuple[int, int]]) -> None:
    ours, labels = (np.array(column, float) for column in zip(*pairs, strict=True))
    before = spearman(ours, labels)
    after = spearman(np.exp(ours / 4) * 3 - 7, labels)
    assert (before is None) == (after is None) == (len(set(ours)) < 2 or len(set(labels)) < 2)
    assert before is None or after == pytest.approx(before)


def test_a_correlation_of_a_constant_is_undefined() -> None:
    figures = glue_metrics("sts-b", {1: 2.0, 2: 2.0}, {1: 1.0, 2: 5.0})
    assert figures["glue/dev/sts-b/pearson"] is figures["glue/dev/sts-b/mean"] is None


def test_figures_are_joined_by_id() -> None:
    figures = glue_metrics("mrpc", {"b": 0, "a": 1, "c": 1}, {"a": 1, "b": 1, "c": 1})
    assert figures["glue/dev/mrpc/accuracy"] == pytest.approx(2 / 3)
    assert figures["glue/dev/mrpc/f1"] == pytest.approx(0.8)
    assert figures["glue/dev/mrpc/mean"] == pytest.approx((2 / 3 + 0.8) / 2)
    assert figures["glue/dev/mrpc/n"] == 3
    with pytest.raises(InputError, match="predictions of rte: 2 missing"):
        glue_metrics("rte", {1: 0}, {1: 0, 2: 1})
    with pytest.raises(InputError, match="sts-b: 1 with NaN"):
        glue_metrics("sts-b", {1: float("nan")}, {1: 0.0})


def test_averages_of_eight_tasks() -> None:
    """InterBERT's own row: 81.8 in its table."""
    printed = {"qnli": 91.1, "cola": 57.3, "sst-2": 92.3, "sts-b": 88.9, "rte": 64.3}
    printed |= {"qqp": 88.1, "mrpc": 88.6}
    figures = {f"glue/dev/{task}/{INTERBERT[task]}": printed[task] / 100 for task in printed}
    figures |= {"glue/dev/mnli-m/accuracy": 0.841, "glue/dev/mnli-mm/accuracy": 0.837}
    averages = glue_averages(dict(figures))
    assert averages["glue/average_interbert"] == pytest.approx(0.818, abs=5e-4)
    assert averages["glue/average_official8"] is None  # the means of two metrics are missing
    both = {f"glue/dev/{task}/{metric}": 0.5 for task, metric in OFFICIAL.items()}
    both |= {"glue/dev/mnli-m/accuracy": 1.0, "glue/dev/mnli-mm/accuracy": 0.0}
    assert glue_averages(dict(both))["glue/average_official8"] == 0.5


def test_files_of_predictions(tmp_path: Path) -> None:
    assert prediction_file("rte", {1: 0, 0: 1}) == (
        "index\tprediction\n0\tnot_entailment\n1\tentailment\n"
    )
    path = write_prediction_file(tmp_path, "sts-b", {0: -0.2, 1: 5.4, 2: 2.71828})
    assert path.name == "STS-B.tsv"
    assert path.read_text().splitlines()[1:] == ["0\t0.000", "1\t5.000", "2\t2.718"]
    assert len(TASKS) == 9
    with pytest.raises(InputError, match="predictions of rte: 0 missing"):
        prediction_file("rte", {1: 0})
