"""Runs ``extract-rois verify``: checks every row and every checksum of a folder.

The folder holds tables, a training run with its checkpoints, a detector, or a search index.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vlmill.extract.config import DETECTOR
from vlmill.extract.formats.records import IMPORTED_BORDER_PX, are_probabilities, outside
from vlmill.runtime.files.checkpoints import CHECKPOINTS, STEP
from vlmill.runtime.files.contents import content_problems
from vlmill.runtime.files.listed import FILE_RECORD, file_problems, parse_record
from vlmill.runtime.files.manifest import MANIFEST, read_manifest, verify_folder
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.readers.regions import PER_BOX, RegionReader, RegionRow
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_object
from vlmill.schemas.tables import REGIONS

RECORDS = ("checkpoint.json", DETECTOR, "index.json")  # with digests of the other files
TRAINING_STATE = "training_state.safetensors"

# Boxes are float32 and were divided by the resize factor: rounding beyond the border is not a
# fault.
BORDER_TOLERANCE_PX = 0.01


def verify(folder: str | Path) -> list[str]:
    """Returns the problems of a folder, one line each; empty if there are none.

    Raises InputError for a folder whose run has not finished, unless it has checkpoints.
    """
    path = to_path(folder)
    recorded = [
        each
        for each in (path, *sorted((path / CHECKPOINTS).glob(f"{STEP}*")))
        if any((each / name).is_file() for name in RECORDS)
    ]
    problems = [problem for each in recorded for problem in compare_with_record(each)]
    if recorded and not (path / MANIFEST).is_file():
        return problems
    return problems + table_problems(folder)


def compare_with_record(folder: Path) -> list[str]:
    """Returns the differences between a checkpoint, detector or index and its record of its files.

    An older vlmill recorded none: then the record alone must be readable.
    """
    problems = []
    for name in RECORDS:
        path = folder / name
        if not path.is_file():
            continue
        try:
            files = parse_record(read_object(path).get(FILE_RECORD))
        except ValueError as error:
            problems.append(f"{path} is damaged ({error})")
            continue
        # The top folder of a run holds the best checkpoint for evaluation, without training state.
        is_step = folder.name.startswith(STEP)
        problems += file_problems(folder, [f for f in files if is_step or f.name != TRAINING_STATE])
    return problems


def table_problems(folder: str | Path) -> list[str]:
    """Returns the problems of a folder of tables, one line each."""
    problems = verify_folder(folder) or content_problems(folder)
    if problems or REGIONS.name not in {shard.table for shard in read_manifest(folder)["shards"]}:
        return problems
    return region_problems(folder)


def region_problems(folder: str | Path) -> list[str]:
    """Returns the problems in the rows of a folder's regions, one line each."""
    problems = []
    try:
        reader = RegionReader(folder)
        border, width = find_border(reader.producer), get_global_width(reader.producer)
        for row in reader:
            own = None if border is None else border + padding_px(row, reader.producer)
            row_errors = row_problems(row, border_px=own, global_width=width)
            problems += [f"{folder}, {row.image_id}: {problem}" for problem in row_errors]
    except (InputError, OSError, ValueError) as error:
        problems.append(str(error))
    return problems


def find_border(producer: Mapping[str, Any]) -> float | None:
    """Returns how far boxes may exceed their images; None for boxes given to the run."""
    if "given" in producer:
        return None
    return IMPORTED_BORDER_PX if producer.get("boxes") == "given" else BORDER_TOLERANCE_PX


def padding_px(row: RegionRow, producer: Mapping[str, Any]) -> float:
    """Returns the number of pixels by which an image may be padded, if padding counts as image:
    boxes of vqa-maskrcnn reach into it (:mod:`vlmill.models.detector.config`).
    """
    detector, limits = producer.get("detector", {}), producer.get("limits", {})
    if detector.get("clipped_to") != "padded":
        return 0.0
    short, long = (limits.get(name) or detector[name] for name in ("short_side", "long_side"))
    sides = row.height, row.width
    factor = min(short / min(sides), long / max(sides))
    return float(detector["size_divisibility"] / factor)


def get_global_width(producer: Mapping[str, Any]) -> int | None:
    """Returns the width of the full-image vectors by the run's record; None without them."""
    networks = producer.get("global_cnn")
    return None if networks is None else sum(int(network["width"]) for network in networks)


def row_problems(
    row: RegionRow,
    *,
    border_px: float | None = BORDER_TOLERANCE_PX,
    global_width: int | None = None,
) -> list[str]:
    """Returns the problems of one image's regions.

    ``border_px``: how far a box may exceed it, None: any number of pixels. ``global_width``: the
    required width of its global_feature.
    """
    problems = []
    count = len(row.boxes)
    for name in PER_BOX:
        array = getattr(row, name)
        if array is not None and len(array) != count:
            problems.append(f"{len(array)} {name} for {count} boxes")
    low, high = row.boxes[:, :2], row.boxes[:, 2:]
    if not (high >= low).all():
        problems.append("a box ends before it begins")
    if border_px is not None and outside(row.boxes, row.width, row.height, border_px):
        problems.append(f"a box leaves the image of {row.width} x {row.height}")
    size = 0 if row.global_feature is None else len(row.global_feature)
    if global_width is not None and size != global_width:
        problems.append(f"a global_feature of {size} numbers, not the networks' {global_width}")
    checked = ("features", "class_probs", "class_scores", "attribute_scores", "global_feature")
    for name in checked:
        array = getattr(row, name)
        if array is not None and not np.isfinite(array).all():
            problems.append(f"{name} has numbers that are not finite")
    for name in ("class_probs", "class_scores", "attribute_scores"):
        array = getattr(row, name)
        if array is not None and not are_probabilities(array):
            problems.append(f"{name} has numbers that are not probabilities")
    return problems
