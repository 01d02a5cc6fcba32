"""What a run does beside its losses: validation, averages, signals, compiled layers."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import safetensors.torch
import torch
from tests.factories import write_images

from vlmill.runtime.console.log import read_log
from vlmill.runtime.console.trackers import TENSORBOARD
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints import files as checkpoint
from vlmill.train.checkpoints.files import load_checkpoint, load_training_state
from vlmill.train.checkpoints.folders import saved_steps
from vlmill.train.recipes import Recipe, change_recipe, recipe_named
from vlmill.train.run import loop
from vlmill.train.run.inputs import Inputs
from vlmill.train.run.job import pretrain
from vlmill.train.run.step import train_step

if TYPE_CHECKING:
    from tests.factories import Tables

CLOCK = ("samples_per_second", "mfu", "data_wait", "process_memory_bytes")


def logged(output: Path) -> list[dict[str, Any]]:
    """The log without what depends on the clock."""
    return [
        {k: v for k, v in line.items() if k not in CLOCK} for line in read_log(output / "log.jsonl")
    ]


def with_splits(tables: Tables) -> Inputs:
    """Twelve pairs to train on and four to validate with."""
    images = [f"image-{i}" for i in range(16)]
    rows = [(name, f"a dog beside {i} cats") for i, name in enumerate(images)]
    splits = ["train"] * 12 + ["val"] * 3 + ["dev"]
    tables.write_pairs(rows, {"split": splits})
    tables.write_regions(images)
    return Inputs(pairs=tables.pairs, regions=tables.regions)


def test_the_best_validated_checkpoint_is_published(
    tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    inputs, out = with_splits(tables), tmp_path / "out"
    # The rate only rises, far too high.
    wild = change_recipe(
        recipe,
        [
            "validate_every=2",
            "optimizer.lr=5",
            "optimizer.warmup=1",
            "steps=8",
            "keep_checkpoints=1",
        ],
    )
    said = pretrain(wild, inputs, out)
    lines = {line["step"]: line for line in logged(out) if "validation/loss" in line}
    assert sorted(lines) == [2, 4, 6, 8]
    losses = {step: line["validation/loss"] for step, line in lines.items()}
    best = min(losses, key=losses.__getitem__)
    page = (out / "report.html").read_text()
    assert page.count("<h2>Validation losses</h2>") == 1
    assert f"<td class='short'>best</td><td class='number'>{best}</td>" in page
    assert best != 8 and f"step-{best:08d} (best" in said
    assert sorted(saved_steps(out)) == [best, 8]
    assert load_checkpoint(out).training.step == best
    assert lines[best]["validation/loss"] == pytest.approx(
        sum(lines[best][f"validation/{name}"] for name in ("mlm", "moc", "mrfr", "itm")), rel=1e-5
    )


def test_validation_changes_nothing_in_training(
    tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    inputs = with_splits(tables)
    pretrain(recipe, inputs, tmp_path / "without")
    pretrain(change_recipe(recipe, ["validate_every=2"]), inputs, tmp_path / "with")
    kept = [
        {k: v for k, v in line.items() if not k.startswith("validation")}
        for line in logged(tmp_path / "with")
    ]
    assert kept == logged(tmp_path / "without")
    assert "Validation" not in (tmp_path / "without" / "report.html").read_text()


def test_without_held_out_pairs_validation_is_a_warning(
    tables: Tables, recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One image alone is not held out."""
    changes = ["validate_every=2", "steps=2"]
    pretrain(change_recipe(recipe, changes), tables.write(1), tmp_path / "o")
    assert "stage pairs has no pair to validate on" in capsys.readouterr().err


def test_a_checkpoint_holds_the_average_and_the_weights_beside(
    tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    inputs = tables.write()
    pretrain(recipe, inputs, tmp_path / "plain")
    pretrain(change_recipe(recipe, ["average=0.9"]), inputs, tmp_path / "averaged")
    assert logged(tmp_path / "plain") == logged(tmp_path / "averaged")
    plain = load_checkpoint(tmp_path / "plain").model.state_dict()
    averaged = load_checkpoint(tmp_path / "averaged").model.state_dict()
    state = load_training_state(saved_steps(tmp_path / "averaged")[6])
    name = "layers.0.attention.qkv.weight"
    assert torch.equal(state[f"weight.{name}"], plain[name])
    assert not torch.equal(averaged[name], plain[name])


def test_an_average_outlives_a_stage_that_freezes_parts(
    tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    """What no stage trains has no average; what a stage freezes has the average of its weight."""
    stages = [
        dataclasses.replace(recipe.stages[0], name=name, steps=2, trained=trained)
        for name, trained in (("one", ("layers.", "match_head.")), ("two", ("match_head.",)))
    ]
    both = dataclasses.replace(recipe, stages=tuple(stages), average=0.5)
    pretrain(both, tables.write(), tmp_path / "out")
    state = load_training_state(saved_steps(tmp_path / "out")[4])
    names = {name.removeprefix("weight.") for name in state if name.startswith("weight.")}
    assert names and all(name.startswith(("layers.", "match_head.")) for name in names)
    averages = {
        step: load_checkpoint(folder).model.state_dict()
        for step, folder in saved_steps(tmp_path / "out").items()
    }
    name = "layers.0.attention.qkv.weight"
    own = state[f"weight.{name}"]
    assert torch.equal(load_training_state(saved_steps(tmp_path / "out")[2])[f"weight.{name}"], own)
    expected = torch.lerp(torch.lerp(averages[2][name], own, 0.5), own, 0.5)
    torch.testing.assert_close(averages[4][name], expected)


VLMO = (
    *("model.width=16", "model.num_layers=2", "model.num_heads=2", "model.intermediate_width=32"),
    *("model.first_vl_layer=1", "model.image_size=32", "feeding.image_size=32", "save_every=2"),
    *("model.drop_path=0.2", "steps=4", "batch_size=8", "log_every=1", "feeding.flip=0.5"),
)


@pytest.mark.parametrize(
    ("variant", "changes"),
    [
        pytest.param("imagebert", ["average=0.9"], marks=pytest.mark.nightly),  # it is in the third
        ("imagebert", ["accumulation=2", "average=0.9", "optimizer.kind=bert-adam"]),
        ("vlmo", ["average=0.9", "accumulation=2", "precision=bf16"]),
        # Each of these is in another.
        pytest.param("imagebert", ["precision=bf16"], marks=pytest.mark.nightly),
        pytest.param("vlmo", ["precision=bf16"], marks=pytest.mark.nightly),
    ],
)
def test_a_killed_run_continues_with_another_number_of_workers(
    variant: str,
    changes: list[str],
    tables: Tables,
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mid-epoch: the kill comes after step 3, and the last checkpoint is of step 2."""
    inputs = tables.write()
    if variant == "vlmo":
        images = write_images(tmp_path / "images", 12)
        recipe, inputs = recipe_named("vlmo-small"), Inputs(pairs=inputs.pairs, images=images)
        recipe = change_recipe(recipe, VLMO)
    recipe = change_recipe(recipe, changes)
    pretrain(recipe, inputs, tmp_path / "whole")

    def dying(at: int, *args: Any) -> dict[str, float]:
        if at == 4:
            raise KeyboardInterrupt
        return train_step(at, *args)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop, "train_step", dying)
        pretrain(recipe, inputs, tmp_path / "killed")
    assert max(saved_steps(tmp_path / "killed")) == 2
    pretrain(change_recipe(recipe, ["workers=1"]), inputs, tmp_path / "killed")
    assert logged(tmp_path / "killed") == logged(tmp_path / "whole")
    expected = load_checkpoint(tmp_path / "whole").model.state_dict()
    for name, value in load_checkpoint(tmp_path / "killed").model.state_dict().items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_and_the_same_command_goes_on(
    number: int,
    tables: Tables,
    recipe: Recipe,
    undisturbed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = tables.write()

    def asked_to_stop(at: int, *args: Any) -> dict[str, float]:
        if at == 3:
            os.kill(os.getpid(), number)
        return train_step(at, *args)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "train_step", asked_to_stop)
        with pytest.raises(loop.Stopped, match="stopped at step 3, saved"):
            pretrain(recipe, inputs, tmp_path / "out")
    assert signal.getsignal(number) == signal.SIG_DFL
    assert max(saved_steps(tmp_path / "out")) == 3
    pretrain(recipe, inputs, tmp_path / "out")
    assert logged(tmp_path / "out") == logged(undisturbed)


@pytest.mark.parametrize(
    "change",
    [
        "checkpoint_activations=true",
        "attention_kernel=true",
        pytest.param("compile=true", marks=pytest.mark.long),
    ],
)
def test_how_layers_are_computed_changes_no_loss(
    change: str, tables: Tables, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The compiler's own code generator takes a minute; that it traces is what counts here.
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, **_: compile_(module, backend="eager"))
    inputs = tables.write()
    plain = change_recipe(recipe, ["model.dropout=0", "model.attention_dropout=0", "steps=3"])
    pretrain(plain, inputs, tmp_path / "plain")
    pretrain(change_recipe(plain, [change]), inputs, tmp_path / "changed")
    for one, other in zip(logged(tmp_path / "plain"), logged(tmp_path / "changed"), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)


def test_a_full_disk_leaves_the_checkpoint_before(
    tables: Tables,
    recipe: Recipe,
    undisturbed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs, save = tables.write(), safetensors.torch.save_file

    def full(tensors: Any, path: Path) -> None:
        if "step-00000004" in str(path):
            raise OSError(28, "No space left on device")
        save(tensors, path)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(checkpoint, "save_file", full)
        pretrain(recipe, inputs, tmp_path / "out")
    assert sorted(saved_steps(tmp_path / "out")) == [2]
    pretrain(recipe, inputs, tmp_path / "out")
    assert logged(tmp_path / "out") == logged(undisturbed)


def test_curves_are_written(tables: Tables, recipe: Recipe, tmp_path: Path) -> None:
    pretrain(change_recipe(recipe, ["steps=1"]), tables.write(), tmp_path / "out")
    files = list((tmp_path / "out" / TENSORBOARD).iterdir())
    assert files and files[0].stat().st_size > 100


def test_a_rate_for_what_starts_from_bert(tables: Tables, recipe: Recipe, tmp_path: Path) -> None:
    slow = change_recipe(recipe, ["steps=1", "optimizer.bert_rate=0.0", "optimizer.weight_decay=0"])
    inputs = tables.write()
    pretrain(change_recipe(recipe, ["steps=0"]), inputs, tmp_path / "start")
    pretrain(slow, dataclasses.replace(inputs, init=str(tmp_path / "start")), tmp_path / "out")
    before = load_checkpoint(tmp_path / "start").model.state_dict()
    after = load_checkpoint(tmp_path / "out").model.state_dict()
    name = "layers.0.attention.qkv.weight"
    assert torch.equal(before[name], after[name])
    assert not torch.equal(before["match_head.weight"], after["match_head.weight"])


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator here")
def test_float16_without_a_gpu_is_refused(tables: Tables, recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="precision=fp16 needs a GPU"):
        pretrain(change_recipe(recipe, ["precision=fp16"]), tables.write(), tmp_path / "out")


def test_bfloat16_trains(tables: Tables, recipe: Recipe, tmp_path: Path) -> None:
    pretrain(change_recipe(recipe, ["precision=bf16", "steps=2"]), tables.write(), tmp_path / "out")
    assert len(logged(tmp_path / "out")) == 2


def test_an_unknown_variant_is_refused(recipe: Recipe) -> None:
    with pytest.raises(InputError, match="variant: 'albert' is not one of"):
        change_recipe(recipe, ["variant=albert"])
