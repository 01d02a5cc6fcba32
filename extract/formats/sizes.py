"""Reads image sizes for files that do not hold them: UNITER's, cocobu's and some HDF5 files.

``--sizes`` is 640x480 for all images, a table of images or regions, COCO's JSON, a JSON object of
sizes by id, lines of id, width and height, or Oscar's hw.tsv.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from vlmill.runtime.files.paths import readable
from vlmill.schemas.errors import InputError
from vlmill.schemas.names import difference, extract_core
from vlmill.schemas.plain_json import parse_json, read_json

ENDING = "_sizes.tsv"  # of the file next to exported features without sizes
LARGEST = 2**31 - 1
_ONE_SIZE = re.compile(r"(\d{1,9})x(\d{1,9})")
Size = tuple[int, int]


class Sizes:
    """Holds width and height by image_id; other spellings of an id are matched as in tables."""

    def __init__(self, sizes: Mapping[str, Size], every: Size | None = None) -> None:
        self._sizes, self._every = sizes, every
        self._cores: dict[str, list[str]] | None = None

    @property
    def example(self) -> str:
        """Returns one of the ids, for messages."""
        return next(iter(self._sizes), "")

    def find(self, image_id: str) -> Size | None:
        """Returns an image's width and height; None if they are missing or ambiguous."""
        if (size := self._every or self._sizes.get(image_id)) is not None:
            return size
        if self._cores is None:
            self._cores = {}
            for name in self._sizes:
                self._cores.setdefault(extract_core(name), []).append(name)
        names = self._cores.get(extract_core(image_id), [])
        found = {self._sizes[n] for n in names if difference(n, image_id) is not None}
        return found.pop() if len(found) == 1 else None


def read_sizes(argument: str) -> Sizes:
    """Returns the sizes that ``--sizes`` names. Raises InputError."""
    if match := _ONE_SIZE.fullmatch(argument):
        return Sizes({}, every=_size(match[1], match[2], argument))
    path = Path(argument)
    if not path.exists():
        raise InputError(f"--sizes {argument}: no such file; give WIDTHxHEIGHT or a file of sizes")
    try:
        sizes = {image_id: _size(w, h, argument) for image_id, w, h in _read_entries(path)}
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise InputError(
            f"--sizes {argument}: {error}; give a table of images, COCO's JSON, a JSON object "
            "{ID: [width, height]}, or lines of id, width and height"
        ) from None
    if not sizes:
        raise InputError(f"--sizes {argument} has no sizes; give a file that has some")
    return Sizes(sizes)


def _size(width: Any, height: Any, argument: str) -> Size:
    size = int(float(width)), int(float(height))
    if not all(1 <= side <= LARGEST for side in size):
        raise InputError(f"--sizes {argument}: {width} x {height} is not the size of an image")
    return size


def _read_entries(path: Path) -> Iterable[tuple[str, Any, Any]]:
    """Yields id, width and height of each entry of a file or table."""
    if path.is_dir() or path.suffix == ".parquet":
        return _read_table(path)
    with path.open("rb") as file:
        start = file.read(256).lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    return _read_json(read_json(path)) if start in (b"{", b"[") else _read_lines(path)


def _read_table(path: Path) -> Iterator[tuple[str, Any, Any]]:
    shards = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    for shard in (s for s in shards if s.name.startswith(("images-", "regions-")) or s == path):
        table = pq.read_table(readable(shard), columns=["image_id", "width", "height"])
        yield from zip(*(column.to_pylist() for column in table.columns), strict=True)


def _read_json(value: Any) -> Iterator[tuple[str, Any, Any]]:
    images = value.get("images") if isinstance(value, dict) else value
    if isinstance(images, list):
        for image in images:
            name = image.get("file_name") or image.get("image_id") or image["id"]
            yield str(name), image["width"], image["height"]
        return
    for image_id, size in value.items():
        width, height = (
            (size["width"], size["height"]) if isinstance(size, dict) else (size[0], size[1])
        )
        yield image_id, width, height


def _read_lines(path: Path) -> Iterator[tuple[str, Any, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        for number, line in enumerate(file):
            text = line.rstrip("\r\n")
            fields = text.split("\t") if "\t" in text else next(csv.reader([text]), [])
            if len(fields) == 2 and fields[1][:1] in ("[", "{"):  # Oscar's hw.tsv
                value = parse_json(fields[1])
                yield from _read_json({fields[0]: value[0] if isinstance(value, list) else value})
                continue
            if len(fields) == 3 and (number or fields[1].replace(".", "").isdigit()):
                yield fields[0], fields[1], fields[2]
            elif text and number:
                raise ValueError(f"line {number + 1} has {len(fields)} fields, expected 3")
