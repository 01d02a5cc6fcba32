"""A miniature of VQA: a question's number names its answer; regions and images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.factories import Tables, write_images

from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.tables import QUESTIONS
from vlmill.train.recipes import change_recipe
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.finetuning.job import TaskInputs
from vlmill.train.tasks.registry import task_recipe_named

if TYPE_CHECKING:
    from collections.abc import Sequence

ANSWERS = ("red", "blue", "2")
# Two layers of 16 numbers: seconds for a run.
VILBERT = (
    *("model.trunk.width=16", "model.trunk.num_heads=2", "model.trunk.intermediate_width=32"),
    *("model.trunk.visual_width=16", "model.trunk.visual_num_heads=2"),
    *("model.trunk.visual_intermediate_width=16", "model.trunk.co_width=16"),
    *("model.trunk.co_num_heads=2", "model.trunk.dropout=0.1"),
)
SINGLE_STREAM = (
    *("model.trunk.width=16", "model.trunk.num_heads=2", "model.trunk.num_layers=2"),
    "model.trunk.intermediate_width=32",
)
VLBERT = (
    *("model.body.width=16", "model.body.num_heads=2", "model.body.num_layers=2"),
    "model.body.intermediate_width=32",
)
VLMO = (
    "model.encoder.width=16",
    "model.encoder.num_heads=2",
    "model.encoder.intermediate_width=32",
)
# What the small recipes have beside their size: in full or quickly on a CPU.
QUICKLY = ("epochs=null", "precision=no", "workers=0", "settings.min_questions=1")
TWO_CO_LAYERS = (
    *("model.trunk.num_layers=3", "model.trunk.visual_num_layers=2"),
    *("model.trunk.text_co_layers=[1,2]", "model.trunk.visual_co_layers=[0,1]"),
)
TINY = {
    "vqa-vilbert-small": VILBERT,
    "vqa-vl-bert-small": VLBERT,
    "vqa-vlmo-small": (*VLMO, "model.encoder.image_size=32", "feeding.image_size=32"),
    "vqa-vilbert-from-bert": (*VILBERT, *TWO_CO_LAYERS, *QUICKLY),
    "vqa-single-stream-from-bert": (*SINGLE_STREAM, *QUICKLY),
    "vqa-vl-bert-from-bert": (*VLBERT, *QUICKLY),
    "vqa-vlmo-base": (
        *(*VLMO, "model.encoder.num_layers=2", "model.encoder.first_vl_layer=1"),
        *QUICKLY,
    ),
}
USUAL = ("batch_size=6", "log_every=1", "save_every=2", "keep_checkpoints=9", "trackers=[]")


def question(number: int, **columns: Any) -> dict[str, Any]:
    """A question whose number modulo three is its answer's; every sixth is for validation."""
    answer = ANSWERS[number % 3]
    row = {
        "question_id": f"vqa2/{number}",
        "image_id": f"image-{number % 12}",
        "question": f"what is left of number {number % 3}?",
        "question_type": "what",
        "answer_type": "number" if answer == "2" else "other",
        "answer": answer,
        "answers": [answer] * 8 + ["yes"] * 2,
        "split": "val2014" if number % 6 == 5 else "train2014",
        "source": "vqa2",
    }
    return dict.fromkeys(QUESTIONS.schema.names) | row | columns


def write_questions(folder: Path, rows: Sequence[dict[str, Any]]) -> str:
    """Writes a table of questions below ``folder`` and names it."""
    write_shard(folder / "questions", QUESTIONS, list(rows))
    return str(folder / "questions")


def world(folder: Path, count: int = 24) -> TaskInputs:
    """Questions with regions and images."""
    tables, images = Tables(folder), [f"image-{number}" for number in range(12)]
    tables.write_regions(images)
    return TaskInputs(
        examples=write_questions(folder, [question(number) for number in range(count)]),
        regions=tables.regions,
        images=write_images(folder / "images", 12),
    )


def tiny(name: str = "vqa-vilbert-small", *changes: str) -> TaskRecipe:
    """A small recipe made smaller."""
    return change_recipe(task_recipe_named(name), [*TINY[name], *USUAL, "steps=6", *changes])
