"""Reads and writes MILVLG's ``.npz``, one file an image: x, bbox, num_bbox, image_h, image_w and
info.

``info`` is an array of one object, a dict, and so a pickle: it is read as plain data only
(:mod:`~vlmill.models.convert.plain_pickle`).
"""

import ast
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from vlmill.extract.formats.records import (
    KINDS,
    LISTS,
    STATED,
    BadRecord,
    InvalidRecord,
    Record,
    make_record,
    payload,
    payloads,
)
from vlmill.models.convert.plain_pickle import BadPickle, Pickled, loads, plain_value
from vlmill.runtime.files.atomic import TEMPORARY_PREFIX, atomic_folder
from vlmill.runtime.readers.regions import RegionRow
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason

MAGIC = b"PK\x03\x04"
MAX_MEMBER = 64 * 2**20  # 1,000 boxes x 2048 float32 are 8 MB
MAX_HEADER = 10_000
MAX_NAME_BYTES = 250
_KIND = re.compile(r"[<>|=]?(?:[biuf][1248]|O8?)")
ZIP_ERRORS = (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


def is_npz(path: Path) -> bool:
    """Says whether ``path`` is a ``.npz`` file or a folder of them."""
    if path.is_dir():
        return any(path.glob("*.npz"))
    with path.open("rb") as file:
        return file.read(4) == MAGIC


def read(path: Path) -> Iterator[Record]:
    """Yields the rows of one file, or of a folder's files in the order of their names."""
    names = sorted(p for p in path.glob("*.npz")) if path.is_dir() else [path]
    files = [name for name in names if not name.name.startswith(TEMPORARY_PREFIX)]
    transposes = cache(lambda: has_transposed(files))
    for file in files:
        yield read_record(file, transposes)


def read_record(path: Path, transposes: Callable[[], bool] = lambda: False) -> Record:
    """Returns one file's row. Its id is info's, else the file's name without the ending.

    ``transposes`` says whether square features are [D, N].
    """
    try:
        members = read_members(path)
        info = parse_info(members.pop("info", None))
        fields = {**info, **rename_members(members)}
        if is_square(fields) and transposes():
            fields["features"] = fields["features"].T
    except (BadRecord, BadPickle) as error:
        reason = error.reason if isinstance(error, BadRecord) else Reason.BAD_RECORD
        return InvalidRecord(key=path.name, detail=str(error), reason=reason)
    image_id = str(fields.get("image_id", path.stem))
    return make_record(image_id, {**fields, "image_id": image_id})


def rename_members(members: dict[str, Any]) -> dict[str, Any]:
    """Returns the arrays under the names of the other formats.

    OpenVQA's files of GQA call the sizes width and height, and have no num_bbox.
    """
    names = {"x": "features", "bbox": "boxes", "num_bbox": "num_boxes"}
    names |= {"width": "image_w", "height": "image_h"}
    fields = {names.get(name, name): value for name, value in members.items()}
    if "num_boxes" not in fields and len(np.shape(fields.get("boxes", ()))) == 2:
        fields["num_boxes"] = len(fields["boxes"])
    member_names = {"features": "x", "boxes": "bbox", "num_boxes": "num_bbox"}
    needed = {"features", "boxes", "num_boxes", "image_h", "image_w"}
    if absent := needed - fields.keys():
        raise BadRecord(f"no {', '.join(sorted(member_names.get(name, name) for name in absent))}")
    return fields


def has_transposed(files: Sequence[Path]) -> bool:
    """Says whether the first file whose features are not square has them as [D, N].

    A square array does not show which side is the boxes: the others of its folder do, and where all
    are square they are [N, D], as MILVLG's port writes them.
    """
    for file in files:
        try:
            fields = rename_members(read_members(file))
        except (BadRecord, BadPickle):
            continue
        shape, count = np.shape(fields["features"]), np.size(fields["boxes"]) // 4
        if len(shape) == 2 and count in shape and shape[0] != shape[1]:
            return bool(shape[0] != count)
    return False


def is_square(fields: dict[str, Any]) -> bool:
    """Says whether the features have as many columns as boxes."""
    shape = np.shape(fields["features"])
    return len(shape) == 2 and shape[0] == shape[1]


def parse_info(value: Any) -> dict[str, Any]:
    """Returns the dict inside of info, as far as the formats know its names.

    The port's "d2" mode keeps other things under the attributes' names: they are left out there.
    """
    if value is None:
        return {}
    items = value.value if isinstance(value, Pickled) else value
    if not isinstance(items, list) or len(items) != 1 or not isinstance(items[0], dict):
        raise BadRecord("info is no array of one dict")
    info = items[0]
    names = {"image_id", *LISTS, "cls_prob", *STATED}
    names -= {"attrs_id"} if "attrs_scores" in info else set()
    fields = {name: plain_value(info[name]) for name in names if name in info}
    return {name: array for name, array in fields.items() if array is not None}


def read_members(path: Path) -> dict[str, Any]:
    """Returns a zip's arrays by name, each of a bounded size. Raises BadRecord."""
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = {}
            for member in archive.infolist():
                if member.file_size > MAX_MEMBER:
                    raise BadRecord(f"{member.filename} is larger than {MAX_MEMBER} bytes")
                with archive.open(member) as stream:
                    data = stream.read(MAX_MEMBER + 1)
                arrays[member.filename.removesuffix(".npy")] = parse_array(data)
            return arrays
    except ZIP_ERRORS as error:
        raise BadRecord(f"no readable npz: {error}") from None


def parse_array(data: bytes) -> Any:
    """Returns a ``.npy`` file's array, or for objects its pickle's plain data. Raises BadRecord.

    Not numpy's own reader: that trusts the header's shape before it looks at the size.
    """
    wide = data[6:7] > b"\x01"
    start = 12 if wide else 10
    length = int.from_bytes(data[8:start], "little")
    if data[:6] != b"\x93NUMPY" or length > MAX_HEADER:
        raise BadRecord("an array without numpy's header")
    body = data[start + length :]
    try:
        header = ast.literal_eval(data[start : start + length].decode("latin-1").strip())
        text, shape, fortran = header["descr"], header["shape"], bool(header["fortran_order"])
        sides = tuple(int(side) for side in shape)
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError):
        raise BadRecord("an array with a broken header") from None
    if not isinstance(text, str) or not _KIND.fullmatch(text):
        raise BadRecord(f"an array of type {str(text)[:40]}")
    if "O" in text:
        return loads(body)
    kind = np.dtype(text)
    if min(sides, default=0) < 0 or math.prod(sides) * kind.itemsize != len(body):
        raise BadRecord(f"{len(body)} bytes for an array of shape {sides}")
    return np.frombuffer(body, kind).reshape(sides, order="F" if fortran else "C")


def write(rows: Iterator[RegionRow], path: Path, stated: Mapping[str, Any]) -> int:
    """Writes the folder ``path`` with a file a row; returns how many.

    A file's name is the id, percent-quoted where a name cannot hold it; the id itself is in info,
    and with it ``stated``, how classes are counted.
    """
    count = 0
    with atomic_folder(path, replace=True) as folder:
        for row in rows:
            name = f"{quote(row.image_id, safe=' @+=,')}.npz"
            if len(name) > MAX_NAME_BYTES or name.startswith("."):
                raise InputError(f"{row.image_id}: no file can have this id; give --format hdf5")
            with (folder / name).open("xb") as file:
                np.savez_compressed(file, **make_arrays(row, stated))
            count += 1
    return count


def make_arrays(row: RegionRow, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arrays that a row's file holds."""
    plain = {"image_h": row.height, "image_w": row.width}
    lists = [name for name in payloads(row) if name in LISTS or name == "cls_prob"]
    info = {
        "image_id": row.image_id,
        **plain,
        "num_boxes": len(row.boxes),
        **{name: widen_array(name, row) for name in lists},
        **stated,
    }
    return {
        "x": widen_array("features", row),
        "bbox": widen_array("boxes", row),
        "num_bbox": len(row.boxes),
        **plain,
        "info": np.array(info, dtype=object),
    }


def widen_array(name: str, row: RegionRow) -> Any:
    """Returns a row's array in the type that the formats have."""
    return np.ascontiguousarray(payload(name, row), dtype=KINDS[name])
