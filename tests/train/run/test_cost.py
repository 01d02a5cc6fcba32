"""A run's cost before it begins, and what its checkpoints really take."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from vlmill.runtime.console import cost as console
from vlmill.runtime.files.reading import read_table
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import PAIRS
from vlmill.train.checkpoints.folders import MODEL, STATE, saved_steps
from vlmill.train.recipes import Optimizer, Recipe, Stage
from vlmill.train.run import dry_run
from vlmill.train.run.cost import checkpoint_bytes, num_saves
from vlmill.train.run.dry_run import estimate_run, write_sample
from vlmill.train.run.job import pretrain
from vlmill.train.run.loop import StageRun

if TYPE_CHECKING:
    from tests.factories import Tables


def test_a_checkpoint_by_hand() -> None:
    assert checkpoint_bytes(10, 6, averaged=False) == 4 * (10 + 2 * 6)
    assert checkpoint_bytes(10, 6, averaged=True) == 4 * (10 + 3 * 6)


def stages(*steps: int) -> list[StageRun]:
    runs: list[StageRun] = []
    for number, count in enumerate(steps):
        stage = Stage(name=str(number), steps=count, batch_size=1, optimizer=Optimizer(lr=1.0))
        offset = runs[-1].last if runs else 0
        runs.append(StageRun(stage=stage, number=number, offset=offset, steps=count))
    return runs


@pytest.mark.parametrize(
    ("steps", "every", "saves"), [((6,), 2, 3), ((5, 2), 2, 5), ((3,), 10, 1), ((0,), 2, 1)]
)
def test_saves_by_hand(steps: tuple[int, ...], every: int, saves: int, recipe: Recipe) -> None:
    assert num_saves(dataclasses.replace(recipe, save_every=every), stages(*steps)) == saves


def test_the_disk_that_is_asked_for_is_what_a_run_needs(
    tables: Tables, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six steps with a checkpoint every two: three of them lie there at the end."""
    asked: list[int] = []
    monkeypatch.setattr(
        "vlmill.train.run.job.require_disk_space", lambda least, *_, **__: asked.append(least)
    )
    inputs, out = tables.write(), tmp_path / "out"
    pretrain(recipe, inputs, out)
    files = [folder / name for folder in saved_steps(out).values() for name in (MODEL, STATE)]
    written = sum(file.stat().st_size for file in files)
    headers = 3 * 40_000  # names, shapes and random states
    assert written - headers < asked[0] <= written
    pretrain(dataclasses.replace(recipe, keep_checkpoints=1), inputs, tmp_path / "one")
    assert asked[1] == asked[0] * 2 // 3  # the last one, and the new one beside it


def test_a_disk_that_is_too_small_is_refused(
    tables: Tables, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "free_bytes", lambda _: 1000)
    inputs = tables.write()
    with pytest.raises(InputError, match="--force"):
        pretrain(recipe, inputs, tmp_path / "out")
    assert not saved_steps(tmp_path / "out")
    assert "6 steps" in pretrain(recipe, inputs, tmp_path / "out", force=True)


def test_a_dry_run_measures_steps_and_writes_nothing(
    tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    inputs = tables.write()
    before = sorted(tmp_path.rglob("*"))
    estimate = estimate_run(recipe, inputs)
    assert sorted(tmp_path.rglob("*")) == before
    counts = dict(estimate.inputs)
    assert counts["--pairs"] == "12 pairs" and counts["steps"] == "6"
    assert estimate.rate is not None and estimate.rate.items == 5  # the first one is apart
    assert estimate.min_bytes > 0 and estimate.seconds is not None
    assert estimate.memory.startswith("about ") and "accumulation=N" in estimate.memory


def test_measuring_ends_with_its_limit(
    tables: Tables, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "SECONDS_MEASURED", 0.0)
    estimate = estimate_run(recipe, tables.write())
    assert estimate.rate is not None and estimate.rate.items == 1


def test_epochs_are_those_of_all_pairs(
    tables: Tables, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "SAMPLE_PAIRS", 4)
    stage = dataclasses.replace(recipe.stages[0], steps=None, epochs=2.0)
    estimate = estimate_run(dataclasses.replace(recipe, stages=(stage,)), tables.write())
    assert estimate.inputs["--pairs"] == "12 pairs"
    assert estimate.inputs["steps"] == "6"  # two epochs of 12 pairs, 4 a step


def test_the_most_pairs_of_a_stage_are_those_of_all_pairs(
    tables: Tables, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "SAMPLE_PAIRS", 4)
    stage = dataclasses.replace(recipe.stages[0], steps=None, epochs=4.0, max_pairs=6)
    estimate = estimate_run(dataclasses.replace(recipe, stages=(stage,)), tables.write())
    assert estimate.inputs["steps"] == "6"  # four epochs of 6 pairs, 4 a step
    assert estimate.inputs["stage pairs"] == "visits about 6 of 12 pairs"


def test_a_sample_of_captions_has_all_of_a_image(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "SAMPLE_PAIRS", 40)
    tables.write_pairs([(f"image-{i // 5}", f"caption {i}") for i in range(200)])
    sampled = write_sample(tables.pairs, 200, tmp_path / "sample", full_images=True)
    images = Counter(
        row["image_id"] for row in read_table(str(tmp_path / "sample"), PAIRS).to_pylist()
    )
    assert sampled == 5 * len(images) and 2 <= len(images) <= 20
    assert set(images.values()) == {5}


def test_a_sample_is_every_so_many_th_pair(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "SAMPLE_PAIRS", 5)
    assert write_sample(str(tables.write().pairs), 12, tmp_path / "sample") == 4


def test_a_sample_has_pairs_of_every_source(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "SAMPLE_PAIRS", 40)
    rows = [(f"image-{i // 5}", f"caption {i}") for i in range(200)]
    tables.write_pairs(rows, {"source": ["cc"] * 7 + ["vg"] * 2 + ["cc"] * 191})
    assert write_sample(tables.pairs, 200, tmp_path / "sample") == 41
    sources = read_table(str(tmp_path / "sample"), PAIRS)["source"].to_pylist()
    assert sources.count("vg") == 1


def test_a_dry_run_under_a_launcher_is_refused(
    tables: Tables, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Two:
        num_processes = 2

    monkeypatch.setattr(dry_run, "make_accelerator", lambda _: Two())
    with pytest.raises(InputError, match="without a launcher"):
        estimate_run(recipe, tables.write())


def test_the_bytes_of_a_run_do_not_count_what_is_there(
    tables: Tables, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        "vlmill.train.run.job.require_disk_space", lambda least, *_, **__: asked.append(least)
    )
    inputs, out = tables.write(), tmp_path / "out"
    pretrain(recipe, inputs, out)
    for name in ("_manifest.json", "checkpoints/step-00000006/checkpoint.json"):
        (out / name).unlink()
    pretrain(recipe, inputs, out)
    assert asked[1] * 3 == asked[0]
