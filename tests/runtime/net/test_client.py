"""What becomes of requests: whole answers, and one failure for each thing that servers do wrong."""

import gzip
import os
import resource
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest
from tests.runtime.net.servers import Answering, Send, at_once, ok, sends, serving

from vlmill.runtime.net.client import Client
from vlmill.runtime.net.exchange import Answer, ClientSettings, Request, user_agent
from vlmill.runtime.net.transfer import Transfer
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason

LOCAL = ip_network("127.0.0.0/8")
SETTINGS = ClientSettings(
    contact="tests@example.org",
    connect_seconds=20.0,
    seconds=30.0,
    max_bytes=100_000,
    max_header_bytes=10_000,
    allowed=(LOCAL,),
)
HURRIED = replace(SETTINGS, seconds=0.3)


def fetch(client: Client, requests: Iterable[Request]) -> list[Answer]:
    """The answers to requests, one after the other."""
    answers = []
    for request in requests:
        client.start(request)
        while not (some := client.wait(1.0)):
            pass
        answers += some
    return answers


def one(
    answering: Answering, settings: ClientSettings = SETTINGS, path: str = "/", **fields: Any
) -> Answer:
    """The answer of a server to one request."""
    with serving(answering) as server, Client(settings) as client:
        url = f"http://127.0.0.1:{server.port}{path}"
        (answer,) = fetch(client, [Request(url=url, **fields)])
        return answer


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + end


def test_a_whole_answer() -> None:
    before = time.time()
    answer = one(sends(ok(b"hello", "X-A: 1", "x-b:  2 ")))
    assert (answer.failure, answer.status, answer.address) == (None, 200, "127.0.0.1")
    assert answer.head == b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: 1\r\nx-b:  2 \r\n\r\n"
    assert answer.headers == {"content-length": "5", "x-a": "1", "x-b": "2"}
    assert answer.body == answer.content == b"hello" and answer.location is None
    assert before <= answer.started <= time.time() and 0 < answer.seconds < 30


def test_bytes_are_kept_as_they_came_and_decoded_beside() -> None:
    packed = gzip.compress(b"hello" * 100)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"a\r\n%s\r\n%x;x=y\r\n%s\r\n0\r\n\r\n" % (packed[:10], len(packed) - 10, packed[10:])
    answer = one(sends(head + body))
    assert answer.head + answer.body == head + body
    assert answer.content == b"hello" * 100


def test_trailers_belong_to_the_body() -> None:
    answer = one(sends(chunked(b"hello", end=b"0\r\nX-Late: 1\r\n\r\n")))
    assert answer.content == b"hello" and "x-late" not in answer.headers
    assert answer.body.endswith(b"0\r\nX-Late: 1\r\n\r\n")


def test_interim_responses_are_left_out() -> None:
    answer = one(sends(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + ok()))
    assert (answer.status, answer.content) == (200, b"hello") and "link" not in answer.headers
    assert answer.head.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("version", ["1.0", "2", "3"])
def test_a_status_line_of_another_version(version: str) -> None:
    reply = f"HTTP/{version} 200\r\nContent-Length: 2\r\n\r\nhi".encode()
    assert one(sends(reply)).content == b"hi"


@pytest.mark.parametrize("status", [204, 304, 404, 500, 999])
def test_any_status_is_an_answer(status: int) -> None:
    answer = one(sends(b"HTTP/1.1 %d x\r\nContent-Length: 0\r\n\r\n" % status))
    assert (answer.failure, answer.status, answer.content) == (None, status, b"")


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/a?b#c", "http://127.0.0.1:{port}/a?b"),
        ("b", "http://127.0.0.1:{port}/d/b"),
        ("//[::1]/", "http://[::1]/"),
        ("http://10.0.0.1/x", "http://10.0.0.1/x"),
        ("/\xc3\xa9", "http://127.0.0.1:{port}/%C3%A9"),  # UTF-8, as one writes it
        ("/\xe9", "http://127.0.0.1:{port}/%C3%A9"),
        ("file:///etc/passwd", None),
        ("", None),
        ("http://a b/", None),
        ("x" * 5_000, None),
    ],
)
def test_redirects_are_given_back(location: str, target: str | None) -> None:
    reply = f"HTTP/1.1 302 x\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode("latin-1")
    with serving(sends(reply)) as server, Client(SETTINGS) as client:
        (answer,) = fetch(client, [Request(url=f"http://127.0.0.1:{server.port}/d/")])
        assert answer.failure is None and len(server.heads) == 1
        assert answer.location == (target and target.format(port=server.port))


def test_a_redirect_inside_is_refused_when_it_is_followed() -> None:
    with serving(sends(ok()), "127.0.0.1") as inside:
        reply = b"HTTP/1.1 301 x\r\nLocation: http://127.0.0.1:%d/\r\nContent-Length: 0\r\n\r\n"
        settings = replace(SETTINGS, allowed=(ip_network("127.0.0.2/32"),))
        with serving(sends(reply % inside.port), "127.0.0.2") as server, Client(settings) as client:
            (first,) = fetch(client, [Request(url=f"http://127.0.0.2:{server.port}/")])
            assert first.location is not None
            (second,) = fetch(client, [Request(url=first.location)])
            assert (second.failure, inside.num_connections) == (Reason.BAD_ADDRESS, 0)


def test_a_second_answer_of_dns_that_leads_inside_is_refused() -> None:
    addresses = {"a.test": ["127.0.0.2"]}
    settings = replace(
        SETTINGS,
        allowed=(ip_network("127.0.0.2/32"),),
        names=at_once(lambda host: addresses[host], seconds=0.0),
    )
    reply = ok(b"hello", "Connection: close")
    with serving(sends(reply, stays=False), "0.0.0.0") as server, Client(settings) as client:
        request = Request(url=f"http://a.test:{server.port}/")
        (first,) = fetch(client, [request])
        addresses["a.test"] = ["127.0.0.1"]
        (second,) = fetch(client, [request])
        addresses["a.test"] = ["127.0.0.1", "::1", "127.0.0.2"]
        (third,) = fetch(client, [request])
        assert (first.content, first.address) == (b"hello", "127.0.0.2")
        assert (second.failure, second.address) == (Reason.BAD_ADDRESS, None)
        assert (third.content, third.address) == (b"hello", "127.0.0.2")
        assert server.num_connections == 2


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", Reason.BAD_URL),
        ("example.org/a", Reason.BAD_URL),
        ("//example.org/a", Reason.BAD_URL),
        ("file:///etc/passwd", Reason.BAD_URL),
        ("ftp://example.org/", Reason.BAD_URL),
        ("gopher://127.0.0.1/_x", Reason.BAD_URL),
        ("dict://127.0.0.1:1/", Reason.BAD_URL),
        ("javascript:alert(1)", Reason.BAD_URL),
        ("http://", Reason.BAD_URL),
        ("http:///a", Reason.BAD_URL),
        ("http://a:b/", Reason.BAD_URL),
        ("http://a:99999/", Reason.BAD_URL),
        ("http://[::1", Reason.BAD_URL),
        ("http://a\r\nHost: b/", Reason.BAD_URL),
        ("http://a\udcff.org/", Reason.BAD_URL),
        ("http://" + "a" * 100_000, Reason.BAD_URL),
        ("http://" + "é" * 70 + ".org/", Reason.BAD_URL),
        ("http://no-such-host.invalid/", Reason.UNKNOWN_HOST),
        ("http://" + "a" * 64 + ".org/", Reason.UNKNOWN_HOST),
        ("http://a..b/", Reason.UNKNOWN_HOST),
    ],
)
def test_urls_that_lead_nowhere(url: str, reason: Reason) -> None:
    with Client(SETTINGS) as client:
        (answer,) = fetch(client, [Request(url=url)])
        assert (answer.failure, answer.status, answer.request.url) == (reason, 0, url)
        assert answer.detail and "\n" not in answer.detail


def endless(first: bytes, more: bytes) -> Answering:
    """Sends ``more`` until the client leaves."""

    def answer(head: str, send: Send) -> bool:
        send(first)
        while True:
            send(more)

    return answer


def drip(head: str, send: Send) -> bool:
    """Sends a byte now and then."""
    send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    while True:
        send(b"a")
        threading.Event().wait(0.02)


def silent(head: str, send: Send) -> bool:
    """Says nothing for as long as the client listens."""
    threading.Event().wait(8.0)
    return False


def bomb() -> bytes:
    """10 MB in 10 KB, within the limit as sent."""
    return ok(gzip.compress(bytes(10_000_000)), "Content-Encoding: gzip")


HEAD = b"HTTP/1.1 200 OK\r\n"
HOSTILE: Sequence[tuple[str, Answering, Reason]] = (
    ("drip", drip, Reason.TIMED_OUT),
    ("silent", silent, Reason.TIMED_OUT),
    (
        "10 GB said",
        endless(HEAD + b"Content-Length: 10737418240\r\n\r\n", b"a" * 65_536),
        Reason.TOO_LARGE,
    ),
    ("no end", endless(HEAD + b"\r\n", b"a" * 65_536), Reason.TOO_LARGE),
    (
        "no end in chunks",
        endless(chunked(end=b""), b"400\r\n" + b"a" * 1_024 + b"\r\n"),
        Reason.TOO_LARGE,
    ),
    ("gzip bomb", sends(bomb()), Reason.TOO_LARGE),
    ("many chunks", sends(chunked(*[b"a"] * 20_000, end=b"0\r\n\r\n")), Reason.TOO_LARGE),
    (
        "one long header",
        sends(HEAD + b"X: " + b"a" * (1 << 20) + b"\r\n\r\n"),
        Reason.HEADERS_TOO_LARGE,
    ),
    (
        "headers without end",
        endless(HEAD, b"X: aaaaaaaaaaaaaaaaaaaaaa\r\n"),
        Reason.HEADERS_TOO_LARGE,
    ),
    ("interim without end", endless(b"", b"HTTP/1.1 103 x\r\n\r\n"), Reason.HEADERS_TOO_LARGE),
    (
        "trailers without end",
        endless(chunked(b"a", end=b"0\r\n"), b"X: aaaaaaaaaaaaaaa\r\n"),
        Reason.TOO_LARGE,
    ),
    ("no chunks", sends(chunked(end=b"hello\r\n")), Reason.BAD_RESPONSE),
    ("chunk too long", sends(chunked(end=b"5\r\nhelloworld\r\n0\r\n\r\n")), Reason.BAD_RESPONSE),
    ("giant chunk", sends(chunked(end=b"fffffffffffffffff\r\na")), Reason.BAD_RESPONSE),
    (
        "negative length",
        sends(HEAD + b"Content-Length: -5\r\n\r\nhello", stays=False),
        Reason.BAD_RESPONSE,
    ),
    (
        "two lengths",
        sends(HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"),
        Reason.BAD_RESPONSE,
    ),
    ("no HTTP", sends(b"220 mail.example.org ESMTP\r\n", stays=False), Reason.BAD_RESPONSE),
    ("HTTP/0.9", sends(b"<html>hello</html>", stays=False), Reason.BAD_RESPONSE),
    (
        "a NUL in a header",
        sends(HEAD + b"X: a\0b\r\nContent-Length: 0\r\n\r\n"),
        Reason.BAD_RESPONSE,
    ),
    ("nothing", sends(b"", stays=False), Reason.CUT_OFF),
    ("half a status", sends(b"HTTP/1.", stays=False), Reason.CUT_OFF),
    ("half a head", sends(HEAD + b"X-A: ", stays=False), Reason.CUT_OFF),
    ("half a body", sends(HEAD + b"Content-Length: 10\r\n\r\nhello", stays=False), Reason.CUT_OFF),
    ("half a chunk", sends(chunked(end=b"a\r\nhello"), stays=False), Reason.CUT_OFF),
    ("no last chunk", sends(chunked(b"hello", end=b""), stays=False), Reason.CUT_OFF),
)


@pytest.mark.parametrize(
    ("answering", "reason"), [h[1:] for h in HOSTILE], ids=[h[0] for h in HOSTILE]
)
def test_hostile_servers(answering: Answering, reason: Reason) -> None:
    answer = one(answering, HURRIED if reason is Reason.TIMED_OUT else SETTINGS)
    assert (answer.failure, answer.body, answer.content) == (reason, b"", b"")
    assert answer.detail


def test_hostile_servers_cost_the_others_nothing() -> None:
    answerings = [answering for _, answering, _ in HOSTILE]

    def answer(head: str, send: Send) -> bool:
        number = int(head.split(" ")[1][1:])
        return (
            answerings[number](head, send) if number < len(answerings) else sends(ok())(head, send)
        )

    with serving(answer) as server, Client(replace(SETTINGS, seconds=4.0)) as client:
        for number in range(60):
            client.start(Request(url=f"http://127.0.0.1:{server.port}/{number}"))
        failures: dict[int, Reason | None] = {}
        while client.num_running:
            for one_answer in client.wait(1.0):
                failures[int(one_answer.request.url.rsplit("/", 1)[1])] = one_answer.failure
    expected = [reason for _, _, reason in HOSTILE] + [None] * (60 - len(HOSTILE))
    assert [failures[number] for number in range(60)] == expected


@pytest.mark.parametrize(
    "reply", [ok(b"hello") + b"more than it said", ok(b"hello", "Content-Type: x")]
)
def test_what_follows_a_body_is_left_out(reply: bytes) -> None:
    assert one(sends(reply)).content == b"hello"


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "zstd", "nonsense", "gzip, gzip"])
def test_a_body_that_is_not_in_its_encoding_is_taken_as_it_is(encoding: str) -> None:
    assert (
        one(sends(ok(b"\xff\xd8\xffhello", f"Content-Encoding: {encoding}"))).content
        == b"\xff\xd8\xffhello"
    )


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with Client(SETTINGS) as client:
        (answer,) = fetch(client, [Request(url=f"http://127.0.0.1:{port}/")])
        assert answer.failure is Reason.NO_CONNECTION


def test_limits_of_a_request_are_exact() -> None:
    assert one(sends(ok(b"hello")), max_bytes=5).content == b"hello"
    assert one(sends(ok(b"hello")), max_bytes=4).failure is Reason.TOO_LARGE
    packed = ok(gzip.compress(b"a" * 1_000), "Content-Encoding: gzip")
    assert one(sends(packed), max_bytes=1_000).content == b"a" * 1_000
    assert one(sends(packed), max_bytes=999).failure is Reason.TOO_LARGE


def test_connections_are_kept_and_cookies_are_not() -> None:
    with serving(sends(ok(b"hello", "Set-Cookie: a=b"))) as server, Client(SETTINGS) as client:
        fetch(client, [Request(url=f"http://127.0.0.1:{server.port}/")] * 5)
        assert (server.num_connections, len(server.heads)) == (1, 5)
        assert not any("cookie" in head.lower() for head in server.heads)
        assert "User-Agent: vlmill/0.2.0 (+tests@example.org)" in server.heads[0]
        assert server.heads[0].split("\r\n")[0] == "GET / HTTP/1.1"


def test_a_conditional_request_and_the_next_one() -> None:
    with serving(sends(ok())) as server, Client(SETTINGS) as client:
        url = f"http://127.0.0.1:{server.port}/"
        date = "Sat, 01 Nov 2025 00:00:00 GMT"
        plain = Request(url=url)
        conditional = Request(url=url, etag='W/"a"', last_modified=date)
        smuggling = Request(url=url, etag='"a"\r\nX-Evil: 1', last_modified="a" * 2_000)
        fetch(client, [plain, conditional, plain, smuggling])
        lines = [set(head.split("\r\n")) for head in server.heads]
        assert lines[1] - lines[0] == {'If-None-Match: W/"a"', f"If-Modified-Since: {date}"}
        assert lines[2] == lines[3] == lines[0]


def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(sends(ok(b"proxy"))) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert one(sends(ok())).content == b"hello" and proxy.num_connections == 0


def test_files_and_connections_are_given_back() -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    with serving(sends(ok(), stays=False)) as server:
        url = f"http://127.0.0.1:{server.port}/"
        with Client(SETTINGS) as client:
            fetch(client, [Request(url=url)] * 3)
        before = count()
        for _ in range(5):
            with Client(SETTINGS) as client:
                fetch(client, [Request(url=url), Request(url="http://10.0.0.1/")])
                client.start(Request(url=url))  # and is left alone
        server.close()
        end = time.monotonic() + 20
        while count() > before and time.monotonic() < end:
            time.sleep(0.01)  # c-ares gives its files back from a thread of its own
        assert count() <= before


def test_no_more_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serving(sends(ok())) as server, Client(SETTINGS) as client:
        client.start(Request(url=f"http://127.0.0.1:{server.port}/"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                while client.num_running:
                    client.wait(1.0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_so_many_at_once_and_no_more() -> None:
    with Client(replace(SETTINGS, connections=2)) as client:
        assert client.wait(5.0) == [] and client.num_free == 2
        client.start(Request(url="file:///a"))
        client.start(Request(url="file:///b"))
        assert (client.num_running, client.num_free) == (2, 0)
        with pytest.raises(RuntimeError, match="2 requests are running"):
            client.start(Request(url="file:///c"))
        assert [a.request.url for a in client.wait(1.0)] == ["file:///a", "file:///b"]
        assert (client.num_running, client.num_free) == (0, 2)


def test_refused_urls_do_not_hold_up_the_others() -> None:
    with serving(sends(ok())) as server, Client(SETTINGS) as client:
        url = f"http://127.0.0.1:{server.port}/"
        client.start(Request(url=url))
        for _ in range(200_000):
            client.start(Request(url="file:///a"))
            if url in {answer.request.url for answer in client.wait(1.0)}:
                return
    pytest.fail("never answered")


@pytest.mark.parametrize(
    "contact", ["", "me", "@", "a@", "me@example.org\r\nX: y", "a b@c.org", "(me@x.org)", "é@b.org"]
)
def test_contacts_that_are_none(contact: str) -> None:
    with pytest.raises(InputError, match="neither an e-mail address nor a URL"):
        Client(ClientSettings(contact=contact))


def test_contacts() -> None:
    assert user_agent("https://example.org/bot") == "vlmill/0.2.0 (+https://example.org/bot)"


def test_settings_that_cannot_work() -> None:
    with pytest.raises(ValueError, match="connections is 0; it must be above 0"):
        replace(SETTINGS, connections=0)


def test_an_interrupt_while_bytes_come_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Transfer, chunk: bytes) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Transfer, "_on_body", interrupted)
    with pytest.raises(KeyboardInterrupt):
        one(sends(ok()))


def test_certificates_that_are_not_there() -> None:
    with pytest.raises(InputError, match="no such file of certificates"):
        Client(replace(SETTINGS, ca_file="/no/such.pem"))
