"""Writes the TSV of Oscar and VinVL (:mod:`~vlmill.extract.formats.oscar`) as one folder.

Every TSV has a ``.lineidx`` with the byte offset of each line, and ``imageid2idx.json`` holds the
line of each image. ``classes.json`` and ``attributes.json`` hold the names in the order of our
numbers.
"""

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from vlmill.extract.formats.hdf5_write import spatial
from vlmill.extract.formats.oscar import BACKGROUND
from vlmill.extract.formats.plan import ExportPlan, Rows
from vlmill.extract.formats.records import NO_CLASS, widen_payload
from vlmill.runtime.files.atomic import atomic_folder
from vlmill.runtime.readers.regions import RegionRow
from vlmill.schemas.errors import InputError

PREDICTIONS, LABELS = "predictions", "label"


class LineFile:
    """Writes a TSV and the offsets of its lines."""

    def __init__(self, lines: BinaryIO, offsets: BinaryIO) -> None:
        self._lines, self._offsets, self._size = lines, offsets, 0

    def add(self, *fields: bytes) -> None:
        """Writes one line."""
        self._offsets.write(b"%d\n" % self._size)
        line = b"\t".join(fields)
        self._size += len(line) + 1
        self._lines.write(line)
        self._lines.write(b"\n")


@contextmanager
def line_file(folder: Path, name: str) -> Iterator[LineFile]:
    """Opens ``NAME.tsv`` and ``NAME.lineidx``."""
    with (
        (folder / f"{name}.tsv").open("wb") as lines,
        (folder / f"{name}.lineidx").open("wb") as offsets,
    ):
        yield LineFile(lines, offsets)


def write(rows: Rows, path: Path, plan: ExportPlan) -> int:
    """Writes the folder ``path``; returns the number of rows.

    ``oscar``: feature.tsv, label.tsv and predictions.tsv, as captioning reads them;
    ``oscar-retrieval``: features.tsv of three columns and predictions.tsv.
    """
    retrieval = plan.name == "oscar-retrieval"
    ids: list[str] = []
    with atomic_folder(path, replace=True) as folder, ExitStack() as stack:
        features = stack.enter_context(line_file(folder, "features" if retrieval else "feature"))
        predictions = stack.enter_context(line_file(folder, PREDICTIONS))
        labels = None if retrieval else stack.enter_context(line_file(folder, LABELS))
        for row in rows:
            key, objects = row.image_id.encode(), make_objects(row, plan)
            sizes = {"image_h": row.height, "image_w": row.width, "num_boxes": len(row.boxes)}
            text = encode_features(row)
            if retrieval:
                features.add(key, b"%d" % len(row.boxes), text)
            else:
                features.add(key, b'{"num_boxes": %d, "features": "%s"}' % (len(row.boxes), text))
            predictions.add(key, _json({**sizes, "objects": objects}))
            if labels is not None:
                names = ("class", "rect", "conf")
                labels.add(key, _json([{name: o[name] for name in names} for o in objects]))
            ids.append(row.image_id)
        lists = {"classes.json": plan.classes, "attributes.json": plan.attributes}
        for name, value in lists.items():
            if value:
                (folder / name).write_bytes(_json(list(value)))
        index = {image_id: number for number, image_id in enumerate(ids)}
        (folder / "imageid2idx.json").write_bytes(_json(index))
    return len(ids)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def encode_features(row: RegionRow) -> bytes:
    """Returns base64 of [N, D + 6]: features, corners, width and height as fractions."""
    joined = np.concatenate([widen_payload("features", row), spatial(row)], axis=1)
    return base64.b64encode(np.ascontiguousarray(joined, dtype="<f4").data)


def make_objects(row: RegionRow, plan: ExportPlan) -> list[dict[str, Any]]:
    """Returns the objects of one image, in the order of its boxes."""
    ids = widen_payload("objects_id", row).tolist()
    scores = widen_payload("objects_conf", row).tolist()
    objects: list[dict[str, Any]] = [
        {
            "rect": rect,
            "bbox_id": number,
            "class": find_name(ids[number], plan.classes, "--classes"),
            "conf": scores[number],
        }
        for number, rect in enumerate(row.boxes.astype(np.float32).tolist())
    ]
    if plan.attributes and "attrs_id" in plan.payloads:
        attributes = widen_payload("attrs_id", row).tolist()
        confs = widen_payload("attrs_conf", row).tolist()
        for one, attribute, conf in zip(objects, attributes, confs, strict=True):
            one["attributes"] = [find_name(attribute, plan.attributes, "--attributes")]
            one["attr_scores"] = [conf]
    return objects


def find_name(number: int, names: Sequence[str], flag: str) -> str:
    """Returns the name of a class or an attribute. Raises InputError if it is missing."""
    if number == NO_CLASS:
        return BACKGROUND
    if number >= len(names):
        raise InputError(f"{flag} has {len(names)} names, and the regions have number {number}")
    return names[number]
