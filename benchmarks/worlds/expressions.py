"""Writes referring expressions and questions with four choices: RefCOCO+ and VCR of a world.

An expression means one thing, by its looks or by where it stands beside another. A choice is
about a thing by its number, which a text says as the thing's shape: its colour (q2a), and, given
that, where it stands to another (qa2r). Wrong choices differ in the asked word alone, so that who
sees the text alone has to guess.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.outputs import State, prepare_output
from vlmill.runtime.files.shards import ShardWriter
from vlmill.runtime.readers.regions import RegionRow, encode_regions, region_arrays
from vlmill.schemas.tables import CHOICES, EXPRESSIONS, REGIONS
from worlds.detector import Detector
from worlds.images import Boxes, Pixels, draw
from worlds.questions import related
from worlds.scenes import RELATIONS, Scene, Split, World, make_scene

JOB = "world-boxes"
DTYPE = "float16"
TABLES = (EXPRESSIONS, CHOICES, REGIONS)
ATTRIBUTE, RELATION = "attribute", "relation"  # what an expression names a thing by: its source
# Of a scene. Few have relations: three things that are not inside each other.
DRAWN = {ATTRIBUTE: 1, RELATION: 4}
FEWEST_IN_ORDER = 3
CLEAR_PX = 6.0  # between the centres of things that are in order
AXES = {"x": ("leftmost", "rightmost"), "y": ("highest", "lowest")}  # least, and most
NUM_CHOICES = 4
PLAIN = [-1]
MARK = "[MARK]"  # as the tables of VCR have it, between a question and its answer


def attribute_expressions(scene: Scene) -> Iterator[tuple[str, int]]:
    """Yields texts that name a thing by what it looks like, with the thing's number."""
    shapes = Counter(thing.shape for thing in scene.things)
    colours = Counter(thing.colour for thing in scene.things)
    for number, thing in enumerate(scene.things):
        yield f"the {thing.kind}", number
        if shapes[thing.shape] == 1:
            yield f"the {thing.shape}", number
        if colours[thing.colour] == 1:
            yield f"the {thing.colour} thing", number


def relation_expressions(scene: Scene) -> Iterator[tuple[str, int]]:
    """Yields texts that name what stands furthest in a direction beside another thing.

    That thing is one of the two that stand furthest there, and the other one is meant: who cannot
    tell things apart has two answers, as often right. Only three things and more have some: of two
    the other one is meant in every direction. All centres have to be in a clear order along the
    direction's axis: one inside another thing leaves none.
    """
    if len(scene.things) < FEWEST_IN_ORDER:
        return
    for axis, words in AXES.items():
        order = sorted(range(len(scene.places)), key=lambda i: getattr(scene.places[i], axis))
        along = [getattr(scene.places[number], axis) for number in order]
        if min(second - first for first, second in pairwise(along)) < CLEAR_PX:
            continue
        for word, (first, second) in zip(words, (order[:2], order[:-3:-1]), strict=True):
            for other, meant in ((first, second), (second, first)):
                yield f"the {word} thing beside the {scene.things[other].kind}", meant


def expression_rows(
    split: Split, image_id: str, scene: Scene, boxes: Boxes, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Returns a scene's rows of ``expressions``: of each kind :data:`DRAWN` different ones, or as
    many as it has.
    """
    rows = []
    kinds = {ATTRIBUTE: attribute_expressions(scene), RELATION: relation_expressions(scene)}
    for kind, named in kinds.items():
        every = list(named)
        for at in rng.permutation(len(every))[: DRAWN[kind]]:
            text, number = every[at]
            rows.append(
                {
                    "expression_id": f"{image_id}/{kind}/{at}",
                    "ref_id": f"{image_id}/{number}",
                    "ann_id": f"{image_id}/{number}",
                    "image_id": image_id,
                    "text": text,
                    "box": boxes[number].tolist(),
                    "split": split,
                    "source": kind,
                }
            )
    return rows


def choice_rows(
    world: World, split: Split, image_id: str, scene: Scene, boxes: Boxes, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Returns a scene's two rows of ``choices``, or none where nothing of the asked thing holds."""
    subject = int(rng.integers(len(scene.things)))
    holding = [one for one in related(scene) if one[0] == subject]
    if not holding:
        return []
    _, relation, object_ = holding[int(rng.integers(len(holding)))]
    right = scene.things[subject].colour
    asked, said = f"[{subject}]", f"it is {right} ."
    colours, colour_label = four(right, world.colours, rng)
    # Of several relations that hold one is asked for: the others are no wrong choices.
    true = {name for _, name, other in holding if other == object_}
    others = [name for name in RELATIONS if name not in true]
    relations, relation_label = four(relation, [relation, *others], rng)
    shared = {
        "image_id": image_id,
        "object_names": [thing.shape for thing in scene.things],
        "boxes": boxes.ravel().tolist(),
        "split": split,
        "source": "world",
    }
    question = f"what colour is {asked} ?"
    texts = {
        "q2a": (question, [f"it is {colour} ." for colour in colours], colour_label),
        "qa2r": (
            f"{question} {MARK} {said}",
            [f"{asked} is {name} [{object_}] ." for name in relations],
            relation_label,
        ),
    }
    return [
        shared
        | {
            "example_id": f"world/{image_id}/{task}",
            "task": task,
            "question": text,
            "choices": choices,
            "label": label,
            "question_tags": tags(text),
            "choice_tags": [tags(choice) for choice in choices],
        }
        for task, (text, choices, label) in texts.items()
    ]


def four(right: str, every: Sequence[str], rng: np.random.Generator) -> tuple[list[str], int]:
    """Returns the right one among three others, in any order, and its place."""
    others = [one for one in every if one != right]
    wrong = rng.permutation(len(others))[: NUM_CHOICES - 1]
    chosen = [right, *(others[at] for at in wrong)]
    order = rng.permutation(NUM_CHOICES)
    return [chosen[at] for at in order], int(np.flatnonzero(order == 0)[0])


def tags(text: str) -> list[list[int]]:
    """Returns for each word the object that it names, as ``[0]`` does; -1 for a plain word."""
    return [
        [int(word[1:-1])] if word.startswith("[") and word[1:-1].isdecimal() else PLAIN
        for word in text.split(" ")
    ]


def annotated_row(
    world: World,
    detector: Detector,
    image_id: str,
    pixels: Pixels,
    boxes: Boxes,
    rng: np.random.Generator,
) -> RegionRow:
    """Returns the regions at the things' own boxes, in their order."""
    features = detector.features(pixels, boxes)
    features += np.float32(detector.noise) * rng.standard_normal(features.shape).astype(np.float32)
    return RegionRow(
        image_id=image_id, width=world.side, height=world.side, boxes=boxes, features=features
    )


def write_boxes(
    folder: Path, world: World, *, images: Mapping[Split, int], detector: Detector | None = None
) -> State:
    """Writes ``expressions``, ``choices`` and the things' own ``regions`` of the first images of
    each split, those that `write_world` draws.

    Returns what the folder held: a finished one is left as it is; InputError if it holds something
    else. Memory: the rows.
    """
    detector = detector or Detector()
    settings = {
        "world": asdict(world) | {"num_things": list(world.num_things)},
        "detector": asdict(detector),
        "pictures": dict(images),
        "drawn": DRAWN,
        "tables": [table.name for table in TABLES],
    }
    state = prepare_output(folder, job=JOB, settings=settings)
    if state is State.FINISHED:
        return state
    rows: dict[str, list[Any]] = {table.name: [] for table in TABLES}
    for split, count in images.items():
        for index in range(count):
            add_scene(rows, world, detector, split, index)
    arrays = region_arrays(dtype=DTYPE, feature_dim=detector.feature_dim)
    with ExitStack() as stack:
        writers = {
            table.name: stack.enter_context(
                ShardWriter(
                    folder,
                    table,
                    0,
                    1,
                    producer={"job": JOB, "detector_fingerprint": detector.fingerprint(world)},
                    arrays=arrays if table is REGIONS else None,
                )
            )
            for table in TABLES
        }
        for name, writer in writers.items():
            of_table = rows[name]
            writer.write(
                encode_regions(of_table, dtype=DTYPE) if name == REGIONS.name else of_table
            )
    shards = [writer.shard for writer in writers.values() if writer.shard is not None]
    write_manifest(folder, shards, job=JOB, settings=settings)
    return state


def add_scene(
    rows: dict[str, list[Any]], world: World, detector: Detector, split: Split, index: int
) -> None:
    """Adds an image's rows to those of each table: the same for any number of others."""
    scene, image_id = make_scene(world, split, index), f"world/{split}/{index:06d}"
    pixels, boxes = draw(
        world, scene, np.random.default_rng([world.seed, split == "test", index, 1])
    )
    rng = np.random.default_rng([world.seed, split == "test", index, 4])
    rows["expressions"] += expression_rows(split, image_id, scene, boxes, rng)
    rng = np.random.default_rng([world.seed, split == "test", index, 3])
    rows["choices"] += choice_rows(world, split, image_id, scene, boxes, rng)
    rows["regions"].append(annotated_row(world, detector, image_id, pixels, boxes, rng))
