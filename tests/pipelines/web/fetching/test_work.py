"""Lists go to buckets as a whole, and URLs between buckets once."""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from vlmill.pipelines.web.fetching import mirror
from vlmill.pipelines.web.fetching.entries import Outcome, UrlEntry
from vlmill.pipelines.web.fetching.hosts import assign_bucket
from vlmill.pipelines.web.fetching.journal import Journal
from vlmill.pipelines.web.fetching.lines import Line
from vlmill.pipelines.web.fetching.politeness import PolitenessPolicy
from vlmill.pipelines.web.fetching.tables import write_tables
from vlmill.pipelines.web.fetching.warc import RecordLocation
from vlmill.pipelines.web.fetching.work import (
    LINES,
    FetchState,
    OpenBucket,
    continue_fetch,
    distribute,
    fetch_bucket,
    open_bucket,
    read_lines,
)
from vlmill.runtime.files import remote_lock
from vlmill.runtime.files.paths import remove_tree, to_path
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import StoreFailed
from vlmill.schemas.rejects import Reason

LISTED = [f"http://{host}.org/{n}" for host in "abcdef" for n in range(2)]


@pytest.fixture
def job(tmp_path: Path) -> FetchState:
    return FetchState(
        output=str(tmp_path), buckets=3, policy=PolitenessPolicy(contact="me@example.org")
    )


def lines(*urls: str) -> Iterator[Line]:
    for url in urls:
        yield url, UrlEntry(url=url, source="fetch_listed")
    yield "x", Drop(Reason.BAD_URL, "no scheme")


def urls_of(job: FetchState, bucket: int) -> set[str]:
    with job.journal(bucket) as journal:
        return {url for (url,) in journal.rows("SELECT url FROM urls")}


def test_every_url_goes_to_the_bucket_of_its_host(job: FetchState) -> None:
    distribute(job, lines(*LISTED))
    parts = [urls_of(job, bucket) for bucket in range(3)]
    assert set.union(*parts) == set(LISTED) and sum(map(len, parts)) == len(LISTED)
    assert all(assign_bucket(url[7:12], 3) == b for b, part in enumerate(parts) for url in part)


def test_a_list_is_spread_once_and_whole(job: FetchState) -> None:
    def fails() -> Iterator[Line]:
        yield from lines("http://a.org/1")
        raise OSError("the list has gone")

    leftover = job.folder.parent / ".tmp-1-buckets"
    leftover.mkdir(parents=True)
    with pytest.raises(OSError, match="the list has gone"):
        distribute(job, fails())
    assert not job.folder.exists() and not leftover.exists()
    distribute(job, lines(*LISTED))
    distribute(job, lines("http://other.org/"))
    assert "http://other.org/" not in set.union(*(urls_of(job, b) for b in range(3)))


def test_a_missing_journal_ends_the_run_before_anything_is_deleted(job: FetchState) -> None:
    distribute(job, lines(*LISTED))
    open_part = job.folder / "00001.warc.gz"
    open_part.write_bytes(b"records")
    job.journal_path(1).unlink()
    for attempt in (lambda: distribute(job, lines()), lambda: write_tables(job, 1)):
        with pytest.raises(OSError, match=f"{job.journal_path(1)} is missing"):
            attempt()
    assert open_part.read_bytes() == b"records" and not job.journal_path(1).exists()
    # As many buckets as there were, not as many as have a journal.
    assert continue_fetch(replace(job, buckets=8)).buckets == 3


def test_lines_that_a_journal_has_lost_are_an_error(job: FetchState) -> None:
    distribute(job, lines(*LISTED, LISTED[0]))
    given = read_lines(job.folder)
    assert given is not None and sum(given) == len(LISTED) + 2
    bucket = given.index(max(given))
    empty = given.index(min(given))
    with Journal(job.folder / "empty.journal", new=True) as journal:
        journal.commit()
    os.replace(job.folder / "empty.journal", job.journal_path(bucket))
    expected = f"accounts for 0 of the {given[bucket]} lines"
    with pytest.raises(OSError, match=expected):
        write_tables(job, bucket)
    (job.folder / LINES).write_text('{"lines": [1]}')
    with pytest.raises(OSError, match="lists 1 buckets and the run has 3"):
        distribute(job, lines())
    (job.folder / LINES).write_text('{"lines": 7}')
    with pytest.raises(OSError, match="is damaged"):
        write_tables(job, empty)


def test_a_bucket_without_an_outcome_has_no_tables(job: FetchState) -> None:
    distribute(job, lines(*LISTED))
    bucket = assign_bucket("a.org", 3)
    with pytest.raises(OSError, match="has no outcome of http://"):
        write_tables(job, bucket)


def test_work_of_an_older_version_continues(job: FetchState) -> None:
    """Its journals have no table of parts, and there is no record of lines."""
    distribute(job, lines())
    (job.folder / LINES).unlink()
    for bucket in range(3):
        with closing(sqlite3.connect(job.journal_path(bucket))) as database:
            database.execute("DROP TABLE parts")
            database.commit()
    (job.folder / ".vlmill-lock-00000.journal").touch()
    distribute(job, lines())
    assert continue_fetch(replace(job, buckets=8)).buckets == 3
    for bucket in range(3):
        assert write_tables(job, bucket).archives == []


def sent(job: FetchState, bucket: int, *urls: str) -> None:
    """Leaves URLs in a bucket for bucket 2, as a page or a redirect would."""
    with open_bucket(job, bucket) as opened:
        for url in urls:
            opened.journal.outbox.send(2, UrlEntry(url=url, source="fetch_redirects", hops=1))
        opened.journal.commit()


def test_what_was_sent_arrives_in_the_next_round_once(job: FetchState) -> None:
    distribute(job, lines())
    assert fetch_bucket(job, 0).metrics == {"sent": [], "failed": 0, "retry": 0}
    sent(job, 0, "http://10.0.0.1/1", "http://10.0.0.1/2")
    assert fetch_bucket(job, 0).metrics["sent"] == [2]
    assert fetch_bucket(job, 0).metrics["sent"] == []  # all of it is written
    assert fetch_bucket(job, 2).metrics["failed"] == 0
    assert urls_of(job, 2) == {"http://10.0.0.1/1", "http://10.0.0.1/2"}
    sent(job, 0, "http://10.0.0.1/2", "http://10.0.0.1/3")
    fetch_bucket(job, 0)
    fetch_bucket(job, 2)
    with job.journal(2) as journal:
        assert len(list(journal.rows("SELECT url FROM urls WHERE outcome = 'robots'"))) == 0
        assert sorted(journal.rows("SELECT url, times FROM urls"))[-1] == ("http://10.0.0.1/3", 1)


def in_store(bucket: str) -> FetchState:
    manners = PolitenessPolicy(contact="me@example.org")
    return FetchState(output=f"{bucket}/out", buckets=3, policy=manners, lock_seconds=0)


def test_a_bucket_continues_from_its_last_push(bucket: str) -> None:
    """Its worker was killed after a push, with a record that it had not pushed yet."""
    job = in_store(bucket)
    distribute(job, lines(*LISTED))
    number = assign_bucket("a.org", 3)
    place = RecordLocation(part=0, offset=0, length=0)
    with pytest.raises(RuntimeError, match="killed"), open_bucket(job, number) as opened:
        place = opened.parts.add(b"a record", timestamp=1.0)
        finish_url(opened, "http://a.org/0", place)
        opened.journal.save(opened.parts)
        finish_url(opened, "http://a.org/1", opened.parts.add(b"another", timestamp=2.0))
        opened.journal.commit()
        raise RuntimeError("killed")
    names = {path.name.partition("-")[0] for path in job.journal_path(number).iterdir()}
    assert names == {"journal", "log", "part"}
    with open_bucket(job, number) as opened:
        query = "SELECT url FROM urls WHERE outcome IS NOT NULL"
        assert list(opened.journal.rows(query)) == [("http://a.org/0",)]
        waits = [last_at for (last_at,) in opened.journal.rows("SELECT last_at FROM hosts")]
        assert min(waits) > time.time() - 60  # any host may just have been asked
        (archive,) = opened.journal.finished_parts(number)
        assert opened.parts.part == 1
    content = (to_path(job.output) / archive.name).read_bytes()
    assert content[place.offset :] == b"a record" and len(content) == archive.bytes
    assert [path.name for path in job.journal_path(number).iterdir()] == ["journal-000002"]


def finish_url(opened: OpenBucket, url: str, place: RecordLocation) -> None:
    """Records that a URL was fetched."""
    (host,) = (host for host in opened.journal.take_hosts(99) if host.name in url)
    opened.journal.leave_host(host)
    (turn,) = (turn for turn in opened.journal.queue(host.id, 0, 99) if turn.url == url)
    outcome = Outcome(outcome="fetched", fetched_at=1.0)
    opened.journal.record_outcome(host.id, turn.id, outcome, place)


def test_a_large_log_becomes_a_new_base(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "LOG_BYTES", 0)
    job = in_store(bucket)
    distribute(job, lines(*LISTED))
    number = assign_bucket("a.org", 3)
    with pytest.raises(RuntimeError), open_bucket(job, number) as opened:
        for url in ("http://a.org/0", "http://a.org/1"):
            finish_url(opened, url, opened.parts.add(url.encode(), timestamp=1.0))
            opened.journal.save(opened.parts)
        raise RuntimeError("killed")
    kinds = sorted(path.name for path in job.journal_path(number).iterdir())
    assert kinds[0] == "journal-000003" and all(name.startswith("part") for name in kinds[1:])
    with open_bucket(job, number) as opened:
        query = "SELECT count(*) FROM urls WHERE outcome IS NOT NULL"
        assert next(opened.journal.rows(query)) == (2,)


def test_a_worker_that_has_lost_its_bucket_writes_nothing(bucket: str) -> None:
    job = in_store(bucket)
    distribute(job, lines(*LISTED))
    number = assign_bucket("a.org", 3)
    with pytest.raises(StoreFailed, match="has taken over"), open_bucket(job, number) as first:
        with open_bucket(job, number) as second:
            location = second.parts.add(b"a record", timestamp=1.0)
            finish_url(second, "http://a.org/0", location)
            lock = remote_lock._held[str(job.journal_path(number))]
            lock.lost_to = "another run"
        del first


def test_a_missing_mirror_is_named(bucket: str) -> None:
    job = in_store(bucket)
    distribute(job, lines(*LISTED))
    distribute(job, lines("http://other.org/"))  # an earlier run has begun
    remove_tree(job.journal_path(1))
    with pytest.raises(OSError, match=f"{job.journal_path(1)} is missing"):
        distribute(job, lines())
