"""Lists go to buckets as a whole, and URLs between buckets once."""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from vlmill.pipelines.web.fetching.entries import UrlEntry
from vlmill.pipelines.web.fetching.hosts import assign_bucket
from vlmill.pipelines.web.fetching.journal import Journal
from vlmill.pipelines.web.fetching.lines import Line
from vlmill.pipelines.web.fetching.politeness import PolitenessPolicy
from vlmill.pipelines.web.fetching.tables import write_tables
from vlmill.pipelines.web.fetching.warc import part_name
from vlmill.pipelines.web.fetching.work import (
    LINES,
    FetchState,
    continue_fetch,
    distribute,
    finish_bucket,
    pull_all,
    read_lines,
    retry_failed,
)
from vlmill.runtime.files.atomic import write_bytes
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.units.funnel import Drop
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
    for attempt in (lambda: distribute(job, lines()), lambda: finish_bucket(job, 1)):
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
        finish_bucket(job, bucket)
        assert write_tables(job, bucket).archives == []


def test_what_was_sent_arrives_before_the_next_round(job: FetchState) -> None:
    distribute(job, lines())
    assert pull_all(job) == []
    with job.journal(0) as journal:
        journal.outbox.send(2, UrlEntry(url="http://z.org/", source="fetch_redirects", hops=1))
        journal.commit()
    assert pull_all(job) == [2] == pull_all(job)
    assert urls_of(job, 2) == {"http://z.org/"}
    assert retry_failed(job, 1) == 0


def test_journals_that_a_store_has_kept_at_different_times_lose_nothing(
    tmp_path: Path, bucket: str
) -> None:
    """The kept journal of bucket 0 does not know of a URL that bucket 1 has pulled from it."""

    def sends(job: FetchState, url: str) -> None:
        with job.journal(0) as journal:
            journal.outbox.send(1, UrlEntry(url=url, source="fetch_redirects", hops=1))
            journal.commit()

    def keeps(job: FetchState, bucket: int) -> None:
        with job.journal(bucket) as journal:
            journal.keep()

    manners = PolitenessPolicy(contact="me@example.org")
    first = FetchState(output=f"{bucket}/out", buckets=2, policy=manners, local=str(tmp_path / "a"))
    distribute(first, lines(*LISTED))
    sends(first, "http://z.org/1")
    keeps(first, 0)
    sends(first, "http://z.org/2")
    pull_all(first)
    keeps(first, 1)
    # A part whose records no journal lists: its run was killed before it could say so.
    write_bytes(f"{bucket}/out/{part_name(1, 0)}", b"lost")
    second = replace(first, local=str(tmp_path / "b"))
    distribute(second, lines("http://other.org/"))
    assert not to_path(f"{bucket}/out/{part_name(1, 0)}").exists()
    sends(second, "http://z.org/3")
    pull_all(second)
    sent = {f"http://z.org/{number}" for number in (1, 2, 3)}
    assert urls_of(second, 0) | urls_of(second, 1) == {*LISTED, *sent}
    assert sent <= urls_of(second, 1)
    with second.journal(1) as journal:
        waits = {last_at for (last_at,) in journal.rows("SELECT last_at FROM hosts WHERE waiting")}
    assert min(waits) > time.time() - 60  # any host may just have been asked
