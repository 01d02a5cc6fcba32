"""Reads and writes UNITER's ``.npz``: norm_bb [N, 6], features, conf [N] and soft_labels [N, K].

Boxes are fractions of the image: x1, y1, x2, y2, width, height. Neither the id nor the size is in
the file: the file's name is the id, and an export writes the sizes to ``PATH_sizes.tsv``. UNITER's
conversion script refuses other members.
"""

from pathlib import Path
from typing import Any

import numpy as np

from vlmill.extract.formats.arrays import zip_parts
from vlmill.extract.formats.context import Context
from vlmill.extract.formats.folders import file_name
from vlmill.extract.formats.plan import ExportPlan, Rows, size_lines
from vlmill.extract.formats.records import BadRecord, widen_payload
from vlmill.extract.formats.sizes import Sizes
from vlmill.extract.formats.unfinished import Unfinished
from vlmill.runtime.readers.regions import RegionRow

LAYOUT = "UNITER's npz, whose boxes are fractions"


def parse_members(
    members: dict[str, Any], image_id: str, context: Context, sizes: Sizes | None, root: Path
) -> dict[str, Any]:
    """Returns the fields of one file. Raises BadRecord, and InputError without sizes."""
    fractions = members.get("norm_bb")
    if not isinstance(fractions, np.ndarray) or fractions.ndim != 2 or fractions.shape[1] < 4:
        raise BadRecord(f"norm_bb is {getattr(fractions, 'shape', None)}, expected [N, 6]")
    fields: dict[str, Any] = {"image_id": image_id, "num_boxes": len(fractions)}
    context.add_size(fields, sizes, root, LAYOUT)
    scale = np.array([fields["image_w"], fields["image_h"]] * 2, np.float64)
    fields["boxes"] = (fractions[:, :4] * scale).astype(np.float32)
    fields["features"] = members.get("features")
    if (probs := members.get("soft_labels")) is not None:
        fields |= {"cls_prob": probs, "background": "first"}  # its losses skip the first column
    return fields


def write(rows: Rows, files: Unfinished, plan: ExportPlan) -> None:
    """Writes a folder, one file per row, and the sizes next to it."""
    files.path.mkdir(exist_ok=True)
    add_size = size_lines(files)
    for row in rows:
        file = files.path / file_name(row.image_id, ".npz", name=plan.name)
        files.create_file(file, zip_parts(make_arrays(row)))
        add_size(row)


def make_arrays(row: RegionRow) -> dict[str, Any]:
    """Returns a row's arrays; fractions are float64, which restores the same float32 boxes."""
    size = np.array([row.width, row.height] * 2, np.float64)
    corners = row.boxes.astype(np.float64) / size
    return {
        "norm_bb": np.concatenate([corners, corners[:, 2:] - corners[:, :2]], axis=1),
        "features": widen_payload("features", row),
        "conf": widen_payload("objects_conf", row),
        "soft_labels": widen_payload("cls_prob", row),
    }
