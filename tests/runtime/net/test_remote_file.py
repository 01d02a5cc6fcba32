"""Files on the web are read by ranges: whole, retried, bounded, and never of a private address."""

import gzip
import io
import os
import threading
from collections.abc import Iterator

import pytest
from tests.runtime.net.servers import sends, serving
from tests.web import LOCAL, FileServer, file_server

import vlmill
from vlmill.runtime.net import remote_file as ranged
from vlmill.runtime.net.client import Client
from vlmill.runtime.net.exchange import Answer
from vlmill.runtime.net.remote_file import (
    FIRST_BYTES,
    MOST_BYTES,
    TRIES,
    Part,
    RangedFile,
    Unreachable,
    open_web,
    web_url,
)
from vlmill.schemas.errors import InputError

CONTENT = bytes(range(256)) * 2_000


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setattr(ranged, "BACKOFF_S", 0.001)
    with file_server() as served:
        served.files["/a.bin"] = CONTENT
        yield served


def opened(server: FileServer) -> RangedFile:
    return open_web(f"{server.url}/a.bin", [LOCAL])


def test_reads_as_a_local_file_does(server: FileServer) -> None:
    file, local = opened(server), io.BytesIO(CONTENT)
    assert file.total == len(CONTENT)
    for position, size in ((0, 10), (5, 100_000), (len(CONTENT) - 3, 10), (70_000, 200_000)):
        file.seek(position)
        local.seek(position)
        assert file.read(size) == local.read(size) and file.tell() == local.tell()
    assert file.seek(-4, io.SEEK_END) == len(CONTENT) - 4 and file.read() == CONTENT[-4:]
    assert file.read(1) == b""
    file.seek(0)
    assert io.BufferedReader(file).read() == CONTENT


def test_parts_grow_while_reading_goes_straight_on() -> None:
    content, sizes = bytes(3 * MOST_BYTES), []

    def fetch(start: int, stop: int) -> Part:
        sizes.append(stop - start)
        return Part(content=content[start:stop], total=len(content), version="1")

    file = RangedFile("a", fetch)
    while file.read(10_000):
        pass
    assert sizes[:3] == [FIRST_BYTES, 2 * FIRST_BYTES, 4 * FIRST_BYTES]
    assert max(sizes) == MOST_BYTES and sum(sizes) == len(content)
    sizes.clear()
    file.seek(5)
    assert file.read(3) == content[5:8] and sizes == [FIRST_BYTES]


@pytest.mark.parametrize("trouble", ["500", "503", "429", "cut", "drop"])
def test_what_may_be_over_in_a_moment_is_tried_again(trouble: str, server: FileServer) -> None:
    server.troubles.extend([trouble] * (TRIES - 1))
    assert opened(server).read() == CONTENT
    # One more, because libcurl itself tries again where a connection that was kept drops.
    server.troubles.extend([trouble] * (TRIES + 1))
    with pytest.raises(Unreachable, match=rf"/a\.bin: .*, {TRIES} times; the same command"):
        opened(server)


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("404", "it answers 404"),
        ("403", "it answers 403"),
        ("whole", "gives no ranges; download it"),
        ("ftp://127.0.0.1/a", "it leads on to ftp:"),
    ],
)
def test_what_will_not_change_is_told_at_once(trouble: str, said: str, server: FileServer) -> None:
    server.troubles.append(trouble)
    with pytest.raises(Unreachable, match=said):
        opened(server)
    assert len(server.asked) == 1


def test_redirects_are_followed_and_looked_at(server: FileServer) -> None:
    server.troubles.extend(["/b", f"{server.url}/a.bin"])
    assert opened(server).read(4) == CONTENT[:4]
    server.troubles.append("http://10.255.255.1/latest/meta-data")
    with pytest.raises(Unreachable, match=r"10\.255\.255\.1 is not an address of the web; give a"):
        opened(server)
    server.troubles.extend([f"{server.url}/a.bin"] * 10)
    with pytest.raises(Unreachable, match="and so on"):
        opened(server)


def test_private_addresses_are_refused(server: FileServer) -> None:
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1 is not an address of the web; give a"):
        open_web(f"{server.url}/a.bin")
    assert not server.asked


def test_a_file_that_changes_is_no_file(server: FileServer) -> None:
    file = opened(server)
    server.files["/a.bin"] = CONTENT[::-1]
    file.seek(FIRST_BYTES)
    with pytest.raises(Unreachable, match="changed while it was read"):
        file.read(1)


def test_an_empty_file(server: FileServer) -> None:
    server.files["/a.bin"] = b""
    file = opened(server)
    assert file.total == 0 and file.read() == b""


def test_buckets_that_anybody_may_read(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    assert web_url("s3://crawl/a b/c+d.gz") == "https://crawl.s3.amazonaws.com/a%20b/c+d.gz"
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"{server.url}/")
    server.files["/crawl/x/a.gz"] = CONTENT
    # The user's own environment names the server: it may stand anywhere.
    assert open_web("s3://crawl/x/a.gz").read() == CONTENT
    for path in ("s3://", "s3://bucket", "https:///a"):
        with pytest.raises(InputError, match="not the address of a file"):
            web_url(path)


def reply(body: bytes, total: int, *headers: str) -> bytes:
    """The only part of a file of ``total`` bytes."""
    place = f"Content-Range: bytes 0-{total - 1}/{total}"
    return "\r\n".join(["HTTP/1.1 206 x", place, *headers, "", ""]).encode() + body


def test_bytes_are_those_that_are_stored_whatever_their_encoding_is_called() -> None:
    stored = gzip.compress(bytes(1_000_000))
    length, encoding = f"Content-Length: {len(stored)}", "Content-Encoding: gzip"
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in stored) + b"0\r\n\r\n"
    whole = reply(stored, len(stored), length, encoding)
    chunked = reply(chunks, len(stored), "Transfer-Encoding: chunked", encoding)
    for answer in (whole, chunked):
        with serving(sends(answer)) as served:
            assert open_web(f"http://127.0.0.1:{served.port}/a.gz", [LOCAL]).read() == stored
            lines = set(served.heads[0].split("\r\n"))
            expected = {"Range: bytes=0-65535", "Accept-Encoding: identity"}
            assert expected | {f"User-Agent: vlmill/{vlmill.__version__}"} < lines


@pytest.mark.parametrize(
    ("status", "num_bytes", "said"),
    [
        (206, 5, f"5 of 10 bytes came, {TRIES} times"),
        (206, 1_000_000, "other ranges"),
        (403, 1_000_000, "it answers 403"),
    ],
)
def test_bodies_of_other_lengths(
    status: int, num_bytes: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranged, "BACKOFF_S", 0.001)
    answer = reply(bytes(num_bytes), 10, f"Content-Length: {num_bytes}")
    answering = sends(answer.replace(b"206", b"%d" % status, 1))
    with serving(answering) as served, pytest.raises(Unreachable, match=said):
        open_web(f"http://127.0.0.1:{served.port}/a", [LOCAL])


def test_a_connection_is_kept_and_shared_with_no_thread_nor_fork() -> None:
    with serving(sends(reply(b"hello", 5, "Content-Length: 5"))) as served:

        def read() -> bytes:
            return open_web(f"http://127.0.0.1:{served.port}/a", [LOCAL]).read()

        assert read() == read() == b"hello" and served.num_connections == 1
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
        assert served.num_connections == 2
        if (child := os.fork()) == 0:
            try:
                os._exit(0 if read() == b"hello" else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0 and served.num_connections == 3
        assert read() == b"hello" and served.num_connections == 3


def test_an_answer_that_an_interrupt_left_behind_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(self: Client, timeout: float) -> list[Answer]:
        raise KeyboardInterrupt

    with serving(lambda head, send: sends(by_path[head.split(" ")[1]])(head, send)) as served:
        by_path = {f"/{w}": reply(w.encode(), 5, "Content-Length: 5") for w in ("hello", "world")}
        url = f"http://127.0.0.1:{served.port}"
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Client, "wait", interrupted)
            open_web(f"{url}/hello", [LOCAL])
        assert open_web(f"{url}/world", [LOCAL]).read() == b"world"
