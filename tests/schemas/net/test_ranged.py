"""Files on the web are read by ranges: whole, retried, bounded, and never of a private address."""

import io
from collections.abc import Iterator

import pytest
from tests.web import LOCAL, FileServer, file_server

from vlmill.schemas.errors import InputError
from vlmill.schemas.net import ranged
from vlmill.schemas.net.ranged import (
    FIRST_BYTES,
    MOST_BYTES,
    TRIES,
    Part,
    RangedFile,
    Unreachable,
    open_web,
    web_url,
)

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
    server.troubles.extend([trouble] * TRIES)
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
    with pytest.raises(Unreachable, match=r"10\.255\.255\.1, which is no public address"):
        opened(server)
    server.troubles.extend([f"{server.url}/a.bin"] * 10)
    with pytest.raises(Unreachable, match="and so on"):
        opened(server)


def test_private_addresses_are_refused(server: FileServer) -> None:
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1, which is no public address"):
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
        with pytest.raises(InputError, match="no address of a file"):
            web_url(path)
