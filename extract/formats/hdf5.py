"""Reads and writes HDF5 in the layout of the VQA code bases (bottom-up-attention-vqa, BAN): all
boxes in a row.

``image_features`` [N, D], ``image_bb`` [N, 4], ``spatial_features`` [N, 6] (x1, y1, x2, y2, width
and height as fractions of the image) and ``pos_boxes`` [P, 2] (an image's first row, and the one
after its last). Those code bases keep the ids in a pickle beside the file; here they are a data set
``image_ids`` [P], with ``image_w`` and ``image_h``. What else a row has: ``cls_prob`` [N, K],
``objects_id``, ``objects_conf``, ``attrs_id``, ``attrs_conf`` [N].
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from vlmill.extract.formats.records import (
    KINDS,
    MAX_BOXES,
    STATED,
    Array,
    InvalidRecord,
    Record,
    make_record,
    payload,
    same_payloads,
)
from vlmill.runtime.files.atomic import atomic_path
from vlmill.runtime.readers.regions import RegionRow
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason

MAGIC = b"\x89HDF\r\n\x1a\n"
DATASETS = {"features": "image_features", "boxes": "image_bb"}
IMAGES_AT_ONCE = 64
CHUNK_ROWS = 64
TEXT = h5py.string_dtype()
MAX_WIDTH = 2**17
MAX_CHUNK_BYTES = 2**28
# Of h5py, for a damaged file.
ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)


def is_hdf5(path: Path) -> bool:
    """Says whether ``path`` is an HDF5 file."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read(path: Path) -> Iterator[Record]:
    """Yields the rows in the file's order; of a damaged file those that can be read."""
    try:
        file = h5py.File(path, "r")
    except ERRORS as error:
        detail = f"it cannot be opened, and no image of it is read: {error}"
        yield InvalidRecord(key=path.name, detail=detail, reason=Reason.BROKEN_ARCHIVE)
        return
    with file:
        try:
            check_layout(file, path)
            count = len(file["image_ids"])
            states = {name: file.attrs.get(name) for name in STATED}
        except InputError:
            raise
        except ERRORS as error:
            detail = f"no image of it can be read: {error}"
            yield InvalidRecord(key=path.name, detail=detail, reason=Reason.BROKEN_ARCHIVE)
            return
        for first in range(0, count, IMAGES_AT_ONCE):
            part = slice(first, min(first + IMAGES_AT_ONCE, count))
            yield from read_records(file, part, states, path.name)


def check_layout(file: h5py.File, path: Path) -> None:
    """Refuses a file that lacks a data set without which there is no row."""
    needed = ("image_ids", "image_w", "image_h", "pos_boxes", "image_bb", "image_features")
    absent = [name for name in needed if not isinstance(file.get(name), h5py.Dataset)]
    if absent:
        raise InputError(
            f"FILE {path} lacks {', '.join(absent)}, or is damaged there; give a whole file of the "
            "layout that export writes"
        )
    for name in [*needed, *(n for n in KINDS if n in file)]:
        check_dataset(file, name, path)
    counts = {len(file[name]) for name in ("image_ids", "image_w", "image_h", "pos_boxes")}
    if max(counts) > path.stat().st_size:
        raise InputError(f"FILE {path}: {max(counts)} image_ids are more than it has bytes")
    if len(counts) > 1 or file["pos_boxes"].shape[1:] != (2,):
        raise InputError(f"FILE {path}: image_ids, sizes and pos_boxes disagree; write it again")


def check_dataset(file: h5py.File, name: str, path: Path) -> None:
    """Refuses data that lies elsewhere (a link could show any file of this machine), and chunks
    that would not fit into memory.
    """
    data = file[name]
    linked = not isinstance(file.get(name, getlink=True), h5py.HardLink)
    if linked or data.external or data.is_virtual:
        raise InputError(f"FILE {path}: {name} lies in another file; give a file that holds it")
    chunk = math.prod(data.chunks or (1,)) * data.dtype.itemsize
    if data.ndim > 2 or math.prod(data.shape[1:]) > MAX_WIDTH or chunk > MAX_CHUNK_BYTES:
        raise InputError(f"FILE {path}: {name} is {data.shape}; give a file of the usual layout")


def read_records(
    file: h5py.File, part: slice, states: Mapping[str, Any], name: str
) -> Iterator[Record]:
    """Yields the rows of some images; ``states`` is what the file states about classes."""
    try:
        ids = file["image_ids"].asstr(errors="replace")[part]
        widths, heights = file["image_w"][part], file["image_h"][part]
        positions = file["pos_boxes"][part].tolist()
    except ERRORS as error:
        for number in range(part.start, part.stop):
            detail = f"its id, size or place cannot be read: {error}"
            key = f"{name}:{number}"
            yield InvalidRecord(key=key, detail=detail, reason=Reason.BROKEN_ARCHIVE)
        return
    for image_id, width, height, position in zip(ids, widths, heights, positions, strict=True):
        sizes = {"image_id": image_id, "image_w": width, "image_h": height}
        yield read_record(file, position, {**states, **sizes})


def read_record(file: h5py.File, position: Sequence[int], fields: Mapping[str, Any]) -> Record:
    """Returns the row of the boxes from ``place[0]`` to before ``place[1]``."""
    low, high = position
    image_id = fields["image_id"]
    try:
        total = len(file["image_bb"])
        if not 0 <= low <= high <= min(total, low + MAX_BOXES):
            return InvalidRecord(key=image_id, detail=f"pos_boxes {low}..{high} of {total} boxes")
        datasets = {name: DATASETS.get(name, name) for name in KINDS}
        arrays = {name: file[data][low:high] for name, data in datasets.items() if data in file}
    except ERRORS as error:
        detail = f"its boxes cannot be read: {error}"
        return InvalidRecord(key=image_id, detail=detail, reason=Reason.BROKEN_ARCHIVE)
    return make_record(image_id, {**fields, "num_boxes": high - low, **arrays})


def write(rows: Iterator[RegionRow], path: Path, stated: Mapping[str, Any]) -> int:
    """Writes one file, atomically; returns the number of images.

    ``stated``, how classes are counted, becomes attributes of the file.
    """
    payload_rows = same_payloads(rows)
    images = boxes = 0
    with atomic_path(path) as temporary, h5py.File(temporary, "w") as file:
        file.attrs.update(stated)
        while part := list(islice(payload_rows, IMAGES_AT_ONCE)):
            names = part[0][0]
            picked = [row for _, row in part]
            for name in names:
                kind = KINDS[name]
                arrays = [payload(name, row).astype(kind) for row in picked]
                append(file, DATASETS.get(name, name), join_arrays(arrays), kind)
            append(
                file, "spatial_features", join_arrays([spatial(row) for row in picked]), np.float32
            )
            ends = boxes + np.cumsum([len(row.boxes) for row in picked])
            starts = np.concatenate([[boxes], ends[:-1]])
            append(file, "pos_boxes", np.stack([starts, ends], axis=1), np.int64)
            append_images(file, picked)
            boxes, images = int(ends[-1]), images + len(picked)
        if DATASETS["features"] not in file:
            file.create_dataset(DATASETS["features"], shape=(0, 0), dtype=np.float32)
    return images


def append_images(file: h5py.File, rows: Sequence[RegionRow]) -> None:
    """Appends the images' ids and sizes."""
    ids = np.array([row.image_id for row in rows], dtype=object)
    append(file, "image_ids", ids, TEXT)
    append(file, "image_w", np.array([row.width for row in rows]), np.int32)
    append(file, "image_h", np.array([row.height for row in rows]), np.int32)


def join_arrays(arrays: Sequence[Array]) -> Array:
    """Returns arrays one after the other; those without a box have no width of their own."""
    filled = [array for array in arrays if len(array)]
    return np.concatenate(filled) if filled else arrays[0]


def spatial(row: RegionRow) -> Array:
    """Returns [n, 6]: corners, width and height as fractions of the image."""
    corners = row.boxes / np.array([row.width, row.height, row.width, row.height], np.float32)
    return np.concatenate([corners, corners[:, 2:] - corners[:, :2]], axis=1)


def append(file: h5py.File, name: str, values: Array, kind: Any) -> None:
    """Adds rows to a data set, which the first rows make."""
    if not len(values) and 0 in values.shape[1:]:
        return
    if name not in file:
        file.create_dataset(
            name,
            shape=(0, *values.shape[1:]),
            maxshape=(None, *values.shape[1:]),
            chunks=(CHUNK_ROWS, *values.shape[1:]),
            dtype=kind,
        )
    data = file[name]
    old = len(data)
    data.resize(old + len(values), axis=0)
    data[old:] = values
