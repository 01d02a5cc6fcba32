"""Answers questions, grounds expressions and finds classes with the code of their evaluation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmill.runtime.files.shards import ShardWriter, write_shard
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import EXPRESSIONS, LABELS, QUESTIONS, REJECTS, STATEMENTS, Table
from vlmill.train.checkpoints.files import LoadedCheckpoint
from vlmill.train.settings.parts import Feeding
from vlmill.train.tasks.batches import TaskBatches
from vlmill.train.tasks.classification.evaluation import Labelling
from vlmill.train.tasks.classification.task import Classification
from vlmill.train.tasks.evaluating.inputs import (
    EvaluationOptions,
    EvaluationSetup,
    find_recipe,
    open_evaluation,
)
from vlmill.train.tasks.evaluating.job import predict_all, prepare_batches
from vlmill.train.tasks.refcoco.metrics import Grounding
from vlmill.train.tasks.refcoco.task import Refcoco
from vlmill.train.tasks.task import Prediction
from vlmill.train.tasks.vqa.task import Vqa

ANSWER, GROUND, CLASSIFY, ENTAIL = "vqa", "refcoco", "classification", "entailment"
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
class Classes:
    """Holds the classes of an image: the predicted ``labels`` (one, unless the checkpoint gives
    several), and the probability of every class, the likeliest first.
    """

    labels: tuple[str, ...]
    probabilities: dict[str, float]

    @property
    def label(self) -> str:
        """Returns the likeliest class."""
        return next(iter(self.probabilities))


@dataclass(frozen=True, kw_only=True)
class TaskOutputs:
    """Holds a task's evaluation of some examples: its parts, and the prediction for each name."""

    evaluation: EvaluationSetup
    batches: TaskBatches
    predictions: dict[str, Prediction]


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
    outputs = predict_texts(ANSWER, answer_task, folder, questions, tables)
    assert isinstance(outputs.evaluation.task, Vqa)
    answers = outputs.evaluation.task.names
    return {
        name: answers[prediction.value.index] for name, prediction in outputs.predictions.items()
    }


def ground_expressions(
    answer_task: AnswerTask, folder: Path, expressions: Mapping[str, str], tables: Mapping[str, str]
) -> dict[str, Grounded]:
    """Returns the boxes of each image, ranked by how well its expression fits them. The keys are
    as in :func:`answer_questions`.

    Raises InputError for a checkpoint of another task.
    """
    outputs = predict_texts(GROUND, answer_task, folder, expressions, tables)
    assert isinstance(outputs.evaluation.task, Refcoco)
    return {name: _sort_boxes(prediction.value) for name, prediction in outputs.predictions.items()}


def classify_texts(
    task: str,
    answer_task: AnswerTask,
    folder: Path,
    texts: Mapping[str, str],
    tables: Mapping[str, str],
) -> dict[str, Classes]:
    """Returns the classes of images with texts by the head of ``task``, CLASSIFY or ENTAIL; names
    as in :func:`answer_questions`.

    Raises InputError for a checkpoint of another task.
    """
    outputs = predict_texts(task, answer_task, folder, texts, tables)
    assert isinstance(outputs.evaluation.task, Classification)
    return {
        name: find_classes(outputs.evaluation.task, prediction.value)
        for name, prediction in outputs.predictions.items()
    }


def find_classes(task: Classification, scores: NDArray[np.float32]) -> Classes:
    """Returns the classes of an example from the probabilities [C]."""
    labelling = Labelling(task=task.name, names=task.names, settings=task.settings)
    order = np.argsort(-scores, kind="stable")
    return Classes(
        labels=tuple(labelling.predict(scores)),
        probabilities={task.names[number]: float(scores[number]) for number in order},
    )


def _sort_boxes(value: Grounding) -> Grounded:
    order = np.argsort(-value.scores, kind="stable")
    return Grounded(
        boxes=value.candidates[order].astype(np.float32),
        scores=value.scores[order].astype(np.float32),
    )


# By task: the table of its examples, and a row of it for a text about the image of a name.
ROWS: dict[str, tuple[Table, Callable[[str, str], dict[str, Any]]]] = {
    ANSWER: (
        QUESTIONS,
        lambda name, text: {"question_id": name, "image_id": name, "question": text},
    ),
    GROUND: (
        EXPRESSIONS,
        lambda name, text: {
            **{"expression_id": name, "image_id": name, "text": text, "box": SOME_BOX},
        },
    ),
    CLASSIFY: (
        LABELS,
        lambda name, text: {"example_id": name, "image_ids": [name], "text": text or None},
    ),
    ENTAIL: (
        STATEMENTS,
        lambda name, text: {
            **{"example_id": name, "image_ids": [name], "text_a": text, "label_id": -1},
        },
    ),
}


def predict_texts(
    task: str,
    answer_task: AnswerTask,
    folder: Path,
    texts: Mapping[str, str],
    tables: Mapping[str, str],
) -> TaskOutputs:
    """Evaluates a task on texts about the images of their names, which ``tables`` have."""
    table, make_row = ROWS[task]
    rows = [make_row(name, text) for name, text in texts.items()]
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
    return TaskOutputs(
        evaluation=evaluation,
        batches=batches,
        predictions={batches.table.pair_id(prediction.row): prediction for prediction in predicted},
    )
