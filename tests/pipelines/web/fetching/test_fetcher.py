"""The loop of a bucket, with servers and a clock of its own: order, rates, patience, bounds."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vlmill.pipelines.web.fetching.entries import UrlEntry
from vlmill.pipelines.web.fetching.fetcher import Fetcher
from vlmill.pipelines.web.fetching.hosts import assign_bucket
from vlmill.pipelines.web.fetching.journal import Journal
from vlmill.pipelines.web.fetching.pages import Scope
from vlmill.pipelines.web.fetching.politeness import PolitenessPolicy
from vlmill.pipelines.web.fetching.warc import Parts
from vlmill.runtime.net.exchange import Answer, Request
from vlmill.schemas.rejects import Reason

MANNERS = PolitenessPolicy(contact="me@example.org", delay_s=1.0, max_failures=3)
JPEG = b"\xff\xd8\xff picture"
Replies = dict[str, Sequence[dict[str, Any]]]


class World:
    """Servers that answer after a tenth of a second, and the only clock."""

    def __init__(self, replies: Replies) -> None:
        self.replies, self.now = replies, 1_000.0
        self.asked: list[tuple[float, str]] = []
        self._answers: list[Answer] = []

    num_free = property(lambda self: 8 - len(self._answers))
    num_running = property(lambda self: len(self._answers))

    def start(self, request: Request) -> None:
        """Answers a request by the next of its replies, the last of which stays."""
        self.asked.append((self.now, request.url))
        times = sum(url == request.url for _, url in self.asked)
        replies = self.replies.get(request.url, [{"status": 404}])
        reply = replies[min(times, len(replies)) - 1]
        content = reply.get("content", b"")
        facts = {"head": b"HTTP/1.1 200 OK\r\n\r\n", "body": content, "started": self.now}
        self._answers.append(Answer(request=request, **{**facts, "seconds": 0.1, **reply}))

    def wait(self, timeout: float) -> list[Answer]:
        """Everything that is running, a tenth of a second later."""
        self.now += 0.1
        answers, self._answers = self._answers, []
        return answers

    def sleep(self, seconds: float) -> None:
        """Lets time pass."""
        self.now += max(seconds, 0.001)

    def urls(self) -> list[str]:
        """What was asked for beside robots.txt and tdmrep.json."""
        return [url for _, url in self.asked if not url.endswith((".txt", ".json"))]


Run = Callable[..., dict[str, tuple[str, str | None]]]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal", new=True) as journal:
        yield journal


@pytest.fixture
def run(tmp_path: Path, journal: Journal) -> Run:
    """Lists URLs, fetches what waits, and returns outcome and detail of each URL."""

    def run(
        world: World,
        *urls: str,
        manners: PolitenessPolicy = MANNERS,
        scope: Scope | None = None,
        buckets: int = 1,
        follow: int = 0,
    ) -> dict[str, tuple[str, str | None]]:
        for url in urls:
            journal.list_url(UrlEntry(url=url, source="fetch_listed", follow=follow))
        parts = Parts(
            tmp_path,
            tmp_path / "open",
            0,
            contact="me@example.org",
            max_bytes=1 << 20,
            journalled=journal.last_location(),
        )
        Fetcher(
            journal,
            parts,
            world,  # type: ignore[arg-type]
            bucket=0,
            buckets=buckets,
            policy=manners,
            scope=scope or Scope(),
            watch=lambda done, rejected: None,
            clock=lambda: world.now,
            sleep=world.sleep,
        ).run()
        parts.close()
        rows = journal.rows("SELECT url, outcome, detail FROM urls")
        return {url: (outcome, detail) for url, outcome, detail in rows}

    return run


def images(*urls: str) -> Replies:
    return {url: [{"status": 200, "content": JPEG}] for url in urls}


def test_a_host_is_asked_once_in_a_while(run: Run) -> None:
    urls = [f"http://a.org/{n}" for n in range(3)]
    world = World(images(*urls))
    assert {o for o, _ in run(world, *urls).values()} == {"fetched"}
    times = [at for at, _ in world.asked]
    assert [url for _, url in world.asked] == [
        *("http://a.org/robots.txt", "http://a.org/.well-known/tdmrep.json"),
        *urls,
    ]
    # From the end of an answer, which comes after a tenth of a second.
    assert all(1.1 <= b - a < 1.7 for a, b in itertools.pairwise(times))


def test_hosts_do_not_wait_for_each_other(run: Run) -> None:
    urls = [f"http://{host}.org/1" for host in "abcdef"]
    world = World(images(*urls))
    run(world, *urls)
    assert world.now < 1_004


def test_robots_may_ask_for_more_time(run: Run) -> None:
    urls = ["http://a.org/1", "http://a.org/2", "https://a.org/3"]
    robots = {"status": 200, "content": b"User-agent: *\nCrawl-delay: 7\n"}
    world = World({**images(*urls), "http://a.org/robots.txt": [robots]})
    run(world, *urls)
    assert min(b - a for a, b in itertools.pairwise([at for at, _ in world.asked])) >= 7


@pytest.mark.parametrize(
    "asked", ["Crawl-delay: 9999", "Crawl-delay: 1e308", "Request-rate: 1/99999999999999999999d"]
)
def test_robots_that_ask_for_too_much_close_a_host(asked: str, run: Run) -> None:
    """Immediately: the crawl does not wait for the turn that such a host would have."""
    robots = {"status": 200, "content": f"User-agent: *\n{asked}\n".encode()}
    world = World({"http://a.org/robots.txt": [robots]})
    outcomes = run(world, "http://a.org/1", "http://a.org/2", "http://b.org/1")
    assert outcomes["http://a.org/1"][0] == outcomes["http://a.org/2"][0] == "host_limit"
    assert outcomes["http://b.org/1"][0] == "bad_status"
    assert world.now < 1_010


@pytest.mark.parametrize("asked", ["nan", "-5", "-1e308", "inf"])
def test_a_delay_that_is_no_number_of_seconds_is_not_asked_for(asked: str, run: Run) -> None:
    robots = {"status": 200, "content": f"User-agent: *\nCrawl-delay: {asked}\n".encode()}
    urls = [f"http://a.org/{n}" for n in range(3)]
    world = World({**images(*urls), "http://a.org/robots.txt": [robots]})
    assert {outcome for outcome, _ in run(world, *urls).values()} == {"fetched"}
    assert world.now < 1_010


@pytest.mark.parametrize("place", ["b.org", "nota.org", "a.org.b.org", "www.a.org:81"])
def test_robots_of_another_site_are_not_known(place: str, run: Run) -> None:
    reply = {"status": 301, "location": f"http://{place}/robots.txt"}
    world = World({"http://a.org/robots.txt": [reply]})
    outcome, detail = run(world, "http://a.org/1")["http://a.org/1"]
    assert (outcome, detail) == ("robots", "robots.txt is on another site")
    assert not world.urls()


@pytest.mark.parametrize(("host", "place"), [("a.org", "www.a.org"), ("x.a.org", "a.org")])
def test_robots_may_lie_elsewhere_on_the_site(host: str, place: str, run: Run) -> None:
    """As where a name without www leads to that with it: the answer is for the former."""
    there = f"https://{place}/robots.txt"
    replies: Replies = {
        f"http://{host}/robots.txt": [{"status": 301, "location": there}],
        there: [{"status": 200, "content": b"User-agent: *\nDisallow: /private\n"}],
    }
    urls = [f"http://{host}/1", f"http://{host}/private"]
    world = World({**replies, **images(*urls)})
    outcomes = {url: outcome for url, (outcome, _) in run(world, *urls).items()}
    assert outcomes == {urls[0]: "fetched", urls[1]: "robots"}
    times = [at for at, _ in world.asked]
    assert [url for _, url in world.asked][:2] == [f"http://{host}/robots.txt", there]
    assert all(b - a >= 1.1 for a, b in itertools.pairwise(times))


def test_reservations_may_lie_elsewhere_on_the_site(run: Run) -> None:
    known, there = "http://a.org/.well-known/tdmrep.json", "https://www.a.org/tdm.json"
    reserved = b'[{"location": "/art/*", "tdm-reservation": 1}]'
    replies: Replies = {
        "http://a.org/robots.txt": [{"status": 301, "location": "http://a.org/r"}],
        known: [{"status": 302, "location": there}],
        there: [{"status": 200, "content": reserved}],
    }
    urls = ["http://a.org/1", "http://a.org/art/2"]
    world = World({**replies, **images(*urls)})
    outcomes = {url: outcome for url, (outcome, _) in run(world, *urls).items()}
    assert outcomes == {urls[0]: "fetched", urls[1]: "tdm_reserved"}
    assert [url for _, url in world.asked][:4] == [
        *("http://a.org/robots.txt", "http://a.org/r", known, there)
    ]


def test_a_reservation_that_leads_round_is_none(run: Run) -> None:
    known = "http://a.org/.well-known/tdmrep.json"
    replies: Replies = {known: [{"status": 302, "location": known}] * 9}
    url = "http://a.org/1"
    world = World({**replies, **images(url)})
    assert run(world, url)[url][0] == "fetched"
    assert [asked for _, asked in world.asked].count(known) == 6


def test_a_host_without_a_name_is_asked_once(run: Run) -> None:
    reply = {"status": 0, "failure": Reason.UNKNOWN_HOST, "detail": "no address"}
    world = World({"http://a.org/robots.txt": [reply]})
    outcomes = run(world, "http://a.org/1", "http://a.org/2")
    assert set(outcomes.values()) == {("unknown_host", "robots.txt: no address")}
    assert len(world.asked) == 1


def test_a_busy_host_is_left_alone(run: Run) -> None:
    url = "http://a.org/1"
    world = World({url: [{"status": 429, "headers": {"retry-after": "30"}}, *images(url)[url]]})
    assert run(world, url)[url][0] == "fetched"
    first, second = (at for at, asked in world.asked if asked == url)
    assert second - first >= 30


def test_a_host_that_wants_too_long_is_set_aside(run: Run) -> None:
    world = World({"http://a.org/1": [{"status": 503, "headers": {"retry-after": "86400"}}]})
    outcomes = run(world, "http://a.org/1", "http://a.org/2")
    assert [o for o, _ in outcomes.values()] == ["bad_status", "host_failed"]
    assert world.urls() == ["http://a.org/1"]
    assert world.now < 1_010  # nor does the crawl wait for it


def test_a_host_that_fails_is_set_aside_and_tried_in_the_next_pass(
    run: Run, journal: Journal
) -> None:
    urls = [f"http://a.org/{n}" for n in range(9)]
    gone = {"status": 0, "failure": Reason.TIMED_OUT}
    world = World({url: [gone] for url in urls})
    assert [o for o, _ in run(world, *urls).values()] == ["timed_out"] * 3 + ["host_failed"] * 6
    assert journal.retry_failed(1) == 9
    assert {o for o, _ in run(World(images(*urls))).values()} == {"fetched"}


def test_a_host_has_its_share_of_bytes(run: Run) -> None:
    urls = [f"http://a.org/{n}" for n in range(5)]
    world = World(images(*urls))
    outcomes = run(world, *urls, manners=replace(MANNERS, max_host_bytes=2 * len(JPEG) - 1))
    assert [o for o, _ in outcomes.values()] == ["fetched"] * 2 + ["host_limit"] * 3


def test_links_are_followed_so_deep_and_so_many(run: Run) -> None:
    def page(*links: str) -> list[dict[str, Any]]:
        body = "".join(f"<a href={link}>x</a>" for link in links)
        return [{"status": 200, "content": f"<html><body>{body}</body></html>".encode()}]

    world = World(
        {
            "http://a.org/0": page("/1", "/1b", "/1c"),
            "http://a.org/1": page("/2"),
            "http://a.org/1b": page(),
        }
    )
    outcomes = run(world, "http://a.org/0", follow=1, scope=Scope(max_pages_per_host=2))
    assert list(outcomes) == [f"http://a.org/{n}" for n in ("0", "1", "1b")]


def test_what_belongs_to_another_bucket_is_sent(run: Run, journal: Journal) -> None:
    own = next(h for h in "abcdefgh" if assign_bucket(f"{h}.org", 2) == 0)
    other = next(h for h in "abcdefgh" if assign_bucket(f"{h}.org", 2) == 1)
    url, target = f"http://{own}.org/1", f"http://{other}.org/2"
    world = World({url: [{"status": 302, "location": target}]})
    assert run(world, url, buckets=2)[url][0] == "redirected"
    ((_, sent),) = journal.outbox.sent_to(1, 0)
    assert (sent.url, sent.hops) == (target, 1)


def test_a_killed_run_waits_before_it_asks(run: Run, journal: Journal) -> None:
    """Of a host that it was at, nobody knows when it was asked last."""
    url = "http://a.org/1"
    journal.list_url(UrlEntry(url=url, source="fetch_listed"))
    journal.take_hosts(5)
    journal.commit()
    world = World(images(url))
    run(world)
    assert world.asked[0][0] >= 1_001


def moved(url: str) -> dict[str, Any]:
    return {"status": 302, "headers": {"location": url}, "location": url}


def test_redirects_in_a_circle_are_rejects(run: Run) -> None:
    own, first, second = (f"http://a.org/{name}" for name in ("own", "1", "2"))
    world = World({own: [moved(own)], first: [moved(second)], second: [moved(first)]})
    found = run(world, own, first, second)
    assert {outcome for outcome, _ in found.values()} == {"too_many_redirects"}
    assert "cookies are not kept" in str(found[own][1])


def test_of_an_image_the_next_address_is_asked_for_only_after_a_failure(run: Run) -> None:
    page = b"<img srcset='s.jpg 1x, m.jpg 2x, l.jpg 3x'><img srcset='x.jpg 1x, y.jpg 2x'>"
    url = "http://a.org/"
    answer = {"status": 200, "content": page, "headers": {"content-type": "text/html"}}
    world = World({**images(*(f"{url}{n}.jpg" for n in "msxy")), url: [answer]})
    assert run(world, url)[f"{url}l.jpg"][0] == "bad_status"
    assert [url.rpartition("/")[2] for url in world.urls()] == ["", "l.jpg", "y.jpg", "m.jpg"]


def test_a_site_that_forbids_training_is_not_fetched(run: Run) -> None:
    url = "http://a.org/a.jpg"
    robots = {"status": 200, "content": b"User-agent: *\nContent-Signal: ai-train=no\n"}
    world = World({**images(url), "http://a.org/robots.txt": [robots]})
    assert run(world, url)[url] == ("no_ai", "by robots.txt")
    assert world.urls() == []
