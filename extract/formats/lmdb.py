"""Reads and writes ViLBERT's LMDB: a folder; key ``str(image_id)``, value a pickle of the TSV row's
texts by name, and under ``keys`` a pickle of the list of keys.
"""

import pickle
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from vlmill.extract.formats.records import (
    KINDS,
    Bad,
    BadRecord,
    Record,
    checked,
    from_base64,
    same_payloads,
    to_base64,
)
from vlmill.models.convert.plain_pickle import BadPickle, loads, plain_value
from vlmill.schemas.errors import InputError
from vlmill.schemas.files.atomic import atomic_folder
from vlmill.schemas.readers.regions import RegionRow

Row = TypeVar("Row")
KEYS = b"keys"
MAP_BYTES = 2**40  # room in the address space; the file takes what it holds
MAX_KEY_BYTES = 511
ROWS_PER_COMMIT = 500
MAGIC = b"\xde\xc0\xef\xbe"  # at offset 16 of data.mdb


def is_lmdb(path: Path) -> bool:
    """Says whether ``path`` is an LMDB's folder, or the file inside."""
    file = path / "data.mdb" if path.is_dir() else path
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return opened.read(20)[16:] == MAGIC


def read(path: Path) -> Iterator[Record]:
    """Yields the rows in the order of their keys."""
    try:
        environment = lmdb.open(
            str(path),
            subdir=path.is_dir(),
            readonly=True,
            lock=False,
            readahead=False,
            max_readers=1,
        )
    except lmdb.Error as error:
        raise InputError(f"FILE {path}: no readable LMDB ({error}); give another file") from None
    with environment, environment.begin(buffers=False) as transaction:
        num_records = 0
        for key, value in transaction.cursor():
            if key != KEYS:
                num_records += 1
                yield record_of(key, value)
        yield from missing(transaction)


def record_of(key: bytes, value: bytes) -> Record:
    """Returns the row that one value holds."""
    name = key.decode("utf-8", "replace")
    try:
        item = loads(value)
        if not isinstance(item, dict):
            raise BadRecord(f"a pickle of {type(item).__name__}, must be a dict")
        fields = {str(n): field_of(str(n), v) for n, v in item.items()}
        if absent := {"image_w", "image_h", "num_boxes", "boxes", "features"} - fields.keys():
            raise BadRecord(f"no {', '.join(sorted(absent))}")
        if (stated_id := str(fields.get("image_id", name))) != name:
            raise BadRecord(f"image_id is {stated_id[:100]}, the key is {name}")
    except (BadPickle, BadRecord) as error:
        return Bad(key=name, detail=str(error))
    return checked(name, {**fields, "image_id": name})


def field_of(name: str, value: Any) -> Any:
    """Returns a field's array, text or number."""
    if name in KINDS and isinstance(value, (str, bytes)):
        return from_base64(name, value)
    return plain_value(value)


def missing(transaction: lmdb.Transaction) -> Iterator[Bad]:
    """Yields the keys that are listed, and have no value."""
    listed = transaction.get(KEYS)
    if listed is None:
        return
    try:
        keys = loads(bytes(listed))
        if not isinstance(keys, list):
            raise BadPickle(f"a pickle of {type(keys).__name__}, must be a list")
    except BadPickle as error:
        yield Bad(key="keys", detail=f"the list of keys: {error}")
        return
    for key in keys:
        raw = key if isinstance(key, bytes) else str(plain_value(key)).encode("utf-8", "replace")
        if not raw or len(raw) > MAX_KEY_BYTES or transaction.get(raw) is None:
            yield Bad(key=raw.decode("utf-8", "replace"), detail="listed in keys, but missing")


def write(rows: Iterator[RegionRow], path: Path) -> int:
    """Writes the folder ``path``, in place of one that is there; returns the number of rows."""
    keys: list[bytes] = []
    with atomic_folder(path, replace=True) as temporary:
        with lmdb.open(str(temporary), map_size=MAP_BYTES, sync=False) as environment:
            for part in batched(same_payloads(rows), ROWS_PER_COMMIT):
                with environment.begin(write=True) as transaction:
                    for names, row in part:
                        keys.append(key_of(row))
                        transaction.put(keys[-1], pickle.dumps(item_of(row, names), protocol=4))
            with environment.begin(write=True) as transaction:
                transaction.put(KEYS, pickle.dumps(keys, protocol=4))
            environment.sync(True)
        (temporary / "lock.mdb").unlink(missing_ok=True)
    return len(keys)


def batched(rows: Iterator[Row], size: int) -> Iterator[Iterator[Row]]:
    """Yields the rows in parts of ``size``, one after the other."""
    for first in rows:
        yield chain([first], islice(rows, size - 1))


def key_of(row: RegionRow) -> bytes:
    """Returns a row's key; InputError for an id that cannot be one."""
    key = row.image_id.encode()
    if not key or key == KEYS or len(key) > MAX_KEY_BYTES:
        raise InputError(f"{row.image_id}: an LMDB cannot hold this id; give --format npz")
    return key


def item_of(row: RegionRow, names: Sequence[str]) -> dict[str, str]:
    """Returns the texts by name, as csv.DictReader of the original script gave them."""
    plain = {
        "image_id": row.image_id,
        "image_w": str(row.width),
        "image_h": str(row.height),
        "num_boxes": str(len(row.boxes)),
    }
    return plain | {name: to_base64(name, row).decode("ascii") for name in names}
