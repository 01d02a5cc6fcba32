"""Fine-tuning goes through pretraining's loop: it continues, stops early, starts from others."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.tasks.finetuning.starts import logged, vqa_start
from tests.train.tasks.questions import ANSWERS, question, tiny, world, write_questions

from vlmill.runtime.settings.plain_fields import to_plain
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import load_checkpoint
from vlmill.train.run import loop
from vlmill.train.run.step import train_step
from vlmill.train.tasks.finetuning.job import finetune, finetune_seeds
from vlmill.train.tasks.registry import read_task_recipe, task_recipe_named, task_recipes


def test_a_run_that_is_killed_goes_on_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, recipe = world(tmp_path), tiny("vqa-vilbert-small", "validate_every=2")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    said = finetune(recipe, inputs, whole)
    assert "6 steps on 20" in said

    def killed(step: int, *rest: Any) -> dict[str, float]:
        if step == 5:
            raise KeyboardInterrupt
        return train_step(step, *rest)

    monkeypatch.setattr(loop, "train_step", killed)
    with pytest.raises(KeyboardInterrupt):
        finetune(recipe, inputs, parts)
    monkeypatch.undo()
    finetune(recipe, inputs, parts)
    assert logged(parts) == logged(whole)
    ours, theirs = (load_checkpoint(folder) for folder in (whole, parts))
    assert ours.task is not None and set(ours.task.labels) == set(ANSWERS)
    for name, value in ours.model.state_dict().items():
        assert torch.equal(value, theirs.model.state_dict()[name]), name
    scores = [line["validation/soft_score"] for line in logged(whole) if "validation/loss" in line]
    assert len(scores) == 3 and ours.training.validation_score == max(scores)
    assert "finished at step 6" in finetune(recipe, inputs, whole)


def test_a_run_without_progress_stops_early_and_stays_stopped(tmp_path: Path) -> None:
    inputs = world(tmp_path)
    still = ("validate_every=1", "patience=2", "optimizer.lr=1e-12", "save_every=1")
    finetune(tiny("vqa-vilbert-small", *still), inputs, tmp_path / "out")
    lines = logged(tmp_path / "out")
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert load_checkpoint(tmp_path / "out").training.step == 1


def test_several_seeds_and_their_spread(tmp_path: Path) -> None:
    inputs, out = world(tmp_path), tmp_path / "out"
    recipe = tiny("vqa-vilbert-small", "steps=2", "seeds=[0,1]", "validate_every=2")
    said = finetune_seeds(recipe, inputs, out, fresh=False, force=False)
    summary = json.loads((out / "seeds.json").read_text())
    assert "2 seeds, mean" in said and set(summary["seeds"]) == {"0", "1"}
    values = list(summary["seeds"].values())
    assert summary["mean"] == pytest.approx(sum(values) / 2)
    assert logged(out / "seed-0") != logged(out / "seed-1")
    best = load_checkpoint(out / f"seed-{summary['best']}")
    for name, value in load_checkpoint(out).model.state_dict().items():
        assert torch.equal(value, best.model.state_dict()[name])


@pytest.mark.parametrize("name", ["vqa-vilbert-small", "vqa-vl-bert-small", "vqa-vlmo-small"])
def test_every_head_starts_from_its_pretrained_model(tmp_path: Path, name: str) -> None:
    init = vqa_start(tmp_path / "init", name)
    inputs = dataclasses.replace(world(tmp_path), init=str(init))
    finetune(tiny(name, "steps=0"), inputs, tmp_path / "start")
    start, before = load_checkpoint(tmp_path / "start"), load_checkpoint(init)
    ours, theirs = start.model.state_dict(), before.model.state_dict()
    same = [
        key
        for key, value in ours.items()
        for other in (key, key.partition(".")[2])
        if other in theirs and theirs[other].shape == value.shape and theirs[other].equal(value)
    ]
    assert len(same) > 0.6 * len(theirs), sorted(theirs)
    assert start.tokenizer.get_vocab() == before.tokenizer.get_vocab()
    finetune(tiny(name, "steps=3"), inputs, tmp_path / "out")
    losses = [line["loss"] for line in logged(tmp_path / "out")]
    assert len(losses) == 3 and losses[0] > 0


def test_wrong_starts_are_refused(tmp_path: Path) -> None:
    inputs, out = world(tmp_path), tmp_path / "out"
    init = vqa_start(tmp_path / "init", "vqa-vl-bert-small")
    other = dataclasses.replace(inputs, init=str(init))
    with pytest.raises(InputError, match=r"is a vl-bert; vqa-vilbert-small starts from vilbert"):
        finetune(tiny(), other, out)
    vilbert = vqa_start(tmp_path / "vilbert", "vqa-vilbert-small")
    given = dataclasses.replace(inputs, init=str(vilbert))
    with pytest.raises(InputError, match=r"model.trunk.intermediate_width=64: --init .* has 32"):
        finetune(tiny("vqa-vilbert-small", "model.trunk.intermediate_width=64"), given, out)
    (tmp_path / "rare").mkdir()
    few = write_questions(tmp_path / "rare", [question(number) for number in range(6)])
    with pytest.raises(InputError, match=r"no answer occurs in 9 questions; give --labels"):
        finetune(
            tiny("vqa-vilbert-small", "settings.min_questions=9"),
            dataclasses.replace(inputs, examples=few),
            out,
        )


def test_an_unknown_recipe_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean vqa-vilbert"):
        task_recipe_named("vqa-vilbart")


@pytest.mark.parametrize("name", task_recipes())
def test_recipes_say_their_names_and_come_back_from_yaml(name: str) -> None:
    recipe = task_recipe_named(name)
    assert recipe.name == name and recipe.about
    assert read_task_recipe(to_plain(recipe)) == recipe
