"""Where each value of a binary Parquet column lies in its file.

pyarrow copies a ``large_binary`` column once as it reads it. PLAIN pages without dictionary and
compression hold each value's bytes in one piece, so that a mapped file gives views without a copy.
The places follow from the page headers, which are Thrift structs in the compact protocol (Apache
Parquet format, ``parquet.thrift``, and Apache Thrift, ``thrift-compact-protocol.md``).

Every number in a file is checked against the bytes that are there, so that a damaged or hostile
file gives a :class:`DamagedPages` and never a read beyond its end.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

MAX_HEADER = 1 << 16  # bytes; headers with statistics of long values are longer and not expected
MAX_DEPTH = 8
PLAIN = 0
DATA_PAGE, DATA_PAGE_V2 = 0, 3
NULL = -1

Places = npt.NDArray[np.int64]


class DamagedPages(ValueError):
    """Pages that contradict themselves or the file's footer."""


def plain_places(
    data: memoryview | bytes, metadata: pq.FileMetaData, group: int, column: str
) -> tuple[Places, Places] | None:
    """Offsets in the file and lengths, int64 [rows] each, of a row group's values of ``column``.

    ``data`` is the whole file. A null has offset :data:`NULL`. None where the column's pages are
    not plain (compressed, with a dictionary), so that pyarrow has to read them.
    """
    index = _column_index(metadata, column)
    chunk = metadata.row_group(group).column(index)
    schema = metadata.schema.column(index)
    if (
        chunk.compression != "UNCOMPRESSED"
        or chunk.has_dictionary_page
        or set(chunk.encodings) - {"PLAIN", "RLE", "BIT_PACKED"}
        or schema.max_repetition_level
        or schema.max_definition_level > 1
    ):
        return None
    view = memoryview(data).cast("B")
    start, size = chunk.data_page_offset, chunk.total_compressed_size
    if start < 0 or size < 0 or start + size > len(view):
        raise DamagedPages(f"{column} of row group {group} lies outside the file")
    pages = _Pages(view[: start + size], nullable=schema.max_definition_level == 1)
    return pages.places(start, metadata.row_group(group).num_rows)


def _column_index(metadata: pq.FileMetaData, name: str) -> int:
    for index in range(metadata.num_columns):
        if metadata.schema.column(index).path == name:
            return index
    raise DamagedPages(f"no column {name}")


class _Pages:
    """The pages of one column chunk, in a file that ends where the chunk does."""

    def __init__(self, view: memoryview, *, nullable: bool) -> None:
        self.view, self.nullable = view, nullable

    def places(self, start: int, rows: int) -> tuple[Places, Places] | None:
        offsets, lengths = np.full(rows, NULL, dtype=np.int64), np.zeros(rows, dtype=np.int64)
        at, row = start, 0
        while row < rows:
            header = _Thrift(self.view[at : at + MAX_HEADER])
            fields = header.struct()
            body = at + header.at
            end = body + _number(fields, 3)
            if end > len(self.view):
                raise DamagedPages(f"a page at {at} ends beyond its column")
            found = self._page(fields, body, end, rows - row)
            if found is None:
                return None
            valid, values = found
            self._values(values, end, row + np.flatnonzero(valid), offsets, lengths)
            at, row = end, row + len(valid)
        return offsets, lengths

    def _page(
        self, fields: dict[int, Any], body: int, end: int, rows: int
    ) -> tuple[npt.NDArray[np.bool_], int] | None:
        """Which rows of a page are valid, and where its values begin; None if it is not plain."""
        kind = _number(fields, 1)
        if kind == DATA_PAGE:
            about, encoding = _struct(fields, 5), 2
        elif kind == DATA_PAGE_V2:
            about, encoding = _struct(fields, 8), 4
        else:
            return None
        count = _number(about, 1)
        if not 0 < count <= rows:
            raise DamagedPages(f"a page of {count} values where {rows} are left")
        if _number(about, encoding) != PLAIN:
            return None
        if kind == DATA_PAGE_V2:
            levels, size = body, _number(about, 5)
            if _number(about, 6):
                raise DamagedPages("repetition levels in a flat column")
        elif self.nullable:
            levels, size = body + 4, self._length(body, end)
        else:
            levels, size = body, 0
        if levels + size > end:
            raise DamagedPages(f"levels of {size} bytes beyond their page")
        if not self.nullable:
            return np.ones(count, dtype=np.bool_), levels + size
        return _levels(bytes(self.view[levels : levels + size]), count), levels + size

    def _values(
        self, at: int, end: int, rows: npt.NDArray[np.intp], offsets: Places, lengths: Places
    ) -> None:
        for row in rows.tolist():
            length = self._length(at, end)
            offsets[row], lengths[row] = at + 4, length
            at += 4 + length
            if at > end:
                raise DamagedPages(f"a value of {length} bytes beyond its page")

    def _length(self, at: int, end: int) -> int:
        if at + 4 > end:
            raise DamagedPages("a page ends within a length")
        return int.from_bytes(self.view[at : at + 4], "little")


def _levels(data: bytes, count: int) -> npt.NDArray[np.bool_]:
    """``count`` definition levels of one bit each, from the hybrid of runs and packed bits."""
    parts, found, at = list[npt.NDArray[np.bool_]](), 0, 0
    while found < count:
        header, at = _varint(data, at)
        if header & 1:
            size = header >> 1
            packed = np.frombuffer(data[at : at + size], dtype=np.uint8)
            if not len(packed):
                raise DamagedPages("definition levels end too early")
            part, at = np.unpackbits(packed, bitorder="little").astype(np.bool_), at + size
        else:
            if at >= len(data) or not header:
                raise DamagedPages("definition levels end too early")
            part = np.full(min(header >> 1, count - found), bool(data[at]))
            at += 1
        parts.append(part)
        found += len(part)
    return np.concatenate(parts)[:count]


def _varint(data: memoryview | bytes, at: int) -> tuple[int, int]:
    value, shift, view = 0, 0, memoryview(data)
    while at < len(view) and shift < 70:
        byte = view[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at
    raise DamagedPages("a number without an end")


def _number(fields: dict[int, Any], field: int) -> int:
    value = fields.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise DamagedPages(f"a page header without field {field}")
    return value


def _struct(fields: dict[int, Any], field: int) -> dict[int, Any]:
    value = fields.get(field)
    if not isinstance(value, dict):
        raise DamagedPages(f"a page header without field {field}")
    return value


class _Thrift:
    """Reads one struct: field numbers to integers, booleans and structs; other values are passed
    over.
    """

    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > MAX_DEPTH:
            raise DamagedPages("a page header of too many levels")
        fields: dict[int, Any] = {}
        field = 0
        while byte := self._byte():
            if delta := byte >> 4:
                field += delta
            else:
                field = self._zigzag()
            fields[field] = self._value(byte & 0x0F, depth)
        return fields

    def _value(self, kind: int, depth: int, *, in_list: bool = False) -> Any:
        match kind:
            case 1 | 2:  # a field's type says its value; in a list it is a byte
                return self._byte() == 1 if in_list else kind == 1
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._zigzag()
            case 7:
                return self._skip(8)
            case 8:
                return self._skip(self._varint())
            case 9 | 10:
                return self._list(depth)
            case 12:
                return self.struct(depth + 1)
        raise DamagedPages(f"a page header with a value of type {kind}")

    def _list(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise DamagedPages("a page header of too many levels")
        byte = self._byte()
        count = byte >> 4 if byte >> 4 < 15 else self._varint()
        if count > MAX_HEADER:
            raise DamagedPages("a page header with a list longer than itself")
        for _ in range(count):
            self._value(byte & 0x0F, depth + 1, in_list=True)

    def _byte(self) -> int:
        if self.at >= len(self.data):
            raise DamagedPages("a page header without an end")
        self.at += 1
        return self.data[self.at - 1]

    def _varint(self) -> int:
        value, self.at = _varint(self.data, self.at)
        return value

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, size: int) -> None:
        if self.at + size > len(self.data):
            raise DamagedPages("a page header with a value beyond its end")
        self.at += size
