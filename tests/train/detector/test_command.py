"""What the command takes and tells: recipes, files of them, a run's cost, places in a store."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.object_stores import download_folder, upload_folder
from tests.train.detector.shapes import write_shapes
from tests.train.detector.test_job import TINY, losses, train

import vlmill
from vlmill.extract import cli
from vlmill.extract.config import saved_steps
from vlmill.extract.detect.checkpoint import read_saved
from vlmill.schemas.errors import InputError
from vlmill.train.detector.command import read_settings
from vlmill.train.detector.run import warn_about_sizes
from vlmill.train.detector.settings import RECIPES, find_recipe
from vlmill.train.run import loop
from vlmill.train.run.step import train_step


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight images to train on and two to validate on."""
    return write_shapes(tmp_path_factory.mktemp("shapes"), 8, held_out=2)


def test_every_recipe_is_listed_with_what_it_trains(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.command(["recipes"]) == 0
    said = capsys.readouterr().out
    assert all(f"{name} " in said for name in RECIPES)
    assert "380,000 steps of 1 images of 600/1000 pixels, rate 0.001" in said


def test_a_shown_recipe_is_a_file_that_can_be_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    for name in RECIPES:
        assert cli.command(["recipes", "show", name]) == 0
        file.write_text(capsys.readouterr().out)
        assert read_settings(None, str(file), []) == find_recipe(name)
    fields = yaml.safe_load(file.read_text())
    fields["solver"]["lr"] = 0.5
    file.write_text(yaml.safe_dump(fields))
    settings = read_settings(None, str(file), ["steps=7"])
    assert (settings.solver.lr, settings.steps) == (0.5, 7)
    with pytest.raises(InputError, match="give either --config or"):
        read_settings("small", str(file), [])
    with pytest.raises(InputError, match="there are vg-r101-c4"):
        cli.command(["recipes", "show", "large"])


@pytest.mark.parametrize(
    "field",
    [
        *("seed=-1", "flip=3", "validation_pictures=-1", "short_sides=[1]", "short_sides=[999]"),
        *(
            "batch_size=0",
            "save_every=0",
            "detector.anchor_scales=[]",
            "detector.anchor_ratios=[0]",
        ),
        *("solver.momentum=1", "solver.weight_decay=-1", "solver.clip_at=0", "solver.lr=0"),
    ],
)
def test_fields_that_no_run_can_have_are_refused_by_name(field: str) -> None:
    with pytest.raises(InputError, match=field.partition("=")[0].rpartition(".")[2]):
        read_settings("small", None, [field])


def test_another_size_than_was_trained_on_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    for name in RECIPES:
        warn_about_sizes(find_recipe(name))
    assert not capsys.readouterr().err
    warn_about_sizes(read_settings("small", None, ["short_sides=[224,240]"]))
    assert "detector.short_side=160" in capsys.readouterr().err


def test_a_dry_run_tells_the_cost_and_writes_nothing(
    shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert train(shapes, output, "--dry-run") == 0
    said = capsys.readouterr().out
    assert "8 images" in said and "4 of 2 images" in said and "steps/s" in said
    assert not output.exists()
    # Weights and momenta of both checkpoints: what the run itself leaves, but for random states and
    # the tensors' names, which count in so small a network.
    told = next(line for line in said.splitlines() if line.startswith("output"))
    assert train(shapes, output) == 0
    files = [file for folder in saved_steps(output).values() for file in folder.glob("*.safe*")]
    kilobytes = float(told.split("at least ")[1].split(" kB")[0])
    assert kilobytes == pytest.approx(sum(file.stat().st_size for file in files) / 1e3, rel=0.2)


def test_a_disk_that_is_too_small_is_refused(
    shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vlmill.runtime.console.cost.free_bytes", lambda _: 1000)
    with pytest.raises(InputError, match=r"1\.0 kB are free"):
        train(shapes, tmp_path / "out")
    assert train(shapes, tmp_path / "forced", "--force", "steps=0") == 0


class Killed(BaseException):
    """Ends a run as a kill does: nothing more is written."""


def test_a_run_in_a_store_goes_on_elsewhere(
    shapes: Path, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Tables and output are in a store; what a kill has left there is enough to go on."""
    assert train(shapes, tmp_path / "here") == 0
    upload_folder(shapes, f"{bucket}/in")
    tables = ["--boxes", f"{bucket}/in", "--images", f"{bucket}/in"]
    command = ["train", *tables, "--output", f"{bucket}/detector", "--recipe", "small", *TINY]

    def killed(step: int, *rest: Any) -> dict[str, float]:
        if step == 4:
            raise Killed
        return train_step(step, *rest)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(loop, "train_step", killed)
        cli.command(command)
    assert cli.command(command) == 0
    assert f"{bucket}/detector: small, 4 steps" in capsys.readouterr().out
    download_folder(f"{bucket}/detector", tmp_path / "there")
    assert losses(tmp_path / "there") == losses(tmp_path / "here")
    here, there = (read_saved(tmp_path / name) for name in ("here", "there"))
    assert here.classes == there.classes == ("square", "disc", "triangle")
    assert all((here.weights[name] == there.weights[name]).all() for name in here.weights)
    said = json.loads((tmp_path / "here/detector.json").read_text())
    assert said["software"] == f"vlmill {vlmill.__version__}"


def test_several_processes_write_no_store(
    shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    command = ["train", "--boxes", str(shapes), "--images", str(shapes), "--recipe", "small"]
    with pytest.raises(InputError, match="several processes share a folder"):
        cli.command([*command, "--output", "s3://bucket/detector", "--dry-run"])
