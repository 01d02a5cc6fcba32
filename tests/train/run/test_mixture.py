"""Runs of mixed sources are counted in the log and continued, and a wrong name is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from vlmill.runtime.console.log import read_log
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import load_checkpoint
from vlmill.train.recipes import MixedSource, Recipe
from vlmill.train.run import loop
from vlmill.train.run.dry_run import estimate_run
from vlmill.train.run.inputs import Inputs
from vlmill.train.run.job import pretrain
from vlmill.train.run.step import train_step

if TYPE_CHECKING:
    from tests.factories import Tables


@pytest.fixture
def inputs(tables: Tables) -> Inputs:
    """Six pairs of cc, and 3 images of vg with 6 captions each."""
    rows = [(f"image-{i}", f"a dog and {i} cats") for i in range(6)]
    rows += [(f"image-{6 + i // 6}", f"a cat and {i} dogs") for i in range(18)]
    tables.write_pairs(rows, {"source": ["cc"] * 6 + ["vg"] * 18})
    tables.write_regions([f"image-{i}" for i in range(9)])
    return Inputs(pairs=tables.pairs, regions=tables.regions)


@pytest.fixture
def mixed(recipe: Recipe) -> Recipe:
    """An epoch visits cc twice and two captions of each image of vg: 18 pairs."""
    rules = (
        MixedSource(source="cc", weight=2.0),
        MixedSource(source="vg", captions_per_picture=2),
    )
    stage = dataclasses.replace(recipe.stages[0], steps=None, epochs=2.0, mixture=rules)
    return dataclasses.replace(recipe, stages=(stage,))


def counts(output: Path) -> list[tuple[int, int, float]]:
    lines = read_log(output / "log.jsonl")
    return [(line["pairs/cc"], line["pairs/vg"], line["loss"]) for line in lines]


def test_sources_are_counted_and_a_killed_run_continues(
    inputs: Inputs,
    mixed: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pretrain(mixed, inputs, tmp_path / "whole")
    assert "stage pairs: an epoch visits cc 12, vg 6" in capsys.readouterr().err
    whole = counts(tmp_path / "whole")
    assert len(whole) == 9  # two epochs of 18 in steps of 4
    assert [sum(column) for column in zip(*whole, strict=True)][:2] == [24, 12]
    trained_on = load_checkpoint(tmp_path / "whole").trained_on
    assert trained_on is not None and len(trained_on.pairs) == 24

    def dying(at: int, *args: Any) -> dict[str, float]:
        if at == 6:
            raise KeyboardInterrupt
        return train_step(at, *args)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop, "train_step", dying)
        pretrain(mixed, inputs, tmp_path / "killed")
    pretrain(mixed, inputs, tmp_path / "killed")
    assert counts(tmp_path / "killed") == whole


def test_a_source_that_the_pairs_lack_is_named_with_those_there_are(
    inputs: Inputs, mixed: Recipe, tmp_path: Path
) -> None:
    stage = dataclasses.replace(mixed.stages[0], mixture=(MixedSource(source="coco"),))
    with pytest.raises(
        InputError,
        match=r"stages\.0\.mixture\.0\.source=coco: .*there are: cc 6, vg 18\); name one",
    ):
        pretrain(dataclasses.replace(mixed, stages=(stage,)), inputs, tmp_path / "out")


def test_a_dry_run_counts_what_an_epoch_visits(inputs: Inputs, mixed: Recipe) -> None:
    assert estimate_run(mixed, inputs).inputs["steps"] == "9"
