"""Writes HDF5 for bottom-up-attention-vqa and BAN, with the pickle of ids that both read first.

The layouts are those of :mod:`~vlmill.extract.formats.hdf5`. Data sets are created in their final
size, and memory is bounded by a few images.
"""

import os
import pickle
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from vlmill.extract.formats.hdf5 import INDEX, SPATIAL
from vlmill.extract.formats.plan import ExportPlan, Rows
from vlmill.extract.formats.records import KINDS, Array, widen_payload
from vlmill.extract.formats.unfinished import Unfinished, write_parts
from vlmill.runtime.readers.regions import RegionRow

IMAGES_AT_ONCE = 32  # of a write: fewer take longer
TEXT = h5py.string_dtype()
OWN_NAMES = {"features": "image_features", "boxes": "image_bb"}
# Prefixes before the numbers in the file names of COCO and others.
_NUMBER_AT_END = re.compile(r"(?:.*[^0-9])?([0-9]{1,18})(?:\.[A-Za-z]{2,4})?")


def is_fixed(plan: ExportPlan) -> bool:
    """Returns whether the file has [P, N, D]: by its format, or because all N are equal."""
    return plan.name == "hdf5-fixed" or (plan.name == "hdf5" and bool(plan.every))


def index_keys(image_ids: Sequence[str]) -> list[int] | list[str]:
    """Returns the keys of the pickled index: the numbers that VQA's questions have, if each id is
    or ends in a different number (COCO_train2014_000000000009 is 9); else the ids.
    """
    matches = [_NUMBER_AT_END.fullmatch(image_id) for image_id in image_ids]
    numbers = [int(match[1]) for match in matches if match]
    return numbers if len(set(numbers)) == len(image_ids) else list(image_ids)


def write(rows: Rows, files: Unfinished, plan: ExportPlan) -> None:
    """Writes one file, and ``NAME_imgid2idx.pkl`` next to it.

    All data sets are allocated, and the ids written, before the first row. What follows changes the
    values of these data sets only, in their place in the file.
    """
    fixed = is_fixed(plan)
    rows_by_key = {key: number for number, key in enumerate(index_keys(plan.image_ids))}
    # Python 2 reads protocol 2, too.
    index_path(files.path).write_bytes(pickle.dumps(rows_by_key, protocol=2))
    if not files.done:
        with h5py.File(files.path, "w") as file:
            file.attrs.update(plan.stated)
            file.attrs["made_by"] = plan.made_by_text
            make_datasets(file, plan, (plan.count, plan.every) if fixed else (plan.num_boxes,))
    first_box = files.done * (plan.every or 0)
    with h5py.File(files.path, "r") as file:
        offsets = {name: data.id.get_offset() for name, data in file.items()}
        if files.done and not fixed:
            first_box = int(file["pos_boxes"][files.done - 1, 1])
    done, at_once = files.done, min(IMAGES_AT_ONCE, files.block)
    target = os.open(files.path, os.O_WRONLY)
    try:
        while part := list(islice(rows, at_once)):
            for name, first, arrays in make_columns(part, plan, done, first_box):
                write_arrays(target, offsets[name], first, arrays)
            done += len(part)
            first_box += sum(len(row.boxes) for row in part)
    finally:
        os.close(target)


def make_columns(
    part: Sequence[RegionRow], plan: ExportPlan, image: int, box: int
) -> Iterator[tuple[str, int, Sequence[Array]]]:
    """Yields for each data set the first row that some images have in it, and their arrays.

    ``image`` is the number of the first image, ``box`` that of its first box.
    """
    filled = [row for row in part if len(row.boxes)]
    if filled:
        yield OWN_NAMES["features"], box, [widen_payload("features", row) for row in filled]
        for name in ("boxes", *plan.payloads):
            arrays = [widen_payload(name, row) for row in filled]
            yield OWN_NAMES.get(name, name), box, [np.concatenate(arrays)]
        yield SPATIAL, box, [spatial(filled).astype("<f4", copy=False)]
    yield "image_w", image, [np.array([row.width for row in part], "<i4")]
    yield "image_h", image, [np.array([row.height for row in part], "<i4")]
    if not is_fixed(plan):
        ends = box + np.cumsum([len(row.boxes) for row in part])
        starts = np.concatenate([[box], ends[:-1]])
        yield "pos_boxes", image, [np.stack([starts, ends], axis=1).astype("<i8")]


def write_arrays(file: int, offset: int, first: int, arrays: Sequence[Array]) -> None:
    """Writes arrays one after the other to row ``first`` of a data set that begins at ``offset``.

    The data sets are contiguous and allocated, so HDF5's library, which would copy, is not needed.
    """
    os.lseek(file, offset + first * arrays[0][0].nbytes, os.SEEK_SET)
    write_parts(file, [array.data.cast("B") for array in arrays])


def index_path(path: Path) -> Path:
    """Returns the path of the pickle of a file's ids."""
    return path.with_name(f"{path.stem}{INDEX}")


def make_datasets(file: h5py.File, plan: ExportPlan, lead: Sequence[Any]) -> None:
    """Creates the data sets of an export in their final size; ``lead`` are their first dimensions.

    The ids are written; the space of the others is allocated and not filled.
    """
    allocated = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    allocated.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    allocated.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    widths = {"boxes": 4, "features": plan.width, "cls_prob": plan.probs_width}
    shapes: dict[str, tuple[tuple[Any, ...], Any]] = {}
    for name in ("features", "boxes", *plan.payloads):
        shape = (*lead, widths[name]) if name in widths else tuple(lead)
        shapes[OWN_NAMES.get(name, name)] = shape, KINDS[name]
    shapes[SPATIAL] = (*lead, 6), "<f4"
    if len(lead) == 1:
        shapes["pos_boxes"] = (plan.count, 2), "<i8"
    shapes |= dict.fromkeys(("image_w", "image_h"), ((plan.count,), "<i4"))
    for name, (shape, kind) in shapes.items():
        file.create_dataset(name, shape=shape, dtype=kind, dcpl=allocated)
    file.create_dataset("image_ids", data=np.array(plan.image_ids, dtype=object), dtype=TEXT)


def spatial(rows: Sequence[RegionRow]) -> Array:
    """Returns [n, 6] for the boxes of some images: corners, width and height as fractions of the
    image.
    """
    sizes = np.array([[row.width, row.height] * 2 for row in rows], np.float32)
    counts = [len(row.boxes) for row in rows]
    corners = np.concatenate([row.boxes for row in rows]) / np.repeat(sizes, counts, axis=0)
    return np.concatenate([corners, corners[:, 2:] - corners[:, :2]], axis=1)
