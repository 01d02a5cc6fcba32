"""Classification and entailment with every model: classes, losses, runs, figures and files."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tests.nightly import stand_for
from tests.train.tasks.labels import (
    CLASSES,
    ENTAILMENT,
    TINY,
    labelled,
    statement,
    tiny,
    world,
    write_rows,
)

from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import load_checkpoint
from vlmill.train.cli import main
from vlmill.train.tasks.classification.examples import LABELLED, ClassCounts, count_classes
from vlmill.train.tasks.classification.settings import ClassificationSettings
from vlmill.train.tasks.classification.task import Classification, find_weights
from vlmill.train.tasks.evaluating.inputs import EvaluationOptions
from vlmill.train.tasks.evaluating.job import evaluate_task
from vlmill.train.tasks.finetuning.job import TaskInputs, finetune

if TYPE_CHECKING:
    from pathlib import Path


class Labelled:
    """What a loss reads of a batch: the classes of each example, None where they teach nothing."""

    def __init__(self, *classes: tuple[int, ...] | None) -> None:
        known = [ids or () for ids in classes]
        numbers = [(row, number) for row, ids in enumerate(known) for number in ids]
        self.labels = {
            "rows": torch.tensor([row for row, _ in numbers], dtype=torch.int64),
            "ids": torch.tensor([number for _, number in numbers], dtype=torch.int64),
            "teaches": torch.tensor([ids is not None for ids in classes]),
        }


def task(weights: tuple[float, ...] = (), **settings: Any) -> Classification:
    return Classification(
        name="classification",
        table=LABELLED,
        settings=ClassificationSettings(**{"kind": "single", **settings}),
        variant="imagebert-classifier",
        names=CLASSES,
        weights=weights,
    )


def loss(of: Classification, logits: Any, batch: Labelled) -> float:
    return float(of.compute(torch.tensor(logits), batch)["labels"])  # type: ignore[arg-type]


def test_losses_by_hand() -> None:
    zeros = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    assert loss(task(), zeros, Labelled((0,), None)) == pytest.approx(math.log(3))
    assert loss(task(), zeros, Labelled(None, None)) == 0
    weighted = task(weights=(3.0, 1.0, 1.0))
    assert loss(weighted, zeros, Labelled((0,), (1,))) == pytest.approx(2 * math.log(3))
    # A sure and right prediction costs nothing unless a share of the target is spread.
    sure = [[20.0, 0.0, 0.0]]
    assert loss(task(), sure, Labelled((0,))) < 1e-6
    assert loss(task(label_smoothing=0.3), sure, Labelled((0,))) == pytest.approx(4, rel=1e-3)
    several = task(kind="multi")
    assert loss(several, zeros, Labelled((0, 2), ())) == pytest.approx(math.log(2))
    positive = task(weights=(4.0, 1.0, 1.0), kind="multi")
    assert loss(positive, zeros[:1], Labelled((0,))) == pytest.approx(2 * math.log(2))


def test_weights_of_rare_classes() -> None:
    counts = ClassCounts(counts={"a": 6, "b": 2, "c": 0}, num_rows=8, multi=False)
    single = ClassificationSettings(kind="single", balanced=True)
    assert find_weights(single, counts) == pytest.approx((8 / 18, 8 / 6, 1))
    several = ClassificationSettings(kind="multi", balanced=True)
    assert find_weights(several, counts) == pytest.approx((2 / 6, 6 / 2, 1))
    given = ClassificationSettings(class_weights={"b": 5})
    assert find_weights(given, counts) == (1, 5, 1)
    with pytest.raises(InputError, match="'d' is not a class"):
        find_weights(ClassificationSettings(class_weights={"d": 1.0}), counts)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"label_smoothing": 1.0}, "label_smoothing"),
        ({"threshold": 0.0}, "threshold"),
        ({"class_weights": {"a": math.nan}}, "class_weights"),
        ({"class_weights": {"a": 1}, "balanced": True}, "balanced"),
        ({"kind": "multi", "loss": "softmax"}, "softmax"),
        ({"kind": "single", "select_by": "micro_f1"}, "multi"),
    ],
)
def test_settings_that_contradict_each_other(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClassificationSettings(**fields)


def test_classes_are_those_of_the_rows_to_train_on(tmp_path: Path) -> None:
    rows = [labelled(number) for number in range(6)]
    rows.append(labelled(6, labels=["fish"], label_ids=[3], split="val"))
    rows.append(labelled(7, labels=None, label_ids=None))
    path = write_rows(tmp_path, rows)
    classes = count_classes(LABELLED, path, (), None)
    assert list(classes.counts) == list(CLASSES) and not classes.multi and classes.num_rows == 5
    assert list(count_classes(LABELLED, path, ("val",), None).counts) == ["bird", "fish"]
    (tmp_path / "list.json").write_text('["bird", "cat", "cow"]')
    given = count_classes(LABELLED, path, (), tmp_path / "list.json")
    assert given.counts == {"bird": 1, "cat": 2, "cow": 0}
    several = write_rows(tmp_path / "multi", [*rows, labelled(8, labels=[], label_ids=[])])
    assert count_classes(LABELLED, several, (), None).multi
    with pytest.raises(InputError, match="no row to train on has a label"):
        count_classes(LABELLED, path, ("test",), None)


def evaluate(name: str, run: Path, inputs: TaskInputs, output: Path, **more: Any) -> dict[str, Any]:
    evaluate_task(
        EvaluationOptions(
            task=name,
            checkpoint=run,
            examples=inputs.examples,
            regions=inputs.regions,
            images=inputs.images,
            output=output,
            **more,
        )
    )
    figures: dict[str, Any] = json.loads((output / "metrics.json").read_text())
    return figures


@pytest.mark.parametrize("model", stand_for(TINY, "vilbert", "vlmo"))
def test_every_model_classifies(tmp_path: Path, model: str) -> None:
    inputs = world(tmp_path, [labelled(number) for number in range(24)])
    changes = ("validate_every=2", "settings.balanced=true", "settings.label_smoothing=0.1")
    finetune(tiny("classification", model, *changes), inputs, tmp_path / "run")
    saved = load_checkpoint(tmp_path / "run").task
    assert saved is not None and saved.labels == CLASSES and saved.settings["kind"] == "single"
    figures = evaluate("classification", tmp_path / "run", inputs, tmp_path / "out")
    last = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])
    assert last["validation/accuracy"] == figures["classification/val/accuracy"]
    assert figures["classification/val/accuracy_n"] == 4
    assert figures["classification/train/accuracy_n"] == 20
    lines = (tmp_path / "out" / "classification_val.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["example_id"] for row in rows] == ["own/5", "own/11", "own/17", "own/23"]
    assert all(row["labels"] == ["bird"] and set(row["predicted"]) < set(CLASSES) for row in rows)
    assert all(sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-5) for row in rows)


@pytest.mark.parametrize("model", stand_for(TINY, "vilbert"))
def test_every_model_entails(tmp_path: Path, model: str) -> None:
    rows = [statement(number) for number in range(12)]
    rows += [statement(12, image_ids=["image-1", "image-2"]), statement(13, label_id=-1)]
    inputs = world(tmp_path, rows)
    finetune(tiny("entailment", model), inputs, tmp_path / "run")
    assert load_checkpoint(tmp_path / "run").task.labels == ENTAILMENT  # type: ignore[union-attr]
    figures = evaluate("entailment", tmp_path / "run", inputs, tmp_path / "out", missing="skip")
    assert figures["entailment/val/accuracy_n"] == 2 and figures["rejected"] == 1
    assert figures["entailment/train/accuracy_n"] == 10 and figures["examples"] == 13


def test_several_classes_an_example(tmp_path: Path) -> None:
    rows = [
        labelled(n, labels=[CLASSES[c] for c in ids], label_ids=ids)
        for n, ids in enumerate([[0], [0, 1], [], [1, 2], [2], [0, 2]] * 3)
    ]
    inputs = world(tmp_path, rows)
    recipe = tiny("classification", "imagebert", "validate_every=2", "steps=2")
    finetune(recipe, inputs, tmp_path / "run")
    task_record = load_checkpoint(tmp_path / "run").task
    assert task_record is not None and task_record.settings["kind"] == "multi"
    figures = evaluate("classification", tmp_path / "run", inputs, tmp_path / "out")
    for name in ("mean_average_precision", "micro_average_precision", "macro_f1", "auroc"):
        assert 0 <= figures[f"classification/train/{name}"] <= 1
    # All three of val have the same classes: the area is undefined, and does not stop anything.
    assert figures["classification/val/auroc"] is None
    last = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])
    assert "validation/mean_average_precision" in last


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[TaskInputs, Path]:
    """A run on cats, dogs and birds."""
    folder = tmp_path_factory.mktemp("classification")
    inputs = world(folder, [labelled(number) for number in range(12)])
    finetune(tiny("classification", "imagebert"), inputs, folder / "run")
    return inputs, folder / "run"


def test_labels_that_the_checkpoint_does_not_have_are_counted(
    trained: tuple[TaskInputs, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs, run = trained
    rows = [labelled(n, split="test") for n in range(3)]
    rows += [labelled(n, split="test", labels=["fish"], label_ids=[3]) for n in (3, 4)]
    rows += [labelled(5, split="test", labels=None, label_ids=None)]
    words = ["evaluate", "classification", "--checkpoint", str(run), "--output"]
    words += [str(tmp_path / "out"), "--examples", write_rows(tmp_path, rows)]
    assert main([*words, "--regions", str(inputs.regions)]) == 0
    said = capsys.readouterr().err
    assert "test: 2 examples with a label that the checkpoint does not have" in said
    assert "'fish'" in said and "1 example of test without public labels" in said
    figures = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert figures["classification/test/accuracy_n"] == 5
    assert figures["classification/test/accuracy"] <= 3 / 5


def test_a_run_from_a_classifier_has_the_classes_of_its_own_examples(
    trained: tuple[TaskInputs, Path], tmp_path: Path
) -> None:
    inputs, run = trained
    rows = [labelled(n, labels=["yes" if n % 2 else "no"], label_ids=[n % 2]) for n in range(12)]
    other = TaskInputs(examples=write_rows(tmp_path, rows), regions=inputs.regions, init=str(run))
    finetune(tiny("classification", "imagebert"), other, tmp_path / "next")
    assert load_checkpoint(tmp_path / "next").task.labels == ("no", "yes")  # type: ignore[union-attr]


def test_one_class_alone_is_refused(
    trained: tuple[TaskInputs, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs, _ = trained
    rows = [labelled(n, labels=["cat"], label_ids=[0]) for n in range(4)]
    words = ["finetune", "classification-imagebert-small", "--output", str(tmp_path / "run")]
    words += ["--examples", write_rows(tmp_path, rows), "--regions", str(inputs.regions)]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "all rows to train on have the label 'cat'; classification needs two" in said
    assert "Traceback" not in said


def test_the_file_of_hateful_memes(trained: tuple[TaskInputs, Path], tmp_path: Path) -> None:
    inputs, _ = trained
    memes = {"source": "hateful-memes"}
    rows = [
        labelled(n, example_id=f"hateful-memes/{n:05}", label_ids=[n % 2], **memes)
        | {"labels": ["hateful" if n % 2 else "not_hateful"], "split": "train" if n else "dev"}
        for n in range(12)
    ]
    given = TaskInputs(examples=write_rows(tmp_path, rows), regions=inputs.regions)
    finetune(tiny("classification", "imagebert"), given, tmp_path / "run")
    figures = evaluate("classification", tmp_path / "run", given, tmp_path / "out")
    assert 0 <= figures["classification/train/auroc"] <= 1
    header, line = (tmp_path / "out" / "hateful_memes_dev.csv").read_text().splitlines()
    number, share, label = line.split(",")
    assert header == "id,proba,label" and number == "00000" and label in "01"
    assert np.round(float(share)) == int(label)
