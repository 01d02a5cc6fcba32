"""Answers questions and grounds expressions with the evaluation code of their tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmill.runtime.files.shards import ShardWriter, write_shard
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import EXPRESSIONS, QUESTIONS, REJECTS, Table
from vlmill.train.checkpoints.files import LoadedCheckpoint
from vlmill.train.settings.parts import Feeding
from vlmill.train.tasks.evaluating.inputs import (
    EvaluationOptions,
    EvaluationSetup,
    find_recipe,
    open_evaluation,
)
from vlmill.train.tasks.evaluating.job import predict_all, prepare_batches
from vlmill.train.tasks.refcoco.metrics import Grounding
from vlmill.train.tasks.refcoco.task import Refcoco
from vlmill.train.tasks.vqa.task import Vqa

ANSWER, GROUND = "vqa", "refcoco"
SOME_BOX = [0.0, 0.0, 1.0, 1.0]  # for every image: a row must have a box, but prediction reads none


@dataclass(frozen=True, kw_only=True)
class Grounded:
    """Holds the boxes of an image by how well an expression fits them, the best first.

    ``boxes`` are float32 [N, 4], x1, y1, x2, y2 in pixels of the upright image; ``scores`` float32
    [N] the head's logits, in descending order. N is 0 if the detector found nothing.
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class AnswerTask:
    """Holds the parts of a question in addition to image and text: the model, its device, and
    ``labels``, the file of its answer list, if the checkpoint does not record it.
    """

    loaded: LoadedCheckpoint
    device: str
    labels: Path | None = None


def required_inputs(loaded: LoadedCheckpoint, task: str) -> tuple[Feeding, int]:
    """Returns the inputs of the task's model and its largest number of tokens.

    Raises InputError for a checkpoint without the task's head.
    """
    recipe = find_recipe(loaded, task)
    feeding, longest = recipe.stages[0].feeding, recipe.max_text_tokens
    return feeding, min(feeding.max_tokens or longest, longest)


def answer_questions(
    answer_task: AnswerTask, folder: Path, questions: Mapping[str, str], tables: Mapping[str, str]
) -> dict[str, str]:
    """Returns the most likely answers to questions, by the name of their image in ``tables``.

    An image without a result has none. ``folder`` is for temporary files. Raises InputError for a
    checkpoint of another task, and for one without recorded answers.
    """
    if answer_task.labels is None and answer_task.loaded.task is None:
        raise InputError(
            f"checkpoint {answer_task.loaded.path} does not record its answers, like every "
            f"converted "
            "one; give "
            "labels=FILE, its answer list in its own order, one per line"
        )
    rows = [
        {"question_id": name, "image_id": name, "question": question}
        for name, question in questions.items()
    ]
    evaluation, values = _predict(answer_task, folder, ANSWER, QUESTIONS, rows, tables)
    assert isinstance(evaluation.task, Vqa)
    answers = evaluation.task.names
    return {name: answers[value.index] for name, value in values.items()}


def ground_expressions(
    answer_task: AnswerTask, folder: Path, expressions: Mapping[str, str], tables: Mapping[str, str]
) -> dict[str, Grounded]:
    """Returns the boxes of images by how well the expressions fit them; names as in
    :func:`answer_questions`.

    Raises InputError for a checkpoint of another task.
    """
    rows = [
        {"expression_id": name, "image_id": name, "text": expression, "box": SOME_BOX}
        for name, expression in expressions.items()
    ]
    evaluation, values = _predict(answer_task, folder, GROUND, EXPRESSIONS, rows, tables)
    assert isinstance(evaluation.task, Refcoco)
    return {name: _sort_boxes(value) for name, value in values.items()}


def _sort_boxes(value: Grounding) -> Grounded:
    order = np.argsort(-value.scores, kind="stable")
    return Grounded(
        boxes=value.candidates[order].astype(np.float32),
        scores=value.scores[order].astype(np.float32),
    )


def _predict(
    answer_task: AnswerTask,
    folder: Path,
    task: str,
    table: Table,
    rows: Sequence[Mapping[str, Any]],
    tables: Mapping[str, str],
) -> tuple[EvaluationSetup, dict[str, Any]]:
    """Evaluates a task on examples, rows of its table; returns the model's prediction for each."""
    examples = folder / "examples"
    write_shard(examples, table, [{**dict.fromkeys(table.schema.names), **row} for row in rows])
    options = EvaluationOptions(
        task=task,
        checkpoint=answer_task.loaded.path,
        examples=str(examples),
        output=folder / "results",
        regions=tables.get("regions"),
        images=tables.get("images"),
        labels=answer_task.labels if task == ANSWER else None,
        device=answer_task.device,
    )
    evaluation = open_evaluation(options, answer_task.loaded)
    with ShardWriter(folder / "results", REJECTS, 0, 1) as rejects:
        batches = prepare_batches(evaluation, folder / "work", rejects)
    predicted, _ = predict_all(evaluation, batches)
    return evaluation, {
        batches.table.pair_id(prediction.row): prediction.value for prediction in predicted
    }
