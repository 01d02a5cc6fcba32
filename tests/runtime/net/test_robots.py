"""What robots.txt lets us fetch: by status, by groups and rules, and whatever stands in it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmill.runtime.net.robots import MAX_BYTES, read_robots, robots_url

SITE = "http://a.org"


def allows(text: str, path: str = "/x") -> bool:
    """Whether a robots.txt lets us fetch a path."""
    return read_robots(200, text.encode()).allows(SITE + path)


@pytest.mark.parametrize(
    ("url", "robots"),
    [
        ("http://a.org/b/c?d", "http://a.org/robots.txt"),
        ("https://a.org:8443/", "https://a.org:8443/robots.txt"),
        ("http://[2600::1]/x", "http://[2600::1]/robots.txt"),
    ],
)
def test_each_origin_has_its_own(url: str, robots: str) -> None:
    assert robots_url(url) == robots


@pytest.mark.parametrize(
    ("status", "is_open"),
    [
        *((0, False), (200, False), (206, False), (301, True), (304, True), (401, True)),
        *((403, True), (404, True), (410, True), (429, False), (500, False), (599, False)),
    ],
)
def test_by_status(status: int, is_open: bool) -> None:
    robots = read_robots(status, b"User-agent: *\nDisallow: /")
    assert robots.allows(f"{SITE}/x") is is_open
    assert robots.is_closed is (not is_open and not 200 <= status < 300)


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        ("", True),
        ("Disallow: /", True),  # of no robot
        ("User-agent: *\nDisallow:", True),
        ("User-agent: *\nDisallow: /", False),
        ("user-AGENT:*\ndisALLOW:/ # all", False),
        ("\ufeffUser-agent: *\r\nDisallow: /x\r\n", False),
        ("User-agent: other\nDisallow: /", True),
        ("User-agent: VLMill\nDisallow: /\n\nUser-agent: *\nAllow: /", False),
        ("User-agent: vlmill/2.0 (x)\nDisallow: /", False),
        ("User-agent: *\nDisallow: /\n\nUser-agent: vlmill\nDisallow: /y", True),
        ("User-agent: vl\nDisallow: /", True),
        ("User-agent: vlmill-images\nDisallow: /", True),
        ("User-agent: a\nUser-agent: vlmill\nDisallow: /x", False),
        (
            "User-agent: vlmill\nDisallow: /y\nUser-agent: a\nUser-agent: vlmill\nDisallow: /x",
            False,
        ),
        ("User-agent: *\nSitemap: /s\nDisallow: /x", False),
        ("User-agent: *\nDisallow: /\nAllow: /x", True),
        ("User-agent: *\nAllow: /\nDisallow: /x", False),
        ("User-agent: *\nAllow: /x\nDisallow: /x", True),  # of equal length
        ("User-agent: *\nDisallow: /X", True),
        ("User-agent: *\nDisallow: /*$", False),
        ("User-agent: *\nDisallow: /x$", False),
        ("User-agent: *\nDisallow: /*y", True),
        ("User-agent: *\nDisallow: /%78", False),
        ("<html>Not found</html>", True),
    ],
)
def test_groups_and_rules(text: str, is_allowed: bool) -> None:
    assert allows(text) is is_allowed


def test_robots_txt_itself_is_always_allowed() -> None:
    assert allows("User-agent: *\nDisallow: /", "/robots.txt")


@pytest.mark.parametrize(
    ("lines", "delay"),
    [
        ("", None),
        ("Crawl-delay: 2.5", 2.5),
        ("Crawl-delay: 0", 0.0),
        ("Crawl-delay: -1", None),
        ("Crawl-delay: nan", None),
        ("Crawl-delay: soon", None),
        ("Request-rate: 2/1m", 30.0),
        ("Request-rate: 1/10\nCrawl-delay: 3", 10.0),
        ("Request-rate: 0/10", None),
    ],
)
def test_delays(lines: str, delay: float | None) -> None:
    other = "\n\nUser-agent: other\nCrawl-delay: 99\n"
    text = f"User-agent: *\nDisallow: /y\n{lines}{other}"
    assert read_robots(200, text.encode()).crawl_delay == delay


def test_what_lies_behind_the_limit_is_not_read() -> None:
    start = b"User-agent: *\nDisallow: /y\n"
    text = start + b"#" * (MAX_BYTES - len(start)) + b"\nDisallow: /x"
    assert read_robots(200, text).allows(f"{SITE}/x")
    assert not read_robots(200, text).allows(f"{SITE}/y")


@pytest.mark.parametrize(
    "text",
    [
        b"".join(b"User-agent: a%d\n" % n for n in range(12_000)) + b"Disallow: /b\n" * 10_000,
        b"User-agent: vlmill\n" * 10_000 + b"Disallow: /b\n" * 10_000,
        b"User-agent: *\n" + b"Disallow: /" + b"*x" * 200_000 + b"b\n",
        b"User-agent: *\n" + b"".join(b"Disallow: /*x*x*x*%d\n" % n for n in range(20_000)),
        b"User-agent" + b" " * MAX_BYTES,
        bytes(range(256)) * 2_000,
    ],
    ids=["robots", "ourselves", "wildcards", "rules", "spaces", "bytes"],
)
def test_hostile_files_are_read(text: bytes) -> None:
    assert read_robots(200, text).allows(f"{SITE}/" + "x" * 4_000)


@given(st.binary(max_size=200), st.text(max_size=50))
def test_any_bytes_are_read(content: bytes, path: str) -> None:
    robots = read_robots(200, content)
    assert robots.allows(f"{SITE}/{path}") in (True, False)
    assert robots.crawl_delay is None or robots.crawl_delay >= 0
