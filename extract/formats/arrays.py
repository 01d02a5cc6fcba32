"""Reads numpy's files, ``.npy`` and the members of ``.npz``, without trusting their headers.

An array of objects is a pickle: it is read as plain data only
(:mod:`~vlmill.models.convert.plain_pickle`).
"""

import ast
import io
import math
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vlmill.extract.formats.records import BadRecord
from vlmill.models.convert.plain_pickle import BadPickle, Pickled, loads
from vlmill.schemas.rejects import Reason

NPY_MAGIC = b"\x93NUMPY"
ZIP_MAGIC = b"PK\x03\x04"
MAX_MEMBER = 64 * 2**20  # 1,000 boxes x 2048 float32 are 8 MB
MAX_MEMBERS = 1_000  # of one image
MAX_HEADER = 10_000
_KIND = re.compile(r"[<>|=]?(?:[biuf][1248]|O8?)")
ZIP_ERRORS = (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


def read_members(path: Path) -> dict[str, Any]:
    """Returns the arrays of a zip by name, each of a bounded size. Raises BadRecord."""
    try:
        with zipfile.ZipFile(path) as archive:
            if len(archive.infolist()) > MAX_MEMBERS:
                raise BadRecord(f"{len(archive.infolist())} members, at most {MAX_MEMBERS}")
            return {
                member.filename.removesuffix(".npy"): parse_array(read_member(archive, member))
                for member in archive.infolist()
            }
    except ZIP_ERRORS as error:
        raise BadRecord(f"not a readable npz: {error}") from None


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Returns the bytes of one member. Raises BadRecord if it is larger than MAX_MEMBER, and
    ZIP_ERRORS.
    """
    if member.file_size > MAX_MEMBER:
        raise BadRecord(f"{member.filename} is larger than {MAX_MEMBER} bytes", Reason.TOO_LARGE)
    with archive.open(member) as stream:
        return stream.read(MAX_MEMBER + 1)


def read_array(path: Path) -> Any:
    """Returns the array of a ``.npy`` file. Raises BadRecord."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_MEMBER + 1)
    except OSError as error:
        raise BadRecord(f"it cannot be read: {error}") from None
    if len(data) > MAX_MEMBER:
        raise BadRecord(f"it is larger than {MAX_MEMBER} bytes", Reason.TOO_LARGE)
    return parse_array(data)


def parse_array(data: bytes) -> Any:
    """Returns the array of a ``.npy`` file, or the plain data of its pickle. Raises BadRecord.

    This does not use numpy's own reader, which trusts the header's shape before it checks the size.
    """
    wide = data[6:7] > b"\x01"
    start = 12 if wide else 10
    length = int.from_bytes(data[8:start], "little")
    if data[:6] != NPY_MAGIC or length > MAX_HEADER:
        raise BadRecord("an array without numpy's header")
    begin = start + length
    try:
        header = ast.literal_eval(data[start:begin].decode("latin-1").strip())
        text, shape, fortran = header["descr"], header["shape"], bool(header["fortran_order"])
        sides = tuple(int(side) for side in shape)
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError):
        raise BadRecord("an array with a broken header") from None
    if not isinstance(text, str) or not _KIND.fullmatch(text):
        raise BadRecord(f"an array of type {str(text)[:40]}")
    if "O" in text:
        try:
            return loads(data[begin:])
        except BadPickle as error:
            raise BadRecord(str(error)) from None
    kind, size = np.dtype(text), max(0, len(data) - begin)
    if min(sides, default=0) < 0 or math.prod(sides) * kind.itemsize != size:
        raise BadRecord(f"{size} bytes for an array of shape {sides}")
    flat = np.frombuffer(data, kind, count=math.prod(sides), offset=begin if size else 0)
    return flat.reshape(sides, order="F" if fortran else "C")


def only_item(value: Any) -> Any:
    """Returns the object of an array that holds one object; None for any other value."""
    items = value.value if isinstance(value, Pickled) else value
    return items[0] if isinstance(items, list) and len(items) == 1 else None


def array_bytes(value: npt.NDArray[Any]) -> bytes:
    """Returns an array as the bytes of a ``.npy`` file."""
    out = io.BytesIO()
    np.lib.format.write_array(out, value, allow_pickle=True)
    return out.getvalue()
