"""Data that break while training reads them: one line that names the image and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from tests.behaviour.test_end_to_end import batches as end_to_end_batches
from tests.behaviour.test_end_to_end import tiny, write_rows
from tests.factories import caption, find_value, write_photographs
from tests.train.run.test_job import Killed, assert_same_run, kill_at

from vlmill.models import VARIANTS
from vlmill.runtime.console.log import read_log
from vlmill.runtime.files.manifest import verify_folder
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.region_rows import LARGEST
from vlmill.runtime.readers.regions import RegionReader, encode_regions, region_arrays
from vlmill.runtime.settings.plain_fields import to_yaml
from vlmill.schemas.tables import REGIONS, REJECTS
from vlmill.train.checkpoints.files import load_checkpoint
from vlmill.train.cli import main
from vlmill.train.loading.features import load_features
from vlmill.train.recipes import Recipe, change_recipe, recipe_named
from vlmill.train.run.inputs import Inputs
from vlmill.train.run.job import pretrain
from vlmill.train.run.model import feature_statistics

if TYPE_CHECKING:
    from tests.factories import Tables


def run(recipe: Recipe, tables: Tables, *more: str) -> int:
    config = tables.folder / "recipe.yaml"
    config.write_text(to_yaml(recipe))
    where = ["--pairs", tables.pairs, "--output", str(tables.folder / "run")]
    return main(["pretrain", "--config", str(config), *where, *more])


def tiny_recipe(name: str, *changes: str) -> Recipe:
    """A small recipe with fewer layers, in steps of four pairs."""
    return change_recipe(recipe_named(name), ["batch_size=4", "vocabulary_size=90", *changes])


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said.strip().splitlines()[-1]


@pytest.mark.parametrize("workers", [0, 1])
def test_features_that_are_not_finite_stop_before_an_update(
    tables: Tables, recipe: Recipe, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    tables.write(8)
    path = next(Path(tables.regions).glob("*.parquet"))
    _, offset, _ = find_value(RegionReader(tables.regions), "features", 3) or (0, 0, 0)
    data = bytearray(path.read_bytes())
    data[offset : offset + 2] = b"\x00\x7e"  # NaN
    path.write_bytes(data)
    changed = change_recipe(recipe, ["stages.0.negative_share=0", f"workers={workers}"])
    assert run(changed, tables, "--regions", tables.regions) == 2
    line = last_line(capsys)
    assert "image-3: features or boxes are not finite, or above 1e+10; extract" in line


@pytest.mark.parametrize("variant", ["vilbert", "vl-bert", "imagebert", "interbert"])
def test_a_bad_number_costs_its_image_alone(
    variant: str, tables: Tables, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a table whose writer does not vouch for its numbers. The largest number that is accepted
    trains.
    """
    tables.write(8)
    arrays = region_arrays(dtype="float32", feature_dim=16)
    plain = encode_regions(list(RegionReader(tables.regions)), dtype="float32").to_pylist()
    for row, number in {1: np.nan, 3: -np.inf, 5: 3e38, 6: LARGEST}.items():
        features = np.frombuffer(plain[row]["features"], np.float32).copy()
        features[5] = number
        plain[row]["features"] = features.tobytes()
    write_shard(tables.regions, REGIONS, plain, arrays=arrays)
    made = tiny_recipe(f"{variant}-small", "steps=2", "optimizer.warmup=0")
    assert made.standardise_features
    assert run(made, tables, "--regions", tables.regions) == 0
    assert "2 steps on 5 pairs; 3 rejected (3 not_finite)" in capsys.readouterr().out
    rejects = read_table(tables.folder / "run", REJECTS).to_pylist()
    named = {"image-1", "image-3", "image-5"}
    assert {(row["reason"], row["detail"]) for row in rejects} == {("not_finite", n) for n in named}


def test_statistics_are_those_of_accepted_training_pairs_alone(
    tables: Tables, tmp_path: Path
) -> None:
    """Neither rejected images, nor those of other splits or beyond the share, count."""
    rows = [(f"image-{i}", f"{caption(i)} and {i} birds" if i != 2 else "") for i in range(8)]
    splits = {"split": [*["train"] * 5, "val", "test", "test"]}
    tables.write_pairs(rows, splits)
    tables.write_regions([f"image-{i}" for i in range(10)], empty=("image-4",))
    made = tiny_recipe("imagebert-small", "steps=0")
    pretrain(made, Inputs(pairs=tables.pairs, regions=tables.regions), tmp_path / "run")
    embedding = load_checkpoint(tmp_path / "run").model.region_embedding.feature
    reader = RegionReader(tables.regions)
    mean, std = feature_statistics(reader, np.array([0, 1, 3]))
    features = np.concatenate([load_features(reader[f"image-{i}"], 100) for i in (0, 1, 3)])
    torch.testing.assert_close(mean, torch.from_numpy(features.mean(0)))
    torch.manual_seed(made.seed)
    fresh = VARIANTS["imagebert"].model(load_checkpoint(tmp_path / "run").config)
    fresh.standardise_regions(mean, std)
    torch.testing.assert_close(embedding.weight, fresh.region_embedding.feature.weight)
    torch.testing.assert_close(embedding.bias, fresh.region_embedding.feature.bias)


def test_no_box_leaves_features_as_they_are(tables: Tables) -> None:
    tables.write_regions(["a"], empty=("a",))
    mean, std = feature_statistics(RegionReader(tables.regions), np.array([0]))
    assert mean.tolist() == [0.0] * 16 and std.tolist() == [1.0] * 16


SMALL_VLMO = (
    *("model.width=16", "model.num_heads=2", "model.intermediate_width=16", "model.num_layers=2"),
    *("model.first_vl_layer=1", "model.image_size=32", "feeding.image_size=32", "precision=no"),
    *("steps=6", "batch_size=4", "log_every=1", "save_every=2", "vocabulary_size=90"),
)


def losses(folder: Path) -> list[tuple[float, int]]:
    lines = read_log(folder / "log.jsonl")
    return [(line["loss"], line.get("undecodable_pictures", 0)) for line in lines]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_image_that_cannot_be_decoded_is_a_reject_and_the_run_goes_on(
    tables: Tables, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    tables.write(12)
    images = write_photographs(tables.folder / "images", 12, cut=[5])
    small = change_recipe(recipe_named("vlmo-small"), [*SMALL_VLMO, f"workers={workers}"])
    out = tables.folder / "run"
    assert run(small, tables, "--images", images) == 2
    said = last_line(capsys)
    assert "1 of the run's 12 images cannot be decoded (image-5), more than max_bad=0.01" in said
    # The same run goes on where more may be bad.
    assert run(change_recipe(small, ["max_bad=0.1"]), tables, "--images", images) == 0
    assert "on 11 pairs; 1 rejected (1 unreadable_image)" in capsys.readouterr().out
    (row,) = read_table(out, REJECTS).to_pylist()
    assert (row["stage"], row["reason"]) == ("pretrain", "unreadable_image")
    assert row["detail"].startswith("image-5: OSError: ") and "truncated" in row["detail"]
    assert verify_folder(out) == [] and not (out / "undecodable.jsonl").exists()
    counts = [count for _, count in losses(out)]
    assert counts == sorted(counts) and counts[-1] == 1 and len(counts) == 6


def test_a_resumed_run_replaces_the_same_images(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.write(12)
    images = write_photographs(tables.folder / "images", 12, cut=[3, 5, 6])
    small = change_recipe(recipe_named("vlmo-small"), [*SMALL_VLMO, "max_bad=0.5"])
    inputs = Inputs(pairs=tables.pairs, images=images)
    pretrain(small, inputs, tables.folder / "whole")
    with monkeypatch.context() as patch:
        kill_at(4, patch)
        with pytest.raises(Killed):
            pretrain(small, inputs, tables.folder / "killed")
    noted = (tables.folder / "killed" / "undecodable.jsonl").read_text().splitlines()
    assert len(noted) == 3  # of step 4 too, which the last checkpoint does not hold
    pretrain(small, inputs, tables.folder / "killed")
    assert_same_run(tables.folder / "killed", tables.folder / "whole")
    rejects = [
        read_table(tables.folder / name, REJECTS).to_pylist() for name in ("killed", "whole")
    ]
    assert rejects[0] == rejects[1] and len(rejects[0]) == 3


def test_regions_of_images_that_cannot_be_decoded_are_left_out_with_them(
    tables: Tables, tmp_path: Path
) -> None:
    write_rows(tables)
    images = write_photographs(tables.folder / "photographs", 12, cut=[2])
    batches = end_to_end_batches(tables, images, tmp_path / "prepared", tiny())
    made = [batches[index] for index in range(6)]
    assert {one.image_id for batch in made for one in batch.undecodable} == {"image-2"}
    for at, batch in enumerate(made):
        assert len(set(batch.image_ids)) == 4 and "image-2" not in batch.image_ids
        for name, tensor in batches[at].tensors.items():
            assert torch.equal(batch.tensors[name], tensor), name
