"""Writes the file of an LMDB from its values, one after the other.

LMDB's own library copies each value into its memory before it writes it, which takes five times as
long. The layout is that of :mod:`~vlmill.extract.formats.lmdb_pages`: two pages that describe the
file, the tree of the sorted keys, whose size the keys determine, and for each value its own pages.
"""

import os
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

from vlmill.extract.formats.lmdb_pages import (
    BIG_VALUE,
    BRANCH,
    ENDS,
    LEAF,
    MAGIC,
    META,
    NO_PAGE,
    NODE,
    OVERFLOW,
    OVERFLOW_PAGE,
    PAGE,
    TREE,
    VERSION,
)
from vlmill.extract.formats.unfinished import Part, write_parts

PAGE_BYTES = 4096
MAP_BYTES = 2**40  # of address space, for a program that adds records
WRITE_BYTES = 8 * 2**20  # of values that are written at once: smaller writes take longer
FIRST_PAGE = 2  # after the two that describe the file
DESCRIBES_FILE, INTEGER_KEYS = 0x08, 0x08  # of these two pages, and of the tree of free pages


class Value(NamedTuple):
    """Holds a key, the first page of its value and the value's bytes."""

    key: bytes
    page: int
    size: int


class LmdbFile:
    """Appends the values of ``keys``, in their order; :meth:`finish` makes the file readable.

    ``file`` has already the first ``done`` values: their pages state their sizes.
    """

    def __init__(self, file: BinaryIO, keys: Sequence[bytes], done: int = 0) -> None:
        self._file, self._keys = file.fileno(), keys
        unknown, _ = _make_tree([Value(key, 0, 0) for key in keys])
        self._page = FIRST_PAGE + len(unknown)
        self._values: list[Value] = []
        self._pending: list[Part] = []
        if not done:
            file.truncate(self._page * PAGE_BYTES)
            file.seek(self._page * PAGE_BYTES)
        for key in keys[:done]:
            head = os.pread(self._file, OVERFLOW_PAGE.size, self._page * PAGE_BYTES)
            _, unused, _, pages = OVERFLOW_PAGE.unpack(head)
            size = pages * PAGE_BYTES - OVERFLOW_PAGE.size - unused
            self._values.append(Value(key, self._page, size))
            self._page += pages
        self._written = self._page  # the first page that is not written yet

    def add(self, parts: Sequence[Part]) -> None:
        """Appends the value of the next key, given in parts, which :meth:`flush` writes, or a later
        call once there are :data:`WRITE_BYTES`.

        The bytes that it leaves of its last page are in the field of the header that LMDB does not
        use for such pages.
        """
        size = sum(map(len, parts))
        pages = -(-(OVERFLOW_PAGE.size + size) // PAGE_BYTES)
        unused = pages * PAGE_BYTES - OVERFLOW_PAGE.size - size
        head = OVERFLOW_PAGE.pack(self._page, unused, OVERFLOW, pages)
        self._pending += (head, *parts, bytes(unused))
        self._values.append(Value(self._keys[len(self._values)], self._page, size))
        self._page += pages
        if (self._page - self._written) * PAGE_BYTES >= WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes the values that are not written yet, in one piece."""
        write_parts(self._file, self._pending)
        self._pending, self._written = [], self._page

    def finish(self) -> None:
        """Writes the last values, the description of the file and the tree.

        The description is that after one transaction.
        """
        self.flush()
        tree, facts = _make_tree(self._values)
        overflow = self._page - FIRST_PAGE - len(tree)
        root = TREE.pack(0, 0, *facts, overflow, len(self._values), FIRST_PAGE + len(tree) - 1)
        empty = TREE.pack(0, 0, 0, 0, 0, 0, 0, NO_PAGE)
        pages = [_meta_page(0, empty, FIRST_PAGE - 1), _meta_page(1, root, self._page - 1), *tree]
        os.pwrite(self._file, b"".join(pages), 0)


def _make_tree(values: Sequence[Value]) -> tuple[list[bytes], tuple[int, int, int]]:
    """Returns the pages of a tree, its root last, and its depth and numbers of branches and leaves.

    Each level has a node for each page of the level below, with the first key of the page.
    """
    pages = list[bytes]()
    nodes, kind, depth, leaves = [(v.key, _leaf_node(v)) for v in sorted(values)], LEAF, 0, 0
    while not pages or len(nodes) > 1:
        above = []
        for part in _split_pages(nodes, min_nodes=2 if kind == BRANCH else 1):
            key, first = part[0]
            number = FIRST_PAGE + len(pages)
            if kind == BRANCH:  # whose first node needs no key
                first = first[: NODE.size - 2] + bytes(2)
            pages.append(_make_page(number, kind, [first, *(node for _, node in part[1:])]))
            above.append((key, _branch_node(key, number)))
        nodes, kind, depth, leaves = above, BRANCH, depth + 1, leaves or len(pages)
    return pages, (depth, len(pages) - leaves, leaves)


def _make_page(number: int, kind: int, nodes: Sequence[bytes]) -> bytes:
    """Returns a page: the offsets of its nodes from the front, and the nodes from the end."""
    offsets, end = list[bytes](), PAGE_BYTES
    for node in nodes:
        end -= len(node)
        offsets.append(end.to_bytes(2, "little"))
    lower = PAGE.size + 2 * len(nodes)
    head = PAGE.pack(number, 0, kind, lower, end) + b"".join(offsets)
    return head + bytes(end - lower) + b"".join(reversed(nodes))


def _leaf_node(value: Value) -> bytes:
    low, high = value.size & 0xFFFF, value.size >> 16
    node = NODE.pack(low, high, BIG_VALUE, len(value.key)) + value.key
    return _even(node + value.page.to_bytes(8, "little"))


def _branch_node(key: bytes, page: int) -> bytes:
    return _even(NODE.pack(page & 0xFFFF, page >> 16 & 0xFFFF, page >> 32, len(key)) + key)


def _even(node: bytes) -> bytes:
    return node + bytes(len(node) % 2)


def _split_pages(
    nodes: Sequence[tuple[bytes, bytes]], min_nodes: int
) -> Iterator[Sequence[tuple[bytes, bytes]]]:
    """Yields the keys and nodes of one page after another; each has at least ``min_nodes``."""
    start, free_bytes = 0, PAGE_BYTES - PAGE.size
    for index, (_, node) in enumerate(nodes):
        free_bytes -= len(node) + 2
        if free_bytes < 0:
            end = min(index, len(nodes) - min_nodes)
            yield nodes[start:end]
            start = end
            free_bytes = (
                PAGE_BYTES - PAGE.size - sum(len(n) + 2 for _, n in nodes[start : index + 1])
            )
    yield nodes[start:]


def _meta_page(transaction: int, root: bytes, last_page: int) -> bytes:
    """Returns page 0 or 1, which ``transaction`` has written."""
    free = TREE.pack(PAGE_BYTES, INTEGER_KEYS, 0, 0, 0, 0, 0, NO_PAGE)
    head = PAGE.pack(transaction, 0, DESCRIBES_FILE, 0, 0) + META.pack(MAGIC, VERSION, 0, MAP_BYTES)
    return (head + free + root + ENDS.pack(last_page, transaction)).ljust(PAGE_BYTES, b"\0")
