"""Exchanges URLs between buckets by files, since no other worker reads an open journal.

A bucket's journal stores the URLs for other buckets, and how many were pulled from each. At the end
of its round a bucket writes the URLs that belong to other buckets into one file. These read the
file at the beginning of their next round. A file is a sequence of blocks, each for one bucket, and
an index of them.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import msgspec

from vlmill.pipelines.web.fetching.entries import UrlEntry
from vlmill.runtime.files.atomic import atomic_path

BLOCK_URLS = 1_000
_SIZE_BYTES = 8

Sent = tuple[int, UrlEntry]
"""A sent URL with its number, which ascends in its bucket"""
_decode_rows = msgspec.msgpack.Decoder(list[Sent]).decode
_decode_index = msgspec.msgpack.Decoder(list[tuple[int, int, int]]).decode


def join_urls(urls: Sequence[str]) -> str | None:
    """Joins URLs, which have no spaces, for a journal's column; returns None without URLs."""
    return " ".join(urls) or None


def split_urls(kept: str | None) -> tuple[str, ...]:
    """Returns the URLs of a journal's column."""
    return tuple((kept or "").split())


class Outbox:
    """Reads and writes the tables of a bucket's journal about URLs of other buckets.

    Sent URLs stay, under ascending numbers: pulling them again adds nothing.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._db = database

    def send(self, bucket: int, entry: UrlEntry) -> None:
        """Sends a URL to another bucket."""
        self._db.execute(
            "INSERT INTO sent (bucket, url, source, referrer, follow, hops, alternatives) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                *(bucket, entry.url, entry.source, entry.referrer, entry.follow, entry.hops),
                join_urls(entry.alternatives),
            ),
        )

    def last_sent(self) -> int:
        """Returns the number of the last URL sent to another bucket; 0 before the first."""
        return int(self._db.execute("SELECT coalesce(max(id), 0) FROM sent").fetchone()[0])

    def list_targets(self, after: int) -> list[int]:
        """Returns the buckets to which URLs were sent after the number ``after``."""
        query = "SELECT DISTINCT bucket FROM sent WHERE id > ? ORDER BY bucket"
        return [bucket for (bucket,) in self._db.execute(query, (after,))]

    def sent_to(self, bucket: int, after: int) -> Iterator[tuple[int, UrlEntry]]:
        """Yields the URLs sent to a bucket after the number ``after``, with their numbers."""
        rows = self._db.execute(
            "SELECT id, url, source, referrer, follow, hops, alternatives FROM sent "
            "WHERE bucket = ? AND id > ? ORDER BY id",
            (bucket, after),
        )
        for number, url, source, referrer, follow, hops, alternatives in rows:
            yield (
                number,
                UrlEntry(
                    url=url,
                    source=source,
                    referrer=referrer,
                    follow=follow,
                    hops=hops,
                    alternatives=split_urls(alternatives),
                ),
            )

    def pulled(self, bucket: int) -> int:
        """Returns the number of the last URL that was pulled from another bucket.

        For the journal's own bucket: the last one that was written for the others.
        """
        row = self._db.execute("SELECT last FROM pulled WHERE bucket = ?", (bucket,)).fetchone()
        return 0 if row is None else int(row[0])

    def mark_pulled(self, bucket: int, last: int) -> None:
        """Stores the number of the last URL that was pulled from another bucket."""
        self._db.execute("INSERT OR REPLACE INTO pulled VALUES (?, ?)", (bucket, last))


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


def read_sent(
    folder: Path, bucket: int, outbox: Outbox
) -> Iterator[tuple[int, int, Iterator[UrlEntry]]]:
    """Yields (bucket, last number, URLs) of each file with URLs that ``bucket`` has not pulled."""
    for path in sorted(folder.glob("[0-9]*-[0-9]*")):
        source, last = map(int, path.name.split("-"))
        after = outbox.pulled(source)
        if source != bucket and last > after:
            with path.open("rb") as file:
                yield source, last, (e for number, e in _read(file, bucket) if number > after)


def _read(file: BinaryIO, bucket: int) -> Iterator[Sent]:
    file.seek(-_SIZE_BYTES, 2)
    size = int.from_bytes(file.read(_SIZE_BYTES), "little")
    file.seek(-_SIZE_BYTES - size, 2)
    for target, offset, length in _decode_index(file.read(size)):
        if target == bucket:
            file.seek(offset)
            yield from _decode_rows(file.read(length))
