"""Keeps a bucket's journal: its hosts and URLs, and their outcomes, in one SQLite file.

Every response is committed before the fetcher waits for the next one, so that a killed run repeats
no journalled request. Memory is SQLite's page cache; queues of any length are stored on disk.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from vlmill.pipelines.web.fetching.database import checkpoint, open_database
from vlmill.pipelines.web.fetching.entries import (
    REDIRECTED,
    HostRow,
    OriginRow,
    Outcome,
    QueuedUrl,
    UrlEntry,
)
from vlmill.pipelines.web.fetching.hosts import get_host
from vlmill.pipelines.web.fetching.mirror import BucketMirror
from vlmill.pipelines.web.fetching.outbox import Outbox, join_urls, read_sent, split_urls
from vlmill.pipelines.web.fetching.warc import Parts, RecordLocation, part_name
from vlmill.runtime.files.listed import ListedFile
from vlmill.schemas.rejects import Reason

WAITING, DONE, FAILED = 0, 1, 2  # failed: has an outcome, and may be tried again
_HOST = ("id", "name", "last_at", "not_before", "failures", "backoffs", "seconds", "bytes")
_MOST_LOOP = 20  # redirects that are followed in the journal to detect a circle
_MOST_HOST_IDS = 10_000


class Journal:
    """Reads and writes one bucket's journal; at most one process at a time may write it.

    ``new`` creates the file; without it a missing journal raises OSError. ``mirror`` copies it to a
    store.
    """

    def __init__(
        self, path: Path, mirror: BucketMirror | None = None, *, new: bool = False
    ) -> None:
        self.path, self.mirror = path, mirror
        self._host_ids: dict[str, int] = {}
        self._db = open_database(path, new=new, logged=mirror is not None)
        self.outbox = Outbox(self._db)

    def commit(self) -> None:
        """Commits everything since the last commit; a kill before loses all of it."""
        self._db.commit()

    def save(self, parts: Parts) -> None:
        """Commits everything, after the archive has its records, and mirrors both to the store."""
        parts.flush()
        self.commit()
        if self.mirror is not None:
            self.mirror.push(parts.part, self.checkpoint)

    def checkpoint(self) -> bool:
        """Moves all committed changes into the file; returns False if another process reads it."""
        return checkpoint(self._db)

    def restored(self, now: float) -> None:
        """Adapts a journal from a store: any host may have received requests until ``now``."""
        self._db.execute("UPDATE hosts SET active = 0, last_at = ? WHERE waiting > 0", (now,))
        self.commit()

    def close(self) -> None:
        """Closes the file; uncommitted changes are lost."""
        self._db.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # URLs that are added.

    def list_url(self, entry: UrlEntry) -> None:
        """Adds a URL of the user's list; a duplicate is counted."""
        if not self._insert(entry):
            self._db.execute("UPDATE urls SET times = times + 1 WHERE url = ?", (entry.url,))
        if entry.caption is not None:
            self._db.execute(
                "INSERT INTO captions SELECT ?, id, ? FROM urls WHERE url = ?",
                (*entry.caption, entry.url),
            )

    def drop_line(self, line: str, reason: Reason, detail: str | None) -> None:
        """Stores a line of the user's list that is not a URL."""
        self._db.execute(
            "INSERT INTO lines (line, reason, detail) VALUES (?, ?, ?) "
            "ON CONFLICT DO UPDATE SET times = times + 1",
            (line, reason.value, detail),
        )

    def add(self, entry: UrlEntry, *, max_pages: int) -> None:
        """Adds a URL that a page or a redirect has led to, unless it is known.

        A host takes ``max_pages`` links; further links are counted.
        """
        is_link = entry.follow >= 0 and entry.hops == 0
        if is_link and self._pages(entry.url) >= max_pages:
            if not self._knows(entry.url):
                self._count(get_host(entry.url), "left_out")
            return
        if self._insert(entry):
            if is_link:
                self._count(get_host(entry.url), "pages")
        elif entry.follow >= 0:
            self._db.execute(
                "UPDATE urls SET follow = max(follow, ?) WHERE url = ? AND state = ?",
                (entry.follow, entry.url, WAITING),
            )

    def _insert(self, entry: UrlEntry) -> bool:
        host = self._host_id(get_host(entry.url))
        added = self._db.execute(
            "INSERT OR IGNORE INTO urls "
            "(url, host, source, referrer, follow, hops, old_etag, old_modified, alternatives) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(entry.url, host, entry.source, entry.referrer),
                *(entry.follow, entry.hops, entry.etag, entry.modified),
                join_urls(entry.alternatives),
            ),
        )
        if added.rowcount:
            self._db.execute("UPDATE hosts SET waiting = waiting + 1 WHERE id = ?", (host,))
        return bool(added.rowcount)

    def _host_id(self, name: str) -> int:
        known = self._host_ids.get(name)
        if known is None:
            if len(self._host_ids) >= _MOST_HOST_IDS:
                self._host_ids.clear()
            known = self._host_ids[name] = self._find_host(name)
        return known

    def _find_host(self, name: str) -> int:
        row = self._db.execute("SELECT id FROM hosts WHERE name = ?", (name,)).fetchone()
        if row is None:
            row = (self._db.execute("INSERT INTO hosts (name) VALUES (?)", (name,)).lastrowid,)
        return int(row[0])

    def _pages(self, url: str) -> int:
        row = self._db.execute(
            "SELECT pages FROM hosts WHERE name = ?", (get_host(url),)
        ).fetchone()
        return 0 if row is None else int(row[0])

    def _knows(self, url: str) -> bool:
        return self._db.execute("SELECT 1 FROM urls WHERE url = ?", (url,)).fetchone() is not None

    def _count(self, host: str, column: str) -> None:
        self._db.execute(f"UPDATE hosts SET {column} = {column} + 1 WHERE name = ?", (host,))

    # Hosts and their queues.

    def release_hosts(self, now: float) -> None:
        """Releases hosts that a killed run had taken; they may have had requests until ``now``."""
        self._db.execute("UPDATE hosts SET active = 0, last_at = ? WHERE active = 1", (now,))

    def take_hosts(self, limit: int) -> list[HostRow]:
        """Returns free hosts with waiting URLs, the hosts whose turn is next first."""
        rows = self._db.execute(
            "SELECT id, name, last_at, not_before, failures, backoffs, seconds, bytes FROM hosts "
            "WHERE waiting > 0 AND active = 0 LIMIT ?",
            (limit,),
        ).fetchall()
        hosts = [HostRow(**dict(zip(_HOST, row, strict=True))) for row in rows]
        self._db.executemany(
            "UPDATE hosts SET active = 1 WHERE id = ?", [(host.id,) for host in hosts]
        )
        return hosts

    def leave_host(self, host: HostRow) -> None:
        """Stores a host's data, and releases it for URLs that are added later."""
        self.keep_host(host)
        self._db.execute("UPDATE hosts SET active = 0 WHERE id = ?", (host.id,))

    def keep_host(self, host: HostRow) -> None:
        """Stores a host's data."""
        self._db.execute(
            "UPDATE hosts SET last_at = ?, not_before = ?, failures = ?, backoffs = ?, "
            "seconds = ?, bytes = ? WHERE id = ?",
            (
                *(host.last_at, host.not_before, host.failures, host.backoffs),
                *(host.seconds, host.bytes, host.id),
            ),
        )

    def queue(self, host: int, after: int, limit: int) -> list[QueuedUrl]:
        """Returns the next waiting URLs of a host, after the URL with the id ``after``."""
        rows = self._db.execute(
            "SELECT id, url, source, follow, hops, attempts, old_etag, old_modified, referrer, "
            "alternatives FROM urls WHERE host = ? AND state = 0 AND id > ? ORDER BY id LIMIT ?",
            (host, after, limit),
        )
        names = (
            *("id", "url", "source", "follow", "hops", "attempts"),
            *("etag", "modified", "referrer"),
        )
        return [
            QueuedUrl(**dict(zip(names, row, strict=True)), alternatives=split_urls(alternatives))
            for *row, alternatives in rows
        ]

    def origin(self, origin: str) -> OriginRow | None:
        """Returns the stored robots rules of an origin."""
        row = self._db.execute(
            "SELECT robots, tdm, url, hops, expires FROM origins WHERE origin = ?", (origin,)
        ).fetchone()
        if row is None:
            return None
        robots, tdm, url, hops, expires = row
        return OriginRow(origin=origin, robots=robots, tdm=tdm, url=url, hops=hops, expires=expires)

    def keep_origin(self, host: int, row: OriginRow) -> None:
        """Stores the robots rules of a host's origin."""
        self._db.execute(
            "INSERT OR REPLACE INTO origins (origin, host, robots, tdm, url, hops, expires) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (row.origin, host, row.robots, row.tdm, row.url, row.hops, row.expires),
        )

    # Outcomes.

    def record_outcome(
        self, host: int, url: int, outcome: Outcome, record_location: RecordLocation | None
    ) -> None:
        """Stores the outcome of a URL, which then no longer waits."""
        state = FAILED if outcome.may_retry else DONE
        self._db.execute(
            "UPDATE urls SET state = ?, attempts = attempts + ?, outcome = ?, detail = ?, "
            "status = ?, target = ?, media_type = ?, bytes = ?, sha256 = ?, etag = ?, "
            "modified = ?, at = ?, seconds = ?, address = ?, part = ?, offset = ?, length = ? "
            "WHERE id = ?",
            (
                *(state, int(outcome.fetched_at is not None), outcome.outcome, outcome.detail),
                *(outcome.status, outcome.target, outcome.media_type, outcome.bytes),
                *(
                    outcome.sha256,
                    outcome.etag,
                    outcome.modified,
                    outcome.fetched_at,
                    outcome.seconds,
                ),
                *(
                    outcome.address,
                    record_location and record_location.part,
                    record_location and record_location.offset,
                ),
                *(record_location and record_location.length, url),
            ),
        )
        self._db.execute("UPDATE hosts SET waiting = waiting - 1 WHERE id = ?", (host,))

    def redirect_loop(self, url: str, target: str) -> list[int]:
        """Returns the ids of the URLs through which redirects lead from ``target`` back to ``url``.

        [] if they do not, as far as this journal knows.
        """
        ids: list[int] = []
        for _ in range(_MOST_LOOP):
            if target == url:
                return ids
            row = self._db.execute(
                "SELECT id, target FROM urls WHERE url = ? AND outcome = ?", (target, REDIRECTED)
            ).fetchone()
            if row is None:
                break
            ids.append(row[0])
            target = row[1]
        return []

    def break_loop(self, ids: Sequence[int], outcome: Outcome) -> None:
        """Replaces the redirects of URLs in a circle with an outcome."""
        self._db.executemany(
            "UPDATE urls SET outcome = ?, detail = ? WHERE id = ?",
            [(outcome.outcome, outcome.detail, number) for number in ids],
        )

    def postponed(self, url: int) -> None:
        """Counts an attempt of a URL that continues to wait: its host asks for a pause."""
        self._db.execute("UPDATE urls SET attempts = attempts + 1 WHERE id = ?", (url,))

    def set_aside(self, host: int, outcome: Outcome) -> int:
        """Gives all waiting URLs of a host the same outcome; returns how many."""
        state = FAILED if outcome.may_retry else DONE
        changed = self._db.execute(
            "UPDATE urls SET state = ?, outcome = ?, detail = ? WHERE host = ? AND state = 0",
            (state, outcome.outcome, outcome.detail, host),
        ).rowcount
        self._db.execute("UPDATE hosts SET waiting = waiting - ? WHERE id = ?", (changed, host))
        return changed

    def retry_failed(self, number: int) -> int:
        """Begins retry round ``number`` (from 1) for URLs whose failure may be transient.

        Returns how many URLs wait again; 0 if an earlier run has begun this round.
        """
        if self.last_pass() >= number:
            return 0
        self._db.execute(
            "UPDATE hosts SET failures = 0, backoffs = 0, waiting = waiting + "
            "(SELECT count(*) FROM urls WHERE urls.host = hosts.id AND state = ?) "
            "WHERE id IN (SELECT host FROM urls WHERE state = ?)",
            (FAILED, FAILED),
        )
        # Unreadable robots.txt files are requested once more, too.
        self._db.execute(
            "UPDATE origins SET robots = NULL, tdm = NULL, url = NULL, hops = 0 "
            "WHERE host IN (SELECT host FROM urls WHERE state = ?)",
            (FAILED,),
        )
        changed = self._db.execute("UPDATE urls SET state = 0 WHERE state = ?", (FAILED,)).rowcount
        self._db.execute(f"PRAGMA user_version = {int(number)}")
        return changed

    def last_pass(self) -> int:
        """Returns the number of the last retry round that was begun; 0 for no round."""
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def last_location(self) -> RecordLocation | None:
        """Returns the location of the last journalled record."""
        row = self._db.execute(
            "SELECT part, offset, length FROM urls WHERE part IS NOT NULL "
            "ORDER BY part DESC, offset DESC LIMIT 1"
        ).fetchone()
        return None if row is None else RecordLocation(part=row[0], offset=row[1], length=row[2])

    # Finished parts of the archive.

    def finish_part(self, parts: Parts) -> None:
        """Records the size and SHA-256 of the open part, and gives the part its final name.

        The journal is on the disk, or in the store, before the part has its name, so that no
        finished part has records that the journal lacks, even after a power failure.
        """
        if (described := parts.describe_open_part()) is not None:
            self._db.execute(
                "INSERT OR REPLACE INTO parts VALUES (?, ?, ?)",
                (parts.part, described.bytes, described.sha256),
            )
            self.save(parts)
            if self.mirror is None:
                self.checkpoint()
            else:
                self.mirror.require()
            parts.finish()
        if self.mirror is not None:
            self.commit()
            self.mirror.finish(self.checkpoint)

    def finished_parts(self, bucket: int) -> list[ListedFile]:
        """Returns the finished parts of the bucket's archive, in their order."""
        return [
            ListedFile(name=part_name(bucket, part), bytes=num_bytes, sha256=sha256)
            for part, num_bytes, sha256 in self.rows("SELECT * FROM parts ORDER BY part")
        ]

    # Between buckets.

    def pull_sent(self, folder: Path, bucket: int, *, max_pages: int) -> None:
        """Adds the URLs that other buckets have sent to this one; if killed, none of a file."""
        for source, last, entries in read_sent(folder, bucket, self.outbox):
            for entry in entries:
                self.add(entry, max_pages=max_pages)
            self.outbox.mark_pulled(source, last)
            self.commit()

    # Counts and rows, for progress, tables and reports.

    def waiting(self) -> int:
        """Returns how many URLs wait."""
        row = self._db.execute("SELECT total(waiting) FROM hosts WHERE waiting > 0").fetchone()
        return int(row[0])

    def failed(self) -> int:
        """Returns how many URLs have failed and may be tried again."""
        query = "SELECT count(*) FROM urls WHERE state = ?"
        return int(self._db.execute(query, (FAILED,)).fetchone()[0])

    def rows(self, query: str) -> Iterator[tuple[Any, ...]]:
        """Yields the rows of a query, one after the other."""
        with closing(self._db.cursor()) as cursor:
            yield from cursor.execute(query)
