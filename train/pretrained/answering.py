"""Answers one question, and grounds one expression, by the code that evaluates their tasks."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmill.schemas.errors import InputError
from vlmill.schemas.files.shards import ShardWriter, write_shard
from vlmill.schemas.tables import EXPRESSIONS, QUESTIONS, REJECTS, Table
from vlmill.train.checkpoints.files import LoadedCheckpoint
from vlmill.train.recipes.spec import Feeding
from vlmill.train.tasks.evaluating.job import predict_all, prepared_batches
from vlmill.train.tasks.evaluating.opened import (
    EvaluationOptions,
    Opened,
    open_evaluation,
    recipe_of,
)
from vlmill.train.tasks.refcoco.metrics import Grounding
from vlmill.train.tasks.refcoco.task import Refcoco
from vlmill.train.tasks.vqa.task import Vqa

ANSWER, GROUND = "vqa", "refcoco"
SOME_BOX = [0.0, 0.0, 1.0, 1.0]  # of every picture: a row must name one, prediction reads none


@dataclass(frozen=True, kw_only=True)
class Grounded:
    """Holds the boxes of a picture by how well an expression fits them, the best first.

    ``boxes`` are float32 [N, 4], x1, y1, x2, y2 in pixels of the upright picture; ``scores``
    float32 [N] the head's logits, falling. N is 0 where the detector found nothing.
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Asking:
    """Holds what a question to a checkpoint needs beside picture and text: the model, its device,
    and ``labels``, the file of what its head tells apart, where the checkpoint does not say it.
    """

    loaded: LoadedCheckpoint
    device: str
    labels: Path | None = None


def fed_by(loaded: LoadedCheckpoint, task: str) -> tuple[Feeding, int]:
    """Says what the task's model is fed, and of how many tokens at the most.

    Raises InputError for a checkpoint without the task's head.
    """
    recipe = recipe_of(loaded, task)
    feeding, longest = recipe.stages[0].feeding, recipe.max_text_tokens
    return feeding, min(feeding.max_tokens or longest, longest)


def answer_of(asking: Asking, folder: Path, question: str, tables: Mapping[str, str]) -> str:
    """Returns the likeliest answer to a question about picture "0" of ``tables``, in ``folder``.

    Raises InputError for a checkpoint of another task, and for one that does not say its answers.
    """
    if asking.labels is None and asking.loaded.task is None:
        raise InputError(
            f"checkpoint {asking.loaded.path} does not say its answers, as a converted one does "
            "not; give labels=FILE, its own list in its own order, a line each"
        )
    row = {"question_id": "0", "image_id": "0", "question": question}
    opened, value = _predicted(asking, folder, ANSWER, QUESTIONS, row, tables)
    assert isinstance(opened.task, Vqa)
    answer: str = opened.task.answers[int(value)]
    return answer


def grounded_in(
    asking: Asking, folder: Path, expression: str, tables: Mapping[str, str]
) -> Grounded:
    """Returns the boxes of picture "0" of ``tables`` by how well the expression fits them.

    Raises InputError for a checkpoint of another task.
    """
    row = {"expression_id": "0", "image_id": "0", "text": expression, "box": SOME_BOX}
    opened, value = _predicted(asking, folder, GROUND, EXPRESSIONS, row, tables)
    assert isinstance(opened.task, Refcoco) and isinstance(value, Grounding)
    order = np.argsort(-value.scores, kind="stable")
    return Grounded(
        boxes=value.candidates[order].astype(np.float32),
        scores=value.scores[order].astype(np.float32),
    )


def _predicted(
    asking: Asking,
    folder: Path,
    task: str,
    table: Table,
    row: Mapping[str, Any],
    tables: Mapping[str, str],
) -> tuple[Opened, Any]:
    """Evaluates a task on one example, a row of its table; returns what the model says of it."""
    examples = folder / "examples"
    write_shard(examples, table, [{**dict.fromkeys(table.schema.names), **row}])
    options = EvaluationOptions(
        task=task,
        checkpoint=asking.loaded.path,
        examples=str(examples),
        output=folder / "results",
        regions=tables.get("regions"),
        images=tables.get("images"),
        labels=asking.labels if task == ANSWER else None,
        device=asking.device,
    )
    opened = open_evaluation(options, asking.loaded)
    with ShardWriter(folder / "results", REJECTS, 0, 1) as rejects:
        batches = prepared_batches(opened, folder / "work", rejects)
    predicted, _ = predict_all(opened, batches)
    if not predicted:
        raise InputError("nothing can be said of the picture: nothing is known of it; give another")
    return opened, predicted[0].value
