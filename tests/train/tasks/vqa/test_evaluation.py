"""``train-vl evaluate vqa`` from a run's checkpoint to its files, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tests.train.tasks.questions import ANSWERS, question, tiny, world, write_questions

from vlmill.train.checkpoints.files import load_checkpoint
from vlmill.train.cli import main
from vlmill.train.tasks.finetuning.job import TaskInputs, finetune


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[TaskInputs, Path]:
    """A run of two steps, which has not learnt much."""
    folder = tmp_path_factory.mktemp("vqa")
    inputs = world(folder)
    recipe = tiny("vqa-vilbert-small", "steps=2")
    finetune(recipe, inputs, folder / "run")
    return inputs, folder / "run"


def evaluate(inputs: TaskInputs, run: Path, output: Path, *more: str) -> int:
    assert inputs.regions is not None
    words = ["evaluate", "vqa", "--checkpoint", str(run), "--examples", inputs.examples]
    return main([*words, "--regions", inputs.regions, "--output", str(output), *more])


def test_a_checkpoint_is_measured_on_every_split(
    trained: tuple[TaskInputs, Path], tmp_path: Path
) -> None:
    inputs, run = trained
    rows = [question(number) for number in range(24)]
    rows.append(question(99, split="test2015", answers=None, answer=None))
    # Answers that the list lacks are no labels, and still count for the official accuracy.
    examples = write_questions(tmp_path, rows)
    assert inputs.images is not None
    given = dataclasses.replace(inputs, examples=examples)
    out = tmp_path / "out"
    assert evaluate(given, run, out, "--images", inputs.images) == 0
    metrics: dict[str, Any] = json.loads((out / "metrics.json").read_text())
    results = json.loads((out / "vqa_val2014_result.json").read_text())
    right = sum(one["answer"] == ANSWERS[one["question_id"] % 3] for one in results)
    assert metrics["vqa/val2014/accuracy"] == right / 4
    assert metrics["vqa/val2014/soft_score"] == pytest.approx(metrics["vqa/val2014/accuracy"])
    assert metrics["vqa/val2014/accuracy_n"] == 4 and metrics["vqa/train2014/accuracy_n"] == 20
    assert metrics["vqa/val2014/accuracy/answer_type/number_n"] == 4
    assert metrics["vqa/test2015/accuracy"] is None
    assert metrics["examples"] == 25 and metrics["rejected"] == 0
    assert [entry["question_id"] for entry in results] == [5, 11, 17, 23]
    assert {entry["answer"] for entry in results} <= set(ANSWERS)
    assert len(json.loads((out / "vqa_test2015_result.json").read_text())) == 1
    page = (out / "report.html").read_text()
    assert "ViLBERT" in page and "vqa/val2014/accuracy" in page
    before = (out / "metrics.json").stat().st_mtime_ns
    assert evaluate(given, run, out, "--images", inputs.images) == 0
    assert (out / "metrics.json").stat().st_mtime_ns == before


def test_questions_that_cannot_be_answered_are_named(
    trained: tuple[TaskInputs, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs, run = trained
    rows = [question(number) for number in range(6)]
    rows += [question(7, image_id="nowhere"), question(5)]
    given = dataclasses.replace(inputs, examples=write_questions(tmp_path, rows))
    assert evaluate(given, run, tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert "2 of 8 cannot be answered (duplicate 1, no_regions 1): vqa2/7, vqa2/5" in said
    assert evaluate(given, run, tmp_path / "out", "--missing", "skip", "--fresh") == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["examples"] == 6 and metrics["rejected"] == 2


def test_another_tasks_checkpoint_is_refused(
    trained: tuple[TaskInputs, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs, run = trained
    settings = run / "checkpoint.json"
    kept = settings.read_text()
    other = json.loads(kept)
    other["task"]["name"] = "vcr"
    try:
        settings.unlink()
        settings.write_text(json.dumps(other))
        assert evaluate(inputs, run, tmp_path / "out") == 2
        assert "was fine-tuned for vcr" in capsys.readouterr().err
        del other["task"]
        settings.write_text(json.dumps(other))
        assert evaluate(inputs, run, tmp_path / "out") == 2
        assert "which was not fine-tuned for vqa" in capsys.readouterr().err
    finally:
        settings.write_text(kept)


def test_a_list_of_answers_that_differs_from_the_checkpoints_is_refused(
    trained: tuple[TaskInputs, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs, run = trained
    (tmp_path / "labels.json").write_text('["red", "green"]')
    assert evaluate(inputs, run, tmp_path / "out", "--labels", str(tmp_path / "labels.json")) == 2
    assert "has its own list" in capsys.readouterr().err
    task = load_checkpoint(run).task
    assert task is not None and len(task.labels) == 3
