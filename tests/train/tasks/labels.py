"""A miniature of own labels and of entailment: the number in a text decides the class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.factories import Tables, write_images
from tests.train.tasks.questions import SINGLE_STREAM, VILBERT, VLBERT, VLMO
from tests.train.tasks.statements import OF_BERT, OF_INTERBERT

from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.tables import LABELS, STATEMENTS
from vlmill.train.recipes import change_recipe
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.finetuning.job import TaskInputs
from vlmill.train.tasks.registry import task_recipe_named

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CLASSES = ("cat", "dog", "bird")
ENTAILMENT = ("entailment", "neutral", "contradiction")
USUAL = ("batch_size=6", "log_every=1", "save_every=9", "trackers=[]", "steps=2")
TINY = {
    "vilbert": VILBERT,
    "single-stream": SINGLE_STREAM,
    "vl-bert": VLBERT,
    "imagebert": tuple(f"model.trunk.{field}" for field in OF_BERT),
    "interbert": tuple(f"model.trunk.{field}" for field in OF_INTERBERT),
    "vlmo": (*VLMO, "model.encoder.image_size=32", "feeding.image_size=32"),
}


def labelled(number: int, **columns: Any) -> dict[str, Any]:
    """A row whose number modulo three is its class; every sixth is for validation."""
    row = {
        "example_id": f"own/{number}",
        "image_ids": [f"image-{number % 12}"],
        "text": f"number {number % 3}" if number % 2 else None,
        "labels": [CLASSES[number % 3]],
        "label_ids": [number % 3],
        "split": "val" if number % 6 == 5 else "train",
        "source": "own",
    }
    return dict.fromkeys(LABELS.schema.names) | row | columns


def statement(number: int, **columns: Any) -> dict[str, Any]:
    """A statement on one image, whose number modulo three is its class."""
    row = {
        "example_id": f"own/{number}",
        "image_ids": [f"image-{number % 12}"],
        "text_a": f"it has number {number % 3}",
        "label": ENTAILMENT[number % 3],
        "label_id": number % 3,
        "split": "val" if number % 6 == 5 else "train",
        "source": "own",
    }
    return dict.fromkeys(STATEMENTS.schema.names) | row | columns


def write_rows(folder: Path, rows: Sequence[dict[str, Any]]) -> str:
    """Writes a table of labels or statements below ``folder`` and names it."""
    table = STATEMENTS if "text_a" in rows[0] else LABELS
    write_shard(folder / table.name, table, list(rows))
    return str(folder / table.name)


def world(folder: Path, rows: Sequence[dict[str, Any]]) -> TaskInputs:
    """Examples with the regions and images of 12 images."""
    tables = Tables(folder)
    tables.write_regions([f"image-{number}" for number in range(12)])
    return TaskInputs(
        examples=write_rows(folder, rows),
        regions=tables.regions,
        images=write_images(folder / "images", 12),
    )


def tiny(task: str, model: str, *changes: str) -> TaskRecipe:
    """A small recipe made smaller."""
    recipe = task_recipe_named(f"{task}-{model}-small")
    return change_recipe(recipe, [*TINY[model], *USUAL, *changes])
