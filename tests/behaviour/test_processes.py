"""Two processes on the CPU train as one does, whole models or divided ones."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file
from tests.factories import write_photographs
from tests.forked import run_script
from tests.train.tasks.questions import tiny, world

from vlmill.runtime.console.log import read_log
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.settings.plain_fields import to_yaml
from vlmill.schemas.tables import REJECTS
from vlmill.train.checkpoints.files import load_checkpoint
from vlmill.train.recipes import Recipe, change_recipe, recipe_named
from vlmill.train.run.runner import LOG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.factories import Tables

    from vlmill.train.settings.spec import RunSettings

TRAIN = """
import sys
from pathlib import Path
from vlmill.runtime.settings.plain_fields import from_plain, read_yaml
from vlmill.train.recipes import Recipe
from vlmill.train.run.inputs import Inputs
from vlmill.train.run.job import pretrain
config, pairs, regions, images, output = sys.argv[1:]
inputs = Inputs(pairs=pairs, regions=regions or None, images=images or None)
print(pretrain(from_plain(Recipe, read_yaml(config)), inputs, Path(output)))
"""


FINETUNE = """
import sys
from pathlib import Path
from vlmill.runtime.settings.plain_fields import read_yaml
from vlmill.train.tasks.finetuning.job import TaskInputs
from vlmill.train.tasks.finetuning.job import finetune_seeds
from vlmill.train.tasks.registry import read_task_recipe
config, examples, regions, images, output = sys.argv[1:]
inputs = TaskInputs(examples=examples, regions=regions or None, images=images or None)
recipe = read_task_recipe(read_yaml(config))
print(finetune_seeds(recipe, inputs, Path(output), fresh=False, force=False))
"""


def launch(
    folder: Path, script: str, recipe: RunSettings, tables: Sequence[str], processes: int
) -> Path:
    """Runs a script's recipe on its tables in ranks, which ``test_machines`` has torchrun start;
    returns the output folder.
    """
    output = folder / f"of-{processes}"
    (folder / "recipe.yaml").write_text(to_yaml(recipe))
    done = run_script(script, folder / "recipe.yaml", *tables, output, ranks=processes)
    assert done.returncode == 0, done.stderr[-9000:]
    sys.stderr.write(done.stderr)
    return output


def train(
    folder: Path, tables: Tables, recipe: Recipe, processes: int, images: str | None = None
) -> Path:
    """Pretrains by the recipe, on regions or on ``images``; returns the output folder."""
    flags = ["", images] if images else [tables.regions, ""]
    return launch(folder, TRAIN, recipe, [tables.pairs, *flags], processes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        ["shard=true", "average=0.9"],
        pytest.param(["accumulation=2"], marks=pytest.mark.nightly),
        pytest.param(["shard=true", "accumulation=2"], marks=pytest.mark.long),
    ],
)
def test_two_processes_give_the_losses_and_weights_of_one(
    changes: list[str], tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    tables.write()
    still = ["model.dropout=0", "model.attention_dropout=0", "batch_size=8", "steps=4"]
    wanted = change_recipe(recipe, [*still, *changes])
    assert_same(train(tmp_path, tables, wanted, 1), train(tmp_path, tables, wanted, 2))
    state = load_file(tmp_path / "of-2/checkpoints/step-00000004/training_state.safetensors")
    assert {"rng.cpu.0", "rng.cpu.1"} <= set(state)


@pytest.mark.nightly
def test_divided_layers_are_gathered_in_bfloat16(
    tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    """They compute what whole ones do under autocast, which rounds the same weights; also in a
    later stage, which trains a part of the model.
    """
    tables.write()
    still = ["model.dropout=0", "model.attention_dropout=0", "batch_size=8", "steps=2"]
    half = change_recipe(recipe, [*still, "precision=bf16", "shard=true"])
    (stage,) = half.stages
    later = dataclasses.replace(stage, name="later", trained=("layers.1.",))
    half = dataclasses.replace(half, stages=(stage, later))
    one, two = (train(tmp_path, tables, half, processes) for processes in (1, 2))
    for line, other in zip(read_log(one / "log.jsonl"), read_log(two / "log.jsonl"), strict=True):
        assert line["loss"] == pytest.approx(other["loss"], rel=2e-3)


@pytest.mark.nightly  # parity has VLMo's two ranks
def test_vlmo_draws_the_negatives_of_one_process_and_replaces_the_same_images(
    tables: Tables, tmp_path: Path
) -> None:
    """However many parts each process computes: the contrast is of all pairs of the step. So it is
    where the model is divided, but for the contrast's scale.

    AdamW's epsilon is above the gradients' rounding. Without that a weight with a gradient near 0
    moves by a share of the rate that depends on the order of sums; computed in float64, the runs
    leave the same weights within 2e-14.
    """
    tables.write()
    words = ["model.width=16", "model.num_layers=2", "model.num_heads=2", "model.drop_path=0"]
    words += ["model.intermediate_width=32", "model.first_vl_layer=1", "batch_size=8", "steps=3"]
    words += ["model.image_size=64", "feeding.image_size=64", "log_every=1", "optimizer.lr=2e-3"]
    words += ["optimizer.eps=1e-3", "max_bad=0.2"]
    recipe = change_recipe(recipe_named("vlmo-small"), words)
    images = write_photographs(tmp_path / "images", 12, cut=[1, 9])
    one = train(tmp_path, tables, recipe, 1, images)
    parts = change_recipe(recipe, ["accumulation=2"])
    runs = [one, train(tmp_path, tables, recipe, 2, images)]
    runs += [train(tmp_path / make(tmp_path, "parts"), tables, parts, 2, images)]
    divided = change_recipe(parts, ["shard=true"])
    runs += [train(tmp_path / make(tmp_path, "divided"), tables, divided, 2, images)]
    for run in runs[1:]:
        assert_same(one, run)
    rejects = [read_table(run, REJECTS).to_pylist() for run in runs]
    assert rejects == [rejects[0]] * 4
    assert {reject["reason"] for reject in rejects[0]} == {"unreadable_image"}
    counts = [[line.get("undecodable_pictures") for line in read_log(r / LOG)] for r in runs]
    assert counts == [counts[0]] * 4 and counts[0][-1] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        pytest.param("vqa-vilbert-small", ["average=0.9"], marks=pytest.mark.nightly),
        pytest.param("vqa-vl-bert-small", ["shard=true"], marks=pytest.mark.long),
        pytest.param("vqa-vlmo-small", ["accumulation=2"], marks=pytest.mark.long),
    ],
)
def test_two_processes_fine_tune_and_measure_as_one(
    name: str, changes: list[str], tmp_path: Path
) -> None:
    """Their questions to validate on, of which one process has more, are measured together."""
    inputs = world(tmp_path, 30)
    still = ["model.dropout=0"] if name == "vqa-vl-bert-small" else []
    still += ["model.trunk.dropout=0", "model.classifier_dropout=0"] if "vilbert" in name else []
    still += ["model.encoder.drop_path=0"] if "vlmo" in name else []
    every = ["batch_size=4", "steps=4", "validate_every=2", "seeds=[0,1]"]
    recipe = tiny(name, *still, *every, *changes)
    tables = [inputs.examples, str(inputs.regions), str(inputs.images)]
    one, two = (launch(tmp_path, FINETUNE, recipe, tables, count) for count in (1, 2))
    for seed in ("seed-0", "seed-1"):
        assert_same(one / seed, two / seed)
        lines = [read_log(output / seed / LOG)[-1] for output in (one, two)]
        scores = [line["validation/soft_score"] for line in lines]
        losses = [line["validation/loss"] for line in lines]
        assert scores[0] == scores[1] and losses[0] == pytest.approx(losses[1], rel=1e-5)
    spreads = [json.loads((output / "seeds.json").read_text()) for output in (one, two)]
    assert spreads[0] == spreads[1]


def assert_same(one: Path, two: Path) -> None:
    """Both runs have logged the same losses and left the same weights.

    But for rounding, which depends on the rows that are multiplied at once and which AdamW's first
    steps, each of the size of the rate, make up to a hundredth of a step.
    """
    for line, other in zip(read_log(one / "log.jsonl"), read_log(two / "log.jsonl"), strict=True):
        losses = {name: value for name, value in line.items() if name.startswith("loss")}
        assert losses == pytest.approx({name: other[name] for name in losses}, rel=1e-5)
    expected = load_checkpoint(one).model.state_dict()
    for name, value in load_checkpoint(two).model.state_dict().items():
        torch.testing.assert_close(value, expected[name], atol=5e-6, rtol=1e-5)


@pytest.mark.nightly
def test_two_processes_continue_what_two_left(
    tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    tables.write()
    short = change_recipe(recipe, ["batch_size=8", "steps=4"])
    whole = train(tmp_path / make(tmp_path, "whole"), tables, short, 2)
    part = train(tmp_path / make(tmp_path, "part"), tables, short, 2)
    cut_to_step_2(part)
    part = train(tmp_path / "part", tables, short, 2)
    losses = [
        [json.dumps(line["loss"]) for line in read_log(o / "log.jsonl")] for o in (whole, part)
    ]
    assert losses[0] == losses[1]


@pytest.mark.nightly
def test_another_number_of_processes_continues_with_a_warning(
    tables: Tables, recipe: Recipe, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One goes on with what two left, and two with what one left, as if nothing had changed: also
    where a step's pairs are sorted by length.
    """
    tables.write()
    still = ["model.dropout=0", "model.attention_dropout=0", "batch_size=8", "steps=4"]
    short = change_recipe(recipe, [*still, "loading.bucket=2"])
    runs = {count: train(tmp_path, tables, short, count) for count in (1, 2)}
    assert_same(runs[1], runs[2])
    expected = shutil.copytree(runs[1], tmp_path / "expected")
    for before, after in ((1, 2), (2, 1)):
        cut_to_step_2(runs[before])
        part = runs[before].rename(tmp_path / make(tmp_path, f"then-{after}") / f"of-{after}")
        capfd.readouterr()
        assert_same(expected, train(part.parent, tables, short, after))
        said = "process and" if before == 1 else "processes and"
        assert f"trained by {before} {said} continues with {after}" in capfd.readouterr().err


def cut_to_step_2(output: Path) -> None:
    """As if the run had been killed after step 2."""
    (output / "_manifest.json").unlink()
    for folder in (output / "checkpoints").iterdir():
        if folder.name != "step-00000002":
            shutil.rmtree(folder)


def make(folder: Path, name: str) -> str:
    (folder / name).mkdir()
    return name
