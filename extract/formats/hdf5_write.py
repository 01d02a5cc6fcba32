"""Writes HDF5 for bottom-up-attention-vqa and BAN, with the pickle of ids that both read first.

The layouts are those of :mod:`~vlmill.extract.formats.hdf5`. Data sets are created in their final
size, and memory is bounded by a few images.
"""

import pickle
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from vlmill.extract.formats.hdf5 import INDEX, SPATIAL
from vlmill.extract.formats.plan import ExportPlan, Rows
from vlmill.extract.formats.records import KINDS, Array, widen_payload
from vlmill.extract.formats.unfinished import Unfinished
from vlmill.runtime.readers.regions import RegionRow

IMAGES_AT_ONCE = 16
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
    values of these data sets only, so that a kill at any moment leaves a file that can be opened.
    """
    fixed = is_fixed(plan)
    rows_by_key = {key: number for number, key in enumerate(index_keys(plan.image_ids))}
    # Python 2 reads protocol 2, too.
    index_path(files.path).write_bytes(pickle.dumps(rows_by_key, protocol=2))
    with h5py.File(files.path, "r+" if files.done else "w") as file:
        if not files.done:
            file.attrs.update(plan.stated)
            file.attrs["made_by"] = plan.made_by_text
            make_datasets(file, plan, (plan.count, plan.every) if fixed else (plan.num_boxes,))
        file.flush()
        files.before_save.append(file.flush)
        first_box = 0
        if files.done and not fixed:
            first_box = int(file["pos_boxes"][files.done - 1, 1])
        done, at_once = files.done, min(IMAGES_AT_ONCE, files.block)
        while part := list(islice(rows, at_once)):
            boxes = sum(len(row.boxes) for row in part)
            images = slice(done, done + len(part))
            where = images if fixed else slice(first_box, first_box + boxes)
            for name in ("boxes", "features", *plan.payloads):
                arrays = [widen_payload(name, row) for row in part if len(row.boxes)]
                store(file[OWN_NAMES.get(name, name)], arrays, where, fixed)
            store(file[SPATIAL], [spatial(row) for row in part if len(row.boxes)], where, fixed)
            if not fixed:
                ends = first_box + np.cumsum([len(row.boxes) for row in part])
                starts = np.concatenate([[first_box], ends[:-1]])
                file["pos_boxes"][images] = np.stack([starts, ends], axis=1)
            file["image_w"][images] = [row.width for row in part]
            file["image_h"][images] = [row.height for row in part]
            done += len(part)
            first_box += boxes


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
    shapes[SPATIAL] = (*lead, 6), np.float32
    if len(lead) == 1:
        shapes["pos_boxes"] = (plan.count, 2), np.int64
    shapes |= dict.fromkeys(("image_w", "image_h"), ((plan.count,), np.int32))
    for name, (shape, kind) in shapes.items():
        file.create_dataset(name, shape=shape, dtype=kind, dcpl=allocated)
    file.create_dataset("image_ids", data=np.array(plan.image_ids, dtype=object), dtype=TEXT)


def store(data: h5py.Dataset, arrays: Sequence[Array], where: slice, fixed: bool) -> None:
    """Writes the arrays of some images to their rows of a data set."""
    if arrays:
        data[where] = np.stack(arrays) if fixed else np.concatenate(arrays)


def spatial(row: RegionRow) -> Array:
    """Returns [n, 6]: corners, width and height as fractions of the image."""
    corners = row.boxes / np.array([row.width, row.height, row.width, row.height], np.float32)
    return np.concatenate([corners, corners[:, 2:] - corners[:, :2]], axis=1)
