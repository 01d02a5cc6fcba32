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
from vlmill.runtime.files.atomic import atomic_path
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


def write(rows: Rows, path: Path, plan: ExportPlan) -> int:
    """Writes one file, then ``NAME_imgid2idx.pkl`` next to it; returns the number of images."""
    fixed, ids = is_fixed(plan), list[str]()
    with atomic_path(path) as temporary, h5py.File(temporary, "w") as file:
        file.attrs.update(plan.stated)
        file.attrs["made_by"] = plan.made_by_text
        lead = (plan.count, plan.every) if fixed else (plan.num_boxes,)
        make_datasets(file, plan, lead)
        first_box = 0
        while part := list(islice(rows, IMAGES_AT_ONCE)):
            boxes = sum(len(row.boxes) for row in part)
            images = slice(len(ids), len(ids) + len(part))
            where = images if fixed else slice(first_box, first_box + boxes)
            for name in ("boxes", "features", *plan.payloads):
                arrays = [widen_payload(name, row) for row in part if len(row.boxes)]
                store(file[OWN_NAMES.get(name, name)], arrays, where, fixed)
            store(file[SPATIAL], [spatial(row) for row in part if len(row.boxes)], where, fixed)
            if not fixed:
                ends = first_box + np.cumsum([len(row.boxes) for row in part])
                starts = np.concatenate([[first_box], ends[:-1]])
                file["pos_boxes"][images] = np.stack([starts, ends], axis=1)
            file["image_ids"][images] = np.array([row.image_id for row in part], dtype=object)
            file["image_w"][images] = [row.width for row in part]
            file["image_h"][images] = [row.height for row in part]
            ids += [row.image_id for row in part]
            first_box += boxes
    rows_by_key = {key: number for number, key in enumerate(index_keys(ids))}
    with atomic_path(index_path(path)) as temporary:
        temporary.write_bytes(pickle.dumps(rows_by_key, protocol=2))  # Python 2 reads it, too
    return len(ids)


def index_path(path: Path) -> Path:
    """Returns the path of the pickle of a file's ids."""
    return path.with_name(f"{path.stem}{INDEX}")


def make_datasets(file: h5py.File, plan: ExportPlan, lead: Sequence[Any]) -> None:
    """Creates the data sets of an export; ``lead`` are their first dimensions."""
    widths = {"boxes": 4, "features": plan.width, "cls_prob": plan.probs_width}
    for name in ("features", "boxes", *plan.payloads):
        shape = (*lead, widths[name]) if name in widths else tuple(lead)
        file.create_dataset(OWN_NAMES.get(name, name), shape=shape, dtype=KINDS[name])
    file.create_dataset(SPATIAL, shape=(*lead, 6), dtype=np.float32)
    if len(lead) == 1:
        file.create_dataset("pos_boxes", shape=(plan.count, 2), dtype=np.int64)
    file.create_dataset("image_ids", shape=(plan.count,), dtype=TEXT)
    for name in ("image_w", "image_h"):
        file.create_dataset(name, shape=(plan.count,), dtype=np.int32)


def store(data: h5py.Dataset, arrays: Sequence[Array], where: slice, fixed: bool) -> None:
    """Writes the arrays of some images to their rows of a data set."""
    if arrays:
        data[where] = np.stack(arrays) if fixed else np.concatenate(arrays)


def spatial(row: RegionRow) -> Array:
    """Returns [n, 6]: corners, width and height as fractions of the image."""
    corners = row.boxes / np.array([row.width, row.height, row.width, row.height], np.float32)
    return np.concatenate([corners, corners[:, 2:] - corners[:, :2]], axis=1)
