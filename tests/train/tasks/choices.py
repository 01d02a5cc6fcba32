"""A miniature of VCR: which kind of thing an object is decides the right answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.train.tasks.expressions import (
    BODY,
    NUM_IMAGES,
    PLACES,
    TRUNK,
    USUAL,
    order_of,
    write_boxes,
)

from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.tables import CHOICES
from vlmill.train.recipes import change_recipe
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.finetuning.job import TaskInputs
from vlmill.train.tasks.registry import task_recipe_named

ANSWERS = ("it barks .", "it purrs .", "it floats .", "it sings .")
REASONS = ("it is a dog .", "it is a cat .", "it is a boat .", "[0] is a bird .")
PLAIN = [-1]
INTERBERT = (
    *("model.trunk.width=16", "model.trunk.num_heads=2", "model.trunk.visual_num_heads=2"),
    *("model.trunk.intermediate_width=32", "model.trunk.visual_intermediate_width=32"),
    *("model.trunk.num_interaction_layers=1", "model.trunk.pooled_width=16"),
)


def choice_row(number: int, task: str = "q2a", **columns: Any) -> dict[str, Any]:
    """A question about the first object of its image's three; every fourth is for validation."""
    image = number % NUM_IMAGES
    kind = order_of(image)[0]
    shift = number % 4  # the right one is not always at the same place
    texts = ANSWERS if task == "q2a" else REASONS
    order = [(place + shift) % 4 for place in range(4)]
    question, tags = "what does [0] do ?", [PLAIN, PLAIN, [0], PLAIN, PLAIN]
    if task == "qa2r":
        answer = ANSWERS[kind].split(" ")
        question, tags = f"{question} [MARK] {ANSWERS[kind]}", [*tags, *[PLAIN] * (1 + len(answer))]
    row = {
        "example_id": f"vcr/val-{number}/{task}",
        "image_id": f"image-{image}",
        "question": question,
        "choices": [texts[place] for place in order],
        "label": order.index(kind),
        "task": task,
        "object_names": ["person", "dog", "person"],
        "boxes": PLACES.ravel().tolist(),
        "question_tags": tags,
        "choice_tags": [
            [[0] if word == "[0]" else PLAIN for word in texts[place].split(" ")] for place in order
        ],
        "split": "val" if number % 4 == 3 else "train",
        "source": "vcr",
    }
    return dict.fromkeys(CHOICES.schema.names) | row | columns


def write_choices(folder: Path, rows: list[dict[str, Any]]) -> str:
    """Writes a table of choices below ``folder`` and names it."""
    write_shard(folder / "choices", CHOICES, rows)
    return str(folder / "choices")


def rows_of(count: int) -> list[dict[str, Any]]:
    """Questions with both sub-tasks."""
    return [choice_row(number, task) for number in range(count) for task in ("q2a", "qa2r")]


def world(folder: Path, count: int = 32) -> TaskInputs:
    """Questions with detected and annotated regions."""
    return TaskInputs(
        examples=write_choices(folder, rows_of(count)),
        regions=write_boxes(folder / "regions", shift=2.0),
        annotated_regions=write_boxes(folder / "annotated"),
    )


def tiny(name: str = "vcr-vilbert-small", *changes: str) -> TaskRecipe:
    """A small recipe made smaller."""
    sizes = TRUNK if "vilbert" in name else INTERBERT if "interbert" in name else BODY
    return change_recipe(task_recipe_named(name), [*sizes, *USUAL, "steps=6", *changes])
