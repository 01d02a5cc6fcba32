"""Answers questions, grounds expressions and finds classes as their evaluation does, in memory."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import LoadedCheckpoint
from vlmill.train.loading.arrays import Ids
from vlmill.train.loading.store.pairs import Examples
from vlmill.train.loading.store.prepare import cut_ids
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.tasks.batches import TaskBatches
from vlmill.train.tasks.classification.evaluation import Labelling
from vlmill.train.tasks.classification.task import Classification
from vlmill.train.tasks.evaluating.model import TaskModel, find_recipe, open_task
from vlmill.train.tasks.refcoco.metrics import Grounding
from vlmill.train.tasks.task import Prediction
from vlmill.train.tasks.vqa.evaluation import Answer
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
class TaskOutput:
    """Holds the prediction for one of some examples, with the model and the batches of all."""

    model: TaskModel
    batches: TaskBatches
    prediction: Prediction


def open_head(
    loaded: LoadedCheckpoint, task: str, labels: Path | None, device: torch.device
) -> TaskModel:
    """Opens the head of a task; ``labels`` is the file of its answers, if the checkpoint does not
    record them.

    Raises InputError for a checkpoint without the head, for one without recorded answers or
    classes, and for a model that reads annotated boxes.
    """
    recipe, labels = find_recipe(loaded, task), labels if task == ANSWER else None
    if loaded.task is None and labels is None and task != GROUND:
        raise InputError(
            f"checkpoint {loaded.path} does not record its answers, like every converted one; give "
            "labels=FILE, its answer list in its own order, one per line"
        )
    (stage,) = recipe.stages
    if stage.feeding.boxes in ("annotated", "joined"):
        raise InputError(
            f"checkpoint {loaded.path} reads annotated boxes, which raw images do not have; use "
            "`train-vl evaluate`"
        )
    feeding = dataclasses.replace(stage.feeding, boxes="detected")
    recipe = dataclasses.replace(recipe, stages=(dataclasses.replace(stage, feeding=feeding),))
    head = open_task(recipe, loaded, None, labels)
    return TaskModel(device=device, loaded=loaded, recipe=recipe, task=head)


def hold_examples(
    model: TaskModel,
    examples: Examples,
    texts: Mapping[str, tuple[str, Ids]],
    image_rows: Mapping[str, int],
) -> SampleTable:
    """Returns texts, given with their tokens, as prepared examples about the image of their name,
    which is in row ``image_rows`` of what the model reads.
    """
    form, blank = model.task.form, dict.fromkeys(examples.table.schema.names)
    make_row = ROWS[model.recipe.task]
    rows = [blank | make_row(name, text) for name, (text, _) in texts.items()]
    batch = pa.RecordBatch.from_pylist(rows, schema=examples.table.schema)
    pairs = []
    for pair, (name, (_, ids)) in zip(
        examples.as_pairs(batch).to_pylist(), texts.items(), strict=True
    ):
        tokens = form.apply(cut_ids(ids.tolist(), model.max_tokens - form.adds))
        pairs.append((pair, tokens, image_rows[name], 0))
    return SampleTable.from_pairs(pairs, examples.labels)


def read_answer(output: TaskOutput) -> str:
    """Returns the most likely answer to a question."""
    assert isinstance(output.model.task, Vqa)
    answer: Answer = output.prediction.value
    return output.model.task.names[answer.index]


def read_boxes(output: TaskOutput) -> Grounded:
    """Returns the boxes of an image, ranked by how well an expression fits them."""
    value: Grounding = output.prediction.value
    order = np.argsort(-value.scores, kind="stable")
    return Grounded(
        boxes=value.candidates[order].astype(np.float32),
        scores=value.scores[order].astype(np.float32),
    )


def read_classes(output: TaskOutput) -> Classes:
    """Returns the classes of an image with a text."""
    task, scores = output.model.task, output.prediction.value
    assert isinstance(task, Classification)
    labelling = Labelling(task=task.name, names=task.names, settings=task.settings)
    order = np.argsort(-scores, kind="stable")
    return Classes(
        labels=tuple(labelling.predict(scores)),
        probabilities={task.names[number]: float(scores[number]) for number in order},
    )


# By task: a row of its table for a text about the image of a name.
ROWS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    ANSWER: lambda name, text: {"question_id": name, "image_id": name, "question": text},
    GROUND: lambda name, text: {
        **{"expression_id": name, "image_id": name, "text": text, "box": SOME_BOX}
    },
    CLASSIFY: lambda name, text: {"example_id": name, "image_ids": [name], "text": text or None},
    ENTAIL: lambda name, text: {
        **{"example_id": name, "image_ids": [name], "text_a": text, "label_id": -1}
    },
}
