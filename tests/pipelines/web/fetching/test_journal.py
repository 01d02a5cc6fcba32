"""The journal of a bucket: queues, outcomes, passes, and what goes between buckets."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from vlmill.pipelines.web.fetching.entries import (
    FETCHED,
    HostRow,
    OriginRow,
    Outcome,
    QueuedUrl,
    UrlEntry,
)
from vlmill.pipelines.web.fetching.journal import Journal
from vlmill.pipelines.web.fetching.outbox import write_sent
from vlmill.pipelines.web.fetching.warc import RecordLocation
from vlmill.schemas.rejects import Reason

GONE = Outcome(outcome="timed_out", may_retry=True, fetched_at=1.0)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "a.journal", new=True) as journal:
        yield journal


def wanted(url: str, **more: object) -> UrlEntry:
    return UrlEntry(**{"url": url, "source": "fetch_listed", **more})  # type: ignore[arg-type]


def only_host(journal: Journal) -> HostRow:
    (host,) = journal.take_hosts(10)
    return host


def waiting_of(journal: Journal, host: HostRow) -> list[QueuedUrl]:
    return journal.queue(host.id, 0, 100)


def times(journal: Journal) -> dict[str, int]:
    return dict(journal.rows("SELECT url, times FROM urls"))


def test_a_url_that_is_listed_again_counts(journal: Journal) -> None:
    for _ in range(3):
        journal.list_url(wanted("http://a.org/1"))
    journal.list_url(wanted("http://a.org/2"))
    assert times(journal) == {"http://a.org/1": 3, "http://a.org/2": 1}
    assert journal.waiting() == 2


def test_lines_that_are_no_urls_count(journal: Journal) -> None:
    journal.drop_line("x", Reason.BAD_URL, "no scheme")
    journal.drop_line("x", Reason.BAD_URL, "no scheme")
    assert list(journal.rows("SELECT line, reason, times FROM lines")) == [("x", "bad_url", 2)]


def test_hosts_are_taken_once_until_they_are_left(journal: Journal) -> None:
    journal.list_url(wanted("http://a.org/1"))
    journal.list_url(wanted("http://b.org/1"))
    first, second = journal.take_hosts(1), journal.take_hosts(5)
    assert [host.name for host in first + second] == ["a.org", "b.org"]
    assert not journal.take_hosts(5)
    first[0].failures = 2
    journal.leave_host(first[0])
    assert only_host(journal).failures == 2


def test_a_queue_is_in_order_and_read_in_pieces(journal: Journal) -> None:
    for number in range(5):
        journal.list_url(wanted(f"http://a.org/{number}", etag='"x"'))
    host = only_host(journal)
    first = journal.queue(host.id, 0, 2)
    rest = journal.queue(host.id, first[-1].id, 10)
    assert [turn.url[-1] for turn in first + rest] == list("01234")
    assert first[0].etag == '"x"' and first[0].attempts == 0


def test_what_is_answered_waits_no_more(journal: Journal) -> None:
    journal.list_url(wanted("http://a.org/1"))
    host = only_host(journal)
    (turn,) = waiting_of(journal, host)
    place = RecordLocation(part=1, offset=20, length=30)
    journal.record_outcome(host.id, turn.id, Outcome(outcome=FETCHED, fetched_at=5.0), place)
    assert journal.waiting() == 0 and journal.last_location() == place
    assert not waiting_of(journal, host)


def test_nothing_counts_before_it_is_committed(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with Journal(path, new=True) as journal:
        journal.list_url(wanted("http://a.org/1"))
        journal.commit()
        host = only_host(journal)
        journal.commit()
        (turn,) = waiting_of(journal, host)
        journal.record_outcome(host.id, turn.id, Outcome(outcome=FETCHED), None)
    with Journal(path) as journal:  # as a kill leaves it
        assert journal.waiting() == 1
        assert not journal.take_hosts(5)
        journal.release_hosts(77.0)
        assert only_host(journal).last_at == 77.0  # it may have been asked until then


def test_a_host_set_aside_gives_all_its_urls_one_outcome(journal: Journal) -> None:
    for number in range(3):
        journal.list_url(wanted(f"http://a.org/{number}"))
    journal.list_url(wanted("http://b.org/"))
    host = journal.take_hosts(1)[0]
    assert journal.set_aside(host.id, Outcome(outcome="host_failed", may_retry=True)) == 3
    assert journal.waiting() == 1


def test_a_pass_lets_failures_wait_once(journal: Journal) -> None:
    journal.list_url(wanted("http://a.org/1"))
    journal.list_url(wanted("http://a.org/2"))
    host = only_host(journal)
    journal.keep_origin(host.id, OriginRow(origin="http://a.org", robots=b"said"))
    one, two = waiting_of(journal, host)
    journal.record_outcome(host.id, one.id, GONE, None)
    journal.record_outcome(host.id, two.id, Outcome(outcome="bad_status"), None)
    assert journal.retry_failed(1) == 1
    assert [turn.attempts for turn in waiting_of(journal, host)] == [1]
    origin = journal.origin("http://a.org")
    assert origin is not None and origin.robots is None  # asked again, too
    assert journal.retry_failed(1) == 0  # as after a kill: this pass has begun
    journal.record_outcome(host.id, one.id, GONE, None)
    assert journal.retry_failed(2) == 1


def test_of_links_a_host_takes_so_many(journal: Journal) -> None:
    journal.list_url(wanted("http://a.org/listed"))
    for number in range(5):
        journal.add(wanted(f"http://a.org/{number}", follow=0), max_pages=2)
    journal.add(wanted("http://a.org/listed", follow=0), max_pages=2)
    journal.add(wanted("http://a.org/picture"), max_pages=2)
    assert sorted(url[-1] for url in times(journal)) == ["0", "1", "d", "e"]
    assert list(journal.rows("SELECT left_out FROM hosts")) == [(3,)]


def test_the_deepest_way_to_a_page_counts(journal: Journal) -> None:
    journal.add(wanted("http://a.org/1", follow=0), max_pages=9)
    journal.add(wanted("http://a.org/1", follow=2), max_pages=9)
    journal.add(wanted("http://a.org/1", follow=-1), max_pages=9)
    assert [turn.follow for turn in waiting_of(journal, only_host(journal))] == [2]


def test_what_is_sent_is_pulled_once(tmp_path: Path, journal: Journal) -> None:
    sent = tmp_path / "sent"
    journal.outbox.send(1, wanted("http://b.org/1", referrer="http://a.org/", hops=2))
    journal.outbox.send(2, wanted("http://c.org/1", alternatives=("http://c.org/2",)))
    assert write_sent(sent, 0, journal.outbox) == [1, 2]
    assert write_sent(sent, 0, journal.outbox) == []
    with Journal(tmp_path / "b.journal", new=True) as other:
        for _ in range(2):
            other.pull_sent(sent, 1, max_pages=9)
            assert list(other.rows("SELECT url, referrer, hops, times FROM urls")) == [
                ("http://b.org/1", "http://a.org/", 2, 1)
            ]
        journal.outbox.send(1, wanted("http://b.org/2"))
        write_sent(sent, 0, journal.outbox)
        other.pull_sent(sent, 1, max_pages=9)
        assert other.waiting() == 2
    with Journal(tmp_path / "c.journal", new=True) as third:
        third.pull_sent(sent, 2, max_pages=9)
        (turn,) = waiting_of(third, only_host(third))
        assert turn.alternatives == ("http://c.org/2",)
