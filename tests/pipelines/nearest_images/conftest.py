"""Regions of few images with chosen features."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.regions import RegionRow, encode_regions, region_arrays
from vlmill.schemas.tables import REGIONS

SIDES = (200, 100)
INSIDE = (10.0, 20.0, 60.0, 70.0)
WHOLE = (0.0, 0.0, 200.0, 100.0)


def write_features(
    folder: Path,
    features: Mapping[str, npt.NDArray[Any]],
    *,
    whole: bool = False,
    marked: bool = True,
) -> str:
    """A regions table of float32 features [R, D] by image_id; ``whole``: row 0 is the image.

    ``marked`` False: the file does not say that its numbers are finite, and they may be others.
    """
    rows, dim = [], 0
    for image_id, array in features.items():
        boxes = np.tile(np.array(INSIDE, np.float32), (len(array), 1))
        if whole and len(array):
            boxes[0] = WHOLE
        width, height = SIDES
        finite = array if marked else np.zeros_like(array)
        rows.append(
            RegionRow(image_id=image_id, width=width, height=height, boxes=boxes, features=finite)
        )
        dim = array.shape[1]
    table = encode_regions(rows, dtype="float32")
    if not marked:
        stored = [np.asarray(a, np.float32).tobytes() for a in features.values()]
        at = table.schema.get_field_index("features")
        field = table.schema.field(at)
        table = table.set_column(at, field, pa.array(stored, field.type)).replace_schema_metadata(
            None
        )
    write_shard(folder, REGIONS, table, arrays=region_arrays(dtype="float32", feature_dim=dim))
    return str(folder)
