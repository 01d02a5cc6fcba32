"""Images of a data set of URLs are downloaded, listed where they fail, and tried again."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from vlmill.pipelines.manifest.job import main
from vlmill.pipelines.manifest.published import command as published
from vlmill.pipelines.manifest.published import downloads as fetched
from vlmill.runtime.files.manifest import read_manifest, verify_folder
from vlmill.runtime.files.reading import read_table
from vlmill.schemas.tables import IMAGES, PAIRS, REJECTS

ROOT = Path(__file__).parents[4]
RULES = ("/robots.txt", "/.well-known/tdmrep.json")  # asked of each host first


class Host:
    """A host of images, and what it was asked."""

    def __init__(self, image: Callable[..., bytes]) -> None:
        self.asked: list[str] = []
        self.is_busy = True
        host = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Says nothing."""

            def do_GET(self) -> None:
                """Sends an image of its own for each number, or what the path says."""
                host.asked.append(self.path)
                status, body = host.reply(self.path, image)
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "/3.jpg")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def reply(self, path: str, image: Callable[..., bytes]) -> tuple[int, bytes]:
        name = path.strip("/").partition(".")[0]
        if name.isdigit():
            return 200, image(30, 20, seed=int(name))
        if name == "later":
            return (500, b"") if self.is_busy else (200, image(30, 20, seed=99))
        replies = {"gone": (410, b""), "moved": (302, b""), "page": (200, b"<html><p>Gone</html>")}
        return replies.get(name, (404, b""))


@pytest.fixture
def host(image: Callable[..., bytes]) -> Iterator[Host]:
    host = Host(image)
    threading.Thread(target=host.server.serve_forever, daemon=True).start()
    yield host
    host.server.shutdown()
    host.server.server_close()


def arguments(folder: Path, name: str, *more: str) -> list[str]:
    manners = ["--contact", "me@example.org", "--allow-address", "127.0.0.0/8"]
    paths = ["--input", str(folder), "--output", str(folder.parent / "out")]
    return [name, *paths, "--fetch", *manners, *more]


def write_captions(folder: Path, urls: list[str]) -> Path:
    """A file of CC3M with a row for each URL."""
    folder.mkdir()
    rows = [f"a dog runs along the beach {n}\t{url}\n" for n, url in enumerate(urls)]
    (folder / "Train_GCC-training.tsv").write_text("".join(rows))
    return folder


def test_what_a_data_set_lacks_is_downloaded(
    tmp_path: Path, host: Host, image: Callable[..., bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("1.jpg", "gone.jpg", "page.jpg", "moved.jpg", "later.jpg", "1.jpg", "7.jpg")
    folder = write_captions(tmp_path / "in", [f"{host.url}/{n}" for n in names] + ["ftp://a/b.jpg"])
    (folder / "train_image").mkdir()
    (folder / "train_image/00000006.jpg").write_bytes(image(30, 20, seed=7))
    more = ("--delay", "0", "--retries", "0", "--rows-per-shard", "3")
    assert main(arguments(folder, "cc", *more)) == 0
    assert Counter(host.asked) == Counter(
        [*RULES, "/1.jpg", "/gone.jpg", "/page.jpg", "/moved.jpg", "/3.jpg", "/later.jpg"]
    )  # each once, and not the one that is there
    out = tmp_path / "out"
    images = {row["image_id"]: row for row in read_table(out, IMAGES).to_pylist()}
    assert [key[-1] for key in sorted(images)] == ["0", "3", "5", "6"]
    assert images["cc/train/00000003"]["bytes"] == image(30, 20, seed=3)
    assert images["cc/train/00000000"]["source_url"] == f"{host.url}/1.jpg"
    rejects = {row["key"][-1]: row for row in read_table(out, REJECTS).to_pylist()}
    assert {row["reason"] for row in rejects.values()} == {"image_missing"}
    assert {number: row["detail"] for number, row in rejects.items()} == {
        "1": "bad_status: 410",
        "2": "other_type: a page instead of an image",
        "4": "bad_status: 500",
        "7": "bad_url: no http(s) URL",
    }
    said = capsys.readouterr().err
    assert "fetched: 2 images of 6 URLs (3,318,333 rows are published); 4 failed: bad_status 2" in (
        said
    )
    assert read_table(out, PAIRS).num_rows == 8
    again = list(host.asked)
    assert main(arguments(folder, "cc", *more)) == 0
    assert host.asked == again  # it is finished
    host.is_busy = False
    assert main(arguments(folder, "cc", *more, "--retry-failed")) == 0
    assert Counter(host.asked) - Counter(again) == Counter([*RULES, "/later.jpg"])
    ids = read_table(out, IMAGES).column("image_id").to_pylist()
    assert [key[-1] for key in sorted(ids)] == ["0", "3", "4", "5", "6"]
    assert verify_folder(out) == [] and read_manifest(out)["fetch"]["fetched"] == 3


@pytest.mark.nightly
def test_a_fetch_into_a_store_goes_on_and_tries_again(
    tmp_path: Path, host: Host, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped when all is fetched, once before it is counted and once behind that."""
    names = ("1.jpg", "2.jpg", "gone.jpg", "later.jpg")
    folder = write_captions(tmp_path / "in", [f"{host.url}/{name}" for name in names])
    args = arguments(folder, "cc", "--delay", "0", "--retries", "0", "--workers", "1")
    args[args.index("--output") + 1] = output = f"{bucket}/out"
    for module, name in ((fetched, "collect_tables"), (published, "make_parts")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, _stop)
            assert main(args) == 1
    asked = list(host.asked)
    assert main(args) == 0
    assert host.asked == asked and read_table(output, IMAGES).num_rows == 2
    host.is_busy = False
    assert main([*args, "--retry-failed"]) == 0
    assert Counter(host.asked) - Counter(asked) == Counter([*RULES, "/later.jpg"])
    assert read_table(output, IMAGES).num_rows == 3 and verify_folder(output) == []
    assert read_manifest(output)["fetch"]["fetched"] == 3
    assert not os.listdir(Path(os.environ["VLMILL_CACHE"], "uploads"))


def _stop(*_: object, **__: object) -> None:
    raise OSError("the machine is gone")


def test_it_needs_a_contact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_captions(tmp_path / "in", [])
    output = ["--output", str(tmp_path / "out")]
    assert main(["cc", "--input", str(folder), *output, "--fetch"]) == 2
    assert "--fetch needs --contact" in capsys.readouterr().err
    assert main(["cc", "--input", str(folder), *output, "--retry-failed"]) == 2
    assert "--retry-failed goes with --fetch" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_kill_repeats_nothing(tmp_path: Path, host: Host) -> None:
    folder = write_captions(tmp_path / "in", [f"{host.url}/{n}.jpg" for n in range(8)])
    args = arguments(folder, "cc", "--delay", "0.3")
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "vlmill.pipelines.manifest", *args]
    process = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    for _ in range(6_000):
        if len(host.asked) > 4:
            break
        assert process.poll() is None, "the run has ended before its kill"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert main(args) == 0
    assert read_table(tmp_path / "out", IMAGES).num_rows == 8
    assert sum(times - 1 for times in Counter(host.asked).values()) <= 1  # what was in flight
