"""Reads and writes MILVLG's ``.npz``, one file per image, and OpenVQA's variant.

MILVLG's port writes x [N, D], bbox, num_bbox, image_h, image_w and info, an array of one dict.
For VQA, OpenVQA and MCAN read x [D, N] without info; for GQA, OpenVQA reads x [N, D], bbox, width
and height (its ``data/gqa/gqa_feat_preproc.py`` writes them). The first versions of the port, and
other ports that followed it, write x and bbox only, so the sizes come from ``--sizes``.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from vlmill.extract.formats import cocobu, uniter
from vlmill.extract.formats.arrays import entry_value, only_item, read_members, zip_parts
from vlmill.extract.formats.context import Context, Item
from vlmill.extract.formats.folders import (
    FIRST_FILES,
    count_files,
    file_name,
    id_of_file,
    walk_files,
)
from vlmill.extract.formats.plan import ExportPlan, Rows
from vlmill.extract.formats.records import (
    LISTS,
    STATED,
    BadRecord,
    InvalidRecord,
    Record,
    make_record,
    rename_fields,
    widen_payload,
)
from vlmill.extract.formats.unfinished import Unfinished
from vlmill.models.convert.plain_pickle import plain_value
from vlmill.runtime.readers.regions import RegionRow
from vlmill.schemas.errors import InputError

ENDING = ".npz"
BOXES = {"bbox", "boxes", "norm_bb"}
MEMBERS = {"features": "x", "boxes": "bbox", "num_boxes": "num_bbox"}


def read(path: Path, context: Context) -> Iterator[Item]:
    """Yields the records of one file, or of the files below a folder in the order of their names.

    Raises InputError for a folder whose first files have an unknown layout.
    """
    require_layout(path)
    transposes = cache(lambda: has_transposed(walk_files(path, ENDING)))
    sizes = cache(context.sizes_near)
    root = path if path.is_dir() else path.parent
    total = count_files(path, ENDING)
    for number, file in enumerate(walk_files(path, ENDING)):
        context.done = number / total
        yield partial(read_record, file, root, context, sizes, transposes)


def require_layout(path: Path) -> None:
    """Raises InputError, once, if none of the first files has a known layout."""
    problem: InputError | None = None
    for file in islice(walk_files(path, ENDING), FIRST_FILES):
        try:
            names = read_members(file).keys()
        except BadRecord:
            continue
        if names & cocobu.FEATURES or (names & {"x", "features"} and names & BOXES):
            return
        if names & {"x", "features"}:
            problem = problem or InputError(
                f"FILE {path}: {file.name} has features without boxes (its arrays are "
                f"{', '.join(sorted(names)[:10])}), such as grid features; give features of "
                "regions, with bbox or norm_bb"
            )
            continue
        what = f"its arrays are {', '.join(sorted(names)[:10])}" if names else "it is empty"
        boxes = "; those are boxes without features: give them to run --boxes"
        problem = problem or InputError(
            f"FILE {path}: {file.name} has no features of a known layout ({what})"
            f"{boxes if names & {'bbox', 'boxes'} else ''}. Known: x (MILVLG, OpenVQA), norm_bb "
            "and features (UNITER), feat (cocobu)"
        )
    if problem is not None:
        raise problem


def read_record(
    file: Path,
    root: Path,
    context: Context,
    sizes: Callable[[Path], Any],
    transposes: Callable[[], bool],
) -> Record:
    """Returns one file's row. Its id is that of info, else the file's name without the ending.

    ``root`` is the folder of the argument; with ``transposes`` square features are [D, N].
    """
    key = file.name
    try:
        members = read_members(file)
        key = id_of_file(file, ENDING)
        if "norm_bb" in members:
            fields = uniter.parse_members(members, key, context, sizes(root), root)
        elif cocobu.FEATURES & members.keys():
            fields = cocobu.parse_members(members, key, file, context, sizes)
        else:
            fields = parse_members(members, key, transposes)
            context.require_size(fields, sizes(root), root, "features in .npz")
    except BadRecord as error:
        return InvalidRecord(key=file.name, detail=str(error), reason=error.reason)
    return make_record(str(fields["image_id"]), fields)


def parse_members(
    members: dict[str, Any], image_id: str, transposes: Callable[[], bool]
) -> dict[str, Any]:
    """Returns the fields of MILVLG's and OpenVQA's files."""
    info = parse_info(members.pop("info", None))
    fields = {"image_id": image_id, **info, **rename_members(members)}
    if is_square(fields) and transposes():
        fields["features"] = fields["features"].T
    if isinstance(stated := fields["image_id"], np.ndarray) and stated.size == 1:
        fields["image_id"] = plain_value(stated.reshape(-1)[0])
    return {**fields, "image_id": str(fields["image_id"])}


def rename_members(members: dict[str, Any]) -> dict[str, Any]:
    """Returns the arrays under the names of the other formats."""
    fields = rename_fields(members)
    if "num_boxes" not in fields and "boxes" in fields:
        if len(shape := np.shape(fields["boxes"])) != 2:
            raise BadRecord(f"bbox is {list(shape)}, expected [N, 4] of one image")
        fields["num_boxes"] = len(fields["boxes"])
    needed = {"features", "boxes", "num_boxes"}
    if absent := needed - fields.keys():
        raise BadRecord(f"no {', '.join(sorted(MEMBERS.get(name, name) for name in absent))}")
    return fields


def has_transposed(files: Iterable[Path]) -> bool:
    """Returns whether the first file with non-square features has them as [D, N].

    The shape of a square array does not show which dimension is the boxes; other files of its
    folder do. If all are square they are [N, D], as MILVLG's port writes them.
    """
    for file in files:
        try:
            fields = rename_members(read_members(file))
        except BadRecord:
            continue
        shape, count = np.shape(fields["features"]), np.size(fields["boxes"]) // 4
        if len(shape) == 2 and count in shape and shape[0] != shape[1]:
            return bool(shape[0] != count)
    return False


def is_square(fields: dict[str, Any]) -> bool:
    """Returns whether the features have as many columns as boxes."""
    shape = np.shape(fields["features"])
    return len(shape) == 2 and shape[0] == shape[1]


def parse_info(value: Any) -> dict[str, Any]:
    """Returns the entries of info whose names the formats know.

    In the port's "d2" mode the attributes' names hold other values, which are omitted.
    """
    if value is None or (isinstance(value, np.ndarray) and value.dtype.kind in "SU"):
        return {}
    info = only_item(value)
    if not isinstance(info, dict):
        raise BadRecord("info is not an array of one dict")
    names = {"image_id", *LISTS, "cls_prob", *STATED}
    names -= {"attrs_id"} if "attrs_scores" in info else set()
    fields = {name: entry_value(info[name]) for name in names if name in info}
    return {name: array for name, array in fields.items() if array is not None}


def write(rows: Rows, files: Unfinished, plan: ExportPlan) -> None:
    """Writes a folder, one file per row.

    ``npz`` holds the id and the provenance of the features in info; ``npz-openvqa`` has [D, N] and
    ``npz-gqa`` [N, D], without info.
    """
    files.path.mkdir(exist_ok=True)
    for row in rows:
        file = files.path / file_name(row.image_id, ENDING, name=plan.name)
        files.create_file(file, zip_parts(make_arrays(row, plan)))


def make_arrays(row: RegionRow, plan: ExportPlan) -> dict[str, Any]:
    """Returns the arrays that a row's file holds."""
    sizes = {"image_h": row.height, "image_w": row.width}
    features = widen_payload("features", row)
    arrays = {"bbox": widen_payload("boxes", row), "num_bbox": len(row.boxes), **sizes}
    if plan.name == "npz-openvqa":
        return {"x": np.ascontiguousarray(features.T), **arrays}
    if plan.name == "npz-gqa":
        sizes = {"width": row.width, "height": row.height}
        return {"x": features, "bbox": arrays["bbox"], **sizes}
    info = {
        "image_id": row.image_id,
        **sizes,
        "num_boxes": len(row.boxes),
        **{name: widen_payload(name, row) for name in plan.payloads},
        **plan.stated,
        "made_by": plan.made_by_text,
    }
    return {"x": features, **arrays, "info": info}
