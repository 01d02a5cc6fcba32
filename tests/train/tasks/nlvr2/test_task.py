"""NLVR2's two images, figures and files, and its runs with every model."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import torch
from tests.train.tasks.statements import statement, tiny, two_images, write_statements

from vlmill.models import MODELS
from vlmill.models.registry import get_variant
from vlmill.runtime.files.shards import ShardWriter
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import REJECTS, STATEMENTS
from vlmill.train.checkpoints.files import (
    CheckpointRecord,
    TrainingRecord,
    load_checkpoint,
    save_checkpoint,
)
from vlmill.train.loading.vocabulary import train_vocabulary
from vlmill.train.tasks.evaluating.inputs import EvaluationOptions, open_evaluation
from vlmill.train.tasks.evaluating.job import evaluate_task, predict_all, prepare_batches
from vlmill.train.tasks.finetuning.job import TaskInputs, finetune
from vlmill.train.tasks.nlvr2.task import as_pairs, evaluate_predictions
from vlmill.train.tasks.registry import task_recipe_named

if TYPE_CHECKING:
    from pathlib import Path

VLMO = ("model.encoder.image_size=32", "feeding.image_size=32")
SMALL = {"nlvr2-vilbert-small": (), "nlvr2-interbert-small": (), "nlvr2-vlmo-small": VLMO}


def metrics_of(
    checkpoint: Path, inputs: TaskInputs, output: Path, missing: str = "error", split: str = "dev"
) -> dict[str, float]:
    """Evaluates a checkpoint on the development set."""
    evaluate_task(
        EvaluationOptions(
            task="nlvr2",
            checkpoint=checkpoint,
            examples=inputs.examples,
            regions=inputs.regions,
            images=inputs.images,
            split=split,
            missing=missing,  # type: ignore[arg-type]
            output=output,
        )
    )
    figures: dict[str, float] = json.loads((output / "metrics.json").read_text())
    return figures


def test_a_statement_names_both_of_its_images() -> None:
    rows = [statement(0), statement(1, image_ids=["image-1"])]
    batch = pa.RecordBatch.from_pylist(rows, schema=STATEMENTS.schema)
    first, alone = as_pairs(batch).to_pylist()
    assert (first["image_id"], first["second_image_id"]) == ("image-0", "image-5")
    assert alone["image_id"] is None and alone["second_image_id"] is None


@pytest.mark.parametrize("name", SMALL)
def test_a_run_is_followed_by_the_figures_of_its_evaluation(tmp_path: Path, name: str) -> None:
    inputs = two_images(tmp_path)
    finetune(tiny(name, *SMALL[name], "steps=3", "validate_every=3"), inputs, tmp_path / "out")
    last = json.loads((tmp_path / "out" / "log.jsonl").read_text().splitlines()[-1])
    figures = metrics_of(tmp_path / "out", inputs, tmp_path / "evaluated")
    assert last["validation/accuracy"] == figures["nlvr2/dev/accuracy"]
    assert figures["nlvr2/dev/accuracy_n"] == figures["nlvr2/dev/consistency_n"] == 4
    lines = (tmp_path / "evaluated" / "nlvr2_dev.csv").read_text().splitlines()
    assert len(lines) == 4 and {line.partition(",")[2] for line in lines} <= {"True", "False"}


def test_a_report_shows_both_images_and_an_unknown_split_is_told(tmp_path: Path) -> None:
    name = "nlvr2-vlmo-small"
    inputs = two_images(tmp_path)
    finetune(tiny(name, *SMALL[name], "steps=1"), inputs, tmp_path / "out")
    metrics_of(tmp_path / "out", inputs, tmp_path / "evaluated")
    page = (tmp_path / "evaluated" / "report.html").read_text(encoding="utf-8")
    assert page.count("<div class='beside'><img src='data:image/jpeg") == 4
    with pytest.raises(InputError, match=r"no example of split test-P \(it has dev, train\)"):
        metrics_of(tmp_path / "out", inputs, tmp_path / "other", split="test-P")


@pytest.mark.parametrize("name", SMALL)
def test_both_images_count_and_their_order(tmp_path: Path, name: str) -> None:
    inputs = two_images(tmp_path, 6)
    finetune(tiny(name, *SMALL[name], "steps=1"), inputs, tmp_path / "out")
    rows = [
        statement(n, example_id=f"nlvr2/dev-{n}-0-0", image_ids=[f"image-{i}" for i in images])
        | {"split": "dev", "text_a": "one has number 1"}
        for n, images in enumerate([(0, 1), (1, 0), (0, 2), (2, 1)])
    ]
    examples = write_statements(tmp_path / "dev", rows)
    loaded = load_checkpoint(tmp_path / "out")
    with torch.no_grad():
        for parameter in loaded.model.parameters():  # far from a start at which all are alike
            parameter.add_(torch.randn_like(parameter) / 4)
    options = EvaluationOptions(
        task="nlvr2",
        checkpoint=tmp_path / "out",
        examples=examples,
        regions=inputs.regions,
        images=inputs.images,
        output=tmp_path / "evaluated",
    )
    opened = open_evaluation(options, loaded)
    with ShardWriter(tmp_path, REJECTS, 0, 1) as rejects:
        batches = prepare_batches(opened, tmp_path / "prepared", rejects)
        predicted, lacking = predict_all(opened, batches)
    values = [tuple(one.value) for one in predicted]
    assert not lacking and len({(round(a, 5), round(b, 5)) for a, b in values}) == 4, values


def test_accuracy_consistency_and_subsets(tmp_path: Path) -> None:
    ids = ["test1-0-0-0", "test1-0-1-0", "test1-1-0-0", "test1-1-0-1"]
    rows = [
        statement(n, example_id=f"nlvr2/{key}", split="test1", label_id=1, subset=subset)
        for n, (key, subset) in enumerate(zip(ids, ["balanced", None, None, None], strict=True))
    ]
    values = {row["example_id"]: [0.0, 1.0] for row in rows} | {"nlvr2/test1-0-1-0": [1.0, 0.0]}
    told = evaluate_predictions(write_statements(tmp_path, rows), values)
    assert told.figures["nlvr2/test-P/accuracy"] == 0.75
    assert told.figures["nlvr2/test-P/consistency"] == pytest.approx(2 / 3)
    assert told.figures["nlvr2/test-P/balanced_accuracy"] == 1.0
    assert "nlvr2/test-P/unbalanced_accuracy" not in told.figures
    worst = min(told.cases, key=lambda case: case.score)
    assert (worst.prediction, worst.right) == ("False", "True")


def test_statements_that_lack_a_image_are_named(tmp_path: Path) -> None:
    inputs = two_images(tmp_path)
    rows = [statement(n) for n in range(12)]
    rows[5] |= {"image_ids": ["image-0", "image-99"]}
    rows[11] |= {"image_ids": ["image-1"]}
    rows += [statement(17, label_id=7)]
    examples = write_statements(tmp_path / "bad", rows)
    inputs = dataclasses.replace(inputs, examples=examples)
    finetune(tiny("nlvr2-vilbert-small", "steps=1"), inputs, tmp_path / "out")
    with pytest.raises(InputError, match=r"3 of 3 cannot be answered .*label_unknown 1.*no_"):
        metrics_of(tmp_path / "out", inputs, tmp_path / "evaluated")


@pytest.mark.parametrize("name", [*SMALL, "nlvr2-vilbert-12in1"])
def test_the_pretrained_model_is_taken_over(tmp_path: Path, name: str) -> None:
    quickly = ("workers=0", "epochs=null", "precision=no")
    recipe = tiny(name, *SMALL.get(name, quickly), "steps=0")
    if name not in SMALL:
        trunk = task_recipe_named("nlvr2-vilbert-small").model.trunk
        sizes = {"width": 16, "visual_width": 16, "co_width": 16, "num_heads": 2}
        sizes |= {"visual_num_heads": 2, "co_num_heads": 2, "num_tasks": 20}
        trunk = dataclasses.replace(trunk, **sizes)
        recipe = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, trunk=trunk))
    variant = recipe.starts_from[0]
    training = get_variant(recipe.variant)
    words = train_vocabulary(["one has number 0 1 2"], 60)
    sizes = {"vocab_size": words.get_vocab_size()}
    sizes |= {"image_size": 64, "num_images": 1} if "vlmo" in name else {"region_width": 16}
    body = dataclasses.replace(training.get_body(recipe.model), **sizes)
    whole = dataclasses.replace(recipe.model, trunk=body) if variant == recipe.variant else body
    torch.manual_seed(3)
    save_checkpoint(
        tmp_path / "init",
        MODELS[variant].model(whole),
        CheckpointRecord(
            variant=variant,
            tokenizer=words,
            training=TrainingRecord(recipe="tiny", stage="pairs", step=1, num_pairs=1),
        ),
    )
    inputs = dataclasses.replace(two_images(tmp_path), init=str(tmp_path / "init"))
    finetune(recipe, inputs, tmp_path / "out")
    ours = load_checkpoint(tmp_path / "out").model.state_dict()
    theirs = load_checkpoint(tmp_path / "init").model.state_dict()
    inner = {key.removeprefix("trunk."): value for key, value in ours.items()} | ours
    same = [key for key in theirs if key in inner and inner[key].shape == theirs[key].shape]
    assert len(same) > 20 and all(torch.equal(inner[key], theirs[key]) for key in same)
    if "vlmo" in name:  # the second image starts with the first one's type
        types = ours["encoder.type_table.weight"]
        assert torch.equal(types[2], theirs["encoder.type_table.weight"][1])
    if name not in SMALL:
        metrics_of(tmp_path / "out", inputs, tmp_path / "evaluated")
