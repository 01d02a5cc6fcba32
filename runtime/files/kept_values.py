"""Stores values of earlier rows by 64-bit keys: the newest in memory, the others on disk.

Memory does not depend on the size of the data set: a limited number of keys, a filter of fixed size
that recognises most new keys, and 16 bytes for each 256 keys. Files are in TMPDIR without a name,
so they end with the process.
"""

import marshal
import os
import tempfile
import weakref
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

YOUNG = 1 << 15  # keys in memory, some 110 bytes each
PAGE = 256  # keys of a page of a run
FAN = 8  # runs that are merged into one
FILTER_BITS = 26  # its size as a power of two: 8 MiB, two bits a key
BLOCK = 4_096  # bytes that are read together
CACHED = 2_048  # values that were used last; there may be twice as many
_ODD = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)  # multipliers that spread keys evenly
_ALL = (1 << 64) - 1
_SHIFT = 64 - FILTER_BITS
_LENGTH_BITS = 30  # of a value's bytes
Words = npt.NDArray[np.uint64]
T = TypeVar("T")


class _Run:
    """Holds keys in ascending order with their numbers, in pages of a file."""

    def __init__(self, pages: Iterator[tuple[Words, Words]]) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - lives as long as the run
        self.close = weakref.finalize(self, self._file.close)  # frees the disk space
        self._first, self._sizes = array("Q"), array("H")
        self.last = 0
        self._at, self._page = -1, memoryview(b"")  # read last: the next one is often near
        for keys, numbers in pages:
            self._append(keys, numbers)

    def _append(self, keys: Words, numbers: Words) -> None:
        for start in range(0, len(keys), PAGE):
            page = np.zeros(2 * PAGE, np.uint64)
            size = len(keys[start : start + PAGE])
            page[:size], page[PAGE : PAGE + size] = (
                keys[start : start + PAGE],
                numbers[start : start + PAGE],
            )
            self._file.write(page.tobytes())
            self._first.append(int(page[0]))
            self._sizes.append(size)
            self.last = int(page[size - 1])

    def get(self, key: int) -> int | None:
        """Returns the number of a key, None if the run lacks it."""
        if not self._first[0] <= key <= self.last:
            return None
        number = bisect_right(self._first, key) - 1
        if number != self._at:
            self._at, self._page = number, memoryview(self._read(number)).cast("Q")
        page, size = self._page, self._sizes[number]
        index = bisect_left(page, key, 0, size)
        return page[PAGE + index] if index < size and page[index] == key else None

    def _read(self, number: int) -> bytes:
        return os.pread(self._file.fileno(), 16 * PAGE, number * 16 * PAGE)

    def pages(self) -> Iterator[tuple[Words, Words]]:
        """Yields the keys and numbers of page after page."""
        for number, size in enumerate(self._sizes):
            page = np.frombuffer(self._read(number), np.uint64)
            yield page[:size], page[PAGE : PAGE + size]


def _blocks(run: _Run, pages: int) -> Iterator[tuple[Words, Words]]:
    """Yields several pages of a run together."""
    source = run.pages()
    while batch := list(islice(source, pages)):
        yield np.concatenate([p[0] for p in batch]), np.concatenate([p[1] for p in batch])


def _merge_runs(runs: Sequence[_Run]) -> Iterator[tuple[Words, Words]]:
    """Yields the keys of all runs in order; of a key that several have, the last run's number."""
    sources = [_blocks(run, 16) for run in runs]
    heads = [next(source) for source in sources]
    while heads:
        bound = min(keys[-1] for keys, _ in heads)
        cuts = [int(np.searchsorted(keys, bound, side="right")) for keys, _ in heads]
        keys = np.concatenate([h[0][:cut] for h, cut in zip(heads, cuts, strict=True)])
        numbers = np.concatenate([h[1][:cut] for h, cut in zip(heads, cuts, strict=True)])
        order = np.argsort(keys, kind="stable")
        keys, numbers = keys[order], numbers[order]
        newest = np.append(keys[1:] != keys[:-1], True)
        yield keys[newest], numbers[newest]
        heads = [(h[0][cut:], h[1][cut:]) for h, cut in zip(heads, cuts, strict=True)]
        refilled = [
            (head if len(head[0]) else next(source, None), source)
            for head, source in zip(heads, sources, strict=True)
        ]
        heads = [head for head, _ in refilled if head is not None]
        sources = [source for head, source in refilled if head is not None]


class NumberStore:
    """Stores any number of 64-bit numbers by 64-bit keys in about 20 MB of memory."""

    def __init__(self) -> None:
        self._young: dict[int, int] = {}
        self._runs: list[tuple[int, _Run]] = []  # with their levels, the oldest first
        self._lowest, self._highest = _ALL, -1  # keys in runs
        self._filter = bytearray()

    def get(self, key: int) -> int | None:
        """Returns the last number of a key, None for a new key."""
        number = self._young.get(key)
        if number is None and self._lowest <= key <= self._highest:
            return self._find_in_runs(key)
        return number

    def put(self, key: int, number: int) -> None:
        """Sets the number of a key, replacing an earlier one."""
        self._young[key] = number
        if len(self._young) >= YOUNG:
            self._spill()

    def claim(self, key: int, number: int) -> int | None:
        """Sets the number of a new key; for an existing key returns its number."""
        earlier = self._young.get(key)
        if earlier is None and self._lowest <= key <= self._highest:
            earlier = self._find_in_runs(key)
        if earlier is None:
            self._young[key] = number
            if len(self._young) >= YOUNG:
                self._spill()
        return earlier

    def _find_in_runs(self, key: int) -> int | None:
        """Returns the number of a key in a run; the caller has checked the run's range of keys."""
        for odd in _ODD:
            slot = (key * odd & _ALL) >> _SHIFT
            if not self._filter[slot >> 3] >> (slot & 7) & 1:
                return None
        for _, run in reversed(self._runs):
            if (number := run.get(key)) is not None:
                return number
        return None

    def _spill(self) -> None:
        """Writes the keys in memory to the disk."""
        keys = np.fromiter(self._young.keys(), np.uint64, len(self._young))
        numbers = np.fromiter(self._young.values(), np.uint64, len(self._young))
        self._young = {}
        order = np.argsort(keys)
        keys, numbers = keys[order], numbers[order]
        self._lowest = min(self._lowest, int(keys[0]))
        self._highest = max(self._highest, int(keys[-1]))
        self._mark(keys)
        self._runs.append((0, _Run(iter([(keys, numbers)]))))
        while len(self._runs) >= FAN and self._runs[-FAN][0] == self._runs[-1][0]:
            level, runs = self._runs[-1][0], [run for _, run in self._runs[-FAN:]]
            self._runs[-FAN:] = [(level + 1, _Run(_merge_runs(runs)))]
            for run in runs:
                run.close()

    def _mark(self, keys: Words) -> None:
        if not self._filter:
            self._filter = bytearray(1 << FILTER_BITS - 3)
        bits = np.frombuffer(self._filter, np.uint8)
        for odd in _ODD:
            slots = keys * np.uint64(odd) >> np.uint64(_SHIFT)
            masks = np.uint8(1) << (slots & np.uint64(7)).astype(np.uint8)
            np.bitwise_or.at(bits, (slots >> np.uint64(3)).astype(np.int64), masks)


class ValueStore(Generic[T]):
    """Stores values by 64-bit keys: on disk, except the most recently used.

    ``pack`` converts a value to types that :mod:`marshal` supports (texts, numbers, tuples of
    them), and ``unpack`` converts it back.
    """

    def __init__(self, pack: Callable[[T], Any], unpack: Callable[[Any], T]) -> None:
        self._pack, self._unpack = pack, unpack
        self._places = NumberStore()
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this
        weakref.finalize(self, self._file.close)
        self._size = self._flushed = 0
        self._start, self._block = 0, b""  # read last: the next one is often near
        self._used: dict[int, T] = {}
        self._before: dict[int, T] = {}  # used before those

    def put(self, key: int, value: T) -> None:
        """Sets the value of a key, replacing an earlier one."""
        content = marshal.dumps(self._pack(value))
        self._file.write(content)
        self._places.put(key, self._size << _LENGTH_BITS | len(content))
        self._size += len(content)
        self._use(key, value)

    def get(self, key: int) -> T | None:
        """Returns the last value of a key, None for a new key."""
        value = self._used.get(key)
        if value is not None:
            return value
        value = self._before.get(key)
        if value is None:
            location = self._places.get(key)
            if location is None:
                return None
            value = self._read(location)
        self._use(key, value)
        return value

    def _read(self, location: int) -> T:
        start, length = location >> _LENGTH_BITS, location & ((1 << _LENGTH_BITS) - 1)
        offset = start - self._start
        if offset < 0 or offset + length > len(self._block):
            if start + length > self._flushed:
                self._file.flush()
                self._flushed = self._size
            self._block = os.pread(self._file.fileno(), max(length, BLOCK), start)
            self._start, offset = start, 0
        return self._unpack(marshal.loads(self._block[offset : offset + length]))

    def _use(self, key: int, value: T) -> None:
        if len(self._used) >= CACHED:
            self._used, self._before = {}, self._used
        self._used[key] = value
