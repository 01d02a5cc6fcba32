"""Reads the TSV of Oscar, VinVL and scene_graph_benchmark: a key, then JSON or base64.

- ``predictions.tsv``: {image_h, image_w, num_boxes, objects: [{rect, class, conf, attributes,
  attr_scores, feature}]}, each feature in base64 of float32;
- ``feature.tsv``: {num_boxes, features}, or the columns num_boxes and features: base64 of [N, D] or
  [N, D + 6], where x1, y1, x2, y2, width and height as fractions of the image follow the feature;
- ``label.tsv``: [{class, rect, conf}], and ``hw.tsv``: [{height, width}].

Features without boxes take them from the files of labels or predictions in the same folder. Class
names become numbers: those of ``--classes`` or of ``classes.json`` in the folder, else by the order
of their appearance.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from vlmill.extract.formats.context import Context, Item, Vocabulary
from vlmill.extract.formats.hdf5 import find_size
from vlmill.extract.formats.records import (
    MAX_BOXES,
    NO_CLASS,
    Array,
    BadRecord,
    InvalidRecord,
    Record,
    decode_numbers,
    from_base64,
    make_record,
    parse_payloads,
    whole_number,
)
from vlmill.extract.formats.sizes import Sizes
from vlmill.extract.formats.tsv import BUFFER, BYTE_ORDER_MARK, MAX_LINE, lines
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import parse_json

FEATURES, OBJECTS, LABELS, SIZES = "features", "objects", "labels", "sizes"
EMPTY = "empty"  # a line of an image without objects
FIRST_LINES = 20  # that show the type: one may be damaged, or of an image without objects
SPATIAL = 6
NO_NAMES = ("__background__", "__no_attribute__")
BACKGROUND = NO_NAMES[0]


def sniff_kind(path: Path) -> str | None:
    """Returns the type of a file; None for other files.

    Types are ``features``; ``objects``: predictions with features; ``labels``: objects without
    them; and ``sizes``.
    """
    is_empty = False
    with path.open("rb", buffering=BUFFER) as file:
        for line in islice(lines(file), FIRST_LINES):
            kind = _kind_of(line.split(b"\t")) if line is not None else None
            if kind not in (None, EMPTY):
                return kind
            is_empty |= kind == EMPTY
    return LABELS if is_empty else None


def _kind_of(fields: list[bytes]) -> str | None:
    if len(fields) == 3 and fields[1].strip().isdigit():
        has_base64 = len(fields[2].strip()) > SPATIAL if int(fields[1]) else not fields[2].strip()
        return FEATURES if has_base64 else None
    if len(fields) != 2 or fields[1].lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        value = parse_json(fields[1])
    except ValueError:
        return None
    if isinstance(value, dict) and "features" in value:
        return FEATURES
    objects = value.get("objects", [value]) if isinstance(value, dict) else value
    if not isinstance(objects, list):
        return None
    first: Any = objects[0] if objects else EMPTY
    if first == EMPTY:
        return EMPTY
    if not isinstance(first, dict):
        return None
    if "feature" in first:
        return OBJECTS
    return LABELS if "rect" in first else SIZES if {"height", "width"} <= first.keys() else None


def read(path: Path, context: Context) -> Iterator[Item]:
    """Yields the records of a file with features. Raises InputError for other files."""
    kind = sniff_kind(path)
    if kind not in (FEATURES, OBJECTS):
        what = "it has objects without features" if kind == LABELS else "it has none"
        raise InputError(
            f"FILE {path}: no features of Oscar or VinVL, {what}; give the feature.tsv, or a "
            "predictions.tsv whose objects have features"
        )
    context.use_names_near(path)
    companions = [Companion(file) for file in find_companions(path)]
    sizes, size = context.sizes_near(path), max(1, path.stat().st_size)
    with path.open("rb", buffering=BUFFER) as file:
        for number, line in enumerate(lines(file), 1):
            context.done = file.tell() / size
            location = f"{path.name}:{number}"
            if line is None:
                detail = f"a line of more than {MAX_LINE} bytes"
                yield partial(InvalidRecord, key=location, detail=detail)
            elif line.strip():
                yield partial(read_record, line, location, path, companions, context, sizes)


def find_companions(path: Path) -> list[Path]:
    """Returns the files next to a feature file that may hold its boxes, classes and sizes."""
    name = path.name
    words = [word for word in ("features", "feature") if word in name][:1]
    others = ("predictions", "label", "labels", "hw")
    names = [name.replace(word, other) for word in words for other in others]
    names += [f"{other}.tsv" for other in others]
    sizes = list(path.parent.glob("*.hw.tsv"))  # of scene_graph_benchmark, next to its predictions
    names += [file.name for file in sizes if len(sizes) == 1]
    files = [path.with_name(other) for other in dict.fromkeys(names) if other != name]
    return [
        file for file in files if file.is_file() and sniff_kind(file) in (LABELS, OBJECTS, SIZES)
    ]


class Companion:
    """Finds lines of another TSV by their keys; the offsets of all lines stay in memory."""

    def __init__(self, path: Path) -> None:
        self.name, self._file = path.name, path.open("rb", buffering=BUFFER)
        self._offsets: dict[bytes, int] | None = None

    def find(self, key: bytes) -> Any:
        """Returns the JSON value of a key; None if it is missing. Raises BadRecord."""
        if self._offsets is None:
            self._offsets, start = {}, 0
            for line in self._file:
                found = line.split(b"\t", 1)[0].strip().removeprefix(BYTE_ORDER_MARK)
                self._offsets.setdefault(found, start)
                start += len(line)
        if (offset := self._offsets.get(key)) is None:
            return None
        self._file.seek(offset)
        _, _, text = self._file.readline(MAX_LINE).partition(b"\t")
        return _parse(text)


def _parse(text: bytes) -> Any:
    try:
        return parse_payloads(text, ["features"])
    except ValueError as error:
        raise BadRecord(f"not readable JSON: {error}") from None


def read_record(
    line: bytes,
    location: str,
    path: Path,
    companions: list[Companion],
    context: Context,
    sizes: Sizes | None,
) -> Record:
    """Returns the row of one line."""
    raw, *texts = line.split(b"\t", 2)
    raw = raw.strip().removeprefix(BYTE_ORDER_MARK)
    key = raw.decode("utf-8", "replace") or location
    try:
        if not texts or not raw:
            raise BadRecord(f"{location}: no key and value")
        found: dict[str, Any] = {}
        if len(texts) > 1:
            found = {"num_boxes": texts[0].decode("ascii", "replace"), "features": texts[-1]}
        else:
            take(_parse(texts[0]), found)
        unlisted = []
        for companion in companions:
            if not {"objects", "image_w"} <= found.keys():
                value = companion.find(raw)
                unlisted += [companion.name] if value is None else []
                take(value, found)
        try:
            fields = make_fields(key, found, context, sizes, path)
        except InputError:
            if not unlisted:
                raise
            raise BadRecord(f"no line of {' or '.join(unlisted)} has this id") from None
    except BadRecord as error:
        return InvalidRecord(key=key, detail=f"{location}: {error}", reason=error.reason)
    return make_record(key, fields)


def take(value: Any, found: dict[str, Any]) -> None:
    """Adds to ``found`` the fields of a line's JSON that earlier lines lack."""
    if isinstance(value, list):
        value = value[0] if _kind_is_size(value) else {"objects": value}
    if not isinstance(value, dict):
        return
    names = {"image_w": "image_w", "width": "image_w", "image_h": "image_h", "height": "image_h"}
    for name, known in names.items():
        if name in value:
            found.setdefault(known, value[name])
    for name in ("num_boxes", "features", "objects"):
        if name in value:
            found.setdefault(name, value[name])


def _kind_is_size(value: list[Any]) -> bool:
    return len(value) == 1 and isinstance(value[0], dict) and "rect" not in value[0]


def make_fields(
    key: str, found: Mapping[str, Any], context: Context, sizes: Sizes | None, path: Path
) -> dict[str, Any]:
    """Returns the fields of a row. Raises BadRecord, and InputError if no file has sizes."""
    objects = found.get("objects")
    if objects is not None and not (
        isinstance(objects, list) and all(isinstance(o, dict) for o in objects)
    ):
        raise BadRecord("objects is not a list of objects")
    known = len(objects) if objects is not None else None
    count = whole_number("num_boxes", found.get("num_boxes", known), 0, MAX_BOXES)
    if known not in (None, count):
        raise BadRecord(f"num_boxes is {count}, and there are {known} objects")
    features = read_features(found, objects, count)
    fields: dict[str, Any] = {"image_id": key, "num_boxes": count, "features": features}
    fields |= {name: found[name] for name in ("image_w", "image_h") if name in found}
    spatial = features[:, -SPATIAL:] if features.shape[1] > SPATIAL else None
    if objects is not None:
        fields |= read_objects(objects, context)
        size = None if spatial is None else _size_or_none(fields["boxes"], spatial)
        if size is not None and (size.items() <= fields.items() or "image_w" not in fields):
            fields |= {**size, "features": features[:, :-SPATIAL]}
        context.require_size(fields, sizes, path, "Oscar's features")
        return fields
    if spatial is None or not _are_fractions(spatial):
        raise InputError(
            f"FILE {path}: features without boxes; put the label.tsv or predictions.tsv that was "
            "written with them into the same folder"
        )
    context.require_size(fields, sizes, path, "Oscar's features, whose boxes are fractions")
    scale = np.array([fields["image_w"], fields["image_h"]] * 2, np.float64)
    boxes = (spatial[:, :4] * scale).astype(np.float32)
    return {**fields, "boxes": boxes, "features": features[:, :-SPATIAL]}


def _size_or_none(boxes: Array, spatial: Array) -> dict[str, int] | None:
    try:
        return find_size(boxes, spatial)
    except BadRecord:
        return None


def _are_fractions(spatial: Array) -> bool:
    """Returns whether [N, 6] are corners followed by their width and height."""
    sides = spatial[:, 2:4] - spatial[:, :2]
    return bool(np.allclose(sides, spatial[:, 4:], atol=1e-3) and np.abs(spatial).max() <= 1.1)


def read_features(found: Mapping[str, Any], objects: Any, count: int) -> Array:
    """Returns the features [N, D] of one image. Raises BadRecord."""
    if "features" in found:
        data = from_base64("features", found["features"])
    elif objects is not None:
        parts = [o.get("feature") for o in objects]
        if not all(isinstance(part, str) for part in parts):
            raise BadRecord("an object has no feature")
        payloads = [from_base64("features", part) for part in parts]
        if len({len(payload) for payload in payloads}) > 1:
            raise BadRecord("the features of the objects have different widths")
        data = b"".join(payloads)
    else:
        raise BadRecord("no features")
    flat = decode_numbers("features", data, count)
    if bool(count) != bool(flat.size):
        raise BadRecord(f"features has {flat.size} numbers for {count} boxes")
    return flat.reshape(count, flat.size // count if count else 0)


def read_objects(objects: list[dict[str, Any]], context: Context) -> dict[str, Any]:
    """Returns boxes, classes and attributes of objects. Raises BadRecord."""
    try:
        boxes = np.array([o["rect"] for o in objects], np.float32).reshape(len(objects), 4)
        scores = np.array([o.get("conf", np.nan) for o in objects], np.float32)
    except (KeyError, ValueError, TypeError):
        raise BadRecord("an object without a rect of four numbers or a number as conf") from None
    fields: dict[str, Any] = {"boxes": boxes}
    if all(isinstance(o.get("class"), str) for o in objects):
        numbers = [_number(o["class"], context.classes) for o in objects]
        fields["objects_id"] = np.array(numbers, np.int64)
    if not np.isnan(scores).any():
        fields["objects_conf"] = scores
    if any("attributes" in o for o in objects):
        fields |= read_attributes(objects, context.attributes)
    return {**fields, "classes_from": 0}


def read_attributes(objects: list[dict[str, Any]], names: Vocabulary) -> dict[str, Array]:
    """Returns each object's most likely attribute; -1 for objects without. Raises BadRecord."""
    ids, scores = [], []
    for one in objects:
        found, confs = one.get("attributes") or [], one.get("attr_scores") or []
        if not isinstance(found, list) or not isinstance(confs, list) or len(found) != len(confs):
            raise BadRecord("attributes and attr_scores are not lists of one length")
        best = max(zip(confs, found, strict=True), default=(0.0, BACKGROUND), key=lambda x: x[0])
        ids.append(_number(best[1], names))
        scores.append(best[0])
    try:
        confidences = np.array(scores, np.float32)
    except (ValueError, TypeError):
        raise BadRecord("attr_scores has something that is not a number") from None
    return {"attrs_id": np.array(ids, np.int64), "attrs_conf": confidences}


def _number(name: Any, names: Vocabulary) -> int:
    if not isinstance(name, str):
        raise BadRecord(f"{str(name)[:40]!r} is not the name of a class")
    return NO_CLASS if name in NO_NAMES else names.number(name)
