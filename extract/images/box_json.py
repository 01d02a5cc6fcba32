"""Reads given boxes from JSON as people have it: lines, an array, a map, objects over many lines.

A file of another kind, such as COCO's, is refused with the command that reads it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlmill.extract.images.discovery import read_head
from vlmill.schemas.errors import InputError
from vlmill.schemas.images.formats import format_name, other_name
from vlmill.schemas.plain_json import parse_json

MAX_LINE = 2**20
MAX_FILE = 2**28  # bytes, of a file that is not one object a line: it is parsed as a whole
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
    """Yields names and boxes as they are in the file or the folder of VCR's metadata.

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
        raise InputError(f"--boxes {path}: no JSON object; give {FORMS}")
    elif "annotations" in value and "images" in value:
        raise InputError(f"--boxes {path} {_COCO}")
    elif "image_id" not in value and "boxes" in value:
        raise InputError(
            f"--boxes {path}: boxes and no image_id; give {FORMS}, or, of VCR's metadata, the "
            "folder of these files, each named like its image"
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
        raise InputError(f"--boxes {path}: no JSON ({error}); give {FORMS}") from None
    decoder, offset = json.JSONDecoder(), 0
    while offset < len(remainder):
        try:
            value, offset = decoder.raw_decode(remainder, offset)
        except (ValueError, RecursionError) as error:
            raise InputError(f"--boxes {path}: no JSON ({error}); give {FORMS}") from None
        while offset < len(remainder) and remainder[offset].isspace():
            offset += 1
        yield value


def _parse_object(text: bytes, location: str) -> dict[str, Any]:
    """Parses a JSON object. Raises InputError."""
    try:
        content = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"--boxes {location}: no JSON ({error})") from None
    if not isinstance(content, dict):
        raise InputError(f"--boxes {location}: no JSON object; give image_id and boxes")
    return content
