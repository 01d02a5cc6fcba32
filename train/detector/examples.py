"""Reads the rows of a table of boxes as examples: checked, cleaned, and counted where excluded.

M boxes of an image. Boxes are (x1, y1, x2, y2) in pixels of the upright image, x2 and y2 exclusive.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.paths import readable
from vlmill.runtime.files.reading import find_shards
from vlmill.runtime.readers.images import ImageReader
from vlmill.runtime.readers.row_index import ABSENT
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason, reject
from vlmill.schemas.tables import BOXES
from vlmill.train.detector.settings import TrainingSettings

STAGE = "train"
MOST_NAMED = 10  # classes that have too few boxes
SMALLEST_SIDE = 1e-3  # pixels: a smaller box has no area that anything overlaps


@dataclass(frozen=True, kw_only=True)
class Example:
    """Holds one image's annotated objects."""

    image_id: str
    row: int  # in the table of images
    width: int  # of the image upright
    height: int
    boxes: npt.NDArray[np.float32]  # [M, 4]
    classes: npt.NDArray[np.int64]  # [M], from 0
    attributes: npt.NDArray[np.int64]  # [M, A], from 0; -1 where a box has fewer
    # Boxes around crowds [C, 4] and their classes [C]: not learned, and no errors to detect.
    crowd_boxes: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 4), "f4"))
    crowd_classes: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(kw_only=True)
class Examples:
    """Holds a split's examples, and counts of the excluded parts of its rows."""

    examples: list[Example] = field(default_factory=list)
    rejects: list[dict[str, object]] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)  # single boxes, by reason
    first: dict[str, str] = field(default_factory=dict)  # the first image of each reason
    empty: int = 0  # images without a box that are kept as negatives

    def leave_out(self, count: int, why: str, image_id: str) -> None:
        """Counts boxes of an image that are excluded or changed."""
        if count:
            self.dropped[why] += count
            self.first.setdefault(why, image_id)

    def class_counts(self, num_classes: int) -> npt.NDArray[np.int64]:
        """Returns how many boxes each class has."""
        counts = np.zeros(num_classes, dtype=np.int64)
        for example in self.examples:
            np.add.at(counts, example.classes, 1)
        return counts


def read_rows(boxes: str | Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of a table of boxes, shard by shard."""
    for path in find_shards(boxes, BOXES, "--boxes"):
        for batch in pq.ParquetFile(readable(path)).iter_batches():
            yield from batch.to_pylist()


def read_examples(
    rows: Sequence[dict[str, Any]],
    images: ImageReader,
    settings: TrainingSettings,
    splits: Sequence[str],
    *,
    empty_pictures: bool,
) -> Examples:
    """Reads the rows of some splits.

    Faulty boxes are counted; an image that is not in the table of images, repeats or, unless
    ``empty_pictures``, has no boxes left, is a reject.
    """
    chosen = [row for row in rows if (row["split"] or "train") in splits]
    result, used_ids = Examples(), set[str]()
    row_numbers = images.find([row["image_id"] for row in chosen])
    for row, row_number in zip(chosen, row_numbers.tolist(), strict=True):
        key = row["image_id"]
        if key in used_ids:
            result.rejects.append(
                reject(STAGE, key, Reason.DUPLICATE, "an earlier row has boxes for this image")
            )
            continue
        used_ids.add(key)
        if row_number == ABSENT:
            result.rejects.append(reject(STAGE, key, Reason.NO_IMAGE, "not in --images"))
            continue
        example = make_example(row, row_number, settings, result)
        if not len(example.boxes) and not empty_pictures:
            result.rejects.append(reject(STAGE, key, Reason.NO_BOXES, "no box of a known class"))
            continue
        result.empty += not len(example.boxes)
        result.examples.append(example)
    return result


def make_example(
    row: dict[str, Any], row_number: int, settings: TrainingSettings, result: Examples
) -> Example:
    """Returns a row's boxes, clipped to the image, without boxes from which nothing can be learned;
    ``result`` counts these by reason.
    """
    key, count = row["image_id"], len(row["boxes"])
    require_whole(row)
    boxes = np.array(row["boxes"], dtype=np.float32).reshape(count, 4)
    classes = np.array(row["class_ids"], dtype=np.int64)
    width, height = row["width"], row["height"]
    finite = np.isfinite(boxes).all(axis=1)
    inverted = ~(boxes[:, 2:] > boxes[:, :2]).all(axis=1)
    clipped = boxes.clip(0, np.array([width, height, width, height], dtype=np.float32))
    outside = ~((clipped[:, 2:] - clipped[:, :2]) > SMALLEST_SIDE).all(axis=1)
    unknown = (classes < 0) | (classes >= settings.detector.num_classes)
    crowd = np.array(row["is_crowd"] or [False] * count, dtype=bool)
    faults = {
        "not finite": ~finite,
        "inverted or empty": inverted,
        "outside the image": outside,
        "of an unknown class": unknown,
    }
    good = np.ones(count, dtype=bool)
    for why, fault in faults.items():
        result.leave_out(int((fault & good).sum()), why, key)
        good &= ~fault
    crowd &= good
    result.leave_out(int(crowd.sum()), "around a crowd", key)
    good &= ~crowd
    cut = (clipped != boxes).any(axis=1)
    result.leave_out(int(cut[good].sum()), "cut at the border", key)
    attributes, unknown_attributes = attribute_rows(
        row["attribute_ids"], good, settings.detector.num_attributes
    )
    result.leave_out(unknown_attributes, "attributes that are unknown", key)
    return Example(
        image_id=key,
        row=row_number,
        width=width,
        height=height,
        boxes=clipped[good],
        classes=classes[good],
        attributes=attributes,
        crowd_boxes=clipped[crowd],
        crowd_classes=classes[crowd],
    )


def require_whole(row: dict[str, Any]) -> None:
    """Raises InputError for a row whose lists differ in length."""
    key, count = row["image_id"], len(row["boxes"])
    for name in ("class_ids", "is_crowd", "attribute_ids"):
        if row[name] is not None and len(row[name]) != count:
            raise InputError(
                f"--boxes: {key} has {count} boxes and {len(row[name])} {name}; write "
                "the table again"
            )
    if None in row["boxes"] or None in row["class_ids"]:
        raise InputError(f"--boxes: {key} has a null among its boxes or class_ids; remove this row")


def attribute_rows(
    attribute_ids: Sequence[Sequence[int] | None] | None,
    good: npt.NDArray[np.bool_],
    num_attributes: int,
) -> tuple[npt.NDArray[np.int64], int]:
    """Returns the attributes of the good boxes in a rectangle, -1 where a box has fewer, and how
    many more there were; a detector without attributes counts none.
    """
    rows = [
        list(attribute_ids[index] or ()) if attribute_ids else []
        for index in np.flatnonzero(good).tolist()
    ]
    known = [
        [attribute_id for attribute_id in row if 0 <= attribute_id < num_attributes] for row in rows
    ]
    unknown = sum(map(len, rows)) - sum(map(len, known)) if num_attributes else 0
    width = max(map(len, known), default=0)
    filled = np.full((len(rows), width), -1, dtype=np.int64)
    for index, row in enumerate(known):
        filled[index, : len(row)] = row
    return filled, unknown


def count_classes(boxes: str | Path) -> tuple[int, int]:
    """Returns how many classes and attributes a table of boxes names: the highest ids plus one."""
    highest = [-1, -1]
    for path in find_shards(boxes, BOXES, "--boxes"):
        table = pq.read_table(readable(path), columns=["class_ids", "attribute_ids"])
        for index, column in enumerate(table.columns):
            flat = column
            while pa.types.is_list(flat.type):
                flat = pc.list_flatten(flat)
            if (max_id := pc.max(flat).as_py()) is not None:
                highest[index] = max(highest[index], max_id)
    if highest[0] < 0:
        raise InputError(f"--boxes {boxes} has no box; give a table of annotated images")
    return highest[0] + 1, highest[1] + 1


def get_class_name(classes: Sequence[str], number: int) -> str:
    """Returns a class's first name, or its number without a name."""
    return classes[number].split(",")[0] if number < len(classes) else f"class {number}"


def say_examples(examples: Examples, num_classes: int, names: Sequence[str]) -> None:
    """Prints counts of the training data, and of the excluded boxes."""
    counts = examples.class_counts(num_classes)
    never, once = np.flatnonzero(counts == 0), np.flatnonzero(counts == 1)
    print_status(
        f"{len(examples.examples)} images ({examples.empty} without a box, kept as negatives), "
        f"{int(counts.sum())} boxes of {len(counts)} classes ({len(never)} without a box, "
        f"{len(once)} with a single one)"
    )
    for what, classes in (("without a box", never), ("with a single box", once)):
        example_names = [get_class_name(names, number) for number in classes[:MOST_NAMED].tolist()]
        more = ["..."] if len(classes) > MOST_NAMED else []
        if example_names:
            print_status(f"classes {what}: {', '.join(example_names + more)}")
    say_left_out(examples)


def say_left_out(examples: Examples, where: str = "boxes") -> None:
    """Prints how many boxes were omitted or clipped, and the first image of each fault."""
    if examples.dropped:
        counts = examples.dropped.items()
        faults = [f"{count} {why} (first in {examples.first[why]})" for why, count in counts]
        print_status(f"{where}: {', '.join(faults)}")
