"""Writes a world's tight boxes as ``boxes``: what a detector is trained and measured on."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vlmill.runtime.files.atomic import write_text
from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.outputs import State, prepare_output
from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.tables import BOXES
from worlds.images import draw
from worlds.scenes import Split, World, make_scene
from worlds.writing import SOURCE, about, image_id_of_scene, rng_of_scene

JOB = "world boxes"


def write_boxes(folder: Path, world: World, *, pairs: int, held_out: int) -> State:
    """Writes the boxes of the images that ``write_world`` draws with one caption each.

    Classes are colours and shapes, attributes textures, in the order of ``world.json``; their names
    lie beside the table. Of what is written already nothing is written again.
    """
    settings = about(world) | {"pairs": pairs, "held_out": held_out}
    settings["world"] |= {"num_things": list(world.num_things)}
    state = prepare_output(folder, job=JOB, settings=settings)
    if state is State.FINISHED:
        return state
    counts: dict[Split, int] = {"train": pairs, "test": held_out}
    rows = [row for split, count in counts.items() for row in boxes_of(world, split, count)]
    write_text(folder / "classes.json", json.dumps(world.kinds))
    write_text(folder / "attributes.json", json.dumps(world.textures))
    write_manifest(folder, [write_shard(folder, BOXES, rows)], job=JOB, settings=settings)
    return state


def boxes_of(world: World, split: Split, count: int) -> Iterator[dict[str, Any]]:
    """Yields the rows of the first ``count`` images of a split."""
    for index in range(count):
        scene = make_scene(world, split, index)
        _, boxes = draw(world, scene, rng_of_scene(world, split, index))
        yield {
            "image_id": image_id_of_scene(split, index),
            "width": world.side,
            "height": world.side,
            "boxes": np.asarray(boxes).tolist(),
            "class_ids": [world.kinds.index(thing.kind) for thing in scene.things],
            "attribute_ids": [[world.textures.index(thing.texture)] for thing in scene.things],
            "split": split,
            "source": SOURCE,
        }
