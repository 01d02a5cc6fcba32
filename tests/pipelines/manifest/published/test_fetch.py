"""Images of a data set of URLs are downloaded, listed where they fail, and tried again."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.web import FileServer, file_server

from vlmill.pipelines.manifest.__main__ import main
from vlmill.pipelines.manifest.published import command as published
from vlmill.pipelines.manifest.published import downloads as fetched
from vlmill.runtime.files.manifest import read_manifest, verify_folder
from vlmill.runtime.files.reading import read_table
from vlmill.schemas.tables import IMAGES, PAIRS, REJECTS

ROOT = Path(__file__).parents[4]
RULES = ("/robots.txt", "/.well-known/tdmrep.json")  # asked of each host first


@pytest.fixture
def host(image: Callable[..., bytes]) -> Iterator[FileServer]:
    """A host with an image of its own for each number, and what else a path says."""
    others: dict[str, bytes | str] = {"later": "500", "gone": "410", "moved": "/3.jpg"}
    others["page"] = b"<html><p>Gone</html>"

    def find(path: str) -> bytes | str | None:
        name = path.strip("/").partition(".")[0]
        return image(30, 20, seed=int(name)) if name.isdigit() else others.get(name)

    with file_server(find) as host:
        yield host


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
    tmp_path: Path,
    host: FileServer,
    image: Callable[..., bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = ("1.jpg", "gone.jpg", "page.jpg", "moved.jpg", "later.jpg", "1.jpg", "7.jpg")
    folder = write_captions(tmp_path / "in", [f"{host.url}/{n}" for n in names] + ["ftp://a/b.jpg"])
    (folder / "train_image").mkdir()
    (folder / "train_image/00000006.jpg").write_bytes(image(30, 20, seed=7))
    more = ("--delay", "0", "--retries", "0", "--rows-per-shard", "3")
    assert main(arguments(folder, "cc", *more)) == 0
    assert Counter(host.paths) == Counter(
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
    again = list(host.paths)
    assert main(arguments(folder, "cc", *more)) == 0
    assert host.paths == again  # it is finished
    host.files["/later.jpg"] = image(30, 20, seed=99)
    assert main(arguments(folder, "cc", *more, "--retry-failed")) == 0
    assert Counter(host.paths) - Counter(again) == Counter([*RULES, "/later.jpg"])
    ids = read_table(out, IMAGES).column("image_id").to_pylist()
    assert [key[-1] for key in sorted(ids)] == ["0", "3", "4", "5", "6"]
    assert verify_folder(out) == [] and read_manifest(out)["fetch"]["fetched"] == 3


@pytest.mark.nightly
def test_a_fetch_into_a_store_goes_on_and_tries_again(
    tmp_path: Path,
    host: FileServer,
    image: Callable[..., bytes],
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
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
    asked = list(host.paths)
    assert main(args) == 0
    assert host.paths == asked and read_table(output, IMAGES).num_rows == 2
    host.files["/later.jpg"] = image(30, 20, seed=99)
    assert main([*args, "--retry-failed"]) == 0
    assert Counter(host.paths) - Counter(asked) == Counter([*RULES, "/later.jpg"])
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
def test_a_kill_repeats_nothing(tmp_path: Path, host: FileServer) -> None:
    folder = write_captions(tmp_path / "in", [f"{host.url}/{n}.jpg" for n in range(8)])
    args = arguments(folder, "cc", "--delay", "0.3")
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "vlmill.pipelines.manifest", *args]
    process = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    for _ in range(6_000):
        if len(host.paths) > 4:
            break
        assert process.poll() is None, "the run has ended before its kill"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert main(args) == 0
    assert read_table(tmp_path / "out", IMAGES).num_rows == 8
    assert sum(times - 1 for times in Counter(host.paths).values()) <= 1  # what was in flight
