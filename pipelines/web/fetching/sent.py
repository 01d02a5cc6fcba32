"""Exchanges URLs between buckets by files, since no other worker reads an open journal.

At the end of its round a bucket writes the URLs that belong to other buckets into one file. These
read the file at the beginning of their next round. A file is a sequence of blocks, each for one
bucket, and an index of them.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import msgspec

from vlmill.pipelines.web.fetching.entries import UrlEntry
from vlmill.pipelines.web.fetching.journal import Journal
from vlmill.pipelines.web.fetching.outbox import Outbox
from vlmill.runtime.files.atomic import atomic_path

BLOCK_URLS = 1_000
_SIZE_BYTES = 8

Sent = tuple[int, UrlEntry]
"""A sent URL with its number, which ascends in its bucket"""
_decode_rows = msgspec.msgpack.Decoder(list[Sent]).decode
_decode_index = msgspec.msgpack.Decoder(list[tuple[int, int, int]]).decode


def write_sent(folder: Path, bucket: int, outbox: Outbox) -> list[int]:
    """Writes the URLs that a bucket has sent since the last call; returns the buckets they are for.

    The caller commits the journal, and has stored it before, so that no number is used again.
    """
    after, last = outbox.pulled(bucket), outbox.last_sent()
    targets = outbox.list_targets(after)
    if not targets:
        return []
    index: list[tuple[int, int, int]] = []
    with atomic_path(folder / f"{bucket:05d}-{last:012d}") as path, path.open("wb") as file:
        for target in targets:
            sent = outbox.sent_to(target, after)
            while rows := list(islice(sent, BLOCK_URLS)):
                block = msgspec.msgpack.encode(rows)
                index.append((target, file.tell(), len(block)))
                file.write(block)
        footer = msgspec.msgpack.encode(index)
        file.write(footer + len(footer).to_bytes(_SIZE_BYTES, "little"))
    outbox.mark_pulled(bucket, last)
    return targets


def pull_sent(folder: Path, bucket: int, journal: Journal, *, max_pages: int) -> None:
    """Adds the URLs that other buckets have sent to a bucket, each once."""
    for path in sorted(folder.glob("[0-9]*-[0-9]*")):
        source, last = map(int, path.name.split("-"))
        if source != bucket and last > journal.outbox.pulled(source):
            with path.open("rb") as file:
                after = journal.outbox.pulled(source)
                rows = (row for row in _read(file, bucket) if row[0] > after)
                journal.pull(source, last, (entry for _, entry in rows), max_pages=max_pages)


def _read(file: BinaryIO, bucket: int) -> Iterator[Sent]:
    file.seek(-_SIZE_BYTES, 2)
    size = int.from_bytes(file.read(_SIZE_BYTES), "little")
    file.seek(-_SIZE_BYTES - size, 2)
    for target, offset, length in _decode_index(file.read(size)):
        if target == bucket:
            file.seek(offset)
            yield from _decode_rows(file.read(length))
