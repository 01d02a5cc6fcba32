"""Reads HDF5 of the VQA code bases (bottom-up-attention-vqa, BAN), of VisDial and of VOLTA.

- fixed: ``image_features`` [P, N, D], ``image_bb`` [P, N, 4], ``spatial_features`` [P, N, 6];
- adaptive: [B, D], [B, 4], [B, 6] of all boxes, and ``pos_boxes`` [P, 2]: an image's first row, and
  the row after its last;
- VisDial: ``features`` and ``boxes`` as in fixed, ``image_id`` [P];
- GQA (``gqa_objects_0.h5`` to ``_15.h5``): ``features`` [P, 100, D] and ``bboxes``; their
  ``gqa_objects_info.json`` has each image's file, row, size and number of boxes;
- VOLTA (``features_extraction/large_tsv_to_h5.py``): one group per image, of its name, with
  features, boxes, obj_id, obj_conf, attr_id, attr_conf, img_w and img_h. An id with slashes gives
  nested groups.

``spatial_features`` are x1, y1, x2, y2, width and height as fractions of the image, so they
determine the size of an image. The VQA code bases keep the ids in a pickle next to the file,
``NAME_imgid2idx.pkl``; our exports have ``image_ids``, ``image_w`` and ``image_h`` [P] in addition,
and a row's other columns: ``cls_prob``, ``objects_id``, ``objects_conf``, ``attrs_id``,
``attrs_conf``.
"""

import math
import mmap
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from vlmill.extract.formats.context import Context, Item
from vlmill.extract.formats.records import (
    ALIASES,
    KINDS,
    MAX_BOXES,
    STATED,
    Array,
    BadRecord,
    InvalidRecord,
    Record,
    count_arrays,
    make_record,
    rename_fields,
    whole_number,
)
from vlmill.models.convert import plain_pickle
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.rejects import Reason

MAGIC = b"\x89HDF\r\n\x1a\n"
INDEX = "_imgid2idx.pkl"
LISTED_FILE = re.compile(r"(.+)_([0-9]{1,4})\.(?:h5|hdf5)")  # of GQA
MAX_INDEX_BYTES = 2**30
MAX_WIDTH = 2**22  # numbers of one row of a data set: 1,000 boxes x 4,096
MAX_CHUNK_BYTES = 2**28
# Errors of h5py for a damaged file.
ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)
MAX_DEPTH = 20  # of VOLTA's groups
MAX_ENTRIES = 100  # of a group
MAX_BYTES = 2**26  # of a data set of a group: 1,000 boxes x 2048 float32 are 8 MB
SPATIAL = "spatial_features"
NEEDED = ("features", "boxes")
ENTRIES = {*KINDS, *STATED, "image_w", "image_h", "num_boxes"}  # of a group
IDS = ("image_ids", "image_id", "img_id")


def is_hdf5(path: Path) -> bool:
    """Returns whether ``path`` is an HDF5 file; a block of another program may precede it."""
    with path.open("rb") as file:
        for start in (0, 512, 1024, 2048):
            file.seek(start)
            if file.read(len(MAGIC)) == MAGIC:
                return True
    return False


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Holds what one file has: open data sets by known name, and the ranges of an image's boxes.

    Each of ``count`` images has a row of the data sets (``ranges`` is None) or its range of rows in
    ``ranges``.
    """

    path: Path
    data: Mapping[str, Any]  # h5py.Dataset, or an array
    count: int
    ranges: Array | None
    states: Mapping[str, Any]
    add_size: Callable[[dict[str, Any]], None]
    has_sizes: bool
    listed: Mapping[int, Mapping[str, Any]]  # GQA's entry of each row


def read(path: Path, context: Context) -> Iterator[Item]:
    """Yields the records in the file's order; for a damaged file, the readable ones.

    Raises InputError for a file of another layout, and if ids or sizes are missing.
    """
    try:
        file = h5py.File(path, "r")
    except ERRORS as error:
        detail = f"it cannot be opened, and no image of it is read: {describe_error(error)}"
        yield partial(_same, _broken(path.name, detail))
        return
    with file:
        try:
            if has_groups(file):
                total = max(1, len(file))
                for number, name in enumerate(file):
                    context.done = number / total
                    yield from read_groups(file, name, 0)
                return
            layout = find_layout(file, path, context)
            images = list_images(layout)
        except InputError:
            raise
        except ERRORS as error:
            detail = f"no image of it can be read: {describe_error(error)}"
            yield partial(_same, _broken(path.name, detail))
            return
        for done, (row, image_id) in enumerate(images):
            context.done = done / len(images)
            yield partial(read_record, layout, row, image_id)


def _same(bad: InvalidRecord) -> Record:
    return bad


def _broken(key: str, detail: str) -> InvalidRecord:
    return InvalidRecord(key=key, detail=detail, reason=Reason.BROKEN_ARCHIVE)


def describe_error(error: Exception) -> str:
    """Returns the message of an error of h5py; str() of a KeyError would have quotes."""
    return str(error.args[0] if isinstance(error, KeyError) and error.args else error)


def find_layout(file: h5py.File, path: Path, context: Context) -> Layout:
    """Returns the layout of an open file. Raises InputError for a file of another layout."""
    names: dict[str, str] = {}
    for name in file:
        names.setdefault(ALIASES.get(name, name), name)
    if ids := [name for name in IDS if name in file]:
        names["image_id"] = ids[0]
    known = {*KINDS, SPATIAL, "pos_boxes", "image_id", "image_w", "image_h"}
    names = {name: stored for name, stored in names.items() if name in known}
    for needed in NEEDED:
        if not isinstance(file.get(names.get(needed, needed)), h5py.Dataset):
            raise InputError(
                f"FILE {path} has no data set of {needed} (it has "
                f"{', '.join(list(file)[:10]) or 'none'}), "
                "or is damaged there; known data sets are image_features, image_bb and "
                "spatial_features "
                "(bottom-up-attention-vqa, BAN), features and boxes (VisDial) and a group an "
                "image (VOLTA)"
            )
    for name in names.values():
        check_dataset(file, name, path)
    shape = file[names["features"]].shape
    if len(shape) == 2 and "pos_boxes" not in names:
        raise InputError(
            f"FILE {path}: features are {list(shape)}, and pos_boxes, the ranges of the images, "
            "are missing; give a whole file"
        )
    ranges = file[names["pos_boxes"]][:] if len(shape) == 2 else None
    count = shape[0] if ranges is None else len(ranges)
    sized = {"image_w", "image_h"} <= names.keys()
    columns = [len(file[names[n]]) for n in ("image_id", "image_w", "image_h") if n in names]
    if any(length != count for length in columns) or (
        ranges is not None and ranges.shape != (count, 2)
    ):
        raise InputError(f"FILE {path}: ids, sizes and pos_boxes disagree; write it again")
    sizes = None if sized else context.sizes_near(path)
    with path.open("rb") as stream:
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    return Layout(
        path=path,
        data={name: map_dataset(file[stored], mapped) for name, stored in names.items()},
        count=count,
        ranges=ranges,
        states={name: file.attrs.get(name) for name in STATED},
        add_size=partial(context.add_size, sizes=sizes, file=path, layout="HDF5"),
        has_sizes=sizes is not None,
        listed=read_listed(path),
    )


def read_listed(path: Path) -> dict[int, dict[str, Any]]:
    """Returns the entries that GQA's ``gqa_objects_info.json`` has for a file, by row: ``id``,
    ``width``, ``height`` and ``objectsNum``. Empty without one. Raises InputError.
    """
    name = LISTED_FILE.fullmatch(path.name)
    info = path.with_name(f"{name[1]}_info.json") if name else path
    if name is None or not info.is_file():
        return {}
    try:
        return {
            row: entry
            for file, row, entry in read_entries(info, info.stat().st_mtime_ns)
            if file == int(name[2]) and row >= 0
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InputError(
            f"{info} is not GQA's list of images by id, with file, idx, width, height and "
            "objectsNum; download it again"
        ) from None


@lru_cache(maxsize=1)  # 16 files share one list of 20 MB
def read_entries(info: Path, _: int) -> list[tuple[int, int, dict[str, Any]]]:
    """Returns the file, the row and the entry of each image. Raises ValueError and others."""
    images = read_json(info, max_bytes=MAX_INDEX_BYTES)
    return [(int(e["file"]), int(e["idx"]), {**e, "id": key}) for key, e in images.items()]


def check_dataset(file: h5py.File, name: str, path: Path) -> None:
    """Raises InputError for data in other files (a link could expose any file of this machine), and
    for chunks that would not fit into memory.
    """
    data = file[name]
    linked = not isinstance(file.get(name, getlink=True), h5py.HardLink)
    if linked or not isinstance(data, h5py.Dataset) or data.external or data.is_virtual:
        raise InputError(f"FILE {path}: {name} is in another file; give a file that contains it")
    if data.dtype.kind == "O" and h5py.check_string_dtype(data.dtype) is None:
        raise InputError(
            f"FILE {path}: {name} has arrays of different lengths, which no known layout has; "
            "write the features as a TSV or .npz"
        )
    chunk = math.prod(data.chunks or (1,)) * data.dtype.itemsize
    if data.ndim > 3 or math.prod(data.shape[1:]) > MAX_WIDTH or chunk > MAX_CHUNK_BYTES:
        raise InputError(f"FILE {path}: {name} is {data.shape}; give a file of the usual layout")
    if not data.ndim or len(data) > path.stat().st_size:
        raise InputError(f"FILE {path}: {name} is {data.shape}, more rows than the file has bytes")


def map_dataset(data: h5py.Dataset, mapped: mmap.mmap) -> h5py.Dataset | Array:
    """Returns a data set of numbers as an array of its bytes in the mapped file.

    Reading a part of it through the library takes ten times as long. A data set in chunks, or of
    which the file is cut, is returned unchanged.
    """
    offset, kind = data.id.get_offset(), data.dtype
    if kind.kind not in "iuf" or data.chunks is not None or offset is None or not data.size:
        return data
    if offset + data.nbytes > len(mapped):
        return data
    array: Array = np.ndarray(data.shape, kind, mapped, offset)
    # The library decides where a file begins, and the meaning of the bits of a number.
    return array if array[-1].tobytes() == data[-1].tobytes() else data


def list_images(layout: Layout) -> list[tuple[int, str]]:
    """Returns the row and id of each image: from the file, else from the pickle next to it."""
    if (data := layout.data.get("image_id")) is not None:
        texts = h5py.check_string_dtype(data.dtype) is not None
        ids = data.asstr(errors="replace")[:] if texts else data[:]
        return [(row, str(image_id)) for row, image_id in enumerate(ids)]
    rows = {row: entry["id"] for row, entry in layout.listed.items()}
    rows = rows or read_index(find_index(layout.path))
    if wrong := [row for row in rows if not 0 <= row < layout.count]:
        raise InputError(
            f"FILE {layout.path} has {layout.count} images, and the list of ids next to it refers "
            f"to image {wrong[0]}; give the list that was written with this file"
        )
    return sorted(rows.items())


def find_index(path: Path) -> Path:
    """Returns the pickle of ids that belongs to a file. Raises InputError without one."""
    index = path.with_name(f"{path.stem}{INDEX}")
    if index.is_file():
        return index
    indices = list(path.parent.glob(f"*{INDEX}"))
    if len(indices) == 1 and len(list(path.parent.glob(f"*{path.suffix}"))) == 1:
        return indices[0]
    raise InputError(
        f"FILE {path} has no ids; bottom-up-attention-vqa and BAN keep them in {index.name}, GQA "
        "in gqa_objects_info.json: put it into the same folder"
    )


def read_index(path: Path) -> dict[int, str]:
    """Returns the id of each row of a pickled dict {id: row}. Raises InputError."""
    size = path.stat().st_size
    if size > MAX_INDEX_BYTES:
        raise InputError(f"{path} has {size} bytes, at most {MAX_INDEX_BYTES}; give another file")
    try:
        with path.open("rb") as file:
            value = plain_pickle.load(file, size)
    except plain_pickle.BadPickle as error:
        raise InputError(f"{path}: {error}; expected a pickled dict of rows by id") from None
    rows: dict[int, str] = {}
    for image_id, row in value.items() if isinstance(value, dict) else [(None, None)]:
        plain_id, plain_row = plain_pickle.plain_value(image_id), plain_pickle.plain_value(row)
        if not isinstance(plain_id, str | int) or not isinstance(plain_row, int):
            raise InputError(f"{path} is not a dict of row numbers by id; give another file")
        rows.setdefault(plain_row, str(plain_id))
    return rows


def read_record(layout: Layout, row: int, image_id: str) -> Record:
    """Returns one image's row."""
    data = layout.data
    fields: dict[str, Any] = {**layout.states, "image_id": image_id}
    part: Any = row
    try:
        if layout.ranges is not None:
            low, high = layout.ranges[row].tolist()
            total = len(data["boxes"])
            if not 0 <= low <= high <= min(total, low + MAX_BOXES):
                detail = f"pos_boxes {low}..{high} of {total} boxes"
                return InvalidRecord(key=image_id, detail=detail)
            part = slice(low, high)
        arrays = {name: data[name][part] for name in data if name in KINDS}
        entry = layout.listed.get(row)
        if entry is not None:  # all images have 100 boxes, and those after its number are zeros
            count = whole_number("objectsNum", entry.get("objectsNum"), 0, len(arrays["boxes"]))
            arrays = {name: array[:count] for name, array in arrays.items()}
        fields |= arrays | {"num_boxes": len(arrays["boxes"])}
        if entry is not None:
            fields |= {"image_w": entry.get("width"), "image_h": entry.get("height")}
        elif "image_w" in data and "image_h" in data:
            fields |= {name: data[name][row] for name in ("image_w", "image_h")}
        elif SPATIAL in data and len(arrays["boxes"]):
            fields |= find_size(arrays["boxes"], data[SPATIAL][part])
        elif SPATIAL in data and not layout.has_sizes:
            raise BadRecord("no size: it has no box; give --sizes")
        else:
            layout.add_size(fields)
    except BadRecord as error:
        return InvalidRecord(key=image_id, detail=str(error), reason=error.reason)
    except InputError:  # a ValueError: without sizes no image can be read
        raise
    except ERRORS as error:
        return _broken(image_id, f"its boxes cannot be read: {describe_error(error)}")
    return make_record(image_id, fields)


def find_size(boxes: Array, spatial: Array) -> dict[str, int]:
    """Returns the width and height of an image from its boxes in pixels and as fractions.

    Raises BadRecord if they are inconsistent.
    """
    if boxes.ndim != 2 or spatial.ndim != 2 or spatial.shape[1] < 4 or len(boxes) != len(spatial):
        raise BadRecord(f"{SPATIAL} are {spatial.shape} for boxes {boxes.shape}")
    size = {}
    for name, first in (("image_w", 0), ("image_h", 1)):
        pixels = np.concatenate([boxes[:, first], boxes[:, first + 2]]).astype(np.float64)
        fractions = np.concatenate([spatial[:, first], spatial[:, first + 2]]).astype(np.float64)
        largest = int(np.abs(fractions).argmax()) if len(fractions) else -1
        if largest < 0 or not np.isfinite(fractions).all() or fractions[largest] <= 0:
            raise BadRecord(f"no size: {SPATIAL} has no {name[-1]} above 0")
        exact = pixels[largest] / fractions[largest]
        number = round(exact) if math.isfinite(exact) else 0
        if number < 1 or np.abs(fractions * number - pixels).max() > max(0.01, 1e-4 * number):
            raise BadRecord(f"{SPATIAL} and the boxes do not give one {name}")
        size[name] = number
    return size


# --- VOLTA's groups ---


def has_groups(file: h5py.File) -> bool:
    """Returns whether the first object of a file is a group that holds features or boxes, at any
    depth.
    """
    group: Any = file
    for _ in range(MAX_DEPTH):
        first = next(iter(group), None)
        if first is None or not _is_own(group, first):
            return False
        group = group[first]
        if not isinstance(group, h5py.Group):
            return False
        if any(name in group for name in NEEDED):
            return True
    return False


def _is_own(group: h5py.Group, name: str) -> bool:
    return isinstance(group.get(name, getlink=True), h5py.HardLink)


def read_groups(parent: h5py.Group, name: str, depth: int) -> Iterator[Item]:
    """Yields the record of a group, or the records of the groups in it."""
    key = f"{parent.name}/{name}".lstrip("/")
    try:
        group = parent[name] if _is_own(parent, name) else None
        if not isinstance(group, h5py.Group) or depth > MAX_DEPTH:
            yield partial(InvalidRecord, key=key, detail="not a group of features and boxes")
            return
        names = list(group)
        is_image = not names or "features" in group or "boxes" in group
    except ERRORS as error:
        yield partial(_same, _broken(key, f"it cannot be read: {describe_error(error)}"))
        return
    if is_image:
        yield partial(read_group, group, key)
        return
    for inner in names:
        yield from read_groups(group, inner, depth + 1)


def read_group(group: h5py.Group, key: str) -> Record:
    """Returns the row of one group."""
    try:
        names = [name for name in list(group)[:MAX_ENTRIES] if ALIASES.get(name, name) in ENTRIES]
        fields = rename_fields({name: read_entry(group, name) for name in names})
        if absent := {"image_w", "image_h", *NEEDED} - fields.keys():
            raise BadRecord(f"no {', '.join(sorted(absent))}")
        count_arrays(fields)
    except BadRecord as error:
        return InvalidRecord(key=key, detail=str(error), reason=error.reason)
    except ERRORS as error:
        return _broken(key, f"it cannot be read: {describe_error(error)}")
    return make_record(key, {**fields, "image_id": key})


def read_entry(group: h5py.Group, name: str) -> Any:
    """Returns a data set that the file itself holds, of a bounded size. Raises BadRecord."""
    data = group[name] if _is_own(group, name) else None
    if not isinstance(data, h5py.Dataset) or data.external or data.is_virtual:
        raise BadRecord(f"{name} is not a data set of this file")
    if data.dtype.kind not in "iuf":
        return None
    size = math.prod(data.shape) * data.dtype.itemsize
    if size > MAX_BYTES or math.prod(data.chunks or (1,)) * data.dtype.itemsize > MAX_BYTES:
        raise BadRecord(f"{name} is {data.shape}", Reason.TOO_LARGE)
    return data[()] if data.ndim else data[()].item()
