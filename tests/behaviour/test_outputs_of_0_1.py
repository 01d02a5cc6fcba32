"""Tables and checkpoints that version 0.1.0 wrote, before its modules and names moved, are read.

``outputs_0_1`` has eight generated images with two captions each, their regions by the tiny
detector with random weights, and a run of one step of every small recipe at a width of 16, with the
metrics that version 0.1.0 measured.
"""

import json
from pathlib import Path

import pytest

from vlmill.extract.cli import command
from vlmill.runtime.console.command import run_command
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.readers.regions import RegionReader
from vlmill.runtime.settings.plain_fields import from_plain, read_yaml
from vlmill.train.cli import main as train_vl
from vlmill.train.recipes import Recipe

OUTPUTS = Path(__file__).parent / "outputs_0_1"
MODELS = ("vilbert", "vl-bert", "imagebert", "interbert", "vlmo")


@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoint_has_the_metrics_that_it_had(name: str, tmp_path: Path) -> None:
    table = "--images" if name == "vlmo" else "--regions"
    inputs = ["--pairs", str(OUTPUTS / "pairs"), table]
    inputs.append(str(OUTPUTS / ("pairs" if name == "vlmo" else "regions")))
    arguments = ["evaluate", "retrieval", "--checkpoint", str(OUTPUTS / name), *inputs]
    assert train_vl([*arguments, "--output", str(tmp_path / "out")]) == 0
    metrics = json.loads((tmp_path / "out/metrics.json").read_text())
    expected = json.loads((OUTPUTS / name / "metrics.json").read_text())
    assert {key: metrics[key] for key in expected} == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_a_recipe_is_a_config(name: str) -> None:
    recipe = from_plain(Recipe, read_yaml(OUTPUTS / name / "recipe.yaml"))
    assert recipe.name == f"{name}-small" and recipe.stages[0].steps == 1


@pytest.mark.parametrize("name", ["pairs", "regions", "negatives", "neighbours", "vectors"])
def test_a_table_is_whole(name: str) -> None:
    assert run_command(command, ["verify", str(OUTPUTS / name)]) == 0


def test_regions_and_images_are_read_by_their_ids() -> None:
    regions, images = RegionReader(OUTPUTS / "regions"), ImageReader(OUTPUTS / "pairs")
    assert sorted(regions.image_ids) == sorted(images.image_ids) == [str(n) for n in range(8)]
    assert all(len(regions[image_id].boxes) == 4 for image_id in regions.image_ids)
    assert (images["3"] or b"").startswith(b"\xff\xd8")


def test_vectors_are_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["search", "--vectors", str(OUTPUTS / "vectors"), "--text", "red kite on a field"]
    assert train_vl([*arguments, "--checkpoint", str(OUTPUTS / "vlmo"), "--top", "2"]) == 0
    (answer,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert [one["image_id"] for one in answer["answers"]] == ["6", "2"]


def test_negatives_are_trained_with(tmp_path: Path) -> None:
    tables = [f"--{name}={OUTPUTS / name}" for name in ("pairs", "regions", "negatives")]
    start = ["pretrain", "imagebert-small", *tables, "--init", str(OUTPUTS / "imagebert")]
    sizes = ["model.width=16", "model.intermediate_width=16", "model.num_heads=2"]
    changes = [*sizes, "model.num_layers=1", "steps=1", "batch_size=4"]
    assert train_vl([*start, "--output", str(tmp_path / "out"), *changes]) == 0
