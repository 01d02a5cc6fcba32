"""Reads VOLTA's HDF5 (``features_extraction/large_tsv_to_h5.py``): one group per image.

A group has the name of the image and holds features, boxes, obj_id, obj_conf, attr_id, attr_conf,
img_w and img_h. An id with slashes gives nested groups.
"""

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py

from vlmill.extract.formats.context import Context, Item
from vlmill.extract.formats.records import (
    BadRecord,
    InvalidRecord,
    Record,
    count_arrays,
    make_record,
    rename_fields,
)
from vlmill.schemas.rejects import Reason

NEEDED = ("features", "boxes")
MAX_DEPTH = 20
MAX_ENTRIES = 100  # of a group
MAX_BYTES = 2**26  # of a data set: 1,000 boxes x 2048 float32 are 8 MB
ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)


def is_layout(file: h5py.File) -> bool:
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


def read(file: h5py.File, path: Path, context: Context) -> Iterator[Item]:
    """Yields the records of an open file in the order of their names."""
    total = max(1, len(file))
    for number, name in enumerate(file):
        context.done = number / total
        yield from read_groups(file, name, 0)


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
        detail = f"it cannot be read: {error}"
        yield partial(InvalidRecord, key=key, detail=detail, reason=Reason.BROKEN_ARCHIVE)
        return
    if is_image:
        yield partial(read_record, group, key)
        return
    for inner in names:
        yield from read_groups(group, inner, depth + 1)


def read_record(group: h5py.Group, key: str) -> Record:
    """Returns the row of one group."""
    try:
        entries = {name: read_entry(group, name) for name in list(group)[:MAX_ENTRIES]}
        fields = rename_fields(entries)
        if absent := {"image_w", "image_h", *NEEDED} - fields.keys():
            raise BadRecord(f"no {', '.join(sorted(absent))}")
        count_arrays(fields)
    except BadRecord as error:
        return InvalidRecord(key=key, detail=str(error), reason=error.reason)
    except ERRORS as error:
        detail = f"it cannot be read: {error}"
        return InvalidRecord(key=key, detail=detail, reason=Reason.BROKEN_ARCHIVE)
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
