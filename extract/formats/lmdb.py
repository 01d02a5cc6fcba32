"""Reads and writes ViLBERT's LMDB: a folder; key ``str(image_id)``, value a pickle of the TSV row's
texts by name, and under ``keys`` a pickle of the list of keys.
"""

import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from vlmill.extract.formats.lmdb_pages import LostValue, Pages
from vlmill.extract.formats.records import (
    KINDS,
    BadRecord,
    InvalidRecord,
    Record,
    from_base64,
    make_record,
    same_payloads,
    to_base64,
)
from vlmill.models.convert.plain_pickle import BadPickle, loads, plain_value
from vlmill.runtime.files.atomic import atomic_folder
from vlmill.runtime.readers.regions import RegionRow
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason

Row = TypeVar("Row")
KEYS = b"keys"
MAP_BYTES = 2**40  # room in the address space; the file takes what it holds
MAX_KEY_BYTES = 511
ROWS_PER_COMMIT = 500
MAGIC = b"\xde\xc0\xef\xbe"  # at offset 16 of data.mdb
FILE = "data.mdb"
SUFFIXES = (".mdb", ".lmdb")


def is_lmdb(path: Path) -> bool:
    """Says whether ``path`` is an LMDB's folder, or the file inside, by content or by name."""
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        return False
    if file.name == FILE or file.suffix in SUFFIXES:
        return True
    with file.open("rb") as stream:
        return stream.read(20)[16:] == MAGIC


def read(path: Path) -> Iterator[Record]:
    """Yields the rows in the order of their keys; of a damaged file those that can be read."""
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"FILE {path} has no {FILE}; give the folder of an LMDB, or its {FILE}")
    handle = os.open(file, os.O_RDONLY)
    try:
        yield from read_records(Pages(handle, path))
    finally:
        os.close(handle)


def read_records(pages: Pages) -> Iterator[Record]:
    """Yields the rows, then a reject for each key that is listed and has no value.

    Where the file is damaged another one has the number of the other records that are lost.
    """
    pickled_keys: bytes | None = None
    named_losses = 0
    for key, value in pages.records():
        if isinstance(value, LostValue):
            named_losses += value.reason is Reason.BROKEN_ARCHIVE
            yield InvalidRecord(key=decode_key(key), detail=value.detail, reason=value.reason)
        elif key == KEYS:
            pickled_keys = value
        else:
            yield parse_record(key, value)
    absent = [] if pickled_keys is None else list(find_missing_keys(pickled_keys, pages))
    yield from absent
    if pages.damage is None:
        return
    if pages.num_records is None:
        number = "how many records are lost is not known"
    elif (lost := pages.num_records - len(pages.keys) - len(absent)) > 0:
        number = "1 record is lost" if lost == 1 else f"{lost:,} records are lost"
        number += "" if KEYS in pages.keys else " (perhaps with the list of keys)"
    elif absent or named_losses:
        return
    else:
        number = "no record is lost"
    detail = f"{pages.reason()}; {number}"
    yield InvalidRecord(key=FILE, detail=detail, reason=Reason.BROKEN_ARCHIVE)


def decode_key(key: bytes) -> str:
    """Returns a key as text."""
    return key.decode("utf-8", "replace")


def parse_record(key: bytes, value: bytes) -> Record:
    """Returns the row that one value holds."""
    name = decode_key(key)
    try:
        item = loads(value)
        if not isinstance(item, dict):
            raise BadRecord(f"a pickle of {type(item).__name__}, must be a dict")
        fields = {str(n): parse_field(str(n), v) for n, v in item.items()}
        if absent := {"image_w", "image_h", "num_boxes", "boxes", "features"} - fields.keys():
            raise BadRecord(f"no {', '.join(sorted(absent))}")
        if (stated_id := str(fields.get("image_id", name))) != name:
            raise BadRecord(f"image_id is {stated_id[:100]}, the key is {name}")
    except (BadPickle, BadRecord) as error:
        return InvalidRecord(key=name, detail=str(error))
    return make_record(name, {**fields, "image_id": name})


def parse_field(name: str, value: Any) -> Any:
    """Returns a field's array, text or number."""
    if name in KINDS and isinstance(value, (str, bytes)):
        return from_base64(name, value)
    return plain_value(value)


def find_missing_keys(pickled_keys: bytes, pages: Pages) -> Iterator[InvalidRecord]:
    """Yields the keys that are listed, and have no value."""
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


def write(rows: Iterator[RegionRow], path: Path, stated: Mapping[str, Any]) -> int:
    """Writes the folder ``path``, in place of one that is there; returns the number of rows.

    Each value has ``stated``, how classes are counted.
    """
    keys: list[bytes] = []
    with atomic_folder(path, replace=True) as temporary:
        with lmdb.open(str(temporary), map_size=MAP_BYTES, sync=False) as environment:
            for part in split_batches(same_payloads(rows), ROWS_PER_COMMIT):
                with environment.begin(write=True) as transaction:
                    for names, row in part:
                        keys.append(encode_key(row))
                        item = {**make_item(row, names), **stated}
                        transaction.put(keys[-1], pickle.dumps(item, protocol=4))
            with environment.begin(write=True) as transaction:
                transaction.put(KEYS, pickle.dumps(keys, protocol=4))
            environment.sync(True)
        (temporary / "lock.mdb").unlink(missing_ok=True)
    return len(keys)


def split_batches(rows: Iterator[Row], size: int) -> Iterator[Iterator[Row]]:
    """Yields the rows in parts of ``size``, one after the other."""
    for first in rows:
        yield chain([first], islice(rows, size - 1))


def encode_key(row: RegionRow) -> bytes:
    """Returns a row's key; InputError for an id that cannot be one."""
    key = row.image_id.encode()
    if not key or key == KEYS or len(key) > MAX_KEY_BYTES:
        raise InputError(f"{row.image_id}: an LMDB cannot hold this id; give --format npz")
    return key


def make_item(row: RegionRow, names: Sequence[str]) -> dict[str, str]:
    """Returns the texts by name, as csv.DictReader of the original script gave them."""
    plain = {
        "image_id": row.image_id,
        "image_w": str(row.width),
        "image_h": str(row.height),
        "num_boxes": str(len(row.boxes)),
    }
    return plain | {name: to_base64(name, row).decode("ascii") for name in names}
