"""The miniatures of VCR and RefCOCO+ as images: an object's colour tells its kind."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tests.train.tasks.choices import rows_of, write_choices
from tests.train.tasks.expressions import (
    HEIGHT,
    NUM_IMAGES,
    PLACES,
    USUAL,
    WIDTH,
    expression,
    order_of,
    write_expressions,
)
from tests.train.tasks.finetuning.starts import save_random

from vlmill.models.vlbert.config import VlBertEndToEndConfig, vlbert_small
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.regions import RegionRow, encode_regions
from vlmill.schemas.ids import compute_image_id
from vlmill.schemas.tables import IMAGES, REGIONS
from vlmill.train.loading.vocabulary import train_vocabulary
from vlmill.train.recipes import change_recipe
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.finetuning.job import TaskInputs
from vlmill.train.tasks.registry import task_recipe_named

COLOURS = ((200, 20, 20), (20, 200, 20), (20, 20, 200))
TINY = (
    *("model.model.body.width=16", "model.model.body.num_heads=2"),
    *("model.model.body.num_layers=1", "model.model.body.intermediate_width=32"),
    *("model.model.body.region_width=16", "model.cnn.widths=[1,2,3,4]"),
    *("model.cnn.stem_channels=4", "model.cnn.pool_size=2"),
    *("feeding.short_side=32", "feeding.long_side=64"),
)
NAMES = ("refcoco", "vcr")


def image(number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A grey image with three coloured objects at their places."""
    pixels = np.full((HEIGHT, WIDTH, 3), 120, dtype=np.uint8)
    for box, kind in zip(PLACES.astype(int), order_of(number), strict=True):
        pixels[box[1] : box[3], box[0] : box[2]] = COLOURS[kind]
    return pixels


def write_images(folder: Path) -> str:
    """The table of the images that the miniatures are about."""
    rows = []
    for number in range(NUM_IMAGES):
        out = io.BytesIO()
        Image.fromarray(image(number)).save(out, "PNG")
        png = out.getvalue()
        facts = {"width": WIDTH, "height": HEIGHT, "format": "png", "sha256": compute_image_id(png)}
        rows.append({"image_id": f"image-{number}", "bytes": png} | facts)
    write_shard(folder, IMAGES, rows)
    return str(folder)


def write_bare(folder: Path, *, shift: float = 0.0, empty: tuple[int, ...] = ()) -> str:
    """Boxes of the images' objects without features, ``shift`` pixels off; some have none."""
    rows = [
        RegionRow(
            image_id=f"image-{number}",
            width=WIDTH,
            height=HEIGHT,
            boxes=PLACES[: 0 if number in empty else 3] + np.float32(shift),
        )
        for number in range(NUM_IMAGES)
    ]
    write_shard(folder, REGIONS, encode_regions(rows, dtype="float16"))
    return str(folder)


def outlined(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of choices with outlines: triangles, and of the last object none."""
    corners = [[[x1, y1], [x2, y1], [x1, y2]] for x1, y1, x2, y2 in PLACES.tolist()]
    segms = json.dumps([[corners[0]], [corners[1], corners[0]], []])
    return [row | {"segms": segms} for row in rows]


def world(folder: Path, task: str, count: int = 16) -> TaskInputs:
    """Examples of a task with their images, and of expressions the boxes to choose among."""
    images = write_images(folder / "images")
    if task == "vcr":
        examples = write_choices(folder, outlined(rows_of(count)))
        return TaskInputs(examples=examples, images=images)
    return TaskInputs(
        examples=write_expressions(folder, [expression(number) for number in range(count)]),
        images=images,
        regions=write_bare(folder / "regions", shift=2.0),
        annotated_regions=write_bare(folder / "annotated"),
    )


def tiny(task: str, *changes: str, name: str = "end-to-end-small") -> TaskRecipe:
    """The small recipe from pixels made smaller."""
    recipe = task_recipe_named(f"{task}-vl-bert-{name}")
    return change_recipe(recipe, [*TINY, *USUAL, "steps=4", *changes])


def pixels_start(folder: Path, task: str) -> Path:
    """A VL-BERT end to end of `tiny`'s sizes, with random weights."""
    recipe = tiny(task)
    texts = ["what does the dog do ?", "it barks . it purrs . it floats . it sings .", "the cat"]
    words = train_vocabulary(texts, 80)
    body = recipe.model.model.body
    sizes = ("width", "num_heads", "num_layers", "intermediate_width", "region_width")
    model = vlbert_small(
        vocab_size=words.get_vocab_size(),
        num_region_classes=7,
        masked_region="pixels",
        dropout=0.0,
        **{name: getattr(body, name) for name in sizes},
    )
    config = VlBertEndToEndConfig(
        model=model, cnn=dataclasses.replace(recipe.model.cnn, frozen_stages=2)
    )
    return save_random(folder, "vl-bert-end-to-end", config, words)
