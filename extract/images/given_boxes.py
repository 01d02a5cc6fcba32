"""Reads boxes that are given with the images (VCR, RefCOCO+) and replace the detector's proposals.

Boxes of files refer to the image as it is stored; creating a query rotates them with the image
(:func:`vlmill.schemas.images.orientation.turn_boxes`). Boxes of our tables are already upright.

JSON may be lines, an array, a map, or objects over many lines. A file of another type, such as
COCO's, is refused with the command that reads it.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vlmill.extract.images.discovery import read_head
from vlmill.runtime.files.reading import iter_batches
from vlmill.runtime.readers.row_index import IdIndex
from vlmill.schemas.errors import InputError
from vlmill.schemas.images.formats import format_name, other_name
from vlmill.schemas.plain_json import parse_json
from vlmill.schemas.rejects import Reason, Rejected
from vlmill.schemas.tables import BOXES, CHOICES, EXPRESSIONS, REGIONS, Table

MAX_LINE = 2**20
MAX_FILE = 2**28  # bytes, of a file without one object per line, which is parsed in one pass
FORMS = 'JSON lines {"image_id": ID, "boxes": [[x1, y1, x2, y2], ...]}'
_COCO = (
    "is COCO's annotations; make a table of boxes of their folder with `python -m "
    "vlmill.pipelines.manifest boxes --input FOLDER --output BOXES`, and give --boxes BOXES"
)
_COCO_RESULTS = f"is a list of COCO's results, a bbox x, y, width, height each; give {FORMS}"
_NPZ = (
    "has .npz files of bottom-up-attention.pytorch; make a table of them with `extract-rois "
    "import FOLDER --output REGIONS`, and give --boxes REGIONS; if they have boxes but no "
    f"features, give {FORMS}"
)


def box_entries(path: Path) -> Iterator[tuple[str, Any]]:
    """Yields image names and their boxes, as stored in the file or in VCR's metadata folder.

    Raises InputError for another type of file, and OSError.
    """
    if path.is_dir():
        yield from _folder_entries(path)
        return
    head = read_head(str(path))
    if kind := other_name(head) or format_name(head):
        is_npz = path.suffix == ".npz"
        raise InputError(f"--boxes {path} {_NPZ if is_npz else f'is a {kind}; give {FORMS}'}")
    with path.open("rb") as file:
        first = next(
            (line for line in iter(lambda: file.readline(MAX_LINE), b"") if line.strip()), b""
        )
        file.seek(0)
        if _is_entry(first):
            yield from _line_entries(path, file)
            return
        text = file.read(MAX_FILE + 1)
    if len(text) > MAX_FILE:
        raise InputError(f"--boxes {path}: over {MAX_FILE} bytes that are not lines; give {FORMS}")
    for value in _values(text, path):
        yield from _entries_in(value, path)


def _folder_entries(path: Path) -> Iterator[tuple[str, Any]]:
    files = sorted(path.rglob("*.json"))
    if not files and any(path.rglob("*.npz")):
        raise InputError(f"--boxes {path} {_NPZ}")
    for file in files:
        content = _parse_object(file.read_bytes(), str(file))
        if "annotations" in content and "images" in content:
            raise InputError(f"--boxes {path}: {file.name} {_COCO}")
        yield file.stem, content.get("boxes")


def _is_entry(line: bytes) -> bool:
    """Returns whether a line is an object with an image_id."""
    try:
        content = parse_json(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "image_id" in content


def _line_entries(path: Path, file: Any) -> Iterator[tuple[str, Any]]:
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise InputError(f"--boxes {path}:{number}: longer than {MAX_LINE} bytes")
        if line.strip():
            location = f"{path}:{number}"
            yield _parse_entry(_parse_object(line, location), location)


def _entries_in(value: Any, path: Path) -> Iterator[tuple[str, Any]]:
    """Yields the entries of one JSON value of a file: an entry, a list or a map of them."""
    if isinstance(value, list):
        for number, entry in enumerate(value):
            location = f"{path}: entry {number + 1}"
            if isinstance(entry, dict) and "bbox" in entry and "boxes" not in entry:
                raise InputError(f"--boxes {path} {_COCO_RESULTS}")
            if not isinstance(entry, dict):
                raise InputError(
                    f"--boxes {location} is not a JSON object; give image_id and boxes"
                )
            yield _parse_entry(entry, location)
    elif not isinstance(value, dict):
        raise InputError(f"--boxes {path}: not a JSON object; give {FORMS}")
    elif "annotations" in value and "images" in value:
        raise InputError(f"--boxes {path} {_COCO}")
    elif "image_id" not in value and "boxes" in value:
        raise InputError(
            f"--boxes {path}: boxes without image_id; give {FORMS}; for VCR's metadata, "
            "give the folder of the files, each named like its image"
        )
    elif "image_id" not in value and all(isinstance(boxes, list) for boxes in value.values()):
        yield from value.items()
    else:
        yield _parse_entry(value, str(path))


def _parse_entry(content: dict[str, Any], location: str) -> tuple[str, Any]:
    image_id = content.get("image_id")
    if isinstance(image_id, bool) or not isinstance(image_id, str | int):
        raise InputError(f"--boxes {location}: no image_id; give {FORMS}")
    return str(image_id), content.get("boxes")


def _values(text: bytes, path: Path) -> Iterator[Any]:
    """Yields the JSON values of a text, one after the other. Raises InputError."""
    try:
        remainder = text.decode(json.detect_encoding(text)).lstrip()
    except ValueError as error:
        raise InputError(f"--boxes {path}: not JSON ({error}); give {FORMS}") from None
    decoder, offset = json.JSONDecoder(), 0
    while offset < len(remainder):
        try:
            value, offset = decoder.raw_decode(remainder, offset)
        except (ValueError, RecursionError) as error:
            raise InputError(f"--boxes {path}: not JSON ({error}); give {FORMS}") from None
        while offset < len(remainder) and remainder[offset].isspace():
            offset += 1
        yield value


def _parse_object(text: bytes, location: str) -> dict[str, Any]:
    """Parses a JSON object. Raises InputError."""
    try:
        content = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"--boxes {location}: not JSON ({error})") from None
    if not isinstance(content, dict):
        raise InputError(f"--boxes {location}: not a JSON object; give image_id and boxes")
    return content


Boxes = npt.NDArray[np.float32]
MAX_BOXES = 1_000
OUTSIDE_PX = 1.0  # by which a box may exceed its image: tools round corners
FRACTIONS = "all coordinates are at most 1, as of fractions of width and height; give pixels"


@dataclass(frozen=True, kw_only=True)
class GivenBoxes:
    """Holds boxes by image_id or by the file's name without its extension.

    An entry with an error has the error's text instead, and only that image is rejected.
    """

    entries: Mapping[str, Boxes | str]
    digest: str
    upright: bool = False  # the boxes refer to the upright image, not the stored one

    @cached_property
    def _index(self) -> IdIndex:
        return IdIndex.from_ids(list(self.entries))

    def find_key(self, image_id: str | None, path: str) -> str | None:
        """Returns the name of an image that has boxes. Raises InputError if it is ambiguous."""
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
    """Reads ``--boxes``: JSON (:mod:`~vlmill.extract.images.given_boxes`), a folder of VCR's
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
    """Raises InputError if all boxes look like fractions. Single such entries are rejects."""
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
    """Returns the type of vlmill table at the path; None without one."""
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


# --- ids of images --------------------------------------------------------------------------------


def find_similar_id(index: IdIndex, name: str, holding: str) -> str | None:
    """Returns the id that equals or may match ``name``; None without one.

    ``holding`` is the source of the ids, for the InputError if two could match.
    """
    if name in index:
        return name
    ids = list(index.find_matches(name))
    if len(ids) > 1:
        raise InputError(
            f"{holding}: {name} may be {ids[0]} or {ids[1]}; call the image by one of these ids"
        )
    return ids[0] if ids else None


def find_file_id(index: IdIndex, path: str, holding: str) -> str | None:
    """Returns the id that names a file: by its path, by its name alone, or by that without any
    ending. Raises InputError if it is ambiguous.
    """
    name, stem = Path(path).name, Path(path).stem
    matching_id = find_similar_id(index, path, holding) or find_similar_id(index, name, holding)
    return matching_id or (stem if stem in index else None)
