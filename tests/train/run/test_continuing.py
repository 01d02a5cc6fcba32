"""Runs that continue with other settings: those that change no figure, and a longer last stage."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from vlmill.runtime.console.log import read_log
from vlmill.runtime.files.manifest import MANIFEST
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import load_training_state
from vlmill.train.checkpoints.folders import saved_steps
from vlmill.train.recipes import Recipe, change_recipe
from vlmill.train.run import loop
from vlmill.train.run.job import pretrain
from vlmill.train.run.step import train_step

if TYPE_CHECKING:
    from tests.factories import Tables

NO_DROPOUT = ["model.dropout=0", "model.attention_dropout=0"]
# Six steps at half of the rate's rise: what a run of twelve did in its first six.
CONSTANT = ["optimizer.schedule=constant", "optimizer.warmup_steps=2"]


def losses(output: Path) -> list[float]:
    return [line["loss"] for line in read_log(output / "log.jsonl")]


def killed_at(step: int, patch: pytest.MonkeyPatch) -> None:
    """Ends the next run with an error at a step."""
    count = itertools.count(1)

    def dying(*arguments: object) -> dict[str, float]:
        if next(count) == step:
            raise KeyboardInterrupt
        return train_step(*arguments)  # type: ignore[arg-type]

    patch.setattr(loop, "train_step", dying)


def test_fields_that_change_no_figure_may_differ(
    tables: Tables,
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    inputs = tables.write()
    recipe = change_recipe(recipe, NO_DROPOUT)
    pretrain(recipe, inputs, tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        killed_at(4, patch)
        pretrain(recipe, inputs, tmp_path / "out")
    others = ["save_every=5", "accumulation=2", "checkpoint_activations=true", "log_every=1"]
    pretrain(change_recipe(recipe, others), inputs, tmp_path / "out")
    assert losses(tmp_path / "out") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)
    assert set(saved_steps(tmp_path / "out")) == {2, 5, 6}
    told = capsys.readouterr().err
    assert "continues with save_every=5 (2 before)" in told
    assert "accumulation=2 (1 before): steps have the same rows" in told
    # What the run continued with is what it is compared with from then on.
    assert "finished" in pretrain(change_recipe(recipe, others), inputs, tmp_path / "out")
    with pytest.raises(InputError, match="seed was 0 and is 3"):
        pretrain(change_recipe(recipe, [*others, "seed=3"]), inputs, tmp_path / "out")


def test_a_finished_run_becomes_longer_with_its_moments(
    tables: Tables, recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a constant rate the longer run is that of the whole length, bit for bit."""
    inputs, out = tables.write(), tmp_path / "out"
    short = change_recipe(recipe, CONSTANT)
    pretrain(change_recipe(short, ["steps=9"]), inputs, tmp_path / "whole")
    pretrain(short, inputs, out)
    pretrain(change_recipe(short, ["steps=9"]), inputs, out)
    assert losses(out) == losses(tmp_path / "whole")
    ends = [load_training_state(saved_steps(run)[9]) for run in (out, tmp_path / "whole")]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][name], value) for name, value in ends[1].items())
    told = capsys.readouterr().err
    assert "continues with stages.0.steps=9 (6 before): weights and the optimiser's mom" in told
    assert "learning rate 0.001 at step 7" in told
    with pytest.raises(InputError, match="is at step 9, the recipe ends at 3; give more steps"):
        pretrain(change_recipe(short, ["steps=3"]), inputs, out)
    assert (out / MANIFEST).exists()  # a refused command leaves the finished run as it is


def test_a_longer_run_that_is_killed_is_not_taken_for_a_finished_one(
    tables: Tables, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, out = tables.write(), tmp_path / "out"
    short, long = change_recipe(recipe, CONSTANT), change_recipe(recipe, [*CONSTANT, "epochs=3"])
    pretrain(short, inputs, out)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        killed_at(2, patch)
        pretrain(long, inputs, out)
    assert not (out / MANIFEST).exists()
    pretrain(long, inputs, out)
    assert len(losses(out)) == 9 and (out / MANIFEST).exists()


def test_only_the_last_stage_becomes_longer(tables: Tables, recipe: Recipe, tmp_path: Path) -> None:
    import dataclasses

    inputs = tables.write()
    stages = tuple(
        dataclasses.replace(recipe.stages[0], name=name, steps=1) for name in ("one", "two")
    )
    recipe = dataclasses.replace(recipe, stages=stages)
    pretrain(recipe, inputs, tmp_path / "out")
    with pytest.raises(InputError, match=r"stages\.0\.steps was 1 and is 2"):
        pretrain(change_recipe(recipe, ["stages.0.steps=2"]), inputs, tmp_path / "out")
