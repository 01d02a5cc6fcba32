"""Writes the TSV of Oscar and VinVL (:mod:`~vlmill.extract.formats.oscar`) as one folder.

Every TSV has a ``.lineidx`` with the byte offset of each line, and ``imageid2idx.json`` holds the
line of each image. ``classes.json`` and ``attributes.json`` hold the names in the order of our
numbers.
"""

import json
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np
import pybase64

from vlmill.extract.formats.hdf5_write import spatial
from vlmill.extract.formats.oscar import BACKGROUND
from vlmill.extract.formats.plan import ExportPlan, Rows
from vlmill.extract.formats.records import NO_CLASS, widen_payload
from vlmill.extract.formats.unfinished import Unfinished
from vlmill.runtime.readers.regions import RegionRow
from vlmill.schemas.errors import InputError

PREDICTIONS, LABELS = "predictions", "label"


class LineFile:
    """Writes a TSV and the offsets of its lines."""

    def __init__(self, lines: BinaryIO, offsets: BinaryIO) -> None:
        self._lines, self._offsets, self._size = lines, offsets, lines.tell()

    def add(self, *parts: bytes) -> None:
        """Writes one line, the parts one after the other."""
        self._offsets.write(b"%d\n" % self._size)
        self._size += sum(map(len, parts)) + 1
        self._lines.writelines((*parts, b"\n"))


def line_file(files: Unfinished, name: str) -> LineFile:
    """Opens ``NAME.tsv`` and ``NAME.lineidx``."""
    lines, offsets = (files.open_file(files.path / f"{name}.{end}") for end in ("tsv", "lineidx"))
    return LineFile(lines, offsets)


def write(rows: Rows, files: Unfinished, plan: ExportPlan) -> None:
    """Writes a folder.

    ``oscar``: feature.tsv, label.tsv and predictions.tsv, as captioning reads them;
    ``oscar-retrieval``: features.tsv of three columns and predictions.tsv.
    """
    retrieval = plan.name == "oscar-retrieval"
    features = line_file(files, "features" if retrieval else "feature")
    predictions = line_file(files, PREDICTIONS)
    labels = None if retrieval else line_file(files, LABELS)
    for row in rows:
        key, (label_texts, texts) = row.image_id.encode(), format_objects(row, plan)
        sizes = {"image_h": row.height, "image_w": row.width, "num_boxes": len(row.boxes)}
        text = encode_features(row)
        if retrieval:
            features.add(key, b"\t%d\t" % len(row.boxes), text)
        else:
            features.add(key, b'\t{"num_boxes": %d, "features": "' % len(row.boxes), text, b'"}')
        head = _json(sizes)[:-1] + b', "objects": ['
        predictions.add(key, b"\t", head, ", ".join(texts).encode(), b"]}")
        if labels is not None:
            labels.add(key, b"\t[", ", ".join(label_texts).encode(), b"]")
    lists = {"classes.json": plan.classes, "attributes.json": plan.attributes}
    for name, value in lists.items():
        if value:
            (files.path / name).write_bytes(_json(list(value)))
    index = {image_id: number for number, image_id in enumerate(plan.image_ids)}
    (files.path / "imageid2idx.json").write_bytes(_json(index))


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def encode_features(row: RegionRow) -> bytes:
    """Returns base64 of [N, D + 6]: features, corners, width and height as fractions."""
    joined = np.concatenate([widen_payload("features", row), spatial([row])], axis=1)
    return pybase64.b64encode(np.ascontiguousarray(joined, dtype="<f4").data)


def format_objects(row: RegionRow, plan: ExportPlan) -> tuple[list[str], list[str]]:
    """Returns the objects of one image as JSON for label.tsv and for predictions.tsv, in the order
    of its boxes. Each number is formatted once for both.
    """
    if not len(row.boxes):
        return [], []
    rects = json.dumps(row.boxes.astype(np.float32).tolist())[2:-2].split("], [")
    ids, confs = _format_ids(row, "objects", plan.classes, "--classes")
    both = [
        f'"class": {name}, "rect": [{rect}], "conf": {conf}'
        for rect, name, conf in zip(rects, ids, confs, strict=True)
    ]
    more = [""] * len(both)
    if plan.attributes and "attrs_id" in plan.payloads:
        ids, confs = _format_ids(row, "attrs", plan.attributes, "--attributes")
        more = [
            f', "attributes": [{name}], "attr_scores": [{conf}]'
            for name, conf in zip(ids, confs, strict=True)
        ]
    texts = [f'{{"bbox_id": {n}, {o}{m}}}' for n, (o, m) in enumerate(zip(both, more, strict=True))]
    return [f"{{{o}}}" for o in both], texts


def _format_ids(
    row: RegionRow, what: str, names: Sequence[str], flag: str
) -> tuple[list[str], list[str]]:
    """Returns the names and the scores of a row's classes or attributes as JSON."""
    ids = widen_payload(f"{what}_id", row).tolist()
    scores = json.dumps(widen_payload(f"{what}_conf", row).tolist())
    return [json.dumps(find_name(i, names, flag)) for i in ids], scores[1:-1].split(", ")


def find_name(number: int, names: Sequence[str], flag: str) -> str:
    """Returns the name of a class or an attribute. Raises InputError if it is missing."""
    if number == NO_CLASS:
        return BACKGROUND
    if number >= len(names):
        raise InputError(f"{flag} has {len(names)} names, and the regions have number {number}")
    return names[number]
