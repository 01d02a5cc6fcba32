"""NLVR2's accuracy and consistency, and its file of predictions."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmill.schemas.errors import InputError
from vlmill.train.tasks.nlvr2.task import (
    consistency_groups,
    nlvr2_metrics,
    select_results,
    verdicts,
    write_predictions,
)

LABELS = {"dev-1-0-0": "True", "dev-1-1-0": "False", "dev-1-0-1": "True", "dev-2-0-0": "False"}


def test_by_hand() -> None:
    predictions = {**LABELS, "dev-1-1-0": "TRUE", "dev-2-0-0": "false"}
    found = verdicts(predictions, LABELS)
    subsets = {"balanced": {"dev-1-0-0", "dev-2-0-0"}, "unbalanced": {"dev-1-1-0"}}
    figures = nlvr2_metrics(found, "dev", subsets)
    assert figures["nlvr2/dev/accuracy"] == 0.75
    assert figures["nlvr2/dev/consistency"] == pytest.approx(2 / 3)
    assert figures["nlvr2/dev/consistency_n"] == 3
    assert figures["nlvr2/dev/balanced_accuracy"] == 1
    assert figures["nlvr2/dev/unbalanced_accuracy"] == 0


def test_another_text_is_wrong_and_in_no_subset() -> None:
    found = verdicts({**LABELS, "dev-1-0-0": "yes"}, LABELS)
    assert found["dev-1-0-0"] is None
    assert nlvr2_metrics(found, "dev", {})["nlvr2/dev/accuracy"] == 0.75
    assert select_results(found, LABELS) == [True] * 3
    assert not consistency_groups(found)["dev-1-0"]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.booleans(), min_size=8, max_size=8), st.permutations(range(8)))
def test_of_groups_of_one_size_consistency_is_no_more_than_accuracy(
    right: list[bool], order: list[int]
) -> None:
    names = [f"dev-{i // 4}-{i % 2}-{i // 2 % 2}" for i in range(8)]
    figures = nlvr2_metrics({names[i]: right[i] for i in order}, "dev", {})
    consistency, accuracy = figures["nlvr2/dev/consistency"], figures["nlvr2/dev/accuracy"]
    assert consistency is not None and accuracy is not None and consistency <= accuracy


def test_other_examples_are_refused() -> None:
    with pytest.raises(InputError, match="dev-1-0-0 missing; dev-9-0-0 not among"):
        verdicts({**dict(list(LABELS.items())[1:]), "dev-9-0-0": "True"}, LABELS)
    with pytest.raises(InputError, match="dev-9-0-0 missing"):
        select_results(verdicts(LABELS, LABELS), ["dev-9-0-0"])
    with pytest.raises(InputError, match="'dev-1-0': expected SPLIT-SET-PAIR-SENTENCE"):
        consistency_groups({"dev-1-0": True})


def test_the_file_of_predictions(tmp_path: Path) -> None:
    path = tmp_path / "nlvr2_dev.csv"
    write_predictions(path, {"b": False, "a": True}, ["a", "b"])
    assert path.read_text() == "a,True\nb,False\n"
    with pytest.raises(InputError, match=r"nlvr2_dev\.csv: c missing"):
        write_predictions(path, {"b": False, "a": True}, ["a", "b", "c"])
