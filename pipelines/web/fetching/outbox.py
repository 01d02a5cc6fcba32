"""What a bucket leaves for others to pull, and how far it has pulled what they left."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence

from vlmill.pipelines.web.fetching.entries import UrlEntry


def join_urls(urls: Sequence[str]) -> str | None:
    """Returns URLs, which have no spaces, as a journal keeps them; None for none."""
    return " ".join(urls) or None


def split_urls(kept: str | None) -> tuple[str, ...]:
    """Returns the URLs that a journal keeps."""
    return tuple((kept or "").split())


class Outbox:
    """The tables of a bucket's journal that other buckets look into.

    What is left stays, under ascending numbers: pulling it again adds nothing.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._db = database

    def send(self, bucket: int, entry: UrlEntry) -> None:
        """Leaves a URL for another bucket to pull."""
        self._db.execute(
            "INSERT INTO sent (bucket, url, source, referrer, follow, hops, alternatives) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                *(bucket, entry.url, entry.source, entry.referrer, entry.follow, entry.hops),
                join_urls(entry.alternatives),
            ),
        )

    def last_sent(self) -> int:
        """Returns the number of the last URL that was left for another bucket; 0 if none was."""
        return int(self._db.execute("SELECT coalesce(max(id), 0) FROM sent").fetchone()[0])

    def sent_to(self, bucket: int, after: int) -> Iterator[tuple[int, UrlEntry]]:
        """Yields what was left for a bucket behind the number ``after``, with its numbers."""
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
        """Returns the number of the last URL that was pulled from another bucket."""
        row = self._db.execute("SELECT last FROM pulled WHERE bucket = ?", (bucket,)).fetchone()
        return 0 if row is None else int(row[0])

    def mark_pulled(self, bucket: int, last: int) -> None:
        """Keeps the number of the last URL that was pulled from another bucket."""
        self._db.execute("INSERT OR REPLACE INTO pulled VALUES (?, ?)", (bucket, last))

    def pull_again(self, sent: Mapping[int, int]) -> None:
        """Lets be pulled once more what lies behind the last number that each bucket has used."""
        self._db.executemany(
            "UPDATE pulled SET last = min(last, ?) WHERE bucket = ?",
            [(last, bucket) for bucket, last in sent.items()],
        )
