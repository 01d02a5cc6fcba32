"""What a service refuses, and that nothing brings it down: one process, asked everything."""

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.mutations import mutations
from tests.serving import Served, form, served, until

from vlmill.runtime.service.bodies import read_form
from vlmill.runtime.service.refusals import RequestRefused

ECHO = ("-m", "tests.runtime.service.echo")
TOKEN = "a-token-of-the-tests"
BEARER = {"authorization": f"Bearer {TOKEN}"}
LIMITS = ("max_bytes=20000", "max_images=3", "seconds=2", "header_seconds=1", "queue=64")


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    with served([*ECHO, *LIMITS]) as running:
        yield running
        said = "".join(running.log)
        assert running.process.poll() is None
        assert said.count('"event": "worker_ended"') == 0
        for line in running.log:
            assert line.startswith("{") and json.loads(line)["event"], line


def raw(service: Served, *parts: bytes, pause: float = 0.0, patience: float = 8.0) -> bytes:
    """Sends bytes as they are, and gives back everything until the connection ends."""
    with socket.create_connection(service.address, timeout=patience) as connection:
        received = b""
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause)
            while part := connection.recv(65_536):
                received += part
        except TimeoutError:
            return received + b"(still open)"
        except OSError:
            pass
        return received


def test_it_answers(service: Served) -> None:
    body, kind = form([], do="echo hello")
    reply = service.post("/v1/echo", body, kind)
    assert (reply.status, reply.json()) == (200, {"answers": ["1 hello"]})
    assert reply.headers["x-content-type-options"] == "nosniff"
    as_json = service.post("/v1/echo", b'{"do": ["echo a", "echo b"]}', "application/json")
    assert [answer[2:] for answer in as_json.json()["answers"]] == ["a", "b"]
    assert service.ask("GET", "/healthz").status == service.ask("GET", "/readyz").status == 200
    assert service.count("vlmill_items_total") >= 3
    assert service.count("vlmill_workers_ready") == 1
    assert service.count("vlmill_resident_bytes") > 1e7


def test_the_page_stands_at_the_root(service: Served) -> None:
    page = service.ask("GET", "/")
    assert page.status == 200 and page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]


EDGE = "multipart/form-data; boundary=edge"
FILE = (
    b'--edge\r\nContent-Disposition: form-data; name="p"; filename="%s"\r\n%s\r\nx\r\n--edge--\r\n'
)


REFUSED: list[tuple[bytes, str, int, str]] = [
    (b"x", "text/plain", 415, "unsupported_type"),
    (b"x", "", 415, "unsupported_type"),
    (b"x" * 20_001, "image/jpeg", 413, "too_large"),
    (b"", "multipart/form-data", 400, "bad_request"),
    (b"", f"multipart/form-data; boundary={'e' * 71}", 400, "bad_request"),
    (b"", EDGE, 400, "bad_form"),
    (b"--other\r\n\r\nx\r\n--other--", EDGE, 400, "bad_form"),
    ((FILE % (b"a.jpg", b""))[:-12], EDGE, 400, "bad_form"),
    (FILE % (b"../../etc/passwd", b""), EDGE, 400, "bad_name"),
    (FILE % (b"a\\b", b""), EDGE, 400, "bad_name"),
    (FILE % (b"", b""), EDGE, 400, "bad_name"),
    (FILE % (b"a" * 201, b""), EDGE, 400, "bad_name"),
    (FILE % (b"a.jpg", b"Content-Type: text/html\r\n"), EDGE, 415, "unsupported_type"),
    (FILE % (b"a.jpg", b"X: y\r\n" * 9), EDGE, 400, "bad_form"),
    (b"--edge\r\nX: y\r\n\r\nx\r\n--edge--\r\n", EDGE, 400, "bad_form"),
    (form([], nonsense="1")[0], EDGE, 400, "unknown_field"),
    (form([("a", b"x")] * 4)[0], EDGE, 413, "too_many_pictures"),
    (form([], do="@")[0].replace(b"@", b"\xff"), EDGE, 400, "bad_text"),
    (b"{", "application/json", 400, "bad_json"),
    (b"[" * 9_000, "application/json", 400, "bad_json"),
    (b"[]", "application/json", 400, "bad_json"),
    (b'{"do": NaN}', "application/json", 400, "bad_json"),
    (b'{"do": {"a": 1}}', "application/json", 400, "bad_json"),
    (b'{"do": "\\ud800"}', "application/json", 400, "bad_text"),
    (b'{"other": "a"}', "application/json", 400, "unknown_field"),
    (b'{"pictures": ["%%"]}', "application/json", 400, "bad_json"),
    (b'{"urls": ["http://169.254.169.254/"]}', "application/json", 403, "urls_off"),
]


@pytest.mark.parametrize(
    ("body", "kind", "status", "reason"), REFUSED, ids=map(str, range(len(REFUSED)))
)
def test_what_is_refused(service: Served, body: bytes, kind: str, status: int, reason: str) -> None:
    reply = service.post("/v1/echo", body, kind)
    said = reply.json()
    assert (reply.status, said["reason"]) == (status, reason)
    assert said["error"] and "\n" not in said["error"]
    assert said["request_id"] == reply.headers["x-request-id"]


def test_paths_methods_and_parameters(service: Served) -> None:
    for method, path, status in (
        ("GET", "/v1/nothing", 404),
        ("GET", "/..%2f..%2fetc/passwd", 404),
        ("POST", "/v1/echo/", 404),
        ("GET", "/healthz/", 404),
        ("GET", "/page.py", 404),
        ("GET", "/docs", 404),
        ("DELETE", "/v1/echo", 405),
        ("POST", "/v1/echo?debug=1", 400),
    ):
        reply = service.ask(method, path, b"{}", {"content-type": "application/json"})
        assert (reply.status, "error" in reply.json()) == (status, True), path


# Three bytes of each become 56 and more where they are read.
MANY = {
    "lists": b'{"do": [' + b"[]," * 50_000 + b"[]]}",
    "pictures": b'{"pictures": [' + b'"",' * 50_000 + b'""]}',
    "quotes": b'{"do": ' + b'"' * 150_000,
    "of two bytes a letter": '{"do∀": ['.encode("utf-16-le") + b"[\0]\0,\0" * 20_000,
}


@pytest.mark.parametrize("name", MANY)
def test_json_of_many_values_is_not_read(name: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        read_form("application/json", MANY[name], words=("do",), most_images=3)
    assert refused.value.reason == ("bad_json" if "bytes" in name else "too_many_fields")


def test_what_a_request_needs_of_json_is_read() -> None:
    said = {"do": ['a \\ [[[ ,,, " b'] * 1_000, "pictures": ["A" * 100_000] * 3}
    form = read_form(
        "application/json", json.dumps(said, indent=8).encode(), words=("do",), most_images=3
    )
    assert form.words["do"] == said["do"] and len(form.images[2].content) == 75_000


def test_an_error_of_ours_shows_nothing_of_it(service: Served) -> None:
    errors = service.count("vlmill_errors_total")
    for reply in (
        service.ask("GET", "/v1/broken"),
        service.post("/v1/echo", b'{"do": "raise"}', "application/json"),
    ):
        assert reply.status == 500 and b"secret" not in reply.body
        assert reply.json()["reason"] == "internal_error"
    assert service.count("vlmill_errors_total") == errors + 2
    until(lambda: sum("secret is broken" in line for line in service.log) == 2)


def test_a_body_is_counted_whatever_its_headers_say(service: Served) -> None:
    head = b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
    chunked = raw(service, head + b"Transfer-Encoding: chunked\r\n\r\n" + b"1000\r\n" + b"x" * 4096)
    assert chunked.startswith(b"HTTP/1.1 408")  # and no end came
    chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
    over = raw(service, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 6)
    assert over.startswith(b"HTTP/1.1 413") and b"too_large" in over
    declared = raw(service, head + b"Content-Length: 99999999999\r\n\r\n")
    assert declared.startswith(b"HTTP/1.1 413") and b"connection: close" in declared


CHUNKED = b"Transfer-Encoding: chunked\r\n"
HEAD = b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"Content-Length: 4\r\n" + CHUNKED + b"\r\n2\r\n{}\r\n0\r\n\r\n",
        HEAD + CHUNKED + b"Content-Length: 0\r\n\r\n0\r\n\r\n",
        HEAD.replace(b"1.1", b"1.0") + CHUNKED + b"\r\n2\r\n{}\r\n0\r\n\r\n",
        HEAD + CHUNKED + CHUNKED + b"\r\n2\r\n{}\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
        HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        HEAD + b"Content-Length: +2\r\n\r\n{}",
        *(
            HEAD + CHUNKED + b"\r\n" + size + b"\r\n{}\r\n0\r\n\r\n"
            for size in (b"x", b"-2", b"0x2", b"2 2", b"+2", b"2" * 40, b"")
        ),
        HEAD + CHUNKED + b"\r\n2\r\n{}too long\r\n0\r\n\r\n",
    ],
)
def test_a_body_without_a_certain_end_is_refused(service: Served, sent: bytes) -> None:
    """What follows is no request: a proxy might have found another end of the body."""
    answer = raw(service, sent + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400") and b'"reason": "bad_http"' in answer
    assert len(re.findall(rb"HTTP/1\.1 \d{3}", answer)) == 1
    assert b"connection: close" in answer.lower()
    assert not answer.endswith(b"(still open)")


def test_bad_chunks_are_logged_and_counted(service: Served) -> None:
    def counted() -> float:
        return service.count("vlmill_refusals_total")

    before = counted()
    raw(service, HEAD + CHUNKED + b"\r\nx\r\n")
    until(lambda: counted() == before + 1)
    until(lambda: any('"400"' in line and '"reason": "bad_http"' in line for line in service.log))
    assert service.count("vlmill_connections_closed_total") >= 1


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://HOST"}, 200),
        ({"origin": "http://kites.example"}, 403),
        ({"origin": "http://HOST.kites.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://HOST", "sec-fetch-site": "same-origin"}, 200),
        ({"origin": "https://proxy.example", "sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),  # another port of this machine
    ],
)
def test_a_page_of_another_site_posts_nothing(
    service: Served, headers: dict[str, str], status: int
) -> None:
    host = "{}:{}".format(*service.address)
    named = {name: value.replace("HOST", host) for name, value in headers.items()}
    reply = service.post("/v1/echo", b'{"do": "echo hello"}', "application/json", **named)
    assert reply.status == status
    assert status == 200 or reply.json()["reason"] == "cross_site"
    assert service.ask("GET", "/v1/about", headers=named).status == 200  # which it cannot read


def half_closed(service: Served, *words: str, version: bytes = b"1.1") -> bytes:
    """Sends a request, closes the sending half, and gives back what comes."""
    body = json.dumps({"do": words}).encode()
    head = HEAD.replace(b"1.1", version) + b"Content-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(service.address, timeout=60) as connection:
        connection.sendall(head + body)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while part := connection.recv(65_536):
            received += part
        return received


def test_who_has_closed_the_sending_half_gets_the_answer(service: Served) -> None:
    assert half_closed(service, "echo hello").startswith(b"HTTP/1.1 200")
    pipelined = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(service.address, timeout=60) as connection:
        connection.sendall(3 * pipelined)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while part := connection.recv(65_536):
            received += part
    assert received.count(b'"ok"') == 3
    with socket.create_connection(service.address, timeout=60) as connection:
        connection.sendall(HEAD + b"Content-Length: 99\r\n\r\n{")
        connection.shutdown(socket.SHUT_WR)
        assert not connection.recv(65_536)  # the request never was whole


def test_who_waits_half_closed_is_asked_to_go_on_waiting(service: Served) -> None:
    """By an interim answer: who has closed altogether looks alike, until something is sent."""
    for version, interim in ((b"1.1", True), (b"1.0", False)):
        answer = half_closed(service, "sleep 1.5", version=version)
        assert b"HTTP/1.1 200" in answer
        assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200") == interim


def test_clients_that_stall_drip_or_hang_up(service: Served) -> None:
    """They are let go in time, and cost nobody else anything."""
    begin = time.monotonic()
    assert raw(service) == b""  # no word at all
    assert raw(service, *[b"G"] * 15, pause=0.1) == b""  # headers, letter by letter
    slow = b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
    slow += b"Content-Length: 99\r\n\r\n"
    assert raw(service, slow, *[b"x"] * 9, pause=0.1).startswith(b"HTTP/1.1 408")
    pipelined = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /heal"
    assert raw(service, pipelined, *[b"z"] * 3, pause=0.1).count(b'"ok"') == 1
    for _ in range(20):
        with socket.create_connection(service.address) as connection:
            connection.sendall(slow + b"half")
    sleeper = b"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(service.address) as connection:
        body = b'{"do": ["sleep 0.3", "sleep 0.3"]}'
        connection.sendall(sleeper + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert service.post("/v1/echo", b'{"do": "echo"}', "application/json").status == 200
    assert time.monotonic() - begin < 60
    until(lambda: service.count("vlmill_queue_items") == 0)


def test_who_does_not_read_is_let_go(service: Served) -> None:
    with socket.create_connection(service.address) as connection:
        connection.sendall(b"GET /page.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 600)
        until(lambda: is_held(connection))
        until(lambda: not is_held(connection))


def is_held(connection: socket.socket) -> bool:
    """Says whether the server has its end open: to a closed one no process belongs."""
    ends = [f"{name()[1]:04X}" for name in (connection.getpeername, connection.getsockname)]
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any([row[1][-4:], row[2][-4:]] == ends and row[9] != "0" for row in rows)


def test_who_waits_too_long_is_told(service: Served) -> None:
    reply = service.post("/v1/echo", b'{"do": "sleep 2.5"}', "application/json")
    assert (reply.status, reply.json()["reason"]) == (503, "too_slow")
    assert int(reply.headers["retry-after"]) >= 1


def test_mutated_requests(service: Served, request: pytest.FixtureRequest) -> None:
    count = request.config.getoption("--mutations")
    body, kind = form([("a.jpg", b"picture"), ("b.jpg", b"other")], do="echo hello")
    head = (
        f"POST /v1/echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode()
    errors = service.count("vlmill_errors_total")
    for number, changed in mutations(head + body, "request", count // 2):
        answer = raw(service, changed + b"\r\n\r\n", patience=0.5)
        status = answer[9:12] if answer.startswith(b"HTTP/1.1") else b"no answer"
        assert status in (b"200", b"no answer", b"503") or status.startswith(b"4"), number
    for number, changed in mutations(body, "form", count // 2):
        assert service.post("/v1/echo", changed, kind).status in (200, 400, 413, 415), number
    assert service.count("vlmill_errors_total") == errors
    assert service.ask("GET", "/readyz").status == 200


def test_a_site_of_the_web_cannot_ask(service: Served) -> None:
    """Nor by a name of its own that leads here; who has the token may call it what they like."""
    for host, status in (
        ("localhost:80", 200),
        ("[::1]:80", 200),
        ("10.0.0.7", 200),
        ("kites.example:80", 403),
        ("localhost.kites.example", 403),
        ("[::1", 403),
    ):
        reply = service.ask("GET", "/v1/about", headers={"host": host})
        assert reply.status == status, host
    assert reply.json()["reason"] == "bad_host"


def test_tokens() -> None:
    with served([*ECHO, f"token={TOKEN}"]) as service:
        for header in ("", "Bearer", "Bearer x", f"Basic {TOKEN}", f"Bearer {TOKEN}x", TOKEN):
            reply = service.ask("GET", "/v1/about", headers={"authorization": header})
            assert reply.status == 401 and reply.json()["reason"] == "unauthorized"
            assert reply.headers["www-authenticate"] == "Bearer"
        assert service.ask("GET", "/v1/about", headers=BEARER).status == 200
        named = {**BEARER, "host": "kites.example"}
        assert service.ask("GET", "/v1/about", headers=named).status == 200
        assert service.ask("GET", "/metrics").status == 401
        for path in ("/", "/healthz", "/readyz"):
            assert service.ask("GET", path).status == 200
        assert all(TOKEN not in line for line in service.log)
