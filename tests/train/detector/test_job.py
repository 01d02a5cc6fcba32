"""Whole small runs: what they write, how they go on, and what they refuse."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.train.detector.shapes import ATTRIBUTES, CLASSES, write_shapes

from vlmill.extract import cli
from vlmill.extract.config import saved_steps
from vlmill.extract.detect.checkpoint import read_saved
from vlmill.extract.detect.detector import open_detector
from vlmill.runtime.console.log import read_log
from vlmill.runtime.files.manifest import read_manifest
from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import BOXES, IMAGES
from vlmill.train.detector import learning
from vlmill.train.detector.batches import visits_from
from vlmill.train.detector.command import read_settings
from vlmill.train.detector.examples import require_whole
from vlmill.train.devices import setup
from vlmill.train.run import loop, runner
from vlmill.train.run.step import train_step

TINY = (
    *("detector.stem_channels=4", "detector.res2_channels=8", "detector.res2_width=2"),
    *("detector.rpn_channels=8", "detector.class_embedding_size=4", "detector.short_side=48"),
    *("detector.attribute_hidden_size=8", "detector.long_side=64", "short_sides=[48]"),
    *("long_side=64", "rpn.pre_nms_top=60", "rpn.post_nms_top=20", "detector.post_nms_top=10"),
    *("detector.pre_nms_top=40", "batch_size=2", "steps=4", "save_every=2", "log_every=1"),
    *("validation_pictures=2", "trackers=[]", "keep_checkpoints=3"),
)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight images to train on and two to validate on."""
    return write_shapes(tmp_path_factory.mktemp("shapes"), 8, held_out=2)


def train(shapes: Path, output: Path, *more: str) -> int:
    """Runs the command on a network of a few thousand weights."""
    tables = ["--boxes", str(shapes), "--images", str(shapes), "--output", str(output)]
    flags = [text for text in more if "=" not in text]
    fields = [text for text in more if "=" in text]
    return cli.command(["train", *tables, "--recipe", "small", *flags, *TINY, *fields])


@pytest.fixture(scope="module")
def trained(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a run."""
    output = tmp_path_factory.mktemp("trained") / "out"
    assert train(shapes, output) == 0
    return output


def losses(output: Path) -> list[tuple[int, float]]:
    """The losses of a run's log."""
    return [(line["step"], line["loss"]) for line in read_log(output / "log.jsonl")]


def test_a_run_writes_a_detector_that_extracts(trained: Path, shapes: Path, tmp_path: Path) -> None:
    saved = read_saved(trained)
    assert (saved.classes, saved.attributes) == (CLASSES, ATTRIBUTES)
    assert saved.config.num_attributes == len(ATTRIBUTES)
    assert [step for step, _ in losses(trained)] == [1, 2, 3, 4]
    metrics = json.loads((trained / "metrics.json").read_text())
    assert metrics["pictures"] == 2 and 0 <= metrics["vg/map"] <= 1
    report = (trained / "report.html").read_text()
    assert "Best classes" in report and "true boxes; right: " in report
    assert ">2</td>" in report and "2.0000" not in report  # images are counted
    regions = tmp_path / "regions"
    run = ["run", str(shapes), "--weights", str(trained), "--output", str(regions)]
    assert cli.command([*run, "--max-boxes", "5"]) == 0
    assert cli.command(["verify", str(regions)]) == 0


def test_normalisations_that_learned_are_constant_when_it_extracts(trained: Path) -> None:
    detector = open_detector(None, trained, folded=False)
    model = detector.model
    assert model.config.batch_norm == "frozen" and not next(iter(model.buffers())).requires_grad
    named = read_saved(trained).weights
    mean = model.state_dict()["backbone.stem.conv1.norm.running_mean"]
    assert torch.equal(mean, named["backbone.stem.conv1.norm.running_mean"]) and mean.any()


def test_a_killed_run_goes_on_bit_for_bit(trained: Path, shapes: Path, tmp_path: Path) -> None:
    """What a kill between the two checkpoints leaves, with half a checkpoint beside it."""
    output = tmp_path / "out"
    shutil.copytree(trained, output)
    shutil.rmtree(saved_steps(output)[4])
    for name in ("_manifest.json", "model.safetensors", "detector.json"):
        (output / name).unlink()
    (output / "checkpoints" / ".tmp-half").mkdir()
    assert train(shapes, output) == 0
    assert losses(output) == losses(trained)
    again, before = read_saved(output).weights, read_saved(trained).weights
    assert again.keys() == before.keys()
    assert all(torch.equal(again[name], before[name]) for name in before)
    assert not list((output / "checkpoints").glob(".tmp-*"))


def test_workers_change_nothing(trained: Path, shapes: Path, tmp_path: Path) -> None:
    assert train(shapes, tmp_path / "out", "workers=1") == 0
    assert losses(tmp_path / "out") == losses(trained)


def test_the_same_command_on_a_finished_run_says_so(
    trained: Path, shapes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(shapes, trained) == 0
    assert "already finished" in capsys.readouterr().out


def test_other_settings_are_refused_on_the_same_output(trained: Path, shapes: Path) -> None:
    with pytest.raises(InputError, match=r"solver\.lr was 0\.02"):
        train(shapes, trained, "solver.lr=0.5")


def test_a_loss_that_is_not_finite_stops_with_step_and_images(
    shapes: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    real = learning.make_optimizer

    def spoilt(model: torch.nn.Module, *rest: Any) -> torch.optim.Optimizer:
        """Its second step leaves a weight that is not a number."""
        optimizer = real(model, *rest)
        steps = iter(range(1, 5))
        parameter = next(p for p in model.parameters() if p.requires_grad)

        def spoil(*_: object) -> None:
            if next(steps) == 2:
                parameter.data.fill_(torch.nan)

        optimizer.register_step_post_hook(spoil)
        return optimizer

    monkeypatch.setattr(learning, "make_optimizer", spoilt)
    assert train(shapes, tmp_path / "out") == 1
    said = capsys.readouterr().out
    assert "diverged at step 3" in said and "shapes/0" in said
    assert max(saved_steps(tmp_path / "out")) == 2


def test_frozen_stages_of_random_weights_are_refused(shapes: Path, tmp_path: Path) -> None:
    """The output is not taken by what could not begin."""
    with pytest.raises(InputError, match="--init FILE"):
        train(shapes, tmp_path / "out", "detector.frozen_stages=2")
    assert train(shapes, tmp_path / "out", "steps=0") == 0


def test_a_detector_of_other_classes_gives_rows_by_their_names(
    trained: Path, shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = tmp_path / "names.txt"
    names.write_text("circle, disc\nstar\nsquare\nring\n")
    init = ["--init", str(trained), "--classes", str(names), "steps=0"]
    assert train(shapes, tmp_path / "out", *init) == 0
    assert "cls_score: 3 rows by their names" in capsys.readouterr().err
    inputs = {one.flag for one in read_manifest(tmp_path / "out")["inputs"]}
    assert "--init" in inputs
    before, after = (read_saved(place).weights for place in (trained, tmp_path / "out"))
    name = "roi_heads.box_predictor.cls_score.weight"
    old, new = before[name], after[name]
    assert torch.equal(new[[0, 2, 4]], old[[1, 0, 3]])  # disc, square, background
    assert not torch.equal(new[1], old[1])
    body = "backbone.res3.0.conv1.weight"
    assert torch.equal(before[body], after[body])


def test_bad_boxes_and_images_are_counted(
    shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Outside, inverted, unknown, crowd, cut; a missing image; an image without a box."""
    table = pq.read_table(next(shapes.glob("boxes-*.parquet"))).to_pylist()
    spoilt = table[0]
    spoilt["boxes"] = [
        *([130.0, 10, 140, 20], [30.0, 30, 10, 50], [5.0, 5, 30, 30], [5.0, 5, 30, 30]),
        [100.0, 50, 150, 80],
    ]
    spoilt["class_ids"] = [0, 0, 9, 0, 1]
    spoilt["is_crowd"] = [False, False, False, True, False]
    spoilt["attribute_ids"] = [[0]] * 5
    table[1] |= {"boxes": [], "class_ids": [], "attribute_ids": []}
    table[2] |= {"image_id": "shapes/missing"}
    folder = tmp_path / "boxes"
    folder.mkdir()
    write_shard(folder, BOXES, table)
    tables = ["--boxes", str(folder), "--images", str(shapes), "--output", str(tmp_path / "out")]
    names = [
        "--classes",
        str(shapes / "classes.json"),
        "--attributes",
        str(shapes / "attributes.json"),
    ]
    assert cli.command(["train", *tables, *names, "recipe=small", *TINY, "steps=0"]) == 0
    said = capsys.readouterr()
    for words in (
        "1 without a box, kept as negatives",
        "1 with a single one",
        "1 inverted or empty (first in shapes/00000)",
        "1 outside the image",
        "1 of an unknown class",
        "1 around a crowd",
        "1 cut at the border",
    ):
        assert words in said.err
    assert "classes with a single box: " in said.err
    assert "1 reject (1 no_picture)" in said.out
    assert rejected(tmp_path / "out") == [("shapes/missing", "no_picture")]


@pytest.mark.parametrize(
    ("column", "value"), [("class_ids", [0]), ("is_crowd", [False]), ("attribute_ids", [[0]])]
)
def test_lists_that_are_not_of_all_boxes_are_refused(
    column: str, value: list[Any], shapes: Path, tmp_path: Path
) -> None:
    table = pq.read_table(next(shapes.glob("boxes-*.parquet"))).to_pylist()
    row = {"boxes": [[1.0, 1, 9, 9]] * 2, "class_ids": [0, 1], "attribute_ids": [[0], []]}
    table[3] |= row | {column: value}
    folder = tmp_path / "boxes"
    folder.mkdir()
    write_shard(folder, BOXES, table)
    tables = ["--boxes", str(folder), "--images", str(shapes), "--output", str(tmp_path / "out")]
    with pytest.raises(InputError, match="shapes/00003 has"):
        cli.command(["train", *tables, "recipe=small", *TINY, "steps=0"])
    with pytest.raises(InputError, match="a null among"):  # of a table that was made elsewhere
        require_whole(table[4] | {"class_ids": [None] * len(table[4]["boxes"])})


def rejected(output: Path) -> list[tuple[str, str]]:
    """The images of a run's rejects, and why."""
    rows = pq.read_table(next(output.glob("rejects-*.parquet"))).to_pylist()
    return [(row["key"], row["reason"]) for row in rows]


def test_what_cannot_be_measured_is_a_reject_too(shapes: Path, tmp_path: Path) -> None:
    """A held-out image of another size than its boxes', and one that is not there."""
    table = pq.read_table(next(shapes.glob("boxes-*.parquet"))).to_pylist()
    held_out = [row for row in table if row["split"] == "val"]
    held_out[0]["width"] += 1
    held_out[1]["image_id"] = "shapes/missing"
    folder = tmp_path / "boxes"
    folder.mkdir()
    write_shard(folder, BOXES, table)
    tables = ["--boxes", str(folder), "--images", str(shapes), "--output", str(tmp_path / "out")]
    assert cli.command(["train", *tables, "recipe=small", *TINY, "steps=0"]) == 0
    assert rejected(tmp_path / "out") == [
        ("shapes/missing", "no_picture"),
        (held_out[0]["image_id"], "bad_boxes"),
    ]
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["pictures"] == 0


def test_a_killed_run_still_knows_what_it_could_not_use(
    shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image is met once, before the checkpoint that is left."""
    settings, output = read_settings("small", None, TINY), tmp_path / "out"
    first = next(visits_from([True] * 8, settings, 0))[0].example
    rows = pq.read_table(next(shapes.glob("images-*.parquet"))).to_pylist()
    rows[first]["bytes"] = b"no picture"
    folder = tmp_path / "images"
    folder.mkdir()
    write_shard(folder, IMAGES, rows)
    tables = ["--boxes", str(shapes), "--images", str(folder), "--output", str(output)]
    command = ["train", *tables, "recipe=small", *TINY, "validation_split=none"]

    def killed(step: int, *rest: Any) -> dict[str, float]:
        if step == 4:
            raise KeyboardInterrupt
        return train_step(step, *rest)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop, "train_step", killed)
        cli.command(command)
    assert max(saved_steps(output)) == 2
    assert cli.command(command) == 0
    assert rejected(output) == [(rows[first]["image_id"], "unsupported_format")]


def test_bfloat16_trains_the_same_detector(shapes: Path, trained: Path, tmp_path: Path) -> None:
    assert train(shapes, tmp_path / "out", "precision=bf16", "steps=2") == 0
    first, exact = losses(tmp_path / "out")[0][1], losses(trained)[0][1]
    assert first == pytest.approx(exact, rel=0.1) and first != exact
    weights = read_saved(tmp_path / "out").weights
    assert all(value.dtype == torch.float32 for value in weights.values())


def broken_images(shapes: Path, folder: Path, count: int) -> Path:
    """A table of images of which the first ones are none."""
    rows = pq.read_table(next(shapes.glob("images-*.parquet"))).to_pylist()
    for row in rows[:count]:
        row["bytes"] = b"no picture"
    folder.mkdir()
    write_shard(folder, IMAGES, rows)
    return folder


def test_a_step_of_broken_images_takes_the_next_ones(shapes: Path, tmp_path: Path) -> None:
    """With one image a step, as of the original's recipe, every step is one image."""
    folder, output = broken_images(shapes, tmp_path / "images", 5), tmp_path / "out"
    tables = ["--boxes", str(shapes), "--images", str(folder), "--output", str(output)]
    fields = ["recipe=small", *TINY, "batch_size=1", "steps=8"]
    assert cli.command(["train", *tables, *fields, "workers=1"]) == 0
    assert [step for step, _ in losses(output)] == list(range(1, 9))
    assert rejected(output) == [
        (f"shapes/{number:05d}", "unsupported_format") for number in range(5)
    ]


def test_images_of_which_none_can_be_used_end_the_run(shapes: Path, tmp_path: Path) -> None:
    folder = broken_images(shapes, tmp_path / "images", 8)
    tables = ["--boxes", str(shapes), "--images", str(folder), "--output", str(tmp_path / "out")]
    with pytest.raises(InputError, match="none of 9 images of a step can be used"):
        cli.command(["train", *tables, "recipe=small", *TINY])


def test_an_undecodable_image_is_left_out_of_its_step(
    shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = broken_images(shapes, tmp_path / "images", 1)
    tables = ["--boxes", str(shapes), "--images", str(folder), "--output", str(tmp_path / "out")]
    assert cli.command(["train", *tables, *TINY, "recipe=small"]) == 0
    assert "1 reject (" in capsys.readouterr().out
    assert [key for key, _ in rejected(tmp_path / "out")] == ["shapes/00000"]
    assert read_log(tmp_path / "out" / "log.jsonl")[-1]["undecodable_pictures"] == 1


def test_a_run_that_gets_no_better_ends_with_its_best_detector(
    shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill after the second validation changes nothing."""
    scores = {1: 0.3, 2: 0.5, 3: 0.4, 4: 0.2}
    real = learning.DetectorLearning.measure

    def scored(self: Any, run: Any, step: int, module: Any) -> dict[str, float]:
        return real(self, run, step, module) | {"validation/vg/map": scores[step]}

    monkeypatch.setattr(learning.DetectorLearning, "measure", scored)
    output = tmp_path / "out"
    fields = ["steps=9", "validate_every=1", "patience=2", "keep_checkpoints=1", "average=0.9"]
    assert train(shapes, output, *fields) == 0
    assert [step for step, _ in losses(output)] == [1, 2, 3, 4]
    assert sorted(saved_steps(output)) == [2, 4]
    best = read_saved(output)
    assert best.training["step"] == 2
    expected, weights = losses(output), best.weights
    for path in (saved_steps(output)[4], output / "_manifest.json"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert train(shapes, output, *fields) == 0
    assert losses(output) == expected
    again = read_saved(output).weights
    assert all(torch.equal(again[name], weights[name]) for name in weights)


@pytest.mark.nightly
def test_compiled_blocks_train_the_same_detector(
    shapes: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced alone: generating code takes minutes on a CPU."""
    compiled = Counter[str]()

    def compile_blocks(model: torch.nn.Module) -> None:
        setup.compile_blocks(model, backend=count)

    def count(graph: Any, inputs: Any) -> Any:
        compiled["graphs"] += 1
        return graph.forward

    monkeypatch.setattr(runner, "compile_blocks", compile_blocks)
    assert train(shapes, tmp_path / "out", "compile=blocks", "steps=1") == 0
    assert compiled["graphs"] > 0
    assert losses(tmp_path / "out")[0][1] == pytest.approx(losses(trained)[0][1], rel=1e-4)


def test_a_checkpoint_with_momenta_alone_goes_on(
    shapes: Path, trained: Path, tmp_path: Path
) -> None:
    """As an earlier version wrote it."""
    output = tmp_path / "out"
    shutil.copytree(trained, output)
    shutil.rmtree(saved_steps(output)[4])
    for name in ("_manifest.json", "model.safetensors", "detector.json"):
        (output / name).unlink()
    folder = saved_steps(output)[2]
    state = load_file(folder / "training_state.safetensors")
    prefix = "optimizer.momentum_buffer."
    momenta = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    save_file(momenta, folder / "training_state.safetensors", metadata={"rejects": "{}"})
    metadata = json.loads((folder / "detector.json").read_text())
    del metadata["files"]
    (folder / "detector.json").write_text(json.dumps(metadata))
    assert train(shapes, output) == 0
    assert losses(output) == losses(trained)
