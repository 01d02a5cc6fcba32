"""What fine-tuning would cost is told before it begins."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tests.train.tasks import captions
from tests.train.tasks.questions import TINY, USUAL, tiny, world

from vlmill.schemas.errors import InputError
from vlmill.train.cli import main
from vlmill.train.tasks.finetuning.dry_run import estimate_finetuning


def test_a_dry_run_measures_steps_and_writes_nothing(tmp_path: Path) -> None:
    inputs = world(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    estimate = estimate_finetuning(tiny("vqa-vilbert-small", "validate_every=2"), inputs)
    assert sorted(tmp_path.rglob("*")) == before
    counts = dict(estimate.inputs)
    assert counts["--examples"] == "24 examples" and counts["--regions"] == "12 images"
    assert counts["steps"] == "6"
    assert estimate.rate is not None and estimate.rate.items == 5  # the first one is apart
    assert estimate.min_bytes > 0 and estimate.seconds is not None
    epochs = tiny("vqa-vilbert-small", "steps=null", "epochs=3", "seeds=[0,1]")
    twice = estimate_finetuning(epochs, inputs)
    assert twice.inputs["steps"] == "12 for each of 2 seeds"  # 20 to train on, 6 a step, rounded up
    assert twice.min_bytes > estimate.min_bytes


def test_captions_are_tried_with_the_images_near_theirs(tmp_path: Path) -> None:
    inputs = captions.world(tmp_path)
    estimate = estimate_finetuning(captions.tiny("retrieval-vilbert-small"), inputs)
    assert estimate.inputs["--negatives"] == inputs.negatives and estimate.inputs["steps"] == "2"
    with pytest.raises(InputError, match="--negatives is missing"):
        without = dataclasses.replace(inputs, negatives=None)
        estimate_finetuning(captions.tiny("retrieval-vilbert-small"), without)


def test_the_command_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = world(tmp_path)
    words = [*TINY["vqa-vilbert-small"], *USUAL, "steps=2"]
    tables = ["--examples", inputs.examples, "--regions", str(inputs.regions)]
    output = tmp_path / "out"
    command = ["finetune", "vqa-vilbert-small", *tables, "--output", str(output), "--dry-run"]
    assert main([*command, *words]) == 0
    printed = capsys.readouterr().out
    assert "24 examples" in printed and "dry run: nothing was written" in printed
    assert not output.exists()
