"""GLUE's texts, losses, figures and files by hand, and its runs with every model."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from tests.train.tasks.statements import sentences, texts, tiny, write_statements

from vlmill.models import MODELS
from vlmill.models.registry import get_variant
from vlmill.runtime.files.outputs import RESULTS
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import (
    CheckpointRecord,
    TrainingRecord,
    load_checkpoint,
    save_checkpoint,
)
from vlmill.train.cli import main
from vlmill.train.loading.vocabulary import train_vocabulary
from vlmill.train.tasks.evaluating.inputs import EvaluationOptions
from vlmill.train.tasks.evaluating.job import evaluate_task
from vlmill.train.tasks.finetuning.job import TaskInputs, finetune
from vlmill.train.tasks.glue.evaluation import compute_averages, evaluate_predictions, parse_split
from vlmill.train.tasks.glue.metrics import INTERBERT
from vlmill.train.tasks.glue.metrics import TASKS as GLUE_TASKS
from vlmill.train.tasks.glue.settings import GlueSettings
from vlmill.train.tasks.glue.task import Glue, join_texts, second_segments
from vlmill.train.tasks.registry import TASKS, task_recipe_named

if TYPE_CHECKING:
    from pathlib import Path

SMALL = ("glue-bert-small", "glue-interbert-small", "glue-vlmo-small")


def test_two_texts_are_cut_together_and_keep_their_ends() -> None:
    words = train_vocabulary(["a b c d e f"], 60)
    cls, sep = words.token_to_id("[CLS]"), words.token_to_id("[SEP]")
    tokens, num_first = join_texts([10, 11, 12, 13], [20, 21], words, 8)
    assert tokens.tolist() == [cls, 10, 11, 12, sep, 20, 21, sep] and num_first == 5
    tokens, num_first = join_texts([10, 11], None, words, 8)
    assert tokens.tolist() == [cls, 10, 11, sep] and num_first == 4
    assert join_texts([10, 11, 12], None, words, 4)[0].tolist() == [cls, 10, 11, sep]
    assert join_texts([10], [], words, 8)[0].tolist() == [cls, 10, sep, sep]
    segments = second_segments(torch.zeros(2, 4, dtype=torch.int64), torch.tensor([2, 4]))
    assert segments.tolist() == [[0, 0, 1, 1], [0, 0, 0, 0]]


class Labelled:
    """What a loss reads of a batch."""

    def __init__(self, **labels: list[float]) -> None:
        self.labels = {name: torch.tensor(values) for name, values in labels.items()}


def test_losses_by_hand() -> None:
    scored = Glue(settings=GlueSettings(task="sts-b"), max_tokens=8)
    batch = Labelled(scores=[5.0, math.nan, 1.0])
    losses = scored.compute(torch.tensor([[2.0], [9.0], [1.0]]), batch)  # type: ignore[arg-type]
    assert losses["labels"].item() == pytest.approx(4.5)
    classes = Glue(settings=GlueSettings(task="mnli"), max_tokens=8)
    batch = Labelled(classes=[0, -100])
    loss = classes.compute(torch.zeros(2, 3), batch)["labels"]  # type: ignore[arg-type]
    assert loss.item() == pytest.approx(math.log(3))
    assert classes.sizes == {"num_labels": 3} and scored.sizes == {"num_labels": 1}
    assert classes.criterion.name == "accuracy" and scored.criterion.name == "spearman"


def test_halves_of_mnli_are_told_by_their_splits() -> None:
    assert parse_split("mnli", "dev_mismatched") == ("dev", "mnli-mm")
    assert parse_split("mnli", "test_matched") == ("test", "mnli-m")
    assert parse_split("rte", "dev") == ("dev", "rte")


def test_figures_and_files_of_each_split(tmp_path: Path) -> None:
    rows = [
        sentences("mnli", n, split=split, example_id=f"glue/mnli/{split}/{n}")
        for split in ("dev_matched", "dev_mismatched", "test_matched")
        for n in range(3)
    ]
    rows = [row | ({"label_id": -1} if "test" in row["split"] else {}) for row in rows]
    examples = write_statements(tmp_path, rows)
    right = {row["example_id"]: np.eye(3)[max(row["label_id"], 0)].tolist() for row in rows}
    right["glue/mnli/dev_mismatched/0"] = [0.0, 0.0, 9.0]
    told = evaluate_predictions(examples, GlueSettings(task="mnli"), right)
    assert told.figures["glue/dev/mnli-m/accuracy"] == 1.0
    assert told.figures["glue/dev/mnli-mm/accuracy"] == pytest.approx(2 / 3)
    assert told.figures["glue/test/mnli-m/accuracy"] is None
    for write in told.files:
        write(tmp_path)
    lines = (tmp_path / "MNLI-m.tsv").read_text().splitlines()
    assert lines == ["index\tprediction", *(f"{n}\tentailment" for n in range(3))]
    worst = min(told.cases, key=lambda case: case.score)
    assert worst.example_id == "glue/mnli/dev_mismatched/0"
    assert (worst.prediction, worst.right) == ("contradiction", "entailment")
    assert {f"{rules.file}.tsv" for rules in GLUE_TASKS.values()} <= set(RESULTS)


def test_figures_that_cannot_be_told_say_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs, other = texts(tmp_path, "rte"), tmp_path / "glue-cola"
    finetune(tiny(SMALL[0], "settings.task=rte", "steps=1"), inputs, tmp_path / "out")
    other.mkdir()
    (other / "metrics.json").write_text('{"glue/dev/cola/matthews": 0.5}')
    words = ["evaluate", "glue", "--checkpoint", str(tmp_path / "out"), "--split", "dev"]
    words += ["--examples", inputs.examples, "--output", str(tmp_path / "evaluated")]
    assert main([*words, "--scores", str(tmp_path / "glue-*")]) == 0
    said = capsys.readouterr()
    assert "average_interbert: figures of other tasks are missing" in said.out
    assert "No average without glue/dev/qnli/accuracy" in said.err


def test_averages_join_the_evaluations_of_all_tasks(tmp_path: Path) -> None:
    for number, (task, metric) in enumerate((INTERBERT | {"mnli-m": "accuracy"}).items()):
        (tmp_path / f"glue-{task}").mkdir()
        figures = {f"glue/dev/{task}/{metric}": number / 10, "examples": 3}
        (tmp_path / f"glue-{task}" / "metrics.json").write_text(json.dumps(figures))
    own: dict[str, float | None] = {"glue/dev/mnli-mm/accuracy": 0.9}
    averages, lacking = compute_averages(own, str(tmp_path / "glue-*"))
    assert averages["glue/average_interbert"] == pytest.approx((sum(range(7)) / 10 + 0.8) / 8)
    assert averages["glue/average_official8"] is None and not lacking  # STS-B's Pearson is missing
    with pytest.raises(InputError, match="no matching folder"):
        compute_averages(own, str(tmp_path / "others-*"))


@pytest.mark.parametrize(
    ("name", "task"), [(SMALL[0], "sts-b"), (SMALL[1], "rte"), (SMALL[2], "cola")]
)
def test_a_run_is_followed_by_the_figures_of_its_evaluation(
    tmp_path: Path, name: str, task: str
) -> None:
    inputs = texts(tmp_path, task)
    recipe = tiny(name, f"settings.task={task}", "steps=3", "validate_every=3")
    finetune(recipe, inputs, tmp_path / "out")
    lines = (tmp_path / "out" / "log.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    figures = metrics_of(tmp_path / "out", inputs, tmp_path / "evaluated")
    metric = INTERBERT[task]
    assert last[f"validation/{metric}"] == pytest.approx(figures[f"glue/dev/{task}/{metric}"] or 0)
    assert figures["examples"] == 4 and f"glue/dev/{task}/{metric}" in page_of(tmp_path)
    assert metrics_of(tmp_path / "out", inputs, tmp_path / "evaluated", fresh=True) == figures


def page_of(folder: Path) -> str:
    """The table of all figures in the report of an evaluation."""
    page = (folder / "evaluated" / "report.html").read_text(encoding="utf-8")
    return page.partition("<h2>All figures")[2].partition("<h2>")[0]


def metrics_of(
    checkpoint: Path, inputs: TaskInputs, output: Path, *, fresh: bool = False
) -> dict[str, float | None]:
    """Evaluates a checkpoint on the development set."""
    options = EvaluationOptions(
        task="glue",
        checkpoint=checkpoint,
        examples=inputs.examples,
        split="dev",
        output=output,
        fresh=fresh,
    )
    evaluate_task(options)
    figures: dict[str, float | None] = json.loads((output / "metrics.json").read_text())
    return figures


def test_texts_are_learnt(tmp_path: Path) -> None:
    inputs = texts(tmp_path, "sst-2", 60)
    changes = ("settings.task=sst-2", "steps=60", "batch_size=10", "optimizer.lr=0.01")
    rows = [sentences("sst-2", n, text_a=f"a {('bad', 'good')[n % 2]} one") for n in range(60)]
    inputs = dataclasses.replace(inputs, examples=write_statements(tmp_path / "learnt", rows))
    finetune(tiny("glue-bert-small", *changes), inputs, tmp_path / "out")
    figures = metrics_of(tmp_path / "out", inputs, tmp_path / "evaluated")
    assert figures["glue/dev/sst-2/accuracy"] == 1.0


@pytest.mark.parametrize("name", SMALL)
def test_the_text_of_a_pretrained_model_is_taken_over(tmp_path: Path, name: str) -> None:
    recipe = tiny(name, "settings.task=rte", "steps=0")
    training = get_variant(recipe.variant)
    words = train_vocabulary(["what is left of number that 0 1 2"], 60)
    body = dataclasses.replace(training.get_body(recipe.model), vocab_size=words.get_vocab_size())
    torch.manual_seed(3)
    save_checkpoint(
        tmp_path / "init",
        MODELS[recipe.starts_from[0]].model(body),
        CheckpointRecord(
            variant=recipe.starts_from[0],
            tokenizer=words,
            training=TrainingRecord(recipe="tiny", stage="pairs", step=1, num_pairs=1),
        ),
    )
    inputs = dataclasses.replace(texts(tmp_path), init=str(tmp_path / "init"))
    finetune(recipe, inputs, tmp_path / "out")
    ours = load_checkpoint(tmp_path / "out").model.state_dict()
    theirs = load_checkpoint(tmp_path / "init").model.state_dict()
    taken = [key for key in theirs if any(key in name for name in ours)]
    inner = {name.removeprefix("trunk."): value for name, value in ours.items()}
    assert len(taken) > 20 and all(torch.equal(inner[key], theirs[key]) for key in taken)


def test_interbert_and_its_single_stream_start_from_bert_alone() -> None:
    recipes = {recipe.name: recipe for recipe in TASKS["glue"].make_recipes()}
    assert recipes["glue-interbert-from-bert"].starts_from == ("bert",)
    assert recipes["glue-single-stream"].model.trunk.num_text_layers == 0
    assert recipes["glue-bert"].starts_from[0] == "bert"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["settings.task=mrpc"], "it has glue/rte, glue/wnli"),
        (["settings.task=rte", "blind=true"], "has no images"),
    ],
)
def test_what_glue_has_no_use_for_is_refused(tmp_path: Path, changes: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        finetune(tiny("glue-bert-small", *changes), texts(tmp_path), tmp_path / "out")


def test_a_test_set_is_answered_whole_even_where_a_text_is_empty(tmp_path: Path) -> None:
    inputs = texts(tmp_path, "sst-2")
    recipe = tiny("glue-bert-small", "settings.task=sst-2", "steps=1")
    finetune(recipe, inputs, tmp_path / "out")
    rows = [
        sentences("sst-2", n, split="test", example_id=f"glue/sst-2/test/{n}", label_id=-1)
        | {"text_a": "" if n == 1 else "what is left"}
        for n in range(3)
    ]
    options = EvaluationOptions(
        task="glue",
        checkpoint=tmp_path / "out",
        examples=write_statements(tmp_path / "test", rows),
        output=tmp_path / "answers",
    )
    evaluate_task(options)
    lines = (tmp_path / "answers" / "SST-2.tsv").read_text().splitlines()
    assert len(lines) == 4 and lines[0] == "index\tprediction"
    assert task_recipe_named("glue-bert").stages[0].feeding.max_tokens == 128
