"""Writes a world to disk: ``pairs``, ``images``, ``regions`` and ``questions`` in one folder, boxes
and what is known.

The folder serves as ``--pairs``, ``--images``, ``--regions`` and ``--examples``; ``labels.json``
lists the answers, ``world.json`` the words, classes and oracles. ``boxes.jsonl`` has the boxes for
``extract-rois run FOLDER --boxes FOLDER/boxes.jsonl``.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice, permutations, product
from pathlib import Path
from typing import Any

import numpy as np

from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.atomic import write_json, write_text
from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.outputs import State, prepare_output
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.files.shards import ShardWriter, write_shard
from vlmill.runtime.readers.regions import RegionRow, encode_regions, region_arrays
from vlmill.schemas.ids import compute_image_id, compute_pair_id
from vlmill.schemas.tables import BOXES, IMAGES, PAIRS, QUESTIONS, REGIONS
from worlds.detector import Detector
from worlds.images import draw, png_of
from worlds.questions import answers, question_rows
from worlds.scenes import (
    INVERSES,
    OPENINGS,
    Scene,
    Split,
    Statement,
    World,
    make_scene,
    make_scenes,
    stated,
    word_groups,
)

MOST = 2 * len(OPENINGS)  # that every scene has: a scene of two things can be told from either

_OTHER_END = INVERSES | {inverse: name for name, inverse in INVERSES.items()}


def captions(world: World, scene: Scene, count: int, rng: np.random.Generator) -> list[str]:
    """Returns ``count`` different captions of a scene, its own first, the others drawn.

    Raises ValueError for more than :data:`MOST`.
    """
    if not 1 <= count <= MOST:
        raise ValueError(f"captions={count}: expected 1 to {MOST}, which every scene has")
    names = [thing.name(world) for thing in scene.things]
    texts = (stated(names, one) for one in wordings(scene.statements))
    others = [opening + text for opening, text in product(OPENINGS, dict.fromkeys(texts))]
    others.remove(scene.caption)
    chosen = rng.permutation(len(others))[: count - 1].tolist()
    return [scene.caption, *(others[number] for number in chosen)]


def wordings(statements: tuple[Statement, ...]) -> list[tuple[Statement, ...]]:
    """Returns what a caption can state: statements of one thing in any order, those of a chain from
    its other end, too.
    """
    backwards = tuple(
        Statement(s.object, _OTHER_END[s.relation], s.subject) for s in reversed(statements)
    )
    if len(statements) == 1:
        return [statements, backwards]
    if all(s.subject == statements[0].subject for s in statements):
        return list(permutations(statements))
    return [statements, backwards]


JOB = "world"
SOURCE = "world"
DTYPE = "float16"
TABLES = (PAIRS, IMAGES, REGIONS, QUESTIONS)
ROWS_PER_GROUP = 256


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Holds an image's bytes and regions with its captions and rows of questions."""

    image_id: str
    split: Split
    captions: tuple[str, ...]
    questions: tuple[dict[str, Any], ...]
    png: bytes
    regions: RegionRow


def rng_of_scene(world: World, split: Split, index: int) -> np.random.Generator:
    """Returns what an image is drawn with, from the first number on."""
    return np.random.default_rng([world.seed, split == "test", index, 1])


def image_id_of_scene(split: Split, index: int) -> str:
    """Names the image of a scene."""
    return f"world/{split}/{index:06d}"


def make_sample(
    world: World, detector: Detector, split: Split, index: int, scene: Scene, count: int = 1
) -> Sample:
    """Draw a scene with ``count`` captions and detect its things: the same for any number of other
    samples.
    """
    rng = rng_of_scene(world, split, index)
    pixels, boxes = draw(world, scene, rng)
    image_id = image_id_of_scene(split, index)
    regions = detector.detect(world, scene, pixels, boxes, image_id, rng)
    return Sample(
        image_id=image_id,
        split=split,
        captions=tuple(captions(world, scene, count, rng)),
        questions=tuple(question_rows(world, split, image_id, index, scene)),
        png=png_of(pixels),
        regions=regions,
    )


def samples(
    world: World, detector: Detector, scenes: Mapping[Split, Sequence[Scene]], count: int
) -> Iterator[Sample]:
    """Yields the samples of all splits, in order; images to train on have ``count`` captions."""
    for split, split_scenes in scenes.items():
        for index, scene in enumerate(split_scenes):
            each = count if split == "train" else 1
            yield make_sample(world, detector, split, index, scene, each)


def write_world(
    folder: Path,
    world: World,
    *,
    pairs: int,
    held_out: int,
    each: int = 1,
    detector: Detector | None = None,
    known: Mapping[str, Any] | None = None,
) -> State:
    """Write ``pairs`` training pairs and ``held_out`` ones of split ``test``.

    An image to train on has ``each`` captions, so that there are fewer images than pairs; pairs
    of an image that is left over are not written, nor is it.
    ``known`` goes to ``world.json`` too. Returns what the folder held: of a finished world with the
    same settings nothing is written again; InputError if it holds something else. Memory: the
    scenes, and one row group.
    """
    detector = detector or Detector()
    settings = {
        "world": asdict(world) | {"num_things": list(world.num_things)},
        "detector": asdict(detector),
        "pairs": pairs,
        "held_out": held_out,
        "captions": each,
        "tables": [table.name for table in TABLES],
    }
    state = prepare_output(folder, job=JOB, settings=settings)
    if state is State.FINISHED:
        return state
    producer = {
        "job": JOB,
        "detector_fingerprint": detector.fingerprint(world),
        "weights": "generated world",
        **settings,
    }
    scenes: dict[Split, Sequence[Scene]] = {
        "train": make_scenes(world, "train", pairs // each),
        "test": make_scenes(world, "test", held_out),
    }
    arrays = region_arrays(
        dtype=DTYPE, feature_dim=detector.feature_dim, class_probs_dim=len(world.kinds) + 1
    )
    lines: list[str] = []
    with (
        Progress(total=sum(map(len, scenes.values())), unit="image", label="world") as progress,
        ExitStack() as stack,
    ):
        writers = [
            ShardWriter(folder, t, 0, 1, producer=producer, arrays=arrays if t is REGIONS else None)
            for t in TABLES
        ]
        for writer in writers:
            stack.enter_context(writer)
        every = samples(world, detector, scenes, each)
        while group := list(islice(every, ROWS_PER_GROUP)):
            writers[0].write([_pair(sample, text) for sample in group for text in sample.captions])
            writers[1].write([_image(sample) for sample in group])
            writers[2].write(encode_regions([s.regions for s in group], dtype=DTYPE))
            writers[3].write([row for sample in group for row in sample.questions])
            lines += [_boxes(sample) for sample in group]
            progress.advance(len(group))
    write_text(folder / "boxes.jsonl", "".join(lines))
    write_json(folder / "labels.json", answers(world))
    write_json(folder / "world.json", about(world) | dict(known or {}))
    shards = [writer.shard for writer in writers if writer.shard is not None]
    write_manifest(folder, shards, job=JOB, settings=settings)
    return state


def about(world: World) -> dict[str, Any]:
    """Returns what probes need: the telling words by group, and the names of classes and
    attributes.
    """
    return {
        "world": asdict(world),
        "words": {name: sorted(words) for name, words in word_groups(world).items()},
        "classes": list(world.kinds),
        "attributes": list(world.textures),
    }


def _pair(sample: Sample, text: str) -> dict[str, Any]:
    return {
        "pair_id": compute_pair_id(sample.image_id, text),
        "image_id": sample.image_id,
        "text": text,
        "language": "en",
        "source": SOURCE,
        "split": sample.split,
    }


def _image(sample: Sample) -> dict[str, Any]:
    return {
        "image_id": sample.image_id,
        "bytes": sample.png,
        "width": sample.regions.width,
        "height": sample.regions.height,
        "format": "png",
        "sha256": compute_image_id(sample.png),
    }


def _boxes(sample: Sample) -> str:
    boxes = sample.regions.boxes.tolist()
    return json.dumps({"image_id": sample.image_id, "boxes": boxes}) + "\n"


NOISE_JOB = "world-noise"
NOISY = "world-noisy"  # the source of pairs that may have another image's caption


def with_moved_captions(
    rows: Sequence[dict[str, Any]], share: float, seed: int
) -> list[dict[str, Any]]:
    """Returns pairs of which a ``share`` give their captions to each other: none of these keeps its
    own.

    The rest, and a single one that finds no other, stay as they are.
    """
    rng = np.random.default_rng([seed, 2])
    chosen = rng.permutation(len(rows))[: round(share * len(rows))].tolist()
    moved = [dict(row) for row in rows]
    for at, giver in zip(chosen, [*chosen[1:], *chosen[:1]], strict=True):
        text = rows[giver]["text"]
        moved[at] |= {"text": text, "pair_id": compute_pair_id(moved[at]["image_id"], text)}
    return moved


def write_noisy_pairs(
    folder: Path, pairs: str | Path, *, first: int = 0, share: float, seed: int = 0
) -> State:
    """Writes the pairs of a world, those of split ``train`` from number ``first`` on with moved
    captions.

    If ``first`` is above 0 the noisy ones get the source :data:`NOISY`, so that stages can tell
    them apart. Held-out pairs stay as they are. Returns what the folder held: a finished one with
    the same settings is left as it is.
    """
    settings = {"pairs": str(pairs), "first": first, "share": share, "seed": seed}
    state = prepare_output(folder, job=NOISE_JOB, settings=settings)
    if state is State.FINISHED:
        return state
    rows = read_table(pairs, PAIRS, flag="--pairs").to_pylist()
    train = [row for row in rows if row["split"] == "train"]
    noisy = with_moved_captions(train[first:], share, seed)
    if first:
        noisy = [{**row, "source": NOISY} for row in noisy]
    held_out = [row for row in rows if row["split"] != "train"]
    shard = write_shard(
        folder, PAIRS, [*train[:first], *noisy, *held_out], producer={"job": NOISE_JOB}
    )
    write_manifest(folder, [shard], job=NOISE_JOB, settings=settings)
    return state


BOXES_JOB = "world boxes"


def write_boxes(folder: Path, world: World, *, pairs: int, held_out: int) -> State:
    """Writes the boxes of the images that ``write_world`` draws with one caption each.

    Classes are colours and shapes, attributes textures, in the order of ``world.json``; their names
    lie beside the table. Of what is written already nothing is written again.
    """
    settings = about(world) | {"pairs": pairs, "held_out": held_out}
    settings["world"] |= {"num_things": list(world.num_things)}
    state = prepare_output(folder, job=BOXES_JOB, settings=settings)
    if state is State.FINISHED:
        return state
    counts: dict[Split, int] = {"train": pairs, "test": held_out}
    rows = [row for split, count in counts.items() for row in boxes_of(world, split, count)]
    write_text(folder / "classes.json", json.dumps(world.kinds))
    write_text(folder / "attributes.json", json.dumps(world.textures))
    write_manifest(folder, [write_shard(folder, BOXES, rows)], job=BOXES_JOB, settings=settings)
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
