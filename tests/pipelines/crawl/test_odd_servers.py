"""Servers as crawlers meet them, all in one crawl: opt-outs, circles, hot links, odd answers."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.pipelines.conftest import make_image

from vlmill.pipelines.crawl.__main__ import main
from vlmill.pipelines.web_pairs import __main__ as web_pairs

TIMEOUT_S = 1.5
IMAGE = make_image(400, 320, seed=1)
CAPTION = "A baker arranges round loaves on a wooden stall beside the harbour wall."
WORDS = "We walked along the river all day and talked about the weather and the books we read. "


class Handler(BaseHTTPRequestHandler):
    """Answers for the host whose address it is asked by; each server has its own class."""

    protocol_version = "HTTP/1.1"
    answer: "Callable[[Handler], None]"
    asked: list[tuple[str, float]]

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        self.asked.append((self.path, time.monotonic()))
        type(self).answer(self)

    def send(self, status: int = 200, body: bytes = b"", **headers: str) -> None:
        headers = {"Content_Length": str(len(body)), "Content_Type": "text/html", **headers}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def send_image(self, body: bytes = IMAGE, **headers: str) -> None:
        self.send(200, body, **{"Content_Type": "image/jpeg", **headers})


def robots(text: str | bytes, **headers: str) -> Callable[[Handler], None]:
    """A site whose robots.txt is given; all else is a page."""
    body = text if isinstance(text, bytes) else text.encode()

    def answer(handler: Handler) -> None:
        if handler.path == "/robots.txt":
            handler.send(200, body, Content_Type="text/plain")
        else:
            handler.send(404 if "well-known" in handler.path else 200, page("a"), **headers)

    return answer


def page(text: str, images: str = "") -> bytes:
    words = f"<p>{WORDS * 6}</p>"
    return f"<html lang=en><title>{text}</title><body>{words}{images}</body></html>".encode()


def site(**answers: Callable[[Handler], None]) -> Callable[[Handler], None]:
    """A site of some files, named by what stands before their names' dot."""

    def answer(handler: Handler) -> None:
        name = handler.path.strip("/").partition(".")[0]
        answers.get(name, lambda handler: handler.send(404))(handler)

    return answer


def lead(place: str) -> Callable[[Handler], None]:
    return lambda handler: handler.send(302, Location=place, Set_Cookie="seen=1")


def with_referrer(handler: Handler) -> None:
    if handler.headers.get("Referer"):
        handler.send_image()
    else:
        handler.send(403)


def patient(said: str) -> Callable[[Handler], None]:
    """A page that is there when it is asked for again."""
    number = count()

    def answer(handler: Handler) -> None:
        if next(number):
            handler.send(200, page("it is there"))
        else:
            handler.send(429, Retry_After=said)

    return answer


def drip(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    for _ in range(20):
        handler.wfile.write(b"x")
        time.sleep(0.5)


def silence(handler: Handler) -> None:
    time.sleep(3 * TIMEOUT_S)
    handler.close_connection = True


def endless(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "text/html")
    handler.end_headers()
    while True:
        handler.wfile.write(b"<p>more</p>" * 1_000)


def located(handler: Handler) -> None:
    """The address of the next page in UTF-8 and with a space, as no header may have it."""
    handler.send_response(302)
    handler.send_header("Content-Length", "0")
    handler.wfile.write(b"".join(handler._headers_buffer))  # type: ignore[attr-defined]
    handler._headers_buffer = []  # type: ignore[attr-defined]
    handler.wfile.write("Location: /käse brot.html\r\n\r\n".encode())


def longer(handler: Handler) -> None:
    """The whole image, of which the header says that it is longer."""
    handler.send_image(Content_Length=str(len(IMAGE) + 500))
    handler.close_connection = True


def only_images(handler: Handler) -> None:
    if "image/" in handler.headers.get("Accept", ""):
        handler.send_image()
    else:
        handler.send(406)


LAZY = (
    "<figure><img src=/tiny.jpg data-src=/a-250.jpg data-srcset='/a-700.jpg 700w, /a-1400.jpg"
    f" 1400w' width=700 height=500><figcaption>{CAPTION}</figcaption></figure>"
)


def lazy_image(width: int) -> Callable[[Handler], None]:
    return lambda handler: handler.send_image(make_image(width, width * 5 // 7, seed=2))


SITES: dict[str, Callable[[Handler], None]] = {
    "signal": robots("User-agent: *\nContent-Signal: search=yes, ai-train=no\nAllow: /\n"),
    "usage": robots("User-agent: *\nContent-Usage: train-ai=n\nAllow: /\n"),
    "header": robots("", Content_Usage="train-ai=n"),
    "self": site(a=lead("/a.html")),
    "loop": site(l1=lead("/l2"), l2=lead("/l1")),
    "lazy": site(
        **{"page": lambda handler: handler.send(200, page("bread", LAZY)), "tiny": lazy_image(10)},
        **{f"a-{width}": lazy_image(width) for width in (250, 700, 1400)},
    ),
    "hotlink": site(
        page=lambda handler: handler.send(200, page("b", f"<img src=/a.jpg alt='{CAPTION}'>")),
        a=with_referrer,
    ),
    "drip": site(a=drip),
    "silent": site(a=silence),
    "endless": site(a=endless),
    "seconds": site(a=patient("1")),
    "fraction": site(a=patient("1.5")),
    "past": site(a=patient("Wed, 21 Oct 2015 07:28:00 GMT")),
    "negative": site(a=patient("-5")),
    "iso": site(a=patient("2026-01-01T00:00:00Z")),
    "word": site(a=patient("soon")),
    "mark": robots(b"\xef\xbb\xbfUser-agent: *\rDisallow: /private\r"),
    "html": robots("<!doctype html><html><body>Not found. Disallow: nothing</body></html>"),
    "long": site(a=longer),
    "place": site(**{"a": located, "k%C3%A4se%20brot": lambda h: h.send(200, page("here"))}),
    "noimage": site(a=lambda handler: handler.send_image(X_Robots_Tag="noimageai")),
    "accept": site(a=only_images),
}
LISTED = {"loop": ["l1", "l2"], "lazy": ["page.html"], "hotlink": ["page.html"]}
IMAGES = ("long", "noimage", "accept")


class Web:
    """The servers, each on an address and so a host of its own."""

    def __init__(self) -> None:
        self.asked: dict[str, list[tuple[str, float]]] = defaultdict(list)
        self.servers = {}
        for number, (name, answer) in enumerate(SITES.items(), start=1):
            own = {"answer": staticmethod(answer), "asked": self.asked[name]}
            handler = type(f"Handler_{name}", (Handler,), own)
            server = ThreadingHTTPServer((f"127.0.3.{number}", 0), handler)
            server.daemon_threads, server.block_on_close = True, False
            server.handle_error = lambda *_: None  # type: ignore[method-assign]
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            self.servers[name] = server

    def url(self, name: str, path: str) -> str:
        address, port = self.servers[name].server_address[:2]
        return f"http://{address!s}:{port}/{path}"

    def listed(self) -> list[str]:
        paths = {
            name: LISTED.get(name, ["a.jpg" if name in IMAGES else "a.html"]) for name in SITES
        }
        paths["mark"] = ["private/a.html", "a.html"]
        return [self.url(name, path) for name in SITES for path in paths[name]]


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    web = Web()
    yield web
    for server in web.servers.values():
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def crawled(web: Web, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The crawl of all."""
    folder = tmp_path_factory.mktemp("odd")
    urls, output = folder / "urls.txt", folder / "crawl"
    urls.write_text("".join(f"{url}\n" for url in web.listed()))
    flags = ["--urls", str(urls), "--output", str(output), "--contact", "me@example.org"]
    flags += ["--allow-address", "127.0.0.0/8", "--delay", "0.05", "--timeout", str(TIMEOUT_S)]
    flags += ["--retries", "1", "--retry-wait", "0.1", "--max-bytes", "1000000", "--workers", "1"]
    assert main(flags) == 0
    return output


@pytest.fixture(scope="module")
def outcomes(crawled: Path) -> dict[str, str]:
    paths = sorted(crawled.glob("outcomes-*.parquet"))
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    return {row["url"]: row["outcome"] for row in rows}


EXPECTED = [
    ("signal", "a.html", "no_ai"),
    ("usage", "a.html", "no_ai"),
    ("header", "a.html", "no_ai"),
    ("self", "a.html", "too_many_redirects"),
    ("loop", "l1", "too_many_redirects"),
    ("loop", "l2", "too_many_redirects"),
    ("lazy", "a-1400.jpg", "fetched"),
    ("hotlink", "a.jpg", "fetched"),
    ("drip", "a.html", "timed_out"),
    ("silent", "a.html", "timed_out"),
    ("endless", "a.html", "too_large"),
    *((name, "a.html", "fetched") for name in ("seconds", "fraction", "past", "negative")),
    ("iso", "a.html", "fetched"),
    ("word", "a.html", "fetched"),
    ("mark", "private/a.html", "robots"),
    ("mark", "a.html", "fetched"),
    ("html", "a.html", "fetched"),
    ("long", "a.jpg", "cut_off"),
    ("place", "k%C3%A4se%20brot.html", "fetched"),
    ("noimage", "a.jpg", "no_image_ai"),
    ("accept", "a.jpg", "fetched"),
]


@pytest.mark.parametrize(("name", "path", "outcome"), EXPECTED)
def test_an_outcome(name: str, path: str, outcome: str, web: Web, outcomes: dict[str, str]) -> None:
    assert outcomes[web.url(name, path)] == outcome


@pytest.mark.usefixtures("outcomes")
@pytest.mark.parametrize(("name", "least"), [("seconds", 1.0), ("fraction", 1.5), ("word", 0.1)])
def test_a_host_waits_as_long_as_it_asks(name: str, least: float, web: Web) -> None:
    first, second = [at for path, at in web.asked[name] if path == "/a.html"]
    assert second - first >= least


@pytest.mark.usefixtures("outcomes")
def test_the_largest_copy_is_asked_for_first(web: Web) -> None:
    assert [path for path, _ in web.asked["lazy"] if path.endswith(".jpg")] == ["/a-1400.jpg"]


def test_the_largest_copy_gives_the_pair(crawled: Path, tmp_path: Path, web: Web) -> None:
    flags = ["--warc", f"{crawled}/*.warc.gz", "--output", str(tmp_path / "pairs")]
    flags += ["--safety-model", "none", "--realism-model", "none", "--workers", "1"]
    assert web_pairs.main(flags) == 0
    paths = (tmp_path / "pairs").glob("pairs-*.parquet")
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    assert {r["image_url"]: r["text"] for r in rows}[web.url("lazy", "a-1400.jpg")] == CAPTION
