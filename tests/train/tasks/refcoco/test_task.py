"""Referring expressions: labels by hand, runs with both heads, and what evaluation writes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.factories import write_images
from tests.train.tasks.expressions import (
    PLACES,
    expression,
    tiny,
    world,
    write_boxes,
    write_expressions,
)

from vlmill.runtime.console.log import read_log
from vlmill.schemas.errors import InputError
from vlmill.train.cli import main
from vlmill.train.tasks.finetuning.job import TaskInputs, finetune
from vlmill.train.tasks.refcoco.settings import RefcocoSettings
from vlmill.train.tasks.refcoco.task import is_outside, make_targets, prepend_image_box


def test_labels_by_hand() -> None:
    boxes = np.array([[0, 0, 9, 9], [0, 0, 9, 4], [0, 5, 9, 9], [20, 20, 30, 30]], np.float32)
    named = np.array([0, 0, 9, 9], np.float32)
    # With an added pixel: 100 of 100, 50 of 100, 50 of 100, 0.
    soft = make_targets(boxes, named, RefcocoSettings(labels="soft"))
    assert soft.tolist() == [1.0, 0.5, 0.5, 0.0]
    assert make_targets(boxes, named, RefcocoSettings()).tolist() == [1, 1, 1, 0]
    above = make_targets(boxes, named, RefcocoSettings(label_rule="released"))
    assert above.tolist() == [1, 0, 0, 0]


def test_the_full_image_is_the_first_candidate() -> None:
    vilbert, vlbert = (tiny(f"refcoco-{name}-small").stages[0].feeding for name in NAMES)
    assert prepend_image_box(PLACES, (200, 100), vilbert)[0].tolist() == [0, 0, 200, 100]
    assert prepend_image_box(PLACES, (200, 100), vlbert)[0].tolist() == [0, 0, 199, 99]
    assert not is_outside([0, 0, 200.5, 100], (200, 100))
    assert is_outside([0, 0, 210, 100], (200, 100)) and is_outside([-3, 0, 9, 9], (200, 100))


NAMES = ("vilbert", "vl-bert")


def evaluate(inputs: TaskInputs, run: Path, output: Path, *more: str) -> int:
    words = ["evaluate", "refcoco", "--checkpoint", str(run), "--examples", inputs.examples]
    assert inputs.regions is not None
    return main([*words, "--regions", inputs.regions, "--output", str(output), *more])


@pytest.fixture(scope="module", params=NAMES)
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TaskInputs, Path]:
    """A run; ViLBERT's is long enough to learn which feature a word means."""
    folder = tmp_path_factory.mktemp(request.param)
    inputs, steps = world(folder), 60 if request.param == "vilbert" else 3
    changes = (f"steps={steps}", "batch_size=12", "optimizer.lr=8e-3", f"save_every={steps}")
    name = f"refcoco-{request.param}-small"
    finetune(tiny(name, *changes, f"validate_every={steps}"), inputs, folder / "run")
    return inputs, folder / "run"


def test_a_run_learns_and_is_measured_among_detected_boxes(
    trained: tuple[TaskInputs, Path], tmp_path: Path
) -> None:
    inputs, run = trained
    lines = [line for line in read_log(run / "log.jsonl") if "loss" in line]
    has_learnt = len(lines) > 3
    assert lines[-1]["loss"] < lines[0]["loss"] * (0.5 if has_learnt else 1)
    out = tmp_path / "out"
    images = write_images(tmp_path / "images", 8)
    assert evaluate(inputs, run, out, "--images", images) == 0
    metrics: dict[str, Any] = json.loads((out / "metrics.json").read_text())
    assert metrics["refcoco+/val/accuracy"] >= 0.75 * has_learnt  # one of three by chance
    assert metrics["refcoco+/val/upper_bound"] == 1.0 and metrics["refcoco+/val/accuracy_n"] == 8
    assert metrics["refcoco+/val/accuracy/words/0-2_n"] == 8
    assert metrics["refcoco+/val/accuracy/candidates/0-5_n"] == 8
    assert "refcoco+/val/accuracy_identity" not in metrics
    page = (out / "report.html").read_text()
    assert "62.61" in page and "<rect" in page and "chosen" in page


def test_annotated_boxes_are_told_apart(trained: tuple[TaskInputs, Path], tmp_path: Path) -> None:
    inputs, run = trained
    assert inputs.annotated_regions is not None
    more = ("--annotated-regions", inputs.annotated_regions, "--boxes", "annotated")
    assert evaluate(inputs, run, tmp_path / "out", *more, "--iou", "released") == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["refcoco+/val/accuracy_identity"] == metrics["refcoco+/val/accuracy"]


def test_a_image_without_a_box_counts_as_wrong(
    trained: tuple[TaskInputs, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs, run = trained
    rows = [expression(number) for number in (3, 7, 11)]
    rows.append(expression(4, text=""))  # scored as published, too
    given = dataclasses.replace(
        inputs,
        examples=write_expressions(tmp_path, rows),
        regions=write_boxes(tmp_path / "few", empty=(3,)),  # of expressions 3 and 11
    )
    assert evaluate(given, run, tmp_path / "out") == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["examples"] == 4 and metrics["refcoco+/val/upper_bound"] == pytest.approx(1 / 3)
    assert "2 expressions have no box to choose" in capsys.readouterr().err


def test_a_box_outside_its_image_is_named(
    trained: tuple[TaskInputs, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs, run = trained
    rows = [expression(3), expression(7, box=[150, 10, 260, 90])]
    given = dataclasses.replace(inputs, examples=write_expressions(tmp_path, rows))
    assert evaluate(given, run, tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert "1 of 2 cannot be answered (empty_box 1): refcoco+/7" in said
    assert evaluate(given, run, tmp_path / "out", "--missing", "skip", "--fresh") == 0
    rows = [expression(3, box=[1, 2, 3])]
    given = dataclasses.replace(inputs, examples=write_expressions(tmp_path / "short", rows))
    assert evaluate(given, run, tmp_path / "other") == 2
    assert "refcoco+/3 names the box [1.0, 2.0, 3.0]" in capsys.readouterr().err


def test_what_a_run_reads_is_asked_for(tmp_path: Path) -> None:
    inputs = dataclasses.replace(world(tmp_path), annotated_regions=None)
    with pytest.raises(InputError, match="--annotated-regions is missing"):
        finetune(tiny(), inputs, tmp_path / "out")
    with pytest.raises(InputError, match=r"--labels .*: refcoco has no list"):
        finetune(tiny(), dataclasses.replace(inputs, labels=tmp_path), tmp_path / "out")


def test_images_without_detections_teach_by_their_annotated_boxes(tmp_path: Path) -> None:
    inputs = world(tmp_path, empty=tuple(range(8)))
    for change in ("blind=false", "blind=true"):
        finetune(tiny("refcoco-vl-bert-small", change, "steps=2"), inputs, tmp_path / change)
        assert len(read_log(tmp_path / change / "log.jsonl")) == 2
