"""GQA, VizWiz, OK-VQA and own questions: labels, figures, files, and every model's run."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.nightly import stand_for
from tests.train.tasks.labels import TINY
from tests.train.tasks.questions import USUAL, question, world, write_questions

from vlmill.schemas.answers import label_answers
from vlmill.train.checkpoints.files import load_checkpoint
from vlmill.train.recipes import change_recipe
from vlmill.train.tasks.evaluating.inputs import EvaluationOptions
from vlmill.train.tasks.evaluating.job import evaluate_task
from vlmill.train.tasks.finetuning.job import TaskInputs, finetune
from vlmill.train.tasks.registry import task_recipe_named
from vlmill.train.tasks.task import Prediction
from vlmill.train.tasks.vqa.evaluation import Answer, answerability, read_splits
from vlmill.train.tasks.vqa.metrics import Annotation, accuracy, score_answer

if TYPE_CHECKING:
    from pathlib import Path


def test_answers_are_compared_as_their_data_set_does() -> None:
    numbers = {"dog": 0, "cat": 1}
    assert label_answers("own", ["A Dog."], numbers) == ([0], [1.0])
    assert label_answers("own", ["dog", "cat"], numbers) == ([0, 1], [1.0, 1.0])
    assert label_answers("vizwiz", ["dog"] * 2 + ["cat"] * 8, numbers)[1] == pytest.approx([0.6, 1])
    assert label_answers("vqa2", ["A Dog."], numbers) == ([], [])
    assert score_answer("dog", Annotation(answers=("A dog", "cat"), source="own")) == 1
    assert score_answer("cow", Annotation(answers=("A dog", "cat"), source="gqa")) == 0
    ten = Annotation(answers=("dog",) * 2 + ("cat",) * 8, source="okvqa")
    assert score_answer("dog", ten) == pytest.approx((8 * 2 / 3 + 2 * 1 / 3) / 10)


def test_consistency_of_gqa() -> None:
    def gqa(answer: str, *entailed: str, balanced: bool = True) -> Annotation:
        return Annotation(
            answers=(answer,), source="gqa", entailed_ids=entailed, is_counted=balanced
        )

    annotations = {
        "a": gqa("yes", "a", "b", "c", "gone"),  # itself and one that is not asked are left out
        "b": gqa("red", "a"),
        "c": gqa("no", balanced=False),
        "d": gqa("two", "a"),
    }
    answers = {"a": "yes", "b": "red", "c": "yes", "d": "three"}
    figures = accuracy(answers, annotations).figures("val")
    assert figures["vqa/val/accuracy"] == pytest.approx(2 / 3)  # c is not in the balanced part
    # a is right: of b and c one is. b is right: a is. d is wrong, and counts for nothing.
    assert figures["vqa/val/consistency"] == pytest.approx((1 / 2 + 1) / 2)
    assert figures["vqa/val/consistency_n"] == 2
    alone = accuracy({"a": "no"}, {"a": gqa("yes", "b")}).figures("val")
    assert alone["vqa/val/consistency"] is None


def test_answerability_of_vizwiz(tmp_path: Path) -> None:
    rows = [
        question(n, question_id=f"vizwiz/{n}", source="vizwiz", answerable=n != 1) for n in range(3)
    ]
    examples = write_questions(tmp_path, rows)
    answers = {row["question_id"]: "red" for row in rows}
    split = read_splits(examples, answers)["train2014"]
    shares = dict(zip(answers, (0.9, 0.6, 0.3), strict=True))
    values = {key: Prediction(row=0, value=Answer(0, share)) for key, share in shares.items()}
    # The answerable questions are the first and the third.
    expected = {"vqa/val/answerability_ap": pytest.approx((1 + 2 / 3) / 2)}
    assert answerability("val", split, values) == expected
    without = {key: Prediction(row=0, value=Answer(0)) for key in answers}
    assert answerability("val", split, without) == {}


def own(number: int, **columns: Any) -> dict[str, Any]:
    """A question of one answer, that is not in the form of a label."""
    answer = ("A dog.", "A cat", "unanswerable")[number % 3]
    row = {"question_id": f"own/{number}", "source": "own", "answers": [answer], "answer": answer}
    split = "val" if number % 6 == 5 else "train"
    return question(number, **{**row, "split": split, "question_type": None, **columns})


def run(folder: Path, model: str, inputs: TaskInputs) -> None:
    recipe = task_recipe_named(f"vqa-{model}-small")
    finetune(change_recipe(recipe, [*TINY[model], *USUAL, "steps=2"]), inputs, folder)


@pytest.mark.parametrize("model", stand_for(TINY, "vlmo"))
def test_every_model_learns_own_answers(tmp_path: Path, model: str) -> None:
    rows = [own(number) for number in range(18)]
    inputs = dataclasses.replace(world(tmp_path), examples=write_questions(tmp_path / "own", rows))
    run(tmp_path / "run", model, inputs)
    saved = load_checkpoint(tmp_path / "run").task
    assert saved is not None and saved.labels == ("dog", "cat", "unanswerable")
    out = tmp_path / "out"
    evaluate_task(
        EvaluationOptions(
            task="vqa",
            checkpoint=tmp_path / "run",
            examples=inputs.examples,
            regions=inputs.regions,
            images=inputs.images,
            output=out,
        )
    )
    figures = json.loads((out / "metrics.json").read_text())
    assert figures["vqa/val/accuracy_n"] == 3
    assert figures["vqa/val/accuracy"] == figures["vqa/val/soft_score"]
    results = json.loads((out / "own_val_result.json").read_text())
    assert [row["question_id"] for row in results] == ["own/5", "own/11", "own/17"]


def test_a_data_set_has_its_own_file(tmp_path: Path) -> None:
    rows = [own(n) for n in range(4)]
    rows += [own(n, question_id=f"gqa/{n}", source="gqa") for n in range(4, 8)]
    rows += [
        own(n + 8, question_id=f"vizwiz/{n}", source="vizwiz", image_id=f"image-{n}")
        for n in range(4)
    ]
    rows = [{**row, "split": "train"} for row in rows]
    base = world(tmp_path)
    inputs = dataclasses.replace(base, examples=write_questions(tmp_path / "all", rows))
    run(tmp_path / "run", "imagebert", inputs)
    out = tmp_path / "out"
    evaluate_task(
        EvaluationOptions(
            task="vqa",
            checkpoint=tmp_path / "run",
            examples=inputs.examples,
            regions=inputs.regions,
            output=out,
        )
    )
    gqa = json.loads((out / "gqa_train_result.json").read_text())
    assert [row["questionId"] for row in gqa] == ["4", "5", "6", "7"]
    vizwiz = json.loads((out / "vizwiz_train_answerability.json").read_text())
    assert [row["image"] for row in vizwiz] == [f"image-{n}.jpg" for n in range(4)]
    assert all(0 <= row["answerable"] <= 1 for row in vizwiz)
    figures = json.loads((out / "metrics.json").read_text())
    assert figures["vqa/train/accuracy/source/gqa_n"] == 4
