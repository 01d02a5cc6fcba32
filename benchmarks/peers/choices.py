"""Questions with four choices for a step of VCR: tables that a run reads, and a batch for peers.

B questions, C choices, T tokens, R regions with the full image in row 0, D feature width.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from peers.questions import FEATURES, SIDE_PX, PreparedStep, write_vocabulary
from torch import Tensor

from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.regions import RegionRow, encode_regions, region_arrays
from vlmill.schemas.tables import CHOICES, REGIONS
from vlmill.train.tasks.finetuning.job import TaskInputs

PLAIN = [-1]
# Words of questions and of their four answers, of VCR: 6.6 and 7.5 in the mean; one of each names
# an object.
QUESTIONS = (4, 5, 6, 6, 7, 7, 8, 10)
ANSWERS = ((3, 5, 8, 12), (4, 6, 7, 9), (2, 7, 9, 14), (5, 6, 8, 11))
# Annotated objects and, for ViLBERT, boxes that a detector was sure of.
OBJECTS, DETECTED = (3, 5, 6, 8, 9, 12, 15, 20), (12, 16, 22, 31, 40, 55, 70, 79)


@dataclass(frozen=True, kw_only=True)
class VcrWork:
    """B questions for a step, as a peer takes them.

    tokens, segments, objects int64 [B, C, T] with the mask token_mask: word pieces with the special
    ones, 1 from the choice on, and the row of the region that a piece names; features [B, R, D];
    locations [B, R, 5] as fractions; region_lengths int64 [B]; right int64 [B].
    """

    tokens: Tensor
    segments: Tensor
    objects: Tensor
    token_mask: Tensor
    features: Tensor
    locations: Tensor
    region_lengths: Tensor
    right: Tensor


def vcr_work(prepared: PreparedStep) -> VcrWork:
    """The batch of a run of VCR."""
    inputs, labels = prepared.batch.inputs, prepared.batch.labels
    return VcrWork(
        tokens=labels["tokens"],
        segments=labels["segments"],
        objects=labels["text_regions"],
        token_mask=labels["token_mask"],
        features=inputs.region_features,
        locations=inputs.region_locations,
        region_lengths=inputs.region_mask.sum(1),
        right=labels["right"],
    )


def write_choices(folder: Path, count: int) -> TaskInputs:
    """Writes so many questions for answers, with both kinds of regions, and a vocabulary of BERT's
    size.
    """
    rng = np.random.default_rng(0)
    write_vocabulary(folder)
    every = len(QUESTIONS) // count
    rows: list[dict[str, Any]] = []
    tables: dict[str, list[RegionRow]] = {"annotated": [], "detected": []}
    for number in range(count):
        at = number * every
        objects = boxes_of(OBJECTS[at], rng)
        question, *answers = (
            text_of(length, OBJECTS[at], rng)
            for length in (QUESTIONS[at], *ANSWERS[number % len(ANSWERS)])
        )
        rows.append(
            dict.fromkeys(CHOICES.schema.names)
            | {
                "example_id": f"vcr/train-{number}/q2a",
                "image_id": str(number),
                "question": question[0],
                "choices": [text for text, _ in answers],
                "label": int(rng.integers(len(answers))),
                "task": "q2a",
                "object_names": [f"w{word}" for word in rng.integers(0, 80, OBJECTS[at])],
                "boxes": objects.ravel().tolist(),
                "question_tags": question[1],
                "choice_tags": [tags for _, tags in answers],
                "split": "train",
                "source": "vcr",
            }
        )
        tables["annotated"].append(region_row(number, objects, rng))
        tables["detected"].append(region_row(number, boxes_of(DETECTED[at], rng), rng))
    write_shard(folder / "choices", CHOICES, rows)
    for name, images in tables.items():
        write_shard(
            folder / name,
            REGIONS,
            encode_regions(images, dtype="float16"),
            arrays=region_arrays(dtype="float16", feature_dim=FEATURES),
        )
    return TaskInputs(
        examples=str(folder / "choices"),
        regions=str(folder / "detected"),
        annotated_regions=str(folder / "annotated"),
        vocab=str(folder / "vocab.txt"),
    )


def text_of(length: int, objects: int, rng: np.random.Generator) -> tuple[str, list[list[int]]]:
    """So many words, the last but one an object, with their tags."""
    named = int(rng.integers(objects))
    words = [f"w{word}" for word in rng.integers(0, 20_000, length)]
    words[-2] = f"[{named}]"
    return " ".join(words), [*[PLAIN] * (length - 2), [named], PLAIN]


def boxes_of(count: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """So many boxes [count, 4], with an area, of an image."""
    start = rng.random((count, 2)) * (SIDE_PX / 2)
    size = 8 + rng.random((count, 2)) * (SIDE_PX / 2 - 8)
    return np.concatenate([start, start + size], axis=1).astype(np.float32)


def region_row(number: int, boxes: NDArray[np.float32], rng: np.random.Generator) -> RegionRow:
    """An image's regions at these boxes."""
    return RegionRow(
        image_id=str(number),
        width=SIDE_PX,
        height=SIDE_PX,
        boxes=boxes,
        features=np.maximum(rng.standard_normal((len(boxes), FEATURES)), 0),
    )
