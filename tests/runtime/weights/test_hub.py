"""Files of the hub: continued after a kill, and refused on a full disk."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.hub_server import Hub, hub_server

from vlmill.runtime.weights.hub import fetch_files
from vlmill.runtime.weights.names import parse_hub_location
from vlmill.schemas.errors import InputError

CONTENT = os.urandom(2_000_000)
LOCATION = parse_hub_location("hf://me/large")
# Small parts, so that a kill leaves something of the file.
SCRIPT = """
from vlmill.runtime.weights import download
from vlmill.runtime.weights.hub import fetch_files
from vlmill.runtime.weights.names import parse_hub_location
download.MOST_BYTES = 200_000
fetch_files(parse_hub_location("hf://me/large"), list)
"""


def everything(sizes: Mapping[str, int | None]) -> list[str]:
    return list(sizes)


def test_a_killed_download_continues(hub: Hub, tmp_path: Path) -> None:
    hub.commit("me/large", {"weights.bin": CONTENT})
    hub.check_digests, hub.pause_s = True, 0.2
    child = subprocess.Popen([sys.executable, "-c", SCRIPT])
    parts = tmp_path / "hub-cache" / "models--me--large" / ".partial"
    end = time.monotonic() + 60
    while not (left := [p for p in parts.rglob("*.part") if p.stat().st_size >= 400_000]):
        assert time.monotonic() < end and child.poll() is None
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    done, hub.pause_s = left[0].stat().st_size, 0.0
    assert done < len(CONTENT)
    hub.ranges.clear()
    assert (fetch_files(LOCATION, everything) / "weights.bin").read_bytes() == CONTENT
    assert hub.ranges[0].startswith(f"bytes={done}-")
    assert not list(parts.rglob("*.part*"))


def test_a_damaged_part_is_not_kept(hub: Hub, tmp_path: Path) -> None:
    hub.commit("me/large", {"weights.bin": CONTENT})
    hub.check_digests = True
    hub.false_digests = {"weights.bin": hashlib.sha256(b"other").hexdigest()}
    for _ in range(2):
        with pytest.raises(InputError, match="has the SHA-256"):
            fetch_files(LOCATION, everything)
    hub.false_digests = {}
    assert (fetch_files(LOCATION, everything) / "weights.bin").read_bytes() == CONTENT


def test_a_full_disk_is_named_with_the_remedy(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.commit("me/large", {"weights.bin": CONTENT})

    def full(descriptor: int) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="HF_HUB_CACHE") as error:
            fetch_files(LOCATION, everything)
    assert error.value.errno == errno.ENOSPC and str(tmp_path) in str(error.value)
    assert (fetch_files(LOCATION, everything) / "weights.bin").read_bytes() == CONTENT


def test_a_token_goes_to_the_hub_alone(hub: Hub, tmp_path: Path) -> None:
    """The hub sends large files on to another server, which is not told who asks."""
    hub.commit("me/large", {"weights.bin": CONTENT})
    hub.token = "token"
    with hub_server() as other:
        other.commit("me/large", {"weights.bin": CONTENT})
        hub.sends_on = f"{other.url}/me/large/resolve/main/weights.bin"
        folder = fetch_files(LOCATION, everything, allow_addresses=["127.0.0.0/8"])
        assert (folder / "weights.bin").read_bytes() == CONTENT
        assert set(hub.authorizations) == {"Bearer token"} and set(other.authorizations) == {None}


def test_without_the_extras_the_hubs_library_fetches(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.commit("me/large", {"weights.bin": CONTENT})
    monkeypatch.setattr("vlmill.runtime.weights.hub.find_spec", lambda name: None)
    assert (fetch_files(LOCATION, everything) / "weights.bin").read_bytes() == CONTENT
