"""Reads and writes the ``.npy`` files of vilbert-multi-task and MMF, in folders of any depth.

vilbert-multi-task (``script/extract_features.py``) saves one dict per image: image_id,
image_height, image_width, num_boxes, bbox, features, objects, cls_prob. MMF
(``extract_features_vmb.py``) saves the features [N, D] as ID.npy and the other entries as a dict in
ID_info.npy; its ids are paths below the folder, without the ending. ID_full.npy, which its
``extract_features_frcnn.py --visualize`` adds, is skipped.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from vlmill.extract.formats.arrays import array_parts, entry_value, only_item, read_array
from vlmill.extract.formats.context import Context, Item
from vlmill.extract.formats.folders import FIRST_FILES, count_files, file_name, walk_files
from vlmill.extract.formats.plan import ExportPlan, Rows
from vlmill.extract.formats.records import (
    BadRecord,
    InvalidRecord,
    Record,
    count_arrays,
    make_record,
    rename_fields,
    widen_payload,
)
from vlmill.extract.formats.sizes import Sizes
from vlmill.extract.formats.unfinished import Unfinished
from vlmill.runtime.readers.regions import RegionRow
from vlmill.schemas.errors import InputError

ENDING, INFO, FULL = ".npy", "_info.npy", "_full.npy"
BOXES = "_box"  # folders of cocobu, whose features are in .npz


def read(path: Path, context: Context) -> Iterator[Item]:
    """Yields the records of one file, or of the files below a folder in the order of their names.

    Raises InputError for a folder whose first files have an unknown layout.
    """
    require_layout(path)
    total, sizes = count_files(path, ENDING, INFO), context.sizes_near(path)
    root = path if path.is_dir() else path.parent
    start = len(str(root / "_")) - 1  # of a file's path below the folder; pathlib takes 10 us
    for number, file in enumerate(walk_files(path, ENDING, INFO)):
        context.done = number / total
        if not is_companion(file):
            key = str(file)[start:].removesuffix(ENDING)
            yield partial(read_record, file, key, root, context, sizes)


def require_layout(path: Path) -> None:
    """Raises InputError, once, if none of the first files has a known layout, and if no file has
    features.
    """
    features = (file for file in walk_files(path, ENDING, INFO) if not is_companion(file))
    has_features, problem = False, None
    for file in islice(features, FIRST_FILES):
        has_features = True
        try:
            value = read_array(file)
            entries = parse_entries(value)
        except BadRecord:
            continue
        if {"features", "boxes"} <= entries.keys():
            return
        if isinstance(value, np.ndarray) and info_file(file).is_file():
            return
        what = f"a dict of {', '.join(map(str, entries))[:200]}"
        if isinstance(value, np.ndarray):
            what = f"an array {list(value.shape)} without {info_file(file).name}"
        problem = problem or InputError(
            f"FILE {path}: {file.name} is {what}, not features with their boxes. Known: a dict "
            "with features and bbox (vilbert-multi-task); ID.npy with ID_info.npy (MMF)"
        )
    if problem is not None:
        raise problem
    if not has_features:
        raise InputError(
            f"FILE {path}: boxes without features (ID{INFO} of MMF); give the folder that has "
            "the features ID.npy, too"
        )


def is_companion(file: Path) -> bool:
    """Returns whether a file only completes the features of an image."""
    return completed_file(file) is not None


def completed_file(file: Path) -> Path | None:
    """Returns the features that a file of MMF completes; None for a file of features."""
    for ending in (INFO, FULL):
        if file.name.endswith(ending):
            base = file.with_name(f"{file.name.removesuffix(ending)}{ENDING}")
            is_full = info_file(base).is_file() and not info_file(file).is_file()
            return base if ending == INFO or is_full else None
    return None


def parse_entries(value: Any) -> dict[str, Any]:
    """Returns the dict that a file holds, by known names; empty for other arrays."""
    item = only_item(value)
    if not isinstance(item, dict):
        return {}
    return rename_fields({str(name): entry_value(entry) for name, entry in item.items()})


def info_file(file: Path) -> Path:
    """Returns the path of MMF's boxes for a file of features."""
    return file.with_name(f"{file.name.removesuffix(ENDING)}{INFO}")


def read_record(file: Path, key: str, root: Path, context: Context, sizes: Sizes | None) -> Record:
    """Returns the row of one file; MMF's files are read with their ``_info.npy``.

    ``key`` is the id of a file that states none. Raises InputError for a file without a size.
    """
    try:
        value = read_array(file)
        entries = parse_entries(value)
        if isinstance(value, np.ndarray):
            entries = {**parse_entries(read_array(info_file(file))), "features": value}
        fields = {"image_id": key, **entries}
        if absent := {"boxes", "features"} - fields.keys():
            raise BadRecord(f"no {', '.join(sorted(absent))}")
        fields["image_id"] = str(fields["image_id"])
        context.require_size(fields, sizes, root, "features in .npy")
        count_arrays(fields)
    except BadRecord as error:
        return InvalidRecord(key=key, detail=str(error), reason=error.reason)
    return make_record(fields["image_id"], fields)


def write(rows: Rows, files: Unfinished, plan: ExportPlan) -> None:
    """Writes a folder, one file (``npy-mmf``: two) per row."""
    files.path.mkdir(exist_ok=True)
    for row in rows:
        entries = make_entries(row, plan)
        features = widen_payload("features", row)
        if plan.name == "npy-mmf":
            file = nested_file(files.path, row.image_id, plan.name)
            if "/" in row.image_id:
                file.parent.mkdir(parents=True, exist_ok=True)
            info = array_parts({"image_id": row.image_id, **entries})
            files.create_file(info_file(file), info)
            files.create_file(file, array_parts(features))
        else:
            item = {"image_id": row.image_id, **entries, "features": features}
            file = files.path / file_name(row.image_id, ENDING, name=plan.name)
            files.create_file(file, array_parts(item))


def nested_file(folder: Path, image_id: str, name: str) -> Path:
    """Returns the path of an image's file: the parts of its id are folders, as in MMF."""
    *parents, last = image_id.split("/")
    if any(not part or part.startswith(".") for part in (*parents, last)):
        parents, last = [], image_id
    return folder.joinpath(
        *(file_name(part, "", name=name) for part in parents),
        file_name(last, ENDING, name=name),
    )


def make_entries(row: RegionRow, plan: ExportPlan) -> Mapping[str, Any]:
    """Returns the entries with the same names in both projects: sizes, boxes, classes and
    distributions.
    """
    entries: dict[str, Any] = {
        "bbox": widen_payload("boxes", row),
        "num_boxes": len(row.boxes),
        "image_width": row.width,
        "image_height": row.height,
    }
    if "objects_id" in plan.payloads:
        entries["objects"] = widen_payload("objects_id", row)
    if "cls_prob" in plan.payloads:
        entries["cls_prob"] = widen_payload("cls_prob", row)
    return entries
