"""Replaces the detector's proposals by boxes that are given with the images (VCR, RefCOCO+).

Boxes of files refer to the stored image. Queries rotate them with it, by
:func:`vlmill.schemas.images.orientation.turn_boxes`. Boxes of vlmill's tables are already upright.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vlmill.extract.images.box_json import FORMS, box_entries
from vlmill.extract.images.id_matching import find_file_id, find_similar_id
from vlmill.runtime.files.reading import iter_batches
from vlmill.runtime.readers.row_index import IdIndex
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason, Rejected
from vlmill.schemas.tables import BOXES, CHOICES, EXPRESSIONS, REGIONS, Table

Boxes = npt.NDArray[np.float32]
MAX_BOXES = 1_000
OUTSIDE_PX = 1.0  # by which a box may leave its image: tools round corners
FRACTIONS = "all coordinates are at most 1, as of fractions of width and height; give pixels"


@dataclass(frozen=True, kw_only=True)
class GivenBoxes:
    """Boxes by image_id or by the file's name without its extension.

    An entry with an error has the error's text instead, and only that image is rejected.
    """

    entries: Mapping[str, Boxes | str]
    digest: str
    upright: bool = False  # the boxes are of the image as it is seen, not as it is stored

    @cached_property
    def _index(self) -> IdIndex:
        return IdIndex.from_ids(list(self.entries))

    def find_key(self, image_id: str | None, path: str) -> str | None:
        """Returns the name of an image that has boxes. Raises InputError if two could be meant."""
        if image_id in self.entries:
            return image_id
        return find_file_id(self._index, path, "--boxes") or find_similar_id(
            self._index, image_id or "", "--boxes"
        )

    def get_boxes(self, image_id: str, path: str) -> Boxes:
        """Returns an image's boxes, float32 [n, 4], n may be 0. Raises Rejected."""
        key = self.find_key(image_id, path)
        if key is None:
            raise Rejected(Reason.NO_GIVEN_BOXES, "no entry by its id or its name")
        entry = self.entries[key]
        if isinstance(entry, str):
            raise Rejected(Reason.BAD_BOXES, entry)
        return entry


def read_boxes(path: Path) -> GivenBoxes:
    """Reads ``--boxes``: JSON (:mod:`~vlmill.extract.images.box_json`), a folder of VCR's
    metadata files, each named like its image, or a table of boxes, choices, expressions or
    regions.

    Raises InputError.
    """
    entries: dict[str, Boxes | str] = {}
    digest = hashlib.sha256()
    table = find_table(path)
    try:
        for name, boxes in box_entries(path) if table is None else read_rows(path, table):
            if name in entries:
                raise InputError(f"--boxes {path}: {name} has two entries; remove one")
            entries[name] = parse_boxes(boxes)
            digest.update(f"{name}\0{boxes!r}\n".encode("utf-8", "replace"))
    except OSError as error:
        raise InputError(f"--boxes {path}: {error.strerror}; give a file or a folder") from None
    if not entries:
        raise InputError(
            f"--boxes {path} has no entry; give {FORMS}, a folder of VCR's .json files, or a table "
            "of boxes, choices, expressions or regions"
        )
    require_pixels(entries, path)
    return GivenBoxes(entries=entries, digest=digest.hexdigest()[:32], upright=table is not None)


def require_pixels(entries: Mapping[str, Boxes | str], path: Path) -> None:
    """Raises InputError where all boxes look like fractions. Single entries that do are rejects."""
    faults = {entry for entry in entries.values() if isinstance(entry, str)}
    has_good = any(len(entry) for entry in entries.values() if not isinstance(entry, str))
    if FRACTIONS in faults and not has_good:
        raise InputError(
            f"--boxes {path}: all coordinates are at most 1; are they fractions of width and "
            "height? Boxes are in pixels: multiply x by the width of each image and y by its height"
        )


def require_inside(boxes: Boxes, width: int, height: int) -> None:
    """Raises Rejected if an upright box exceeds its image by more than a pixel.

    It then belongs to another image or scale, or has width and height instead of the second corner.
    """
    low, high = -OUTSIDE_PX, np.array([width, height], np.float32) + OUTSIDE_PX
    is_outside = (boxes[:, :2] < low).any(axis=1) | (boxes[:, 2:] > high).any(axis=1)
    if is_outside.any():
        number = int(np.flatnonzero(is_outside)[0])
        corners = [round(float(v), 2) for v in boxes[number]]
        raise Rejected(
            Reason.BAD_BOXES,
            f"box {number + 1}, {corners}, leaves the image of {width} x {height} pixels",
        )


def find_table(path: Path) -> Table | None:
    """Returns which of vlmill's tables the path has, None for none."""
    for table in (CHOICES, BOXES, EXPRESSIONS, REGIONS):
        if path.is_dir() and any(path.glob(f"{table.name}-*.parquet")):
            return table
        if path.suffix == ".parquet" and path.name.startswith(table.name):
            return table
    return None


def read_rows(path: Path, table: Table) -> Iterator[tuple[str, list[list[float]]]]:
    """Yields each image's boxes: all of boxes and regions, VCR's objects in their order, or those
    that expressions name, each once, in the order of their first one. Raises InputError.
    """
    if table in (BOXES, REGIONS):
        for batch in iter_batches(path, table, columns=["image_id", "boxes"], flag="--boxes"):
            rows = batch.to_pydict()
            yield from zip(rows["image_id"], rows["boxes"], strict=True)
        return
    column = "boxes" if table is CHOICES else "box"
    images: dict[str, dict[tuple[float, ...], None]] = {}
    choice_boxes: dict[str, list[float]] = {}
    for batch in iter_batches(path, table, columns=["image_id", column], flag="--boxes"):
        ids, values = (batch.column(name).to_pylist() for name in ("image_id", column))
        for image_id, numbers in zip(ids, values, strict=True):
            if len(numbers) % 4 or (table is EXPRESSIONS and len(numbers) != 4):
                raise InputError(
                    f"--boxes {path}: {image_id} has a box of {len(numbers)} numbers; write the "
                    "table again"
                )
            if table is EXPRESSIONS:
                images.setdefault(image_id, {})[tuple(numbers)] = None
            elif choice_boxes.setdefault(image_id, numbers) != numbers:
                raise InputError(f"--boxes {path}: rows of {image_id} have different boxes")
    yield from ((image_id, [list(box) for box in boxes]) for image_id, boxes in images.items())
    for image_id, numbers in choice_boxes.items():
        yield image_id, [numbers[start : start + 4] for start in range(0, len(numbers), 4)]


def parse_boxes(boxes: Any) -> Boxes | str:
    """Returns the corners as float32 [n, 4] in the given order, or the error. A fifth number, VCR's
    score, is ignored.
    """
    if not isinstance(boxes, list) or len(boxes) > MAX_BOXES:
        return f"boxes must be a list of at most {MAX_BOXES}"
    for box in boxes:
        if not isinstance(box, list) or not 4 <= len(box) <= 5:
            return "a box must be [x1, y1, x2, y2]"
        if not all(isinstance(v, int | float) and abs(v) < 1e6 for v in box[:4]):
            return "a box must be of four finite numbers"
        if box[2] < box[0] or box[3] < box[1]:
            return f"the box {box[:4]} ends before it begins (give corners, not width and height)"
        if box[2] == box[0] or box[3] == box[1]:
            return f"the box {box[:4]} has no area"
    if boxes and all(0 <= v <= 1 for box in boxes for v in box[:4]):
        return FRACTIONS
    return np.array([box[:4] for box in boxes], np.float32).reshape(-1, 4)
