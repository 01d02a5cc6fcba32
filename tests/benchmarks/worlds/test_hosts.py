"""The generated web of hosts says what its table promises, as far as one request can tell."""

from collections.abc import Iterator
from ipaddress import ip_network

import pytest
from worlds.host_kinds import KINDS, make_site
from worlds.host_server import Served, serve_site
from worlds.hosts import FETCHED, FORMATS, REDIRECTED, image

from vlmill.pipelines.web.archives.content import sniff_kind
from vlmill.runtime.net.client import Client
from vlmill.runtime.net.exchange import Answer, ClientSettings, Request
from vlmill.runtime.net.opt_outs import header_opt_outs
from vlmill.schemas.rejects import Reason

pytestmark = pytest.mark.nightly

NUM_HOSTS = len(KINDS) + 2
# What the client alone finds out; all else is a whole answer that a crawl judges.
OF_CLIENT = {
    *("bad_url", "bad_address", "unknown_host", "no_connection", "timed_out"),
    *("headers_too_large", "too_large", "bad_response", "cut_off"),
}
BUSY = {"busy", "unavailable"}  # kinds that answer when they are asked again
BY_RULES = {"robots", "no_ai", "no_image_ai", "no_index", "tdm_reserved", "too_many_redirects"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_site(tmp_path_factory.mktemp("hosts") / "log", NUM_HOSTS) as served:
        yield served


@pytest.fixture(scope="module")
def answers(served: Served) -> dict[str, Answer]:
    """The first answer to each URL of the table."""
    settings = ClientSettings(
        contact="tests@example.org",
        seconds=6.0,  # the two slow hosts take it
        connect_seconds=20.0,
        max_bytes=1 << 20,
        allowed=(ip_network("127.0.0.0/8"),),
    )
    answers, urls = {}, list(served.site.outcomes())
    with Client(settings) as client:
        while urls or client.num_running:
            while urls and client.num_free:
                client.start(Request(url=urls.pop()))
            answers.update({answer.request.url: answer for answer in client.wait(1.0)})
    return answers


def told(answer: Answer) -> str:
    """The outcome as far as one answer tells."""
    if answer.failure is not None:
        return answer.failure.value
    if answer.status in (301, 302):
        return REDIRECTED if answer.location else Reason.BAD_URL.value
    if answer.status != 200:
        return Reason.BAD_STATUS.value
    if not answer.content:
        return Reason.EMPTY.value
    kind = sniff_kind(answer.content, answer.headers.get("content-type", ""))
    return FETCHED if kind else Reason.OTHER_TYPE.value


def test_every_url_has_its_outcome(served: Served, answers: dict[str, Answer]) -> None:
    expected = served.site.outcomes()
    busy = {e.url for e in served.site.expected if served.site.kind_at(e.url) in BUSY}
    judged = {u: o for u, o in expected.items() if o not in BY_RULES and u not in busy}
    assert len(judged) > 60
    assert {url: told(answers[url]) for url in judged} == judged


def test_opt_outs_stand_in_headers(served: Served, answers: dict[str, Answer]) -> None:
    for expected in served.site.expected:
        if served.site.kind_at(expected.url) == "opt_out_headers":
            forbidden = header_opt_outs(answers[expected.url].headers)
            assert (expected.outcome in forbidden) is (expected.outcome != FETCHED)


def test_requests_are_written_down(served: Served, answers: dict[str, Answer]) -> None:
    hits = served.hits()
    paths = {(hit.host, hit.path) for hit in hits}
    assert (0, "/a.jpg") in paths and len(hits) >= len(paths) > 80
    assert [hit.at for hit in hits] == sorted(hit.at for hit in hits)
    assert all(hit.running >= 1 and "tests@example.org" in hit.agent for hit in hits)


def test_the_table_names_every_reason_of_the_client() -> None:
    site = make_site(1, NUM_HOSTS)
    assert {e.outcome for e in site.expected} >= (OF_CLIENT | BY_RULES) - {
        "no_connection",
        "tls_error",
    }
    assert len({e.url for e in site.expected}) == len(site.expected)
    assert len(site.urls(slow=False)) == len(site.urls()) - 2
    assert set(site.kinds.values()) == {kind.__name__ for kind in KINDS} | {"plain"}


def test_images_are_distinct_and_of_their_format() -> None:
    images = {image(kind, seed) for kind in FORMATS for seed in range(5)}
    assert len(images) == 5 * len(FORMATS)
    assert {sniff_kind(one) for one in images} == {"picture"}
