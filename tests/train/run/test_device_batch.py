"""Steps are divided into parts that fit into memory; too little of it is an error with a remedy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from vlmill.runtime.console.log import read_log
from vlmill.schemas.errors import InputError
from vlmill.train.recipes import Recipe, change_recipe
from vlmill.train.run import device_batch
from vlmill.train.run.device_batch import OutOfMemory, list_parts
from vlmill.train.run.job import pretrain
from vlmill.train.run.loop import StageRun
from vlmill.train.run.step import Training

if TYPE_CHECKING:
    from tests.factories import Tables

LINE = ("loss", "gradient_norm")


def logged(output: Path) -> list[dict[str, float]]:
    return [{name: line[name] for name in LINE} for line in read_log(output / "log.jsonl")]


def hold_at_most(rows: int, patch: pytest.MonkeyPatch) -> list[int]:
    """Makes parts of more rows fail as they do on a full GPU; returns the sizes that were tried."""
    original, tried = Training.compute, []

    def compute(self: Training, batch: Any, *more: Any) -> Any:
        size = len(batch.pair_ids) if hasattr(batch, "pair_ids") else batch.text.num_rows
        tried.append(size)
        result = original(self, batch, *more)
        if size > rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return result

    patch.setattr(Training, "compute", compute)
    return tried


@pytest.mark.parametrize("rows", [4, 2, 1])
def test_the_largest_part_that_fits_is_found_and_changes_nothing(
    rows: int,
    tables: Tables,
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    inputs = tables.write()
    parts = change_recipe(recipe, ["steps=3", f"accumulation={4 // rows}"])
    pretrain(parts, inputs, tmp_path / "parts")
    with monkeypatch.context() as patch:
        hold_at_most(rows, patch)
        pretrain(change_recipe(recipe, ["steps=3", "device_batch=auto"]), inputs, tmp_path / "auto")
    # Dropout included: the steps that were tried left the random numbers as they were.
    assert logged(tmp_path / "auto") == logged(tmp_path / "parts")
    found = f"{rows} rows at a time, {4 // rows} parts for each step of 4"
    assert (found in capsys.readouterr().err) == (rows < 4)


def test_a_number_of_rows_divides_steps_without_trying(
    tables: Tables, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = hold_at_most(3, monkeypatch)
    recipe = change_recipe(recipe, ["steps=2", "device_batch=3"])
    pretrain(recipe, tables.write(), tmp_path / "out")
    assert tried == [2, 2, 2, 2]
    with pytest.raises(ValueError, match="device_batch=-1: expected 1 or more, auto"):
        change_recipe(recipe, ["device_batch=-1"])


def test_too_little_memory_names_the_remedy(
    tables: Tables, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_at_most(0, monkeypatch)
    remedy = r"not enough memory for 4 rows at a time; .* --device-batch auto or --device-batch 2, "
    with pytest.raises(OutOfMemory, match=remedy):
        pretrain(recipe, tables.write(), tmp_path / "out")
    with pytest.raises(OutOfMemory, match=r"not even one part of 4 fits.*checkpoint_activations"):
        pretrain(change_recipe(recipe, ["device_batch=auto"]), tables.write(), tmp_path / "auto")


def test_a_cpu_without_the_memory_of_a_step_is_not_tried(
    tables: Tables, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = hold_at_most(4, monkeypatch)
    monkeypatch.setattr(device_batch, "available_memory", lambda: 0)
    with pytest.raises(OutOfMemory, match="not even one part"):
        pretrain(change_recipe(recipe, ["device_batch=auto"]), tables.write(), tmp_path / "out")
    assert not tried and device_batch.MEMINFO.exists()


def test_parts_divide_the_texts_of_a_step_too(recipe: Recipe) -> None:
    (stage,) = change_recipe(recipe, ["batch_size=12", "feeding.text_rows=6"]).stages
    assert list_parts(stage, 1) == [1, 2, 3, 6] and list_parts(stage, 2) == [1, 2, 3, 6]
    with pytest.raises(InputError, match="auto: a run of 2 processes cannot try parts"):
        device_batch.divide_stage(_run(stage), "auto", 2, lambda _: True)


def _run(stage: Any) -> Any:
    return StageRun(stage=stage, number=0, offset=0, steps=1)
