"""A miniature of GLUE and of NLVR2: what a text says of a number decides its label."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.factories import Tables, write_images

from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.tables import STATEMENTS
from vlmill.train.recipes import change_recipe
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.finetuning.job import TaskInputs
from vlmill.train.tasks.registry import task_recipe_named

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Two layers of 16 numbers: seconds for a run.
OF_BERT = ("width=16", "num_heads=2", "num_layers=2", "intermediate_width=32")
OF_INTERBERT = (
    *("width=16", "num_heads=2", "visual_num_heads=2", "intermediate_width=32"),
    *("visual_intermediate_width=32", "num_interaction_layers=2", "pooled_width=16"),
)
OF_VILBERT = (
    *("width=16", "num_heads=2", "intermediate_width=32", "visual_width=16"),
    *("visual_num_heads=2", "visual_intermediate_width=16", "co_width=16", "co_num_heads=2"),
)
OF_VLMO = ("width=16", "num_heads=2", "intermediate_width=32")
BODIES = {
    "bert": [f"model.trunk.{field}" for field in OF_BERT],
    "interbert": [f"model.trunk.{field}" for field in OF_INTERBERT],
    "vilbert": [f"model.trunk.{field}" for field in OF_VILBERT],
    "vlmo": [f"model.encoder.{field}" for field in OF_VLMO],
}
USUAL = ("batch_size=6", "log_every=1", "save_every=2", "keep_checkpoints=9", "trackers=[]")
CLASSES = ("entailment", "neutral", "contradiction")


def sentences(task: str, number: int, **columns: Any) -> dict[str, Any]:
    """A row of one of GLUE's tasks; every sixth is for validation."""
    scored, split = task == "sts-b", "dev" if number % 6 == 5 else "train"
    row: dict[str, Any] = {
        "example_id": f"glue/{task}/{split}/{number}",
        "image_ids": [],
        "text_a": f"what is left of number {number % 3}?",
        "text_b": None if task in ("cola", "sst-2") else f"that is number {number % 2}",
        "label": None,
        "label_id": -1 if scored else number % (3 if task == "mnli" else 2),
        "score": float(number % 6) if scored else None,
        "split": split,
        "source": f"glue/{task}",
    }
    return dict.fromkeys(STATEMENTS.schema.names) | row | columns


def statement(number: int, **columns: Any) -> dict[str, Any]:
    """A statement of two images, whose number modulo two is its label."""
    split = "dev" if number % 6 == 5 else "train"
    row = {
        "example_id": f"nlvr2/{split}-{number}-0-0",
        "image_ids": [f"image-{number % 12}", f"image-{(number + 5) % 12}"],
        "text_a": f"one has number {number % 3}",
        "label": "True" if number % 2 else "False",
        "label_id": number % 2,
        "split": split,
        "source": "nlvr2",
        "subset": "balanced" if number % 4 < 2 else None,
    }
    return dict.fromkeys(STATEMENTS.schema.names) | row | columns


def write_statements(folder: Path, rows: Sequence[dict[str, Any]]) -> str:
    """Writes a table of statements below ``folder`` and names it."""
    write_shard(folder / "statements", STATEMENTS, list(rows))
    return str(folder / "statements")


def texts(folder: Path, task: str = "rte", count: int = 24) -> TaskInputs:
    """Rows of one of GLUE's tasks, and of another one between them."""
    rows = [sentences(of, number) for number in range(count) for of in (task, "wnli")]
    return TaskInputs(examples=write_statements(folder, rows))


def two_images(folder: Path, count: int = 24) -> TaskInputs:
    """Statements with the regions and images of both."""
    tables = Tables(folder)
    tables.write_regions([f"image-{number}" for number in range(12)])
    return TaskInputs(
        examples=write_statements(folder, [statement(number) for number in range(count)]),
        regions=tables.regions,
        images=write_images(folder / "images", 12),
    )


def tiny(name: str, *changes: str) -> TaskRecipe:
    """A small recipe made smaller."""
    body = BODIES[next(body for body in BODIES if f"-{body}" in name)]
    return change_recipe(task_recipe_named(name), [*body, *USUAL, "steps=6", *changes])
