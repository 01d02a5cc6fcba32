"""Reads and writes LMDB folders: one pickle per image, and a pickle of all keys under ``keys``.

The layouts differ in the names and types of a pickle's entries, and one reader reads all of them:

- vilbert_beta: the fields of a TSV row as text by name, payloads in base64;
- vilbert-multi-task: arrays, and numbers of image_h, image_w and num_boxes;
- VOLTA: img_h, img_w, obj_id, ..., as arrays or base64, and no num_boxes;
- MMF: bbox, image_height, image_width, objects; the key is a path without its ending.
"""

import os
import pickle
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vlmill.extract.formats.arrays import ZIP_MAGIC, entry_value
from vlmill.extract.formats.context import Context, Item
from vlmill.extract.formats.lmdb_file import LmdbFile
from vlmill.extract.formats.lmdb_pages import LostValue, Pages, Value
from vlmill.extract.formats.pickled import dict_parts
from vlmill.extract.formats.plan import ExportPlan, Rows
from vlmill.extract.formats.records import (
    KINDS,
    BadRecord,
    InvalidRecord,
    Record,
    count_arrays,
    from_base64,
    make_record,
    rename_fields,
    to_base64,
    widen_payload,
)
from vlmill.extract.formats.similar_pickles import SimilarPickles
from vlmill.extract.formats.sizes import Sizes
from vlmill.extract.formats.unfinished import Unfinished
from vlmill.models.convert.plain_pickle import BadPickle, plain_value
from vlmill.runtime.readers.regions import RegionRow
from vlmill.schemas.errors import InputError
from vlmill.schemas.images.formats import HEAD_BYTES, format_name
from vlmill.schemas.names import difference
from vlmill.schemas.rejects import Reason

KEYS = b"keys"
MAX_KEY_BYTES = 511
MAGIC = b"\xde\xc0\xef\xbe"  # at offset 16 of data.mdb
FILE = "data.mdb"
SUFFIXES = (".mdb", ".lmdb")
loads = SimilarPickles().loads
NEEDED = {"boxes", "features"}
# The list of keys in databases with other values: UNITER's and tensorpack's.
OTHER_KEYS = b"__keys__"
# The first byte of a msgpack dict or list; pickles begin with 0x80 or a letter.
MSGPACK = (*range(0x81, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF)


def is_lmdb(path: Path) -> bool:
    """Returns whether ``path`` is the folder of an LMDB or its file, by content or by name."""
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        return False
    if file.name == FILE or file.suffix in SUFFIXES:
        return True
    with file.open("rb") as stream:
        return stream.read(20)[16:] == MAGIC


def read(path: Path, context: Context) -> Iterator[Item]:
    """Yields the records in the order of their keys; for a damaged file, the readable ones.

    Raises InputError for a database whose first value has an unknown layout.
    """
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"FILE {path} has no {FILE}; give the folder of an LMDB, or its {FILE}")
    handle = os.open(file, os.O_RDONLY)
    try:
        yield from read_records(Pages(handle, path), path, context)
    finally:
        os.close(handle)


def read_records(pages: Pages, path: Path, context: Context) -> Iterator[Item]:
    """Yields the rows, then a reject for each listed key without a value.

    For a damaged file, one more reject states the number of other lost records.
    """
    pickled_keys: Value | None = None
    sizes = context.sizes_near(path)
    named_losses = read_before = 0
    for key, value in pages.records():
        context.done = len(pages.keys) / max(pages.num_records or 0, len(pages.keys), 1)
        if isinstance(value, LostValue):
            named_losses += value.reason is Reason.BROKEN_ARCHIVE
            lost = InvalidRecord(key=decode_key(key), detail=value.detail, reason=value.reason)
            yield partial(_same, lost)
        elif key == KEYS:
            pickled_keys = value
        else:
            if not read_before:
                require_layout(key, value, path)
            read_before += 1
            yield partial(parse_record, key, value, context, sizes, path)
    absent = [] if pickled_keys is None else list(find_missing_keys(pickled_keys, pages))
    yield from (partial(_same, bad) for bad in absent)
    if pages.damage is None:
        return
    if pages.num_records is None:
        number = "the number of lost records is unknown"
    elif (count := pages.num_records - len(pages.keys) - len(absent)) > 0:
        number = "1 record is lost" if count == 1 else f"{count:,} records are lost"
        number += "" if KEYS in pages.keys else " (perhaps with the list of keys)"
    elif absent or named_losses:
        return
    else:
        number = "no record is lost"
    detail = f"{pages.reason()}; {number}"
    yield partial(_same, InvalidRecord(key=FILE, detail=detail, reason=Reason.BROKEN_ARCHIVE))


def _same(bad: InvalidRecord) -> Record:
    return bad


def require_layout(key: bytes, value: Value, path: Path) -> None:
    """Raises InputError, once, if the first value is a complete pickle of other content."""
    if kind := other_kind(key, bytes(value[:HEAD_BYTES])):
        raise InputError(
            f"FILE {path} is another type of LMDB: {decode_key(key)[:80]} is {kind}; give an LMDB "
            "of vilbert_beta, vilbert-multi-task, VOLTA or MMF, or the files that it was made from"
        )
    try:
        item = loads(value)
    except BadPickle:
        return
    names = rename_fields(item).keys() if isinstance(item, dict) else set()
    if not names >= NEEDED:
        what = type(item).__name__
        if isinstance(item, dict):
            what = f"a dict of {', '.join(map(str, item))[:200]}"
        raise InputError(
            f"FILE {path} is an LMDB of unknown values: {decode_key(key)[:80]} is "
            f"{what}, expected a "
            "dict with features and boxes (vilbert_beta, vilbert-multi-task, VOLTA or MMF)"
        )


def other_kind(key: bytes, head: bytes) -> str | None:
    """Returns the content of a record by its first bytes if it is known not to be a pickle."""
    if key == OTHER_KEYS:
        return "the list of keys of UNITER's or tensorpack's databases"
    if head.startswith(ZIP_MAGIC):
        return "a compressed .npz, as in UNITER's databases"
    if head[:1] and head[0] in MSGPACK:
        return "msgpack, as in UNITER's and tensorpack's databases"
    name = format_name(head)
    return name and f"an image ({name})"


def decode_key(key: bytes) -> str:
    """Returns a key as text."""
    return key.decode("utf-8", "replace")


def parse_record(
    key: bytes, value: Value, context: Context, sizes: Sizes | None, path: Path
) -> Record:
    """Returns the row that one value holds. Raises InputError for one without a size."""
    name = decode_key(key)
    try:
        item = loads(value)
        if not isinstance(item, dict):
            raise BadRecord(f"a pickle of {type(item).__name__}, must be a dict")
        fields = rename_fields({str(n): entry_value(v) for n, v in item.items()})
        for payload in KINDS:
            if isinstance(text := fields.get(payload), str):
                fields[payload] = from_base64(payload, text)
        if absent := NEEDED - fields.keys():
            raise BadRecord(f"no {', '.join(sorted(absent))}")
        stated_id = str(fields.get("image_id", name))
        if not (stated_id == name or "feature_path" in item or difference(stated_id, name)):
            raise BadRecord(f"image_id is {stated_id[:100]}, the key is {name}")
        fields["image_id"] = name
        context.require_size(fields, sizes, path, "an LMDB of features")
        count_arrays(fields)
    except BadPickle as error:
        return InvalidRecord(key=name, detail=str(error))
    except BadRecord as error:
        return InvalidRecord(key=name, detail=str(error), reason=error.reason)
    return make_record(name, fields)


def find_missing_keys(pickled_keys: Value, pages: Pages) -> Iterator[InvalidRecord]:
    """Yields the listed keys without a value."""
    try:
        keys = loads(pickled_keys)
        if not isinstance(keys, list):
            raise BadPickle(f"a pickle of {type(keys).__name__}, must be a list")
    except BadPickle as error:
        yield InvalidRecord(key="keys", detail=f"the list of keys: {error}")
        return
    for key in keys:
        raw = key if isinstance(key, bytes) else str(plain_value(key)).encode("utf-8", "replace")
        if raw in pages.keys:
            continue
        if pages.damage:
            detail = f"{pages.reason()}; its record is listed in keys, and lost"
            yield InvalidRecord(key=decode_key(raw), detail=detail, reason=Reason.BROKEN_ARCHIVE)
        else:
            yield InvalidRecord(key=decode_key(raw), detail="listed in keys, but missing")


def write(rows: Rows, files: Unfinished, plan: ExportPlan) -> None:
    """Writes the folder of an LMDB. Each value states how classes are numbered."""
    make_item = ITEMS[plan.name]
    files.path.mkdir(exist_ok=True)
    keys = [image_id.encode() for image_id in plan.image_ids]
    file = LmdbFile(files.open_file(files.path / FILE, buffering=0), [*keys, KEYS], files.done)
    for number, row in enumerate(rows, files.done + 1):
        file.add(dict_parts(make_item(row, plan.payloads) | dict(plan.stated)))
        if number % files.block == 0:
            file.flush()
    file.add([pickle.dumps(keys, protocol=4)])
    file.finish()


def is_key(image_id: str) -> bool:
    """Returns whether an id can be a key of an LMDB."""
    key = image_id.encode()
    return bool(key) and key != KEYS and len(key) <= MAX_KEY_BYTES


def make_texts(row: RegionRow, names: Sequence[str]) -> dict[str, Any]:
    """Returns vilbert_beta's texts by name, as returned by csv.DictReader in its script."""
    plain = {
        "image_id": row.image_id,
        "image_w": str(row.width),
        "image_h": str(row.height),
        "num_boxes": str(len(row.boxes)),
    }
    payloads = ("boxes", "features", *names)
    return plain | {name: to_base64(name, row).decode("ascii") for name in payloads}


def make_multitask(row: RegionRow, names: Sequence[str]) -> dict[str, Any]:
    """Returns vilbert-multi-task's entries (``script/convert_to_lmdb.py``)."""
    sizes = {"image_id": row.image_id, "image_h": row.height, "image_w": row.width}
    arrays = {name: widen_payload(name, row) for name in ("boxes", "features", *names)}
    return {**sizes, "num_boxes": len(row.boxes), **arrays}


def make_volta(row: RegionRow, names: Sequence[str]) -> dict[str, Any]:
    """Returns VOLTA's entries (``features_extraction/h5_to_lmdb.py``)."""
    names_of_volta = {"objects_id": "obj_id", "objects_conf": "obj_conf"}
    names_of_volta |= {"attrs_id": "attr_id", "attrs_conf": "attr_conf"}
    arrays = {
        names_of_volta.get(n, n): widen_payload(n, row) for n in ("features", "boxes", *names)
    }
    return {**arrays, "img_w": row.width, "img_h": row.height, "img_id": row.image_id}


def make_mmf(row: RegionRow, names: Sequence[str]) -> dict[str, Any]:
    """Returns MMF's entries (``tools/scripts/features/lmdb_conversion.py``)."""
    objects = widen_payload("objects_id", row) if "objects_id" in names else None
    probs = widen_payload("cls_prob", row) if "cls_prob" in names else None
    return {
        "feature_path": row.image_id,
        "features": widen_payload("features", row),
        "image_height": row.height,
        "image_width": row.width,
        "num_boxes": len(row.boxes),
        "objects": objects,
        "cls_prob": probs,
        "bbox": widen_payload("boxes", row),
    }


ITEMS = {
    "lmdb": make_texts,
    "lmdb-multitask": make_multitask,
    "lmdb-volta": make_volta,
    "lmdb-mmf": make_mmf,
}
