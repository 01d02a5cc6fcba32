"""Reads numpy's files, ``.npy`` and the members of ``.npz``, without trusting their headers.

An array of objects is a pickle: it is read as plain data only
(:mod:`~vlmill.models.convert.plain_pickle`).
"""

import ast
import io
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from vlmill.extract.formats.pickled import object_array_parts
from vlmill.extract.formats.records import BadRecord
from vlmill.extract.formats.similar_pickles import SimilarPickles
from vlmill.extract.formats.unfinished import Part
from vlmill.models.convert.plain_pickle import BadPickle, Pickled, plain_value, view_array
from vlmill.schemas.rejects import Reason

NPY_MAGIC = b"\x93NUMPY"
ZIP_MAGIC, ZIP_ENTRY, ZIP_END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
MAX_MEMBER = 64 * 2**20  # 1,000 boxes x 2048 float32 are 8 MB
MAX_MEMBERS = 1_000  # of one image
MAX_HEADER = 10_000
MAX_LISTED = 10_000_000  # numbers of a list of rows: 1,000 boxes x 2,048
# The records of a zip (APPNOTE 4.3.7, 4.3.12, 4.3.16), and what all members share: version 2.0, no
# flags, stored, midnight of 1 January 1980.
LOCAL_HEADER = struct.Struct("<4s5H3I2H")
DIRECTORY_ENTRY = struct.Struct("<4s6H3I5H2I")
END_OF_DIRECTORY = struct.Struct("<4s4H2IH")
ZIP_FACTS = (20, 0, 0, 0, 0x21)
FILE_MODE = 0o600 << 16
ENCRYPTED = 0x1
loads = SimilarPickles().loads
_KIND = re.compile(r"[<>|=]?(?:[biuf][1248]|[SU][0-9]{1,6}|O8?)")
ZIP_ERRORS = (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


def read_members(path: Path) -> dict[str, Any]:
    """Returns the arrays of a zip by name, each of a bounded size. Raises BadRecord."""
    try:
        plain = _split_stored(_read_file(path))
        if plain is not None:
            return {name.removesuffix(".npy"): parse_array(data) for name, data in plain.items()}
        with zipfile.ZipFile(path) as archive:
            if len(archive.infolist()) > MAX_MEMBERS:
                raise BadRecord(f"{len(archive.infolist())} members, at most {MAX_MEMBERS}")
            return {
                member.filename.removesuffix(".npy"): parse_array(read_member(archive, member))
                for member in archive.infolist()
            }
    except FileNotFoundError:
        raise BadRecord("it is a link to a missing file") from None
    except ZIP_ERRORS as error:
        raise BadRecord(f"not a readable npz: {error}") from None


def _read_file(path: Path) -> bytes:
    """Returns a file's content, at most one byte more than MAX_MEMBER. Raises OSError.

    A file object of Python would take a third of the time that a small file needs.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, min(os.fstat(file).st_size, MAX_MEMBER) + 1)
    finally:
        os.close(file)


def _split_stored(data: bytes) -> dict[str, memoryview] | None:
    """Returns the members of a zip as numpy writes it: not compressed, with names in ASCII.

    They are views, which takes a fifth of the time of zipfile. Returns None for other zips, and
    for damaged ones; zipfile then reports the damage.
    """
    view, members = memoryview(data), dict[str, memoryview]()
    try:
        end = END_OF_DIRECTORY.unpack_from(data, len(data) - END_OF_DIRECTORY.size)
        signature, *_, count, _, position, _ = end
        if signature != ZIP_END or count > MAX_MEMBERS:
            return None
        for _ in range(count):
            entry = DIRECTORY_ENTRY.unpack_from(data, position)
            flags, method, crc, stored, size, name_bytes = *entry[3:5], *entry[7:11]
            position += DIRECTORY_ENTRY.size
            name = str(view[position : position + name_bytes], "ascii")
            position += name_bytes + entry[11] + entry[12]
            *_, local_name, extra = LOCAL_HEADER.unpack_from(data, entry[-1])
            start = entry[-1] + LOCAL_HEADER.size + local_name + extra
            content = view[start : start + size]
            if entry[0] != ZIP_ENTRY or flags or method or stored != size or len(content) != size:
                return None
            if zlib.crc32(content) != crc:
                return None
            members[name] = content
    except (struct.error, UnicodeDecodeError):
        return None
    return members


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Returns the bytes of one member. Raises BadRecord if it is larger than MAX_MEMBER, and
    ZIP_ERRORS.
    """
    if member.file_size > MAX_MEMBER:
        raise BadRecord(f"{member.filename} is larger than {MAX_MEMBER} bytes", Reason.TOO_LARGE)
    if member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & ENCRYPTED:
        return _read_stored(archive, member)
    with archive.open(member) as stream:
        return stream.read(MAX_MEMBER + 1)


def _read_stored(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Returns the bytes of a member without compression, with two reads and without copies."""
    assert archive.fp is not None
    file = archive.fp.fileno()
    head = os.pread(file, LOCAL_HEADER.size, member.header_offset)
    if len(head) < LOCAL_HEADER.size or head[:4] != ZIP_MAGIC:
        raise zipfile.BadZipFile(f"no header of {member.filename}")
    name_bytes, extra_bytes = LOCAL_HEADER.unpack(head)[-2:]
    start = member.header_offset + LOCAL_HEADER.size + name_bytes + extra_bytes
    data = os.pread(file, member.file_size, start)
    if len(data) < member.file_size or zlib.crc32(data) != member.CRC:
        raise zipfile.BadZipFile(f"wrong checksum of {member.filename}")
    return data


def read_array(path: Path) -> Any:
    """Returns the array of a ``.npy`` file. Raises BadRecord."""
    try:
        data = _read_file(path)
    except FileNotFoundError:
        raise BadRecord(f"its file {path.parent.name}/{path.name} is missing") from None
    except OSError as error:
        raise BadRecord(f"it cannot be read: {error.strerror}") from None
    if len(data) > MAX_MEMBER:
        raise BadRecord(f"it is larger than {MAX_MEMBER} bytes", Reason.TOO_LARGE)
    return parse_array(data)


def parse_array(data: bytes | memoryview) -> Any:
    """Returns the array of a ``.npy`` file, or the plain data of its pickle. Raises BadRecord.

    This does not use numpy's own reader, which trusts the header's shape before it checks the size.
    """
    head = bytes(data[:12])
    start = 12 if head[6:7] > b"\x01" else 10
    length = int.from_bytes(head[8:start], "little")
    if head[:6] != NPY_MAGIC or length > MAX_HEADER:
        raise BadRecord("an array without numpy's header")
    begin = start + length
    text, sides, fortran = _parse_header(bytes(data[start:begin]))
    content = memoryview(data)[begin:]
    try:
        if "O" in text:
            return loads(content)
        return view_array(content, np.dtype(text), sides, "F" if fortran else "C")
    except BadPickle as error:
        raise BadRecord(str(error)) from None


@lru_cache(maxsize=1024)  # the same shapes and types repeat, and Python's parser is slow
def _parse_header(header: bytes) -> tuple[str, tuple[int, ...], bool]:
    """Returns the type, the shape and whether the order is Fortran's. Raises BadRecord."""
    try:
        fields = ast.literal_eval(header.decode("latin-1").strip())
        text, shape, fortran = fields["descr"], fields["shape"], bool(fields["fortran_order"])
        sides = tuple(int(side) for side in shape)
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError):
        raise BadRecord("an array with a broken header") from None
    if not isinstance(text, str) or not _KIND.fullmatch(text):
        raise BadRecord(f"an array of type {str(text)[:40]}")
    return text, sides, fortran


def entry_value(value: Any) -> Any:
    """Returns text, a number or an array of a pickle; None for anything else.

    Lists of numbers, and of rows of equally many numbers, become arrays.
    """
    items = value.value if isinstance(value, Pickled) else value
    if not isinstance(items, list):
        return plain_value(value)
    rows = [item.value if isinstance(item, Pickled) else item for item in items]
    # np.ndim() of a list would look into the lists that it holds.
    widths = {
        len(row) if isinstance(row, list) or (isinstance(row, np.ndarray) and row.ndim == 1) else 0
        for row in rows
    }
    if len(widths) != 1 or len(rows) * max(widths) > MAX_LISTED:
        return None
    numbers = [number for row in rows for number in row] if max(widths) else rows
    if not all(isinstance(number, int | float | np.number) for number in numbers):
        return None
    return np.array(rows)


def only_item(value: Any) -> Any:
    """Returns the object of an array that holds one object; None for any other value."""
    items = value.value if isinstance(value, Pickled) else value
    return items[0] if isinstance(items, list) and len(items) == 1 else None


def array_parts(value: Any) -> list[Part]:
    """Returns the bytes of a ``.npy`` file in parts: a header, and the array without a copy.

    A mapping is written as an array of one object.
    """
    if isinstance(value, Mapping):
        return [_header("|O", ()), *object_array_parts(value)]
    array = np.asanyarray(value)
    array = np.ascontiguousarray(array).reshape(array.shape)
    return [_header(array.dtype.str, array.shape), array.reshape(-1).view(np.uint8).data]


@lru_cache(maxsize=1024)
def _header(kind: str, shape: tuple[int, ...]) -> bytes:
    out = io.BytesIO()
    facts = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, facts)
    return out.getvalue()


def zip_parts(arrays: Mapping[str, Any]) -> list[Part]:
    """Returns the bytes of a ``.npz`` in parts: a zip of ``.npy`` files, not compressed.

    numpy's own function takes a third longer for the files of one image.
    """
    content, position, directory = list[Part](), 0, list[bytes]()
    for name, array in arrays.items():
        parts, member = array_parts(array), f"{name}.npy".encode()
        size, crc = sum(map(len, parts)), 0
        for part in parts:
            crc = zlib.crc32(part, crc)
        facts = (*ZIP_FACTS, crc, size, size, len(member), 0)
        content += (LOCAL_HEADER.pack(ZIP_MAGIC, *facts) + member, *parts)
        directory.append(
            DIRECTORY_ENTRY.pack(ZIP_ENTRY, 20, *facts, 0, 0, 0, FILE_MODE, position) + member
        )
        position += LOCAL_HEADER.size + len(member) + size
    entries = b"".join(directory)
    count = len(directory)
    end = END_OF_DIRECTORY.pack(ZIP_END, 0, 0, count, count, len(entries), position, 0)
    return [*content, entries + end]
