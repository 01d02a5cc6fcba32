"""A miniature of RefCOCO+: an expression's word names which of an image's boxes is meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.regions import RegionRow, encode_regions, region_arrays
from vlmill.schemas.tables import EXPRESSIONS, REGIONS
from vlmill.train.recipes import change_recipe
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.finetuning.job import TaskInputs
from vlmill.train.tasks.registry import task_recipe_named

WIDTH, HEIGHT, DIM = 200, 100, 16
PLACES = np.array([[0, 10, 40, 60], [60, 20, 100, 80], [120, 0, 190, 99]], dtype=np.float32)
KINDS = ("dog", "cat", "boat")
TRUNK = (
    *("model.trunk.width=16", "model.trunk.num_heads=2", "model.trunk.intermediate_width=32"),
    *("model.trunk.visual_width=16", "model.trunk.visual_num_heads=2"),
    *("model.trunk.visual_intermediate_width=16", "model.trunk.co_width=16"),
    *("model.trunk.co_num_heads=2",),
)
BODY = (
    *("model.body.width=16", "model.body.num_heads=2", "model.body.num_layers=2"),
    "model.body.intermediate_width=32",
)
USUAL = ("batch_size=6", "log_every=1", "save_every=2", "keep_checkpoints=9", "trackers=[]")
NUM_IMAGES = 8


def order_of(number: int) -> list[int]:
    """Which kind is at which place of an image."""
    return [int(place) for place in np.random.default_rng(number).permutation(3)]


def expression(number: int, **columns: Any) -> dict[str, Any]:
    """An expression for one kind of its image's; every fourth is for validation."""
    image = number % NUM_IMAGES
    kind = number % 3
    row = {
        "expression_id": f"refcoco+/{number}",
        "ref_id": str(number),
        "ann_id": str(number),
        "image_id": f"image-{image}",
        "text": f"the {KINDS[kind]}",
        "box": PLACES[order_of(image).index(kind)].tolist(),
        "split": "val" if number % 4 == 3 else "train",
        "source": "refcoco+",
        "split_by": "unc",
    }
    return dict.fromkeys(EXPRESSIONS.schema.names) | row | columns


def write_expressions(folder: Path, rows: list[dict[str, Any]]) -> str:
    """Writes a table of expressions below ``folder`` and names it."""
    write_shard(folder / "expressions", EXPRESSIONS, rows)
    return str(folder / "expressions")


def write_boxes(
    folder: Path, *, shift: float = 0.0, empty: tuple[int, ...] = (), images: int = NUM_IMAGES
) -> str:
    """Regions of the images' three objects, whose features tell the kind; boxes ``shift`` pixels
    off, as a detector's are.
    """
    rows = []
    for number in range(images):
        count = 0 if number in empty else 3
        features = np.zeros((count, DIM), dtype=np.float32)
        for place, kind in enumerate(order_of(number)[:count]):
            features[place, kind] = 3.0
        rows.append(
            RegionRow(
                image_id=f"image-{number}",
                width=WIDTH,
                height=HEIGHT,
                boxes=PLACES[:count] + np.float32(shift),
                features=features,
            )
        )
    write_shard(
        folder,
        REGIONS,
        encode_regions(rows, dtype="float16"),
        producer={"detector_fingerprint": "detector-a"},
        arrays=region_arrays(dtype="float16", feature_dim=DIM),
    )
    return str(folder)


def world(folder: Path, count: int = 32, *, empty: tuple[int, ...] = ()) -> TaskInputs:
    """Expressions with detected and annotated regions."""
    return TaskInputs(
        examples=write_expressions(folder, [expression(number) for number in range(count)]),
        regions=write_boxes(folder / "regions", shift=2.0, empty=empty),
        annotated_regions=write_boxes(folder / "annotated"),
    )


def tiny(name: str = "refcoco-vilbert-small", *changes: str) -> TaskRecipe:
    """A small recipe made smaller."""
    sizes = TRUNK if "vilbert" in name else BODY
    return change_recipe(task_recipe_named(name), [*sizes, *USUAL, "steps=6", *changes])
