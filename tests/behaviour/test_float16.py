"""float16's loss scale: PyTorch has a scaler for CPUs too, so its steps can be tried here."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from vlmill.runtime.console.log import read_log
from vlmill.train.checkpoints.files import load_checkpoint, load_training_state
from vlmill.train.devices import setup as devices
from vlmill.train.recipes import Recipe, change_recipe
from vlmill.train.run import job as stages
from vlmill.train.run import loop
from vlmill.train.run.job import pretrain
from vlmill.train.run.step import NonFiniteLoss, train_step
from vlmill.train.run.updates import Update

if TYPE_CHECKING:
    from tests.factories import Tables

SCALE = 2.0**10
STILL = ("model.dropout=0", "model.attention_dropout=0")


def plain(recipe: Recipe) -> Accelerator:
    """One of float32, whatever the run before had."""
    AcceleratorState._reset_state(reset_partial_state=True)
    return devices.make_accelerator(recipe)


def scaled(recipe: Recipe) -> Accelerator:
    """An accelerator of the CPU that computes in float16 as one of a GPU does."""
    accelerator = plain(recipe)
    accelerator.native_amp, accelerator.state._mixed_precision = True, "fp16"
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=4)
    return accelerator


@pytest.fixture(autouse=True)
def scaling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "make_accelerator", scaled)


def losses(output: Path) -> list[float]:
    return [line["loss"] for line in read_log(output / "log.jsonl")]


def overflow_at(steps: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let gradients pass float16's range in these steps."""
    clip = Update.clip
    done = [0]

    def clipped(update: Update, accelerator: Accelerator) -> torch.Tensor:
        done[0] += 1
        if done[0] in steps:
            gradients = (p.grad for g in update.optimizer.param_groups for p in g["params"])
            next(grad for grad in gradients if grad is not None).view(-1)[0] = torch.inf
        return clip(update, accelerator)

    monkeypatch.setattr(Update, "clip", clipped)


@pytest.mark.parametrize("kind", ["adamw", "bert-adam", "transformers-adamw"])
def test_scaled_losses_train_as_plain_ones(
    kind: str, tables: Tables, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = tables.write()
    recipe = change_recipe(recipe, [f"optimizer.kind={kind}", "steps=4", *STILL])
    pretrain(recipe, inputs, tmp_path / "scaled")
    monkeypatch.setattr(stages, "make_accelerator", plain)
    pretrain(recipe, inputs, tmp_path / "plain")
    assert losses(tmp_path / "scaled") == pytest.approx(losses(tmp_path / "plain"), rel=2e-3)


def test_a_second_stage_is_scaled_once(
    tables: Tables, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first stage's optimiser holds the same gradients."""
    inputs = tables.write()
    recipe = change_recipe(recipe, STILL)
    one = dataclasses.replace(recipe.stages[0], steps=2)
    recipe = dataclasses.replace(recipe, stages=(one, dataclasses.replace(one, name="second")))
    pretrain(recipe, inputs, tmp_path / "scaled")
    monkeypatch.setattr(stages, "make_accelerator", plain)
    pretrain(recipe, inputs, tmp_path / "plain")
    assert losses(tmp_path / "scaled") == pytest.approx(losses(tmp_path / "plain"), rel=2e-3)


def test_an_overflow_skips_the_step_and_halves_the_scale(
    tables: Tables, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = tables.write()
    recipe = change_recipe(recipe, ["save_every=1", "keep_checkpoints=9"])
    overflow_at({2}, monkeypatch)
    pretrain(recipe, inputs, tmp_path / "out")
    folders = [tmp_path / "out" / "checkpoints" / f"step-{step:08d}" for step in (1, 2, 3)]
    first, second, third = (load_checkpoint(folder).model.state_dict() for folder in folders)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(second[name], third[name]) for name in first)
    scales = [load_training_state(folder)["scaler.scale"].item() for folder in folders]
    assert scales == [SCALE, SCALE / 2, SCALE / 2]


def test_a_continued_run_goes_on_at_the_scale_it_had(
    tables: Tables, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after an overflow, two steps before the scale grows again."""
    inputs = tables.write()
    recipe = change_recipe(recipe, ["steps=8"])
    with monkeypatch.context() as patch:
        overflow_at({1}, patch)
        pretrain(recipe, inputs, tmp_path / "whole")

    def dying(at: int, *args: Any) -> dict[str, float]:
        if at == 4:
            raise KeyboardInterrupt
        return train_step(at, *args)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        overflow_at({1}, patch)
        patch.setattr(loop, "train_step", dying)
        pretrain(recipe, inputs, tmp_path / "killed")
    pretrain(recipe, inputs, tmp_path / "killed")
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    ends = [
        load_training_state(tmp_path / name / "checkpoints" / "step-00000008")
        for name in ("whole", "killed")
    ]
    assert ends[0]["scaler.scale"].item() == SCALE  # grown back
    assert set(ends[0]) == set(ends[1])
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


def test_a_scale_that_keeps_falling_stops_the_run(
    tables: Tables, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overflow_at(set(range(1, 100)), monkeypatch)
    with pytest.raises(NonFiniteLoss, match=r"step 22: .*gradient norm inf"):
        pretrain(change_recipe(recipe, ["steps=60"]), tables.write(), tmp_path / "out")
