"""Each known name of a split has one use, and an unknown one is an error that lists them."""

import re
from pathlib import Path

import pytest

from vlmill.schemas.errors import InputError
from vlmill.schemas.splits import USES, check_splits, find_use

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "split",
    [None, "train", "train2014", "train2017", "trainval", "restval", "Train", "TRAINVAL", " train"],
)
def test_trained_on(split: str | None) -> None:
    assert find_use(split) == "train"


@pytest.mark.parametrize(
    "split", ["val", "valid", "validation", "dev", "minival", "val2014", "val2017", "Val", "DEV"]
)
def test_held_out_for_validation(split: str) -> None:
    assert find_use(split) == "validation"


@pytest.mark.parametrize(
    "split",
    [
        *("test", "test2015", "test1", "test2", "testA", "testB", "test-P", "test-dev", "test-std"),
        *("Test", "TESTA", "test-p"),
    ],
)
def test_held_out_for_test(split: str) -> None:
    assert find_use(split) == "test"


def test_a_name_that_nobody_knows_stops_the_reader() -> None:
    check_splits(["train", None, "Val", "testA"], "--pairs p")
    with pytest.raises(InputError, match=r"--pairs p: the split 'eval', 'tset' is neither") as info:
        check_splits(["train", "tset", "eval", "tset"], "--pairs p")
    assert "minival" in str(info.value)
    assert "train_splits=" in str(info.value)
    assert find_use("") is None


def test_the_page_on_training_lists_every_name() -> None:
    section = PAGE.split("## Splits")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (trained on|validation|test) \| (.*) \|$", section, re.M)
    told = {use: set(re.findall(r"`(.+?)`", names)) for use, names in rows}
    known = {use: {name.lower() for name in names} for use, names in told.items()}
    assert {find_use(name) for name in known["trained on"]} == {"train"}
    assert {find_use(name) for name in known["validation"]} == {"validation"}
    assert {find_use(name) for name in known["test"]} == {"test"}
    assert set().union(*known.values()) == set(USES)
