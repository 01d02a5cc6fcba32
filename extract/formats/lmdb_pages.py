"""Reads the records of an LMDB from the pages of its file, even if it is damaged.

LMDB's own library trusts the pages: a missing, zero or forged page ends the process by a signal.
Here every number of a page is checked before it is used, and unreadable pages are counted. The
layout is that of LMDB 0.9 on a little-endian 64-bit machine (MDB_page, MDB_node and MDB_meta in
mdb.c): pages of one size are numbered from 0; pages 0 and 1 describe the file, and the newer of
them is valid.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason

MAGIC = 0xBEEFC0DE
VERSION = 1
NO_PAGE = 2**64 - 1
PAGE_SIZES = (4096, 16_384, 8192, 32_768, 2048, 1024, 512)  # common sizes first
MAX_VALUE = 2**26
MAX_DEPTH = 32
BRANCH, LEAF, OVERFLOW, KIND = 0x01, 0x02, 0x04, 0x2F  # types of pages, and their bits
BIG_VALUE, SUB_DATABASE, DUPLICATES = 0x01, 0x02, 0x04  # flags of nodes
PAGE = struct.Struct("<QHHHH")  # number, unused, flags, end of the offsets, start of the nodes
OVERFLOW_PAGE = struct.Struct("<QHHI")  # number, unused, flags, count of pages
NODE = struct.Struct("<HHHH")  # size or page, low and high half; flags or page; bytes of the key
META = struct.Struct("<IIQQ")  # magic, version, address, size of the map
TREE = struct.Struct("<IHHQQQQQ")  # page size, flags, depth, three counts, records, root
ENDS = struct.Struct("<QQ")  # last page, transaction
_TREES_AT = PAGE.size + META.size
_ENDS_AT = _TREES_AT + 2 * TREE.size


class DamagedPage(ValueError):
    """Raised for an unreadable page or value, with the reason."""


class Meta(NamedTuple):
    """Holds the content of page 0 or 1: the trees of free pages and of records, and its age."""

    page_size: int
    free_root: int
    root: int
    num_records: int
    last_page: int
    transaction: int
    is_newest: bool = False  # shown by the other page, which is not damaged


@dataclass(frozen=True)
class LostValue:
    """Replaces an unreadable value, with the reason."""

    detail: str
    reason: Reason = Reason.BROKEN_ARCHIVE


Value = bytes | memoryview


class Pages:
    """Reads an open file page by page; values in pages of their own are views of the file.

    ``damage`` is the first unreadable page or value and their number; None if all are readable.
    ``keys`` are the keys of the records that were yielded. Raises InputError for a file without any
    page of an LMDB.
    """

    def __init__(self, file: int, path: Path) -> None:
        self._bytes = os.fstat(file).st_size
        mapped = mmap.mmap(file, 0, access=mmap.ACCESS_READ) if self._bytes else b""
        self._map = memoryview(mapped)
        self.damage: tuple[str, int] | None = None
        self._meta = self._read_newest()
        self._size = self._find_page_size(path) if self._meta is None else self._meta.page_size
        self._num_pages = -(-self._bytes // self._size)
        self._visited = bytearray(self._num_pages // 8 + 1)
        self.keys: set[bytes] = set()

    @property
    def num_records(self) -> int | None:
        """Returns the number of records that the file states; None if it may be wrong."""
        if self._meta is None or not self._meta.is_newest or self._meta.num_records > self._bytes:
            return None
        return self._meta.num_records

    def reason(self) -> str:
        """Returns the damage of the file: that it is truncated, else the first damaged page."""
        stated = 0 if self._meta is None else (self._meta.last_page + 1) * self._size
        if self._bytes < stated:
            return f"it has {self._bytes:,} of {stated:,} bytes"
        if self.damage is None:
            return "some values are damaged"
        first, number = self.damage
        return f"{first}, and {number - 1:,} more" if number > 1 else first

    def _add_damage(self, what: str) -> None:
        first, number = self.damage or (what, 0)
        self.damage = first, number + 1

    def records(self) -> Iterator[tuple[bytes, Value | LostValue]]:
        """Yields keys and values of the tree in its order, then of pages that it does not reach.

        Pages outside the tree are read only if the file is damaged. A key that occurs a second time
        there has an older value and is skipped.
        """
        if self._meta is not None:
            yield from self._without_repeats(self._walk(self._meta.root, 0))
            if not self.damage and self.num_records not in (None, len(self.keys)):
                self._add_damage(f"{len(self.keys):,} of {self.num_records:,} records are found")
            if not self.damage:
                return
            if self._meta.is_newest:
                self._mark_free(self._meta.free_root)
        for number in self._unvisited_leaves():
            yield from self._without_repeats(self._walk(number, 0))

    def _without_repeats(
        self, records: Iterator[tuple[bytes, Value | LostValue]]
    ) -> Iterator[tuple[bytes, Value | LostValue]]:
        for key, value in records:
            if key not in self.keys:
                self.keys.add(key)
                yield key, value

    def _read(self, size: int, offset: int) -> bytes:
        return bytes(self._map[offset : offset + size])

    # --- pages 0 and 1 ---

    def _read_newest(self) -> Meta | None:
        """Returns the content of the newer of pages 0 and 1, as far as they are readable.

        The offset of page 1 proves the page size.
        """
        first = self._read_meta(0)
        second = next(filter(None, map(self._read_meta, PAGE_SIZES)), None)
        if first is None and second is None:
            self._add_damage("pages 0 and 1, which describe the file, are damaged")
            return None
        if first is None or (second is not None and first.page_size != second.page_size):
            self._add_damage("page 0, which describes the file, is damaged")
            return second
        if second is None:
            self._add_damage("page 1, which describes the file, is damaged")
            return first
        newest = max(first, second, key=lambda meta: meta.transaction)
        # Transaction n is written to page n mod 2; both pages of a new file have 0.
        pair = first.transaction, second.transaction
        if pair != (0, 0) and (abs(pair[0] - pair[1]) != 1 or pair[0] % 2):
            self._add_damage("pages 0 and 1, which describe the file, do not agree")
            return newest
        return newest._replace(is_newest=True)

    def _read_meta(self, offset: int) -> Meta | None:
        data = self._read(_ENDS_AT + ENDS.size, offset)
        if len(data) < _ENDS_AT + ENDS.size:
            return None
        magic, version, _, _ = META.unpack_from(data, PAGE.size)
        page_size, *_, free_root = TREE.unpack_from(data, _TREES_AT)
        *_, num_records, root = TREE.unpack_from(data, _TREES_AT + TREE.size)
        last_page, transaction = ENDS.unpack_from(data, _ENDS_AT)
        if magic != MAGIC or version != VERSION or page_size not in PAGE_SIZES:
            return None
        if offset not in (0, page_size) or last_page * page_size > 2**62:
            return None
        return Meta(page_size, free_root, root, num_records, last_page, transaction)

    def _find_page_size(self, path: Path) -> int:
        """Returns the page size at which pages 2 and 3 hold their numbers. Raises InputError."""
        for size in PAGE_SIZES:
            heads = [self._read(PAGE.size, number * size) for number in (2, 3)]
            if [int.from_bytes(head[:8], "little") for head in heads] == [2, 3]:
                return size
        raise InputError(
            f"FILE {path} is not an LMDB: {self._content()}; copy or download it again"
        )

    def _content(self) -> str:
        """Returns a description of the content of a file that is not an LMDB."""
        head = self._read(4096, 0)
        if not head:
            return "it is empty"
        if not any(head):
            return f"it begins with {len(head):,} zeros"
        if head.lstrip()[:1] == b"<":
            return "it is a web page"
        return "none of its pages is an LMDB's"

    # --- the tree ---

    def _walk(self, root: int, depth: int) -> Iterator[tuple[bytes, Value | LostValue]]:
        """Yields the records below a page, in the order of their keys."""
        if root == NO_PAGE:
            return
        try:
            page, kind = self._read_page(root)
            if depth > MAX_DEPTH:
                raise DamagedPage(f"page {root} is deeper than a tree has levels")
            children = self._children(page, root) if kind == BRANCH else []
        except DamagedPage as error:
            self._add_damage(str(error))
            return
        if kind == LEAF:
            yield from self._nodes(page, root)
        for child in children:
            yield from self._walk(child, depth + 1)

    def _read_page(self, number: int) -> tuple[bytes, int]:
        """Returns a page of a tree and its type, and marks it as visited. Raises DamagedPage."""
        if number >= self._num_pages:
            raise DamagedPage(f"page {number} is beyond the end of the file")
        if self._visited[number >> 3] & (1 << (number & 7)):
            raise DamagedPage(f"page {number} is in the tree twice")
        page = self._read(self._size, number * self._size)
        if len(page) < self._size:
            raise DamagedPage(f"page {number} is cut")
        stated, _, flags, lower, upper = PAGE.unpack_from(page)
        kind = flags & KIND
        if stated != number or kind not in (BRANCH, LEAF) or not self._fits(lower, upper):
            what = "is all zeros" if not any(page) else "is damaged"
            raise DamagedPage(f"page {number} {what}")
        self._visited[number >> 3] |= 1 << (number & 7)
        return page, kind

    def _fits(self, lower: int, upper: int) -> bool:
        return PAGE.size <= lower <= upper <= self._size and lower % 2 == 0

    def _children(self, page: bytes, number: int) -> list[int]:
        children = []
        for offset in self._offsets(page, number):
            low, high, top, _ = NODE.unpack_from(page, offset)
            children.append(low | high << 16 | top << 32)
        return children

    def _offsets(self, page: bytes, number: int) -> Iterator[int]:
        """Yields the offset of each node of a page."""
        _, _, _, lower, upper = PAGE.unpack_from(page)
        for position in range(PAGE.size, lower, 2):
            offset = int.from_bytes(page[position : position + 2], "little")
            if upper <= offset <= len(page) - NODE.size:
                yield offset
            else:
                self._add_damage(f"page {number} has a damaged entry")

    def _nodes(self, page: bytes, number: int) -> Iterator[tuple[bytes, Value | LostValue]]:
        """Yields the records of a leaf."""
        for offset in self._offsets(page, number):
            low, high, flags, key_bytes = NODE.unpack_from(page, offset)
            value_at = offset + NODE.size + key_bytes
            if not key_bytes or value_at > len(page):
                self._add_damage(f"page {number} has a damaged key")
                continue
            key = page[offset + NODE.size : value_at]
            yield key, self._value(page, value_at, low | high << 16, flags)

    def _value(self, page: bytes, offset: int, size: int, flags: int) -> Value | LostValue:
        if flags & (SUB_DATABASE | DUPLICATES):
            return LostValue("it is a database, or has several values", Reason.BAD_RECORD)
        if size > MAX_VALUE:
            return LostValue(f"its value has {size} bytes, limit {MAX_VALUE}", Reason.TOO_LARGE)
        if not flags & BIG_VALUE:
            value = page[offset : offset + size]
            return (
                value
                if len(value) == size
                else LostValue("its value is beyond the end of its page")
            )
        if offset + 8 > len(page):
            return LostValue("its page number is beyond the end of its page")
        return self._big_value(int.from_bytes(page[offset : offset + 8], "little"), size)

    def _big_value(self, number: int, size: int) -> Value | LostValue:
        """Returns a value that is stored in separate pages, starting at page ``number``."""
        if number >= self._num_pages:
            return LostValue(f"its value is in page {number}, beyond the end of the file")
        start = number * self._size
        head = self._read(OVERFLOW_PAGE.size, start)
        data = self._map[start + OVERFLOW_PAGE.size : start + OVERFLOW_PAGE.size + size]
        if len(data) < size:
            return LostValue(f"its value is cut by the end of the file, in page {number}")
        stated, _, flags, pages = OVERFLOW_PAGE.unpack(head)
        if (
            stated != number
            or not flags & OVERFLOW
            or pages * self._size < OVERFLOW_PAGE.size + size
        ):
            return LostValue(f"page {number}, where its value begins, is damaged")
        return data

    # --- pages outside the tree ---

    def _mark_free(self, root: int) -> None:
        """Marks the file's free pages as visited, since they hold older records."""
        before = self.damage
        for _, value in self._walk(root, 0):
            if not isinstance(value, LostValue):
                for (number,) in struct.iter_unpack("<Q", value[8 : len(value) // 8 * 8]):
                    if number < self._num_pages:
                        self._visited[number >> 3] |= 1 << (number & 7)
        self.damage = before

    def _unvisited_leaves(self) -> Iterator[int]:
        number = 2
        while number < self._num_pages:
            head = self._read(PAGE.size, number * self._size)
            pages = 1
            if len(head) == PAGE.size and PAGE.unpack(head)[0] == number:
                flags = PAGE.unpack(head)[2]
                if flags & KIND == OVERFLOW:
                    stated = OVERFLOW_PAGE.unpack(head)[3]
                    pages = stated if 0 < stated <= self._num_pages - number else 1
                elif flags & KIND == LEAF and not self._visited[number >> 3] & (1 << (number & 7)):
                    yield number
            number += pages
