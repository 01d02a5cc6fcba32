from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from vlmill.runtime.console.log import read_log
from vlmill.runtime.files.manifest import verify_folder
from vlmill.runtime.files.outputs import prepare_output
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.regions import RegionReader, encode_regions, region_arrays
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import REGIONS, REJECTS
from vlmill.train.checkpoints.files import load_checkpoint
from vlmill.train.checkpoints.folders import saved_steps
from vlmill.train.loading.features import load_features
from vlmill.train.objectives.pretraining import region_losses
from vlmill.train.recipes import Recipe, Stage, change_recipe, recipe_named
from vlmill.train.recipes.training import VariantTraining
from vlmill.train.run import loop, pretraining
from vlmill.train.run.inputs import Inputs
from vlmill.train.run.job import pretrain
from vlmill.train.run.model import first_model
from vlmill.train.run.preparing import longest_alone
from vlmill.train.run.snapshot import num_processes
from vlmill.train.run.step import NonFiniteLoss, train_step

if TYPE_CHECKING:
    from tests.factories import Tables


def test_lines_that_come_with_captions_are_kept_at_the_length_of_a_row() -> None:
    assert longest_alone(recipe_named("vl-bert")) == 66  # 64 pieces, [CLS] and [SEP]
    assert longest_alone(recipe_named("imagebert")) is None


def logged(output: Path) -> list[dict[str, Any]]:
    """The log without what depends on the clock."""
    lines = read_log(output / "log.jsonl")
    clock = ("samples_per_second", "mfu", "data_wait", "process_memory_bytes")
    return [{k: v for k, v in line.items() if k not in clock} for line in lines]


def weights(output: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = load_checkpoint(output).model.state_dict()
    return state


def assert_same_run(one: Path, other: Path) -> None:
    assert logged(one) == logged(other)
    expected = weights(other)
    for name, value in weights(one).items():
        assert torch.equal(value, expected[name]), name


MORE_STEPS = [pytest.param(step, marks=pytest.mark.long) for step in (1, 4, 5)]
MORE_STAGED_STEPS = [pytest.param(step, marks=pytest.mark.long) for step in (3, 6)]


class Killed(Exception):
    """Stands for a kill: nothing handles it."""


def kill_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let training die as step ``step`` begins."""

    def dying(at: int, *args: Any) -> dict[str, float]:
        if at == step:
            raise Killed
        return train_step(at, *args)

    monkeypatch.setattr(loop, "train_step", dying)


def test_a_run_leaves_what_evaluation_needs(tables: Tables, recipe: Recipe, tmp_path: Path) -> None:
    inputs = tables.write()
    said = pretrain(recipe, inputs, tmp_path / "out")
    assert "6 steps on 12 pairs" in said
    out = tmp_path / "out"
    lines = read_log(out / "log.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert set(lines[0]) == {
        *("step", "stage", "loss", "lr", "samples_per_second", "mfu"),
        *("gradient_norm", "data_wait", "process_memory_bytes", "pairs/null"),
        *("loss/mlm", "loss/moc", "loss/mrfr", "loss/itm"),
    }
    for line in lines:
        parts = sum(value for name, value in line.items() if name.startswith("loss/"))
        assert line["loss"] == pytest.approx(parts)
        assert line["gradient_norm"] > 0 and 0 <= line["data_wait"] <= 1
        assert line["process_memory_bytes"] > 1e7
        assert line["pairs/null"] == 4
    loaded = load_checkpoint(out)
    assert loaded.detector_fingerprint == "detector-a"
    assert (loaded.training.step, loaded.training.num_pairs) == (6, 12)
    assert (loaded.config.region_width, loaded.config.num_region_classes) == (16, 7)
    assert loaded.config.vocab_size == loaded.tokenizer.get_vocab_size()
    assert sorted(saved_steps(out)) == [2, 4, 6]
    assert verify_folder(out) == []
    assert "<svg" in (out / "report.html").read_text()
    assert not list(out.glob("*.arrow"))


def test_the_same_command_gives_the_same_losses(
    tables: Tables, recipe: Recipe, undisturbed: Path, tmp_path: Path
) -> None:
    inputs = tables.write()
    torch.manual_seed(123)  # what a process did before must not matter
    pretrain(recipe, inputs, tmp_path / "other")
    assert_same_run(undisturbed, tmp_path / "other")
    pretrain(dataclasses.replace(recipe, seed=1), inputs, tmp_path / "seed")
    assert logged(tmp_path / "seed")[0]["loss"] != logged(undisturbed)[0]["loss"]


@pytest.mark.parametrize("step", [2, *MORE_STEPS])
def test_a_killed_run_continues_bit_for_bit(
    step: int,
    tables: Tables,
    recipe: Recipe,
    undisturbed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs, killed = tables.write(), tmp_path / "killed"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(step, patch)
        pretrain(recipe, inputs, killed)
    assert len(logged(killed)) == step - 1
    with (killed / "log.jsonl").open("a") as log:
        log.write('{"step": 99, "lo')
    half = killed / "checkpoints" / ".tmp-1-step-00000099"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_bytes(b"cut")
    pretrain(recipe, inputs, killed)
    assert_same_run(killed, undisturbed)
    assert not half.exists()


@pytest.mark.parametrize("step", [4, *MORE_STAGED_STEPS])
def test_stages_continue_too(
    step: int, tables: Tables, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = tables.write()
    first = dataclasses.replace(recipe.stages[0], name="first", steps=3, sources=("cc",))
    second = dataclasses.replace(recipe.stages[0], name="second", steps=None, epochs=1.0)
    recipe = dataclasses.replace(recipe, stages=(first, second))
    rows = [(f"image-{i}", f"a dog and {i} cats") for i in range(12)]
    tables.write_pairs(rows, {"source": ["cc", "sbu"] * 6})
    pretrain(recipe, inputs, tmp_path / "whole")
    lines = logged(tmp_path / "whole")
    assert [line["stage"] for line in lines] == ["first"] * 3 + ["second"] * 3
    assert lines[2]["lr"] < lines[0]["lr"] and lines[3]["lr"] == lines[0]["lr"]  # a new schedule
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(step, patch)
        pretrain(recipe, inputs, tmp_path / "killed")
    pretrain(recipe, inputs, tmp_path / "killed")
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


def test_a_stage_without_pairs_names_the_sources(
    tables: Tables, recipe: Recipe, stage: Stage, tmp_path: Path
) -> None:
    inputs = tables.write()
    recipe = dataclasses.replace(recipe, stages=(dataclasses.replace(stage, sources=("lait",)),))
    with pytest.raises(InputError, match=r"no pair of source lait .*there are: null 12"):
        pretrain(recipe, inputs, tmp_path / "out")


def test_no_steps_write_the_untrained_model(tables: Tables, recipe: Recipe, tmp_path: Path) -> None:
    inputs = tables.write()
    pretrain(change_recipe(recipe, ["steps=0"]), inputs, tmp_path / "none")
    assert logged(tmp_path / "none") == []
    assert load_checkpoint(tmp_path / "none").training.step == 0
    one = change_recipe(recipe, ["steps=1", "optimizer.lr=1e-30", "optimizer.weight_decay=0"])
    pretrain(one, inputs, tmp_path / "one")
    start = weights(tmp_path / "none")
    for name, value in weights(tmp_path / "one").items():
        torch.testing.assert_close(value, start[name])


def test_features_are_standardised_by_their_statistics(
    tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    inputs = tables.write()
    reader = RegionReader(tables.regions)
    features = np.concatenate([load_features(row, 100) for row in reader])
    standard = (features - features.mean(0)) / features.std(0)
    pretrain(change_recipe(recipe, ["steps=0"]), inputs, tmp_path / "plain")
    change = ["steps=0", "standardise_features=true"]
    pretrain(change_recipe(recipe, change), inputs, tmp_path / "standard")
    plain, standardised = (
        load_checkpoint(tmp_path / name).model.region_embedding.feature
        for name in ("plain", "standard")
    )
    torch.testing.assert_close(
        standardised(torch.from_numpy(features)),
        plain(torch.from_numpy(standard)),
        atol=1e-4,
        rtol=1e-3,
    )


def test_a_finished_run_is_left_alone_and_fresh_starts_over(
    tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    inputs, out = tables.write(), tmp_path / "out"
    pretrain(recipe, inputs, out)
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file()}
    assert "finished at step 6" in pretrain(recipe, inputs, out)
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file()} == before
    pretrain(change_recipe(recipe, ["steps=3"]), inputs, out, fresh=True)
    assert sorted(saved_steps(out)) == [2, 3] and len(logged(out)) == 3


@pytest.mark.parametrize(
    ("change", "named"),
    [("optimizer.lr=0.5", "stages.0.optimizer.lr was 0.001 and is 0.5"), ("seed=3", "seed was 0")],
)
def test_another_recipe_on_the_same_output_is_refused(
    change: str, named: str, tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    inputs = tables.write()
    short = change_recipe(recipe, ["steps=1"])
    pretrain(short, inputs, tmp_path / "out")
    with pytest.raises(InputError, match=rf"other settings \({named}.*--fresh"):
        pretrain(change_recipe(short, [change]), inputs, tmp_path / "out")
    pretrain(change_recipe(short, ["keep_checkpoints=9"]), inputs, tmp_path / "out")


def test_other_pairs_on_the_same_output_are_refused(
    tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    inputs = tables.write()
    short = change_recipe(recipe, ["steps=1"])
    pretrain(short, inputs, tmp_path / "out")
    tables.write(11)
    with pytest.raises(InputError, match="pairs was '12 pairs"):
        pretrain(short, inputs, tmp_path / "out")


def test_negatives_count_as_settings_and_are_used(
    tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    inputs = tables.write()
    pairs = tables.write_pairs([(f"image-{i}", f"a dog and {i} cats") for i in range(12)])
    hard = tables.write_negatives({pair: [pairs[0]] for pair in pairs[1:]})
    recipe = change_recipe(recipe, ["hard_negative_share=1", "steps=3"])
    pretrain(recipe, inputs, tmp_path / "random")
    pretrain(recipe, dataclasses.replace(inputs, negatives=hard), tmp_path / "hard")
    assert logged(tmp_path / "random") != logged(tmp_path / "hard")


def test_pairs_without_regions_are_rejected_rows(
    tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    inputs = tables.write()
    tables.write_regions([f"image-{i}" for i in range(11)], empty=("image-3",))
    said = pretrain(change_recipe(recipe, ["steps=1"]), inputs, tmp_path / "out")
    assert "on 10 pairs; 2 rejected (1 no_regions, 1 no_boxes)" in said
    rows = read_table(str(tmp_path / "out"), REJECTS).to_pylist()
    assert [row["reason"] for row in rows] == ["no_boxes", "no_regions"]


def test_a_checkpoint_is_the_start_of_another_run(
    tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    inputs = tables.write()
    pretrain(recipe, inputs, tmp_path / "first")
    again = dataclasses.replace(inputs, init=str(tmp_path / "first"))
    pretrain(change_recipe(recipe, ["steps=0"]), again, tmp_path / "second")
    expected = weights(tmp_path / "first")
    for name, value in weights(tmp_path / "second").items():
        assert torch.equal(value, expected[name])
    vocab = {p: (tmp_path / p / "vocab.txt").read_bytes() for p in ("first", "second")}
    assert vocab["first"] == vocab["second"]


def test_changes_that_the_checkpoint_does_not_allow_are_refused(
    tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    inputs = tables.write()
    pretrain(change_recipe(recipe, ["steps=0"]), inputs, tmp_path / "first")
    again = dataclasses.replace(inputs, init=str(tmp_path / "first"))
    for field, held in (("num_layers=1", "2"), ("num_heads=4", "2"), ("width=32", "16")):
        changed = change_recipe(recipe, [f"model.{field}"])
        with pytest.raises(InputError, match=rf"model.{field}: --init \S+ has {held}; leave"):
            pretrain(changed, again, tmp_path / "second")
    assert not (tmp_path / "second").exists()
    quiet = change_recipe(recipe, ["model.dropout=0.3", "model.vocab_size=99", "steps=0"])
    pretrain(quiet, again, tmp_path / "second")
    config = load_checkpoint(tmp_path / "second").config
    assert config.dropout == 0.3 and config.vocab_size != 99


def test_what_is_needed_or_not_read_is_said(
    tables: Tables, recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = tables.write()
    given = dataclasses.replace(inputs, images=inputs.pairs)
    needy = dataclasses.replace(recipe, needs="--negatives; --init from BERT")
    pretrain(change_recipe(needy, ["steps=0"]), given, tmp_path / "out")
    said = capsys.readouterr().err
    assert "tiny needs --init (see `train-vl recipes`); without it, weights are random" in said
    assert (
        "tiny needs --negatives (see `train-vl recipes`); without it, negatives are sampled" in said
    )
    assert "note: --images is not read" in said


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ({"fingerprint": "detector-b"}, "come from detector detector-b, --init"),
        ({"classes": None}, "add objectives.moc=0"),
    ],
)
def test_regions_that_do_not_fit_are_refused(
    now: dict[str, Any], message: str, tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    inputs = tables.write()
    pretrain(change_recipe(recipe, ["steps=0"]), inputs, tmp_path / "first")
    tables.write_regions([f"image-{i}" for i in range(12)], **now)
    again = dataclasses.replace(inputs, init=str(tmp_path / "first"))
    with pytest.raises(InputError, match=message):
        pretrain(recipe, again, tmp_path / "second")
    assert not (tmp_path / "second").exists()


def write_distributions(tables: Tables, count: int) -> None:
    """The same detector's regions with whole distributions over 7 classes and background."""
    reader = RegionReader(tables.regions)
    rows = [
        dataclasses.replace(row, class_probs=np.full((len(row.boxes), count), 1 / count))
        for row in reader
    ]
    write_shard(
        tables.regions,
        REGIONS,
        encode_regions(rows, dtype="float16"),
        producer=reader.producer,
        arrays=region_arrays(dtype="float16", feature_dim=16, class_probs_dim=count),
    )


def test_distributions_that_no_stage_reads_do_not_matter_to_a_checkpoint(
    tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    inputs = tables.write()
    recipe = change_recipe(recipe, ["model.num_region_classes=7", "steps=0"])
    pretrain(recipe, inputs, tmp_path / "first")
    classes = load_checkpoint(tmp_path / "first").config.num_region_classes
    write_distributions(tables, classes + 1)
    again = dataclasses.replace(inputs, init=str(tmp_path / "first"))
    pretrain(change_recipe(recipe, ["steps=1"]), again, tmp_path / "second")
    assert load_checkpoint(tmp_path / "second").config.num_region_classes == classes
    asks = change_recipe(recipe, ["feeding.region_targets=distribution"])
    message = (
        rf"--init predicts {classes} classes, the distributions of --regions have "
        rf"{classes + 1} with "
        r"background; add stages\.0\.feeding\.region_targets=class$"
    )
    with pytest.raises(InputError, match=message):
        pretrain(asks, again, tmp_path / "third")


@pytest.mark.parametrize(
    ("first", "second", "moved"),
    [("class", "distribution", 1), ("distribution", "class", -1), ("class", "class", 0)],
)
def test_a_head_that_numbers_classes_otherwise_is_moved(
    first: str, second: str, moved: int, tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    """Class 3 without background is class 4 with it: each row goes where its class is."""
    inputs = tables.write()
    recipe = change_recipe(recipe, ["model.num_region_classes=9", "steps=0"])
    ours = change_recipe(recipe, [f"feeding.region_targets={first}"])
    pretrain(ours, inputs, tmp_path / "first")
    theirs = change_recipe(recipe, [f"feeding.region_targets={second}"])
    again = dataclasses.replace(inputs, init=str(tmp_path / "first"))
    pretrain(theirs, again, tmp_path / "second")
    before, after = weights(tmp_path / "first"), weights(tmp_path / "second")
    for name, value in before.items():
        rows = value.roll(moved, 0) if name.startswith("class_head.") else value
        assert torch.equal(after[name], rows), name


def test_a_warm_up_that_outlasts_the_run_is_said_with_a_remedy(
    tables: Tables, recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = tables.write()
    steps = ["steps=2", "optimizer.warmup_steps=8"]
    pretrain(change_recipe(recipe, steps), inputs, tmp_path / "long")
    said = capsys.readouterr().err
    assert "stage pairs has 2 steps and warms up for 8: its rate ends at 0.00013 of 0.001" in said
    assert "set stages.0.optimizer.warmup_steps=null" in said
    remedy = [*steps, "stages.0.optimizer.warmup_steps=null"]
    pretrain(change_recipe(recipe, remedy), inputs, tmp_path / "short")
    assert "warms up" not in capsys.readouterr().err


def test_pairs_of_other_images_are_refused_with_ids_of_both(
    tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    inputs = tables.write()
    tables.write_regions(["x", "y"])
    message = r"\(12 no_regions\): --pairs has image-0 .*, --regions has x y; give"
    with pytest.raises(InputError, match=message):
        pretrain(recipe, inputs, tmp_path / "out")


def test_ids_but_for_an_ending_give_the_same_run(
    tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    inputs = tables.write()
    recipe = change_recipe(recipe, ["steps=2"])
    pretrain(recipe, inputs, tmp_path / "first")
    tables.write_regions([f"image-{i}.jpg" for i in range(12)])
    pretrain(recipe, inputs, tmp_path / "second")
    assert logged(tmp_path / "first") == logged(tmp_path / "second")


def test_an_unknown_detector_is_a_warning(
    tables: Tables, recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = tables.write()
    tables.write_regions([f"image-{i}" for i in range(12)], fingerprint=None)
    pretrain(change_recipe(recipe, ["steps=0"]), inputs, tmp_path / "out")
    assert "--regions has no detector fingerprint" in capsys.readouterr().err


def test_without_classes_the_other_objectives_train(
    tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    inputs = tables.write()
    tables.write_regions([f"image-{i}" for i in range(12)], classes=None)
    pretrain(change_recipe(recipe, ["objectives.moc=0", "steps=1"]), inputs, tmp_path / "out")
    assert "loss/moc" not in logged(tmp_path / "out")[0]


def test_a_vocabulary_file_is_used(tables: Tables, recipe: Recipe, tmp_path: Path) -> None:
    inputs = tables.write()
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dog", "cat"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens))
    given = dataclasses.replace(inputs, vocab=str(tmp_path / "vocab.txt"))
    pretrain(change_recipe(recipe, ["steps=1"]), given, tmp_path / "out")
    assert (tmp_path / "out" / "vocab.txt").read_text().split() == tokens
    both = dataclasses.replace(given, init=str(tmp_path / "out"))
    with pytest.raises(InputError, match="remove --vocab"):
        pretrain(recipe, both, tmp_path / "other")


def test_a_loss_that_is_not_finite_names_the_loss_and_no_innocent_image(
    tables: Tables, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = tables.write()
    losses = region_losses

    def broken(*args: Any, **options: Any) -> dict[str, torch.Tensor]:
        found = losses(*args, **options)
        return {**found, "mrfr": found["mrfr"] * float("nan")}

    monkeypatch.setattr(pretraining, "get_training", lambda _: VariantTraining(losses=broken))
    with pytest.raises(NonFiniteLoss, match=r"step 1: loss nan, .*mrfr nan.*optimizer.lr") as error:
        pretrain(recipe, inputs, tmp_path / "out")
    assert not saved_steps(tmp_path / "out")
    assert "image-" not in str(error.value) and not re.search("[0-9a-f]{32}", str(error.value))


def test_weights_that_are_not_finite_are_named(
    tables: Tables, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = tables.write()

    def broken(*args: Any) -> torch.nn.Module:
        model = first_model(*args)
        with torch.no_grad():
            model.get_parameter("region_embedding.feature.bias")[0] = float("inf")
        return model

    monkeypatch.setattr("vlmill.train.run.job.first_model", broken)
    named = r"step 1: .*model was not finite before the step \(.*region_embedding.feature.bias\)"
    with pytest.raises(NonFiniteLoss, match=named):
        pretrain(recipe, inputs, tmp_path / "out")


def test_parts_of_a_step_are_added_up(tables: Tables, recipe: Recipe, tmp_path: Path) -> None:
    inputs = tables.write()
    whole = change_recipe(recipe, ["model.dropout=0", "model.attention_dropout=0"])
    pretrain(whole, inputs, tmp_path / "whole")
    pretrain(change_recipe(whole, ["accumulation=2"]), inputs, tmp_path / "parts")
    for one, other in zip(logged(tmp_path / "whole"), logged(tmp_path / "parts"), strict=True):
        losses = {name: value for name, value in one.items() if name.startswith("loss")}
        assert losses == pytest.approx({name: other[name] for name in losses}, rel=1e-4)


def test_a_start_that_fails_before_step_1_does_not_claim_its_output(
    tables: Tables, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, out = tables.write(), tmp_path / "out"
    for wrong, message in (("sources=[none]", "no pair of source"), ("share=1e-9", "no pair")):
        with pytest.raises(InputError, match=message):
            pretrain(change_recipe(recipe, [wrong]), inputs, out)
        assert (out / "prepared").exists()
    with monkeypatch.context() as broken:
        kill_at(1, broken)
        with pytest.raises(Killed):
            pretrain(change_recipe(recipe, ["optimizer.lr=9"]), inputs, out)
    corrected = change_recipe(recipe, ["steps=3", "save_every=9"])
    with monkeypatch.context() as broken:
        kill_at(3, broken)
        with pytest.raises(Killed):
            pretrain(corrected, inputs, out)
    with pytest.raises(InputError, match="seed was 0 and is 1"):  # steps were made, none is saved
        pretrain(change_recipe(corrected, ["seed=1"]), inputs, out)
    pretrain(corrected, inputs, out)
    assert sorted(saved_steps(out)) == [3] and [x["step"] for x in logged(out)] == [1, 2, 3]
    assert verify_folder(out) == []


def test_a_failed_start_gives_way_to_training_alone(
    tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    """The tables of another job have no checkpoint either."""
    inputs, out = tables.write(), tmp_path / "out"
    prepare_output(out, job="manifest own", settings={})
    write_shard(out, REJECTS, [])
    with pytest.raises(InputError, match="holds the output of manifest own"):
        pretrain(recipe, inputs, out)
    assert list(out.glob("rejects-*"))


def test_more_or_fewer_processes_than_before_are_a_warning(
    tables: Tables,
    recipe: Recipe,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs, out = tables.write(), tmp_path / "out"
    kill_at(5, monkeypatch)
    with pytest.raises(Killed):
        pretrain(recipe, inputs, out)
    monkeypatch.undo()
    path = saved_steps(out)[4] / "training_state.safetensors"
    state = load_file(path)
    assert num_processes(state) == 1
    save_file(state | {"rng.cpu.1": state["rng.cpu.0"].clone()}, path)
    settings = json.loads((path.parent / "checkpoint.json").read_text())
    del settings["files"]  # of the file as it was
    (path.parent / "checkpoint.json").write_text(json.dumps(settings))
    pretrain(recipe, inputs, out)
    assert "trained by 2 processes and continues with 1: steps have the" in capsys.readouterr().err


def test_an_output_of_something_else_is_left_alone(
    tables: Tables, recipe: Recipe, tmp_path: Path
) -> None:
    inputs = tables.write()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    for fresh in (False, True):
        with pytest.raises(InputError, match="holds thesis"):
            pretrain(recipe, inputs, tmp_path / "out", fresh=fresh)
    assert json.dumps(sorted(p.name for p in (tmp_path / "out").iterdir())) == '["thesis.tex"]'


def test_no_pair_to_train_on_says_why(tables: Tables, recipe: Recipe, tmp_path: Path) -> None:
    inputs: Inputs = tables.write()
    tables.write_regions(["another"])
    with pytest.raises(InputError, match=r"no pair to train on \(12 no_regions\)"):
        pretrain(recipe, inputs, tmp_path / "out")
