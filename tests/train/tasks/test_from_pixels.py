"""VCR and RefCOCO+ with the network of regions trained along: runs, starts, and bad rows."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.tasks.choices import choice_row, write_choices
from tests.train.tasks.expressions import PLACES, WIDTH
from tests.train.tasks.finetuning.starts import logged
from tests.train.tasks.from_pixels import NAMES, outlined, pixels_start, tiny, world, write_bare

from vlmill.models.vlbert.config import MEAN_BGR
from vlmill.runtime.files.shards import ShardWriter
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import REJECTS
from vlmill.train.checkpoints.files import load_checkpoint
from vlmill.train.cli import main
from vlmill.train.run import loop
from vlmill.train.run.step import train_step
from vlmill.train.tasks.batches import TaskBatches
from vlmill.train.tasks.evaluating.inputs import EvaluationOptions, open_evaluation
from vlmill.train.tasks.evaluating.job import prepare_batches
from vlmill.train.tasks.finetuning.dry_run import estimate_finetuning
from vlmill.train.tasks.finetuning.job import TaskInputs, finetune


def evaluate(task: str, inputs: TaskInputs, run: Path, output: Path, *more: str) -> int:
    assert inputs.images is not None
    words = ["evaluate", task, "--checkpoint", str(run), "--examples", inputs.examples]
    words += ["--images", inputs.images]
    if inputs.regions is not None:
        words += ["--regions", inputs.regions]
    return main([*words, "--output", str(output), *more])


@pytest.fixture(scope="module", params=NAMES)
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, TaskInputs, Path]:
    """A run of a few steps from drawn weights."""
    folder, task = tmp_path_factory.mktemp(request.param), request.param
    inputs = world(folder, task)
    finetune(tiny(task, "validate_every=4"), inputs, folder / "run")
    return task, inputs, folder / "run"


def test_a_killed_run_goes_on_bit_for_bit(
    trained: tuple[str, TaskInputs, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, inputs, run = trained
    parts = tmp_path / "parts"

    def killed(step: int, *rest: Any) -> dict[str, float]:
        if step == 4:
            raise KeyboardInterrupt
        return train_step(step, *rest)

    monkeypatch.setattr(loop, "train_step", killed)
    with pytest.raises(KeyboardInterrupt):
        finetune(tiny(task, "validate_every=4"), inputs, parts)
    monkeypatch.undo()
    finetune(tiny(task, "validate_every=4"), inputs, parts)
    assert logged(parts) == logged(run) and len(logged(run)) == 4
    last, first = load_checkpoint(run).model, tiny(task, "steps=0")
    finetune(first, inputs, tmp_path / "start")
    before = load_checkpoint(tmp_path / "start").model.state_dict()
    moved = {n for n, value in last.state_dict().items() if not torch.equal(value, before[n])}
    assert any(name.startswith("cnn.stem.") for name in moved)  # the pixels are learnt from


def test_validation_and_evaluation_say_the_same(
    trained: tuple[str, TaskInputs, Path], tmp_path: Path
) -> None:
    task, inputs, run = trained
    assert evaluate(task, inputs, run, tmp_path / "out", "--split", "val") == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    measured = logged(run)[-1]["validation/accuracy"]
    if task == "refcoco":
        assert metrics["refcoco+/val/accuracy"] == measured
    else:
        assert (metrics["vcr/val/q_a"] + metrics["vcr/val/qa_r"]) / 2 == pytest.approx(measured)


def opened_batches(
    trained: tuple[str, TaskInputs, Path], folder: Path, **changes: Any
) -> TaskBatches:
    """Batches of a run's examples as they are evaluated, with ``changes`` to their feeding."""
    task, inputs, run = trained
    opened = open_evaluation(
        EvaluationOptions(
            task=task,
            checkpoint=run,
            examples=inputs.examples,
            regions=inputs.regions,
            images=inputs.images,
            output=folder / "out",
        )
    )
    with ShardWriter(folder / "rejects", REJECTS, 0, 1) as rejects:
        batches = prepare_batches(opened, folder / "work", rejects)
    stage = dataclasses.replace(
        batches.stage, feeding=dataclasses.replace(batches.stage.feeding, **changes)
    )
    return dataclasses.replace(batches, stage=stage, training="flip" in changes)


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_boxes_outlines_and_pixels_are_of_one_image(
    trained: tuple[str, TaskInputs, Path], tmp_path: Path, flip: float
) -> None:
    task = trained[0]
    batches = opened_batches(trained, tmp_path, flip=flip)
    host, _ = batches.make_batch([0])
    assert host is not None
    batch = host.to("cpu")
    images = batch.image_regions
    assert images is not None and images.sizes.tolist() == [[64, 32]]
    shift = 2.0 if task == "refcoco" else 0.0  # its boxes are a detector's
    x1, y1, x2, y2 = ((PLACES[0] + shift) * (64 / WIDTH)).tolist()
    if flip:
        x1, x2 = 63 - x2, 63 - x1
    box = images.boxes[0, 1]
    torch.testing.assert_close(box, torch.tensor([max(x1, 0), y1, x2, y2]), atol=1e-4, rtol=0)
    assert batch.inputs.region_features.shape[2] == 0  # none is stored, or read
    centre = ((box[:2] + box[2:]) / 2).int().tolist()
    inside = images.images[0, :, centre[1], centre[0]] + torch.tensor(MEAN_BGR)
    assert sorted(inside.round().tolist()) == [20, 20, 200]
    masks = images.instance_masks
    assert (masks is None) == (task == "refcoco")
    if masks is not None:
        assert masks[0, 0].all() and masks[0, 3].all()  # the full image; without a polygon
        corner = masks[0, 1, 0, -1 if flip else 0]  # the triangle's right angle
        assert corner == 1 and 0 < masks[0, 1].sum() < masks[0, 1].numel()


def test_named_objects_alone_have_pixels_and_outlines(tmp_path: Path) -> None:
    """Of three objects the second is named, whose outline is a triangle."""
    inputs = world(tmp_path, "vcr", 4)
    rows = outlined([choice_row(n, question_tags=[[-1], [-1], [1], [-1], [-1]]) for n in range(4)])
    inputs = dataclasses.replace(inputs, examples=write_choices(tmp_path / "second", rows))
    finetune(tiny("vcr", "steps=1", "settings.objects=named"), inputs, tmp_path / "run")
    batches = opened_batches(("vcr", inputs, tmp_path / "run"), tmp_path)
    host, _ = batches.make_batch([0])
    assert host is not None
    batch = host.to("cpu")
    images = batch.image_regions
    assert images is not None and images.instance_masks is not None
    assert images.boxes.shape[1] == images.instance_masks.shape[1] == 2
    expected = torch.from_numpy(PLACES[1] * (64 / WIDTH))
    torch.testing.assert_close(images.boxes[0, 1], expected, atol=1e-4, rtol=0)
    mask = images.instance_masks[0, 1]
    assert mask[0, 0] == 1 and 0 < mask.sum() < mask.numel()
    assert set(batch.labels["text_regions"].flatten().tolist()) == {0, 1}


def test_a_blind_model_is_shown_no_pixel(
    trained: tuple[str, TaskInputs, Path], tmp_path: Path
) -> None:
    batches = dataclasses.replace(opened_batches(trained, tmp_path), blind=True)
    host, _ = batches.make_batch([0, 1])
    assert host is not None
    images = host.to("cpu").image_regions
    assert images is not None and images.images.abs().max() < 1
    task, inputs, _ = trained
    finetune(tiny(task, "blind=true", "steps=1"), inputs, tmp_path / "blind")


@pytest.mark.parametrize("task", NAMES)
def test_a_run_starts_from_pretraining_end_to_end(tmp_path: Path, task: str) -> None:
    init = pixels_start(tmp_path / "init", task)
    inputs = dataclasses.replace(world(tmp_path, task), init=str(init))
    frozen = "model.cnn.frozen_stages=2"
    finetune(tiny(task, frozen, "optimizer.lr=1e-2"), inputs, tmp_path / "out")
    before, after = load_checkpoint(init).model, load_checkpoint(tmp_path / "out").model
    ours, theirs = after.cnn.state_dict(), before.cnn.state_dict()
    same = {name.partition(".")[0] for name in ours if torch.equal(ours[name], theirs[name])}
    moved = {name.partition(".")[0] for name in ours if not torch.equal(ours[name], theirs[name])}
    assert {"stem", "res2"} <= same and moved == {"res3", "res4", "res5"}
    finetune(tiny(task, "steps=0"), inputs, tmp_path / "start")
    start = load_checkpoint(tmp_path / "start").model.model.body.state_dict()
    layers = [name for name in start if name.startswith("layers.")]
    assert layers and all(torch.equal(start[n], before.model.state_dict()[n]) for n in layers)
    again = dataclasses.replace(inputs, init=str(tmp_path / "out"))
    finetune(tiny(task, "steps=1"), again, tmp_path / "again")
    other = tiny(task, "model.cnn.stem_channels=6", "steps=1")
    with pytest.raises(InputError, match=r"model\.cnn\.stem_channels=6: --init .* has 4"):
        finetune(other, inputs, tmp_path / "other")


def test_a_image_without_a_box_counts_as_wrong_from_pixels_too(
    trained: tuple[str, TaskInputs, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, inputs, run = trained
    if task == "vcr":
        return  # its boxes are the objects', of which a question has some
    given = dataclasses.replace(inputs, regions=write_bare(tmp_path / "few", shift=2.0, empty=(3,)))
    assert evaluate(task, given, run, tmp_path / "out", "--split", "val") == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["refcoco+/val/upper_bound"] == 0.5  # images 3 and 7, two expressions each
    assert "2 expressions have no box to choose" in capsys.readouterr().err


def test_random_weights_are_not_kept_constant(tmp_path: Path) -> None:
    inputs = world(tmp_path, "vcr")
    with pytest.raises(InputError, match=r"frozen_stages=2: they are never trained.*--backbone"):
        finetune(tiny("vcr", "accumulation=1", name="end-to-end-q2a"), inputs, tmp_path / "out")


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    inputs, out = world(tmp_path, "vcr"), tmp_path / "out"
    with pytest.raises(InputError, match="--images is missing"):
        finetune(tiny("vcr"), dataclasses.replace(inputs, images=None), out)
    with pytest.raises(InputError, match=r"reads picture-regions; use the recipe on stored"):
        finetune(tiny("vcr", "feeding.kind=regions", "feeding.boxes=annotated"), inputs, out)
    with pytest.raises(InputError, match=r"boxes=examples: boxes of examples have no stored"):
        tiny("vcr", "feeding.kind=regions")
    expressions = world(tmp_path / "refcoco", "refcoco")
    with pytest.raises(InputError, match="an example of refcoco names no boxes"):
        finetune(tiny("refcoco", "feeding.boxes=examples"), expressions, out)


@pytest.mark.parametrize(
    "changes",
    [
        ("settings.regions=masked", "model.model.body.masked_region=pixels"),
        ("settings.words=true", "model.model.masked_words=true", "settings.subtasks=[qa2r]"),
    ],
)
def test_vcrs_other_losses_are_learnt_from_pixels(tmp_path: Path, changes: tuple[str, ...]) -> None:
    inputs = world(tmp_path, "vcr")
    finetune(tiny("vcr", "steps=2", *changes), inputs, tmp_path / "out")
    lines = logged(tmp_path / "out")
    assert len(lines) == 2 and all(line["loss/regions"] > 0 for line in lines)


def test_stored_features_are_not_needed(tmp_path: Path) -> None:
    """Also where the objects of VCR come from a table, as they do on stored features."""
    inputs = dataclasses.replace(
        world(tmp_path, "vcr"), annotated_regions=write_bare(tmp_path / "annotated")
    )
    finetune(tiny("vcr", "feeding.boxes=annotated", "feeding.flip=0"), inputs, tmp_path / "table")
    finetune(tiny("vcr", "feeding.flip=0"), inputs, tmp_path / "examples")
    table, examples = (logged(tmp_path / name) for name in ("table", "examples"))
    assert [line["loss"] for line in table] == [line["loss"] for line in examples]


def test_what_it_would_cost_is_told(tmp_path: Path) -> None:
    estimate = estimate_finetuning(tiny("vcr"), world(tmp_path, "vcr"))
    assert estimate.inputs["--examples"] == "32 examples" and estimate.seconds is not None


BAD = {
    "bad_row": (
        {"segms": json.dumps([[], [[]], []])},  # a polygon without points
        {"segms": json.dumps([[], []])},  # of two objects
        {"segms": "[[[1, 2, 3]]"},
        {"choices": ["it barks .", "it purrs .", "it floats ."]},
    ),
    "bad_reference": ({"question_tags": [[-1], [-1], [3], [-1], [-1]]},),
    "empty_box": ({"boxes": [0.0, 10, 40, 60, 60, 20, 100, 80, 120, 0, 290, 99]},),
}


def test_rows_that_cannot_be_right_are_named_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = world(tmp_path, "vcr")
    finetune(tiny("vcr", "steps=1"), inputs, tmp_path / "run")
    rows, number = outlined([choice_row(0)]), 1
    for columns in (columns for rows_of_kind in BAD.values() for columns in rows_of_kind):
        rows.append(outlined([choice_row(number)])[0] | columns)
        number += 1
    given = dataclasses.replace(inputs, examples=write_choices(tmp_path / "bad", rows))
    assert evaluate("vcr", given, tmp_path / "run", tmp_path / "out") == 2
    counts = ", ".join(f"{name} {len(BAD[name])}" for name in sorted(BAD))
    assert f"6 of 7 cannot be answered ({counts}): vcr/val-1/q2a" in capsys.readouterr().err
    more = ("--missing", "skip", "--fresh")
    assert evaluate("vcr", given, tmp_path / "run", tmp_path / "out", *more) == 0
    scores = json.loads((tmp_path / "out" / "vcr_scores.json").read_text())
    assert scores.keys() == {"vcr/val-0/q2a"}
    alone = dataclasses.replace(inputs, examples=write_choices(tmp_path / "alone", rows[:1]))
    assert evaluate("vcr", alone, tmp_path / "run", tmp_path / "one") == 0
    assert json.loads((tmp_path / "one" / "vcr_scores.json").read_text()) == scores
