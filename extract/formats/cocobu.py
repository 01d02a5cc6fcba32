"""Reads and writes the folders of captioning code (self-critical.pytorch, ``make_bu_data.py``).

``NAME_att/ID.npz`` holds feat [N, D], ``NAME_box/ID.npy`` the boxes [N, 4] in pixels and
``NAME_fc/ID.npy`` the mean of the features. An export writes the sizes to ``NAME_sizes.tsv``.
"""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from vlmill.extract.formats.arrays import array_parts, read_array, zip_parts
from vlmill.extract.formats.context import Context
from vlmill.extract.formats.folders import file_name
from vlmill.extract.formats.plan import ExportPlan, Rows, size_lines
from vlmill.extract.formats.records import BadRecord, widen_payload
from vlmill.extract.formats.unfinished import Unfinished
from vlmill.schemas.errors import InputError

FEATURES = {"feat", "z"}  # z in the published features of COCO's test images
ATT, BOX, FC = "_att", "_box", "_fc"
LAYOUT = "cocobu features"


def parse_members(
    members: dict[str, Any],
    image_id: str,
    file: Path,
    context: Context,
    sizes: Callable[[Path], Any],
) -> dict[str, Any]:
    """Returns the fields of one image: features from ``file``, boxes from the adjacent folder.

    Raises BadRecord, and InputError for a folder without boxes or sizes.
    """
    base, boxes = find_boxes(file.parent)
    fields: dict[str, Any] = {"image_id": image_id}
    context.add_size(fields, sizes(base), file.parent, LAYOUT)
    fields["boxes"] = read_array(boxes / f"{file.stem}.npy")
    features = next(members[name] for name in sorted(FEATURES) if name in members)
    if np.ndim(fields["boxes"]) != 2:
        raise BadRecord(f"the boxes are {np.shape(fields['boxes'])}, expected [N, 4]")
    return {**fields, "features": features, "num_boxes": len(fields["boxes"])}


@lru_cache(maxsize=1)
def find_boxes(folder: Path) -> tuple[Path, Path]:
    """Returns the path NAME of a folder NAME_att, and its folder of boxes. Raises InputError."""
    folder = folder.absolute()  # "." has no name
    base = folder.with_name(folder.name.removesuffix(ATT))
    boxes = base.with_name(f"{base.name}{BOX}")
    if base == folder or not boxes.is_dir():
        raise InputError(
            f"FILE {folder}: cocobu features (feat) without boxes; give the folder NAME{ATT} with "
            f"NAME{BOX} next to it"
        )
    return base, boxes


def write(rows: Rows, files: Unfinished, plan: ExportPlan) -> None:
    """Writes ``PATH_att``, ``PATH_box``, ``PATH_fc`` and ``PATH_sizes.tsv``."""
    att, box, fc = (files.path.with_name(f"{files.path.name}{end}") for end in (ATT, BOX, FC))
    for folder in (att, box, fc):
        folder.mkdir(exist_ok=True)
    add_size = size_lines(files)
    for row in rows:
        stem = file_name(row.image_id, "", name=plan.name)
        features = widen_payload("features", row)
        files.create_file(att / f"{stem}.npz", zip_parts({"feat": features}))
        files.create_file(box / f"{stem}.npy", array_parts(widen_payload("boxes", row)))
        mean = features.mean(axis=0) if len(features) else np.zeros(plan.width, np.float32)
        files.create_file(fc / f"{stem}.npy", array_parts(mean))
        add_size(row)
