"""What an answer means for its URL."""

import pytest

from vlmill.pipelines.web.fetching.answers import Judgement, judge, retry_after_s
from vlmill.pipelines.web.fetching.entries import QueuedUrl
from vlmill.pipelines.web.fetching.pages import Scope
from vlmill.runtime.net.exchange import Answer, Request
from vlmill.schemas.rejects import Reason

URL = "http://a.org/x/y"
JPEG = b"\xff\xd8\xff\xe0 picture"
PAGE = (
    b"<html><body><img src=a.jpg srcset='b.jpg 2x, c.jpg 3x'><img src=/a2.jpg>"
    b"<a href=/next#part>n</a><a href=http://b.org/>b</a><a rel='ugc nofollow' href=/no>c</a>"
    b"<a href=mailto:x@y.z>d</a></body></html>"
)
HTML = {"content-type": "text/html"}


def judged(
    status: int = 200,
    content: bytes = b"",
    headers: dict[str, str] | None = None,
    *,
    follow: int = 0,
    hops: int = 0,
    scope: Scope | None = None,
    location: str | None = None,
    failure: Reason | None = None,
    etag: str | None = None,
) -> Judgement:
    answer = Answer(
        request=Request(url=URL),
        status=status,
        head=b"HTTP/1.1 200 OK\r\n\r\n",
        headers=headers or {},
        body=content,
        content=content,
        location=location,
        failure=failure,
        started=10.0,
    )
    turn = QueuedUrl(
        id=1,
        url=URL,
        source="fetch_listed",
        follow=follow,
        hops=hops,
        attempts=0,
        etag=etag,
        modified=None,
    )
    return judge(answer, turn, scope or Scope(), max_redirects=2)


def test_a_image_is_archived() -> None:
    judgement = judged(content=JPEG, headers={"content-type": "text/html", "etag": '"1"'})
    assert judgement.outcome.outcome == "fetched" and judgement.outcome.etag == '"1"'
    assert judgement.record is not None and not judgement.entries


def test_of_a_page_its_images_are_wanted() -> None:
    judgement = judged(content=PAGE, headers=HTML)
    assert [(w.url, w.alternatives, w.source, w.follow) for w in judgement.entries] == [
        (
            "http://a.org/x/c.jpg",  # the largest; the others only if it fails
            ("http://a.org/x/b.jpg", "http://a.org/x/a.jpg"),
            "fetch_pictures",
            -1,
        ),
        ("http://a.org/a2.jpg", (), "fetch_pictures", -1),
    ]
    assert {w.referrer for w in judgement.entries} == {URL}


def test_links_are_wanted_where_they_are_followed() -> None:
    def links(**scope: bool) -> list[tuple[str, int]]:
        wanted = judged(content=PAGE, headers=HTML, follow=2, scope=Scope(**scope)).entries
        return [(w.url, w.follow) for w in wanted if w.source == "fetch_links"]

    assert links() == [("http://a.org/next", 1), ("http://b.org/", 1)]
    assert links(same_host=True) == [("http://a.org/next", 1)]


def test_a_page_may_ask_not_to_be_followed() -> None:
    content = PAGE.replace(b"<body>", b"<meta name=ROBOTS content='nofollow'><body>")
    wanted = judged(content=content, headers=HTML, follow=1).entries
    assert {w.source for w in wanted} == {"fetch_pictures"}


@pytest.mark.parametrize(
    ("status", "may_retry"), [(404, False), (410, False), (500, True), (503, True), (429, True)]
)
def test_statuses(status: int, may_retry: bool) -> None:
    outcome = judged(status).outcome
    assert (outcome.outcome, outcome.detail) == ("bad_status", str(status))
    assert outcome.may_retry == may_retry


@pytest.mark.parametrize(
    ("content", "headers", "follow", "reason"),
    [
        (b"", {}, 0, "empty"),
        (b"words", {"content-type": "text/plain"}, 0, "other_type"),
        (PAGE, HTML, -1, "other_type"),
        (JPEG, {"x-robots-tag": "noai"}, 0, "no_ai"),
        (JPEG, {"tdm-reservation": "1"}, 0, "tdm_reserved"),
        (b"<html><meta name=robots content=noindex>", HTML, 0, "no_index"),
    ],
)
def test_what_is_not_kept(
    content: bytes, headers: dict[str, str], follow: int, reason: str
) -> None:
    judgement = judged(content=content, headers=headers, follow=follow)
    assert judgement.outcome.outcome == reason
    assert judgement.record is None and not judgement.entries and not judgement.outcome.may_retry


@pytest.mark.parametrize(
    ("failure", "may_retry"),
    [(Reason.TIMED_OUT, True), (Reason.BAD_ADDRESS, False), (Reason.TOO_LARGE, False)],
)
def test_failures(failure: Reason, may_retry: bool) -> None:
    outcome = judged(0, failure=failure).outcome
    assert (outcome.outcome, outcome.may_retry) == (failure.value, may_retry)


def test_a_redirect_leads_on() -> None:
    judgement = judged(302, location="http://b.org/", follow=1)
    (target,) = judgement.entries
    assert (target.url, target.hops, target.follow, target.referrer) == ("http://b.org/", 1, 1, URL)
    assert judgement.outcome.outcome == "redirected" and judgement.record is not None


def test_redirects_end() -> None:
    assert judged(302, location="http://b.org/", hops=2).outcome.outcome == "too_many_redirects"
    assert judged(302, headers={"location": "file:///x"}).outcome.outcome == "bad_url"


def test_not_modified_is_an_outcome_of_a_question_alone() -> None:
    assert judged(304, etag='"1"').outcome.outcome == "not_modified"
    assert judged(304, etag='"1"').outcome.etag == '"1"'
    assert judged(304).outcome.outcome == "bad_status"


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("7", 7.0),
        ("Thu, 01 Jan 1970 00:00:30 GMT", 20.0),
        ("1.5", 1.5),
        ("Thu, 01 Jan 1970 00:00:01 GMT", None),  # it is over
        ("2026-11-27T12:00:00Z", None),
        ("soon", None),
        ("-1", None),
        ("", None),
        ("Mon, 99 Foo 99999999999 00:00:00 GMT", None),
    ],
)
def test_retry_after(said: str, seconds: float | None) -> None:
    request = Request(url=URL)
    answer = Answer(request=request, status=429, headers={"retry-after": said}, started=10.0)
    assert retry_after_s(answer) == seconds
