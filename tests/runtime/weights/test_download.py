"""One file of the web: in parts, after a kill, with another digest, on a full disk."""

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from tests.web import LOCAL, FileServer, file_server

from vlmill.runtime.files.copies import cache_folder
from vlmill.runtime.net import remote_file
from vlmill.runtime.weights import download
from vlmill.runtime.weights.download import download_file, download_recorded, file_name
from vlmill.runtime.weights.names import WebLocation
from vlmill.schemas.errors import InputError

CONTENT = os.urandom(3_000_000)
ALLOWED = (ip_network(LOCAL),)


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("VLMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote_file, "BACKOFF_S", 0.01)
    monkeypatch.setattr(download, "MOST_BYTES", 200_000)
    with file_server() as server:
        server.files["/a/weights.pth"] = CONTENT
        yield server


def location(web: FileServer, content: bytes = CONTENT) -> WebLocation:
    return WebLocation(url=f"{web.url}/a/weights.pth", sha256=hashlib.sha256(content).hexdigest())


def test_a_file_comes_in_parts_and_once(web: FileServer) -> None:
    path = download_file(location(web), allowed=ALLOWED)
    assert path.read_bytes() == CONTENT and path.name == "weights.pth"
    assert len(web.asked) == 15
    assert download_file(location(web), allowed=ALLOWED) == path and len(web.asked) == 15
    assert sorted(p.name for p in path.parent.iterdir()) == [".lock", "weights.pth"]


def test_troubles_of_a_server_are_survived(web: FileServer) -> None:
    web.troubles.extend(["", "cut", "500", "drop", ""])
    assert download_file(location(web), allowed=ALLOWED).read_bytes() == CONTENT


def test_a_killed_download_continues(web: FileServer, tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from ipaddress import ip_network\n"
        "from vlmill.runtime.weights import download\n"
        "from vlmill.runtime.weights.names import WebLocation\n"
        "download.MOST_BYTES = 200_000\n"
        "fetch = download.fetch_part\n"
        "def slow(*a, **k):\n"
        "    time.sleep(0.2)\n"
        "    return fetch(*a, **k)\n"
        "download.fetch_part = slow\n"
        "download.download_file(WebLocation(url=sys.argv[1]), allowed=(ip_network(sys.argv[2]),))\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script, location(web).url, LOCAL])
    folder = download.cached_folder(location(web).url)
    part = folder / "weights.pth.part"
    end = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size >= 400_000):
        assert time.monotonic() < end and child.poll() is None
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    done, asked = part.stat().st_size, len(web.asked)
    assert 0 < done < len(CONTENT)
    assert download_file(location(web), allowed=ALLOWED).read_bytes() == CONTENT
    first = int(web.asked[asked][1].removeprefix("bytes=").partition("-")[0])
    assert first == done and sorted(p.name for p in folder.iterdir()) == [".lock", "weights.pth"]


@pytest.mark.parametrize("size", [0, 1, 1_000, len(CONTENT)])
def test_the_rest_is_appended_where_it_belongs(web: FileServer, size: int) -> None:
    path = download_file(location(web), allowed=ALLOWED)
    state = {"url": location(web).url, "total": len(CONTENT), "version": f'"{hash(CONTENT)}"'}
    path.unlink()
    path.with_name("weights.pth.part").write_bytes(CONTENT[:size])
    path.with_name("weights.pth.part.json").write_text(json.dumps(state))
    assert download_file(location(web), allowed=ALLOWED).read_bytes() == CONTENT


def test_another_version_is_not_appended(
    web: FileServer, capsys: pytest.CaptureFixture[str]
) -> None:
    path = download_file(location(web), allowed=ALLOWED)
    state = {"url": location(web).url, "total": len(CONTENT), "version": '"old"'}
    path.unlink()
    path.with_name("weights.pth.part").write_bytes(b"x" * 1_000)
    path.with_name("weights.pth.part.json").write_text(json.dumps(state))
    assert download_file(location(web), allowed=ALLOWED).read_bytes() == CONTENT
    assert "starting over" in capsys.readouterr().err


def test_a_wrong_hash_leaves_nothing(web: FileServer) -> None:
    wrong = location(web, b"another file")
    with pytest.raises(InputError, match=r"has the SHA-256 [0-9a-f]{64}, expected") as error:
        download_file(wrong, allowed=ALLOWED)
    assert wrong.url in str(error.value)
    folder = download.cached_folder(wrong.url)
    assert not [p for p in folder.iterdir() if p.name.endswith((".pth", ".part"))]
    # Also of a file that an earlier command, which named no hash, has fetched.
    download_file(WebLocation(url=wrong.url), allowed=ALLOWED)
    with pytest.raises(InputError, match="it was deleted"):
        download_file(wrong, allowed=ALLOWED)


def test_a_full_disk_is_named_with_the_remedy(
    web: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(cache_folder().parent)._replace(free=1_000)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage)
        with pytest.raises(InputError, match=r"needs 3\.0 MB more.*VLMILL_CACHE"):
            download_file(location(web), allowed=ALLOWED)

    def full(descriptor: int) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="VLMILL_CACHE") as error:
            download_file(location(web), allowed=ALLOWED)
    assert error.value.errno == errno.ENOSPC and str(cache_folder()) in str(error.value)
    assert download_file(location(web), allowed=ALLOWED).read_bytes() == CONTENT


def test_what_is_no_file_is_refused(web: FileServer) -> None:
    web.files["/page"] = b"\n<!DOCTYPE html><html>sign in</html>"
    for path, expected in (("/page", "is a web page"), ("/gone", "it answers 404")):
        with pytest.raises(InputError, match=expected):
            download_file(WebLocation(url=f"{web.url}{path}"), allowed=ALLOWED)
    web.troubles.append("whole")
    with pytest.raises(InputError, match="gives no ranges; download it"):
        download_file(location(web), allowed=ALLOWED)
    with pytest.raises(InputError, match="not an address of the web"):
        download_file(location(web))


def test_a_small_file_needs_no_ranges(web: FileServer) -> None:
    web.files["/small.json"] = b"{}"
    web.troubles.append("whole")
    path = download_file(WebLocation(url=f"{web.url}/small.json"), allowed=ALLOWED)
    assert path.read_bytes() == b"{}"


def test_a_folder_is_what_its_record_lists(web: FileServer) -> None:
    digest = hashlib.sha256(CONTENT).hexdigest()
    record = {"files": {"weights.pth": {"bytes": 1, "sha256": digest}, "../x": {"sha256": digest}}}
    web.files["/a/about.json"] = json.dumps(record).encode()
    for end in ("", "about.json"):
        folder = download_recorded(
            WebLocation(url=f"{web.url}/a/{end}"), "about.json", ("weights.pth",), allowed=ALLOWED
        )
        assert (folder / "weights.pth").read_bytes() == CONTENT
        assert {p.name for p in folder.iterdir()} == {".lock", "about.json", "weights.pth"}


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://h/a/b.pth?dl=1", "b.pth"),
        ("https://h/a%2Fb%20c.pth", "b_c.pth"),
        ("https://h/..", "weights"),
        ("https://h/", "weights"),
    ],
)
def test_names_are_safe(url: str, name: str) -> None:
    assert file_name(url) == name
