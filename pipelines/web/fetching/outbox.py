"""Stores URLs for other buckets, and how many were pulled from each (:mod:`.sent`)."""

import sqlite3
from collections.abc import Iterator, Sequence

from vlmill.pipelines.web.fetching.entries import UrlEntry


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
