"""Reads and writes spools: files of (key, value) rows between two steps, read in sorted slices.

A step adds rows in any order; they are kept in memory up to a bound, and written as a sorted run
with one block for each slice. The next step reads one slice of many files as one sorted stream:
in memory if it is small, else by runs that are sorted on disk and merged. A block is the
compressed MessagePack of its rows; the footer lists the offsets of each slice's blocks.
"""

import heapq
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import msgspec
import pyarrow as pa

from vlmill.runtime.files.atomic import atomic_path
from vlmill.runtime.files.paths import scratch_beside
from vlmill.runtime.files.remote import is_remote

Row = tuple[bytes, bytes]

Between = tuple[bytes, bytes | None]
"""Keys from the first on, and below the second if there is one."""
EVERY_KEY: Between = (b"", None)

SLICES = 256
"""Of a key's first byte: what spools are cut into unless they are cut into shards."""
RUN_BYTES = 16 << 20
SORT_BYTES = 64 << 20
ROW_OVERHEAD = 150  # Python's overhead for a row in addition to its content
BLOCK_BYTES = 1 << 20
MERGED_RUNS = 64  # a block of each is in memory, so more would need too much
OPEN_FOOTERS = 4_096
OPEN_FILES = 256  # of one unit
KEY_BYTES = 96  # of a block's first and last key, in the footer
_FOOTER_SIZE = 8


class Block(msgspec.Struct, array_like=True, frozen=True):
    """Describes a block: its offset in its file, its unpacked bytes, and its first and last key.

    Long keys are cut.
    """

    slice: int
    offset: int
    length: int
    unpacked: int
    first: bytes = b""  # without both, as in older spools, a block may hold any key
    last: bytes = b""

    def may_hold(self, between: "Between") -> bool:
        """Returns whether the block may hold a row with such a key."""
        low, high = between
        return self.last >= low[: len(self.last)] and (high is None or self.first < high)


_rows = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])
_footer = msgspec.msgpack.Decoder(list[Block])


class SpoolWriter:
    """Writes the rows of a spool. Memory: ``run_bytes``."""

    def __init__(self, file: BinaryIO, run_bytes: int) -> None:
        self.rows = 0
        self.unpacked = 0  # bytes of the written rows
        self._file, self._run_bytes = file, run_bytes
        self._slices: dict[int, list[Row]] = {}
        self._bytes = 0
        self._blocks: list[Block] = []

    def add(self, slice_: int, key: bytes, value: bytes = b"") -> None:
        """Adds a row to a slice."""
        self._slices.setdefault(slice_, []).append((key, value))
        self.rows += 1
        self._bytes += len(key) + len(value) + ROW_OVERHEAD
        if self._bytes > self._run_bytes:
            self._write_run()

    def add_sorted(self, slice_: int, rows: Iterable[Row]) -> None:
        """Adds the sorted rows of a slice. Memory: a block."""
        self._blocks += self._count(write_blocks(self._file, slice_, rows))

    def _write_run(self) -> None:
        for slice_, rows in sorted(self._slices.items()):
            rows.sort()
            self.add_sorted(slice_, rows)
        self._slices, self._bytes = {}, 0

    def _count(self, blocks: Iterable[Block]) -> Iterator[Block]:
        for block in blocks:
            self.unpacked += block.unpacked
            yield block

    def finish(self) -> None:
        """Writes the remaining rows in memory, and the footer."""
        self._write_run()
        footer = msgspec.msgpack.encode(self._blocks)
        self._file.write(footer + len(footer).to_bytes(_FOOTER_SIZE, "little"))


@contextmanager
def spool(path: Path, *, run_bytes: int = RUN_BYTES) -> Iterator[SpoolWriter]:
    """Opens the writer of a spool; the file appears when the block ends without an error."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        writer = SpoolWriter(file, run_bytes)
        yield writer
        writer.finish()


def write_blocks(file: BinaryIO, slice_: int, rows: Iterable[Row]) -> Iterator[Block]:
    """Appends sorted rows to a file as blocks of about ``BLOCK_BYTES``; yields the blocks."""
    part: list[Row] = []
    size = 0
    for row in rows:
        part.append(row)
        size += len(row[0]) + len(row[1])
        if size > BLOCK_BYTES:
            yield _write_block(file, slice_, part)
            part, size = [], 0
    if part:
        yield _write_block(file, slice_, part)


def _codec() -> pa.Codec:
    # Takes half the time of zstd; the files are temporary.
    return pa.Codec("lz4")


def _write_block(file: BinaryIO, slice_: int, rows: Sequence[Row]) -> Block:
    unpacked = msgspec.msgpack.encode(rows)
    block_bytes = _codec().compress(unpacked, asbytes=True)
    offset = file.tell()
    file.write(block_bytes)
    first, last = rows[0][0][:KEY_BYTES], rows[-1][0][:KEY_BYTES]
    return Block(slice_, offset, len(block_bytes), len(unpacked), first, last)


def _read_block(file: BinaryIO, block: Block) -> list[Row]:
    file.seek(block.offset)
    block_bytes = file.read(block.length)
    return _rows.decode(_codec().decompress(block_bytes, block.unpacked, asbytes=True))


def read_blocks(path: Path) -> dict[int, list[Block]]:
    """Returns a spool's blocks by their slices.

    In a store each check costs a request, so footers are cached until :func:`forget_footers`.
    """
    return _read_footer(path, 0 if is_remote(path) else path.stat().st_mtime_ns)


def forget_footers() -> None:
    """Clears the cached footers: a new run may have written other spools under the same names."""
    _read_footer.cache_clear()


@lru_cache(maxsize=OPEN_FOOTERS)
def _read_footer(path: Path, _: int) -> dict[int, list[Block]]:
    with path.open("rb") as file:
        return _parse_footer(file)


def _parse_footer(file: BinaryIO) -> dict[int, list[Block]]:
    file.seek(-_FOOTER_SIZE, 2)
    size = int.from_bytes(file.read(_FOOTER_SIZE), "little")
    file.seek(-_FOOTER_SIZE - size, 2)
    blocks: dict[int, list[Block]] = {}
    for block in _footer.decode(file.read(size)):
        blocks.setdefault(block.slice, []).append(block)
    return blocks


class SpoolFiles:
    """Keeps spools open, so that a unit of many slices opens each one, and reads its footer, once.

    At most ``OPEN_FILES`` are open; a file that is closed for others is opened again when needed.
    """

    def __init__(self) -> None:
        self._files: OrderedDict[Path, BinaryIO] = OrderedDict()
        self._blocks: dict[Path, dict[int, list[Block]]] = {}

    def read_blocks(self, path: Path) -> dict[int, list[Block]]:
        """Returns a spool's blocks by their slices."""
        if path not in self._blocks:
            self._blocks[path] = _parse_footer(self.open(path))
        return self._blocks[path]

    def open(self, path: Path) -> BinaryIO:
        """Returns the open file of a spool."""
        file = self._files.pop(path, None)
        if file is None:
            if len(self._files) >= OPEN_FILES:
                self._files.popitem(last=False)[1].close()
            file = path.open("rb")
        self._files[path] = file
        return file

    def __enter__(self) -> "SpoolFiles":
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()


def read_slices(
    paths: Sequence[Path], slices: Iterable[int]
) -> Iterator[tuple[int, Iterator[Row]]]:
    """Yields slices with their sorted rows, as :func:`sorted_rows`; each spool is opened once."""
    with SpoolFiles() as files:
        for slice_ in slices:
            yield slice_, sorted_rows(paths, slice_, files=files)


def unpacked_bytes(paths: Iterable[Path]) -> int:
    """Returns the number of unpacked bytes of the spools' rows."""
    return sum(b.unpacked for path in paths for part in read_blocks(path).values() for b in part)


def sorted_rows(
    paths: Sequence[Path],
    slice_: int,
    *,
    between: Between = EVERY_KEY,
    sort_bytes: int = SORT_BYTES,
    files: SpoolFiles | None = None,
) -> Iterator[Row]:
    """Yields the rows of one slice of all these spools, in order of key and value.

    Only rows with keys ``between`` two keys are read. ``files`` keeps the spools open.

    The order of ``paths`` does not count. Memory: about ``sort_bytes``; larger slices are sorted in
    temporary files in the folder of the first of ``paths``.
    """
    with ExitStack() as stack:
        folder = scratch_beside(paths[0].parent) if paths else None
        runs: list[_Run] = []
        rows: list[Row] = []
        size = 0
        for row in unsorted_rows(paths, slice_, between, files):
            rows.append(row)
            size += len(row[0]) + len(row[1]) + ROW_OVERHEAD
            if size > sort_bytes:
                rows.sort()
                runs.append(_make_run(stack, rows, folder))
                rows, size = [], 0
                if len(runs) >= MERGED_RUNS:
                    runs = [_make_run(stack, heapq.merge(*runs), folder)]
        rows.sort()
        yield from heapq.merge(*runs, rows) if runs else rows


def unsorted_rows(
    paths: Sequence[Path],
    slice_: int,
    between: Between = EVERY_KEY,
    files: SpoolFiles | None = None,
) -> Iterator[Row]:
    """Yields the rows of one slice with keys ``between`` two, in file order."""
    for path in paths:
        footer = read_blocks(path) if files is None else files.read_blocks(path)
        blocks = [b for b in footer.get(slice_, ()) if b.may_hold(between)]
        if not blocks:
            continue
        if files is None:
            with path.open("rb") as file:
                yield from _read_rows(file, blocks, between)
        else:
            for block in blocks:  # another stream may have closed the file in the meantime
                yield from _read_rows(files.open(path), [block], between)


def _read_rows(file: BinaryIO, blocks: Iterable[Block], between: Between) -> Iterator[Row]:
    low, high = between
    for block in blocks:
        rows = _read_block(file, block)
        if between == EVERY_KEY:
            yield from rows
        else:
            yield from (r for r in rows if r[0] >= low and (high is None or r[0] < high))


def cut_keys(paths: Sequence[Path], slice_: int, number: int) -> list[Between]:
    """Cuts a slice's keys into ``number`` ranges of about equal bytes, some perhaps empty.

    The ranges depend only on the files.
    """
    blocks = [block for path in paths for block in read_blocks(path).get(slice_, ())]
    starts = sorted((block.first, block.unpacked) for block in blocks)
    total, before, cuts = sum(size for _, size in starts), 0, list[bytes]()
    for key, size in starts:
        while len(cuts) < number - 1 and before * number >= total * (len(cuts) + 1):
            cuts.append(key)
        before += size
    cuts += [cuts[-1] if cuts else b""] * (number - 1 - len(cuts))
    return list(zip([b"", *cuts], [*cuts, None], strict=True))


class _Run:
    """Holds sorted rows in a temporary file."""

    def __init__(self, file: BinaryIO, blocks: list[Block]) -> None:
        self.file, self.blocks = file, blocks

    def __iter__(self) -> Iterator[Row]:
        for block in self.blocks:
            yield from _read_block(self.file, block)


def _make_run(stack: ExitStack, rows: Iterable[Row], folder: Path | None) -> _Run:
    file: BinaryIO = stack.enter_context(tempfile.TemporaryFile(dir=folder))  # noqa: SIM115
    return _Run(file, list(write_blocks(file, 0, rows)))


class Tape:
    """Keeps rows to read them twice: in memory up to ``keep_bytes``, then in a temporary file."""

    def __init__(self, folder: Path, *, keep_bytes: int = RUN_BYTES) -> None:
        self._folder, self._keep_bytes = scratch_beside(folder), keep_bytes
        self._rows: list[Row] = []
        self._bytes = 0
        self._run: _Run | None = None

    def add(self, row: Row) -> None:
        """Appends a row."""
        self._rows.append(row)
        self._bytes += len(row[0]) + len(row[1]) + ROW_OVERHEAD
        if self._bytes > self._keep_bytes:
            if self._run is None:
                self._run = _Run(tempfile.TemporaryFile(dir=self._folder), [])  # noqa: SIM115
            self._run.blocks += write_blocks(self._run.file, 0, self._rows)
            self._rows, self._bytes = [], 0

    def __iter__(self) -> Iterator[Row]:
        if self._run is not None:
            yield from self._run
        yield from self._rows

    def close(self) -> None:
        """Frees memory and disk."""
        self._rows = []
        if self._run is not None:
            self._run.file.close()
