"""Reads and writes VL-BERT's precomputed features: a zip, or its folder, with one JSON per image.

``NAME/ID.json`` holds image_id, image_w, image_h, num_boxes and, in base64 of float32, boxes,
features and, for pretraining, classes (distributions).
"""

import json
import os
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vlmill.extract.formats.arrays import LOCAL_HEADER, ZIP_ERRORS, read_member
from vlmill.extract.formats.context import Context, Item
from vlmill.extract.formats.folders import count_files, file_name, id_of_file, walk_files
from vlmill.extract.formats.plan import ExportPlan, Rows
from vlmill.extract.formats.records import (
    STATED,
    BadRecord,
    InvalidRecord,
    Record,
    count_boxes,
    from_base64,
    make_record,
    parse_payloads,
    to_base64,
)
from vlmill.extract.formats.unfinished import Unfinished
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import parse_json
from vlmill.schemas.rejects import Reason

ENDING = ".json"
ZIP_TIME = (1980, 1, 1, 0, 0, 0)  # fixed, so that the same rows give the same bytes
NEEDED = ("boxes", "features", "image_w", "image_h")
MAX_FILE = 64 * 2**20
MEMBER_MODE = 0o600  # as zipfile sets it


def read(path: Path, context: Context) -> Iterator[Item]:
    """Yields the records of a zip in its order, or of a folder in the order of the names.

    Raises InputError if its first JSON has another layout.
    """
    if path.is_dir() or path.suffix == ENDING:
        total = count_files(path, ENDING)
        for number, file in enumerate(walk_files(path, ENDING)):
            context.done = number / total
            load = partial(_read_file, file)
            if not number:
                require_layout(path, file.name, load)
            yield partial(read_record, file, load)
        return
    try:
        archive = zipfile.ZipFile(path)
        members = [m for m in archive.infolist() if is_member(m.filename)]
    except ZIP_ERRORS as error:
        detail = f"it cannot be opened, and no image of it is read: {error}"
        reason = Reason.BROKEN_ARCHIVE
        yield partial(InvalidRecord, key=path.name, detail=detail, reason=reason)
        return
    with archive:
        for number, member in enumerate(members):
            context.done = number / len(members)
            load = partial(read_member, archive, member)
            if not number:
                require_layout(path, member.filename, load)
            yield partial(read_record, Path(member.filename), load)


def is_member(name: str) -> bool:
    """Returns whether a member of a zip is JSON. Hidden files are not, such as macOS's ``._1.json``
    in ``__MACOSX``.
    """
    return name.endswith(ENDING) and not any(part.startswith(".") for part in name.split("/"))


def _read_file(file: Path) -> bytes:
    if (size := file.stat().st_size) > MAX_FILE:
        raise BadRecord(f"it has {size} bytes, limit {MAX_FILE}", Reason.TOO_LARGE)
    return file.read_bytes()


def has_layout(value: Any) -> bool:
    """Returns whether a JSON value is one image of VL-BERT."""
    return isinstance(value, dict) and {"boxes", "features"} <= value.keys()


def require_layout(path: Path, name: str, load: Callable[[], bytes]) -> None:
    """Raises InputError if the first JSON is readable but has another layout."""
    try:
        value = parse_json(load())
    except (BadRecord, ValueError, *ZIP_ERRORS):
        return
    if not has_layout(value):
        what = f"an object of {', '.join(list(value)[:10])}" if isinstance(value, dict) else "other"
        raise InputError(
            f"FILE {path}: {name} is not VL-BERT's JSON ({what}), which has image_w, image_h, "
            "num_boxes, boxes and features"
        )


def read_record(file: Path, load: Callable[[], bytes]) -> Record:
    """Returns the row of one JSON file."""
    key = id_of_file(file, ENDING)
    try:
        value = parse_payloads(load(), ["boxes", "features", "classes"])
        if not isinstance(value, dict):
            raise BadRecord("not a JSON object")
        if absent := [name for name in NEEDED if name not in value]:
            raise BadRecord(f"no {', '.join(absent)}")
        payloads = {"boxes": "boxes", "features": "features", "classes": "cls_prob"}
        fields: dict[str, Any] = {
            known: parse_numbers(known, value[name])
            for name, known in payloads.items()
            if value.get(name) is not None
        }
        plain = ("image_w", "image_h", "num_boxes", *STATED)
        fields |= {name: value[name] for name in plain if name in value}
        fields.setdefault("num_boxes", count_boxes(fields["boxes"]))
        key = str(value.get("image_id", key))
    except BadRecord as error:
        return InvalidRecord(key=key, detail=str(error), reason=error.reason)
    except (ValueError, KeyError) as error:
        return InvalidRecord(key=key, detail=f"not readable JSON: {error}")
    except ZIP_ERRORS as error:
        return InvalidRecord(key=key, detail=str(error), reason=Reason.BROKEN_ARCHIVE)
    return make_record(key, {**fields, "image_id": key})


def parse_numbers(name: str, value: Any) -> Any:
    """Returns the bytes of a payload, or the array that a list in JSON holds. Raises BadRecord."""
    if isinstance(value, str | memoryview):
        return from_base64(name, value)
    try:
        return np.array(value, np.float64)
    except (TypeError, ValueError):
        raise BadRecord(f"{name} is neither base64 nor lists of numbers") from None


def write(rows: Rows, files: Unfinished, plan: ExportPlan) -> None:
    """Writes one uncompressed zip for VL-BERT.

    The members are in a folder with the name of the file: VL-BERT opens NAME.zip@/NAME/ID.json.
    """
    file = files.open_file(files.path)
    members = list(read_local_headers(files.path, file.tell()))
    with zipfile.ZipFile(file, "w") as archive:  # begins at the position of the file
        archive.infolist().extend(members)
        for row in rows:
            entries = {
                "image_id": row.image_id,
                "image_w": row.width,
                "image_h": row.height,
                "num_boxes": len(row.boxes),
                **plan.stated,
            }
            names = {"boxes": "boxes", "features": "features"}
            names |= {"classes": "cls_prob"} if "cls_prob" in plan.payloads else {}
            # Base64 needs no escapes, but json would check each character for them.
            payloads = [b'"%s": "%s"' % (n.encode(), to_base64(k, row)) for n, k in names.items()]
            content = b", ".join([json.dumps(entries)[:-1].encode(), *payloads]) + b"}"
            name = f"{files.path.stem}/{file_name(row.image_id, ENDING, name=plan.name)}"
            member = zipfile.ZipInfo(name, ZIP_TIME)
            archive.writestr(member, content)


def read_local_headers(path: Path, size: int) -> Iterator[zipfile.ZipInfo]:
    """Yields the members in the first ``size`` bytes of a zip that :func:`write` has begun.

    The list at the end of a zip is missing until all members are written.
    """
    with path.open("rb") as file:
        while (start := file.tell()) < size:
            *_, crc, stored, _, name_bytes, extra_bytes = LOCAL_HEADER.unpack(
                file.read(LOCAL_HEADER.size)
            )
            member = zipfile.ZipInfo(file.read(name_bytes).decode(), ZIP_TIME)
            member.header_offset, member.CRC = start, crc
            member.compress_size = member.file_size = stored
            member.external_attr = MEMBER_MODE << 16
            file.seek(extra_bytes + stored, os.SEEK_CUR)
            yield member
