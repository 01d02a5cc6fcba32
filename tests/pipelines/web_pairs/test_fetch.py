"""Archives without images: their candidates' images are fetched, in one command."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.object_stores import download_folder, upload_folder
from tests.web import FileServer, file_server

from vlmill.pipelines.web_pairs import fetch
from vlmill.pipelines.web_pairs import job as job_module
from vlmill.pipelines.web_pairs.__main__ import main

ROOT = Path(__file__).parents[3]
TEXTS = ("grey harbour", "red tower", "old bridge", "green valley", "steep coast", "small ferry")


def serve(image: Callable[..., bytes]) -> AbstractContextManager[FileServer]:
    """A host with an image of its own for each number, at ``/p0.jpg``, ``/p1.jpg``, ..."""
    return file_server(lambda p: image(400, 380, seed=int(p[2])) if p.startswith("/p") else None)


@pytest.fixture
def site(image: Callable[..., bytes]) -> Iterator[FileServer]:
    with serve(image) as site:
        yield site


@pytest.fixture
def archive(tmp_path: Path, site: FileServer, response: Callable[..., bytes]) -> Path:
    """A page with six images, an icon and one that its text does not describe."""
    figures = "".join(
        f"<figure><img src='/p{n}.jpg'><figcaption>A {text} seen from the sea in the evening."
        "</figcaption></figure>"
        for n, text in enumerate(TEXTS)
    )
    words = "We walked along the coast and looked at the ships that came in from the sea. " * 9
    icon = "<img src='/p8.jpg' class='logo' alt='the logo of our house'>"
    page = f"<html lang=en><body><article>{icon}<p>{words}</p>{figures}</article></body></html>"
    rules = b"User-agent: *\nContent-Usage: /private train-ai=n\nAllow: /\n"
    path = tmp_path / "pages.warc.gz"
    path.write_bytes(
        response(f"{site.url}/robots.txt", rules, "text/plain")
        + response(f"{site.url}/page.html", page.encode(), "text/html")
    )
    return path


def arguments(archive: Path, output: Path, *more: str) -> list[str]:
    models = ["--safety-model", "none", "--realism-model", "none"]
    fetch = ["--fetch", "--contact", "me@example.org", "--allow-address", "127.0.0.0/8"]
    return ["--warc", str(archive), "--output", str(output), *models, *fetch, *more]


def pairs_of(output: Path) -> dict[str, str]:
    rows = pq.read_table(next(output.glob("pairs-*"))).to_pylist()
    return {row["image_url"].rpartition("/")[2]: row["text"] for row in rows}


EXPECTED = {
    f"p{n}.jpg": f"A {text} seen from the sea in the evening." for n, text in enumerate(TEXTS)
}


def test_candidates_get_their_images(archive: Path, site: FileServer, tmp_path: Path) -> None:
    output = tmp_path / "out"
    args = arguments(archive, output, "--delay", "0")
    assert main(args) == 0
    assert pairs_of(output) == EXPECTED
    asked = Counter(site.paths)
    assert asked == Counter(
        ["/robots.txt", "/.well-known/tdmrep.json", *(f"/{name}" for name in EXPECTED)]
    )  # and not the icon
    assert main(args) == 0  # says that it is finished
    assert Counter(site.paths) == asked
    funnel: list[dict[str, Any]] = json.loads((output / "funnel.json").read_text())
    assert all(s["in"] == s["out"] + sum(s["rejects"].values()) for s in funnel)


def test_a_fetched_archive_that_is_damaged_is_refused(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is mined of it."""
    output = tmp_path / "out"
    args = arguments(archive, output, "--delay", "0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_module, "prepare_work", _stop)
        assert main(args) == 1
    (fetched,) = (path for path in output.glob("work/fetch-*/*.gz") if path.stat().st_size)
    content = bytearray(fetched.read_bytes())
    content[-9] ^= 1
    fetched.write_bytes(content)
    assert main(args) == 2
    assert f"{fetched} has changed since it was written" in capsys.readouterr().err


@pytest.mark.nightly  # a crawl on a runner does the same; the rest is one more step
def test_a_runner_s_workers_find_and_fetch(archive: Path, site: FileServer, tmp_path: Path) -> None:
    """With all flags of a crawl's politeness."""
    beam = ("--runner=DirectRunner", "--direct_num_workers=2")
    polite = ("--delay", "0", "--retries", "0", "--timeout", "20", "--buckets", "2")
    args = arguments(archive, tmp_path / "out", *polite, *beam)
    assert main([*args, "--direct_running_mode=multi_processing"]) == 0
    assert pairs_of(tmp_path / "out") == EXPECTED
    assert max(Counter(site.paths).values()) == 1
    assert not list((tmp_path / "out" / "work").glob("fetch-*/work"))


@pytest.mark.nightly  # that of manifest does the same
def test_a_fetch_in_a_store_goes_on(
    archive: Path, site: FileServer, tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped when all is fetched, and the archives are in the store."""
    upload_folder(archive.parent, f"{bucket}/in")
    warc, output = f"{bucket}/in/{archive.name}", f"{bucket}/out"
    args = ["--warc", warc, *arguments(archive, tmp_path, "--delay", "0")[2:]]
    args[args.index("--output") + 1] = output
    with monkeypatch.context() as patch:
        patch.setattr(fetch, "collect_tables", _stop)
        assert main(args) == 1
    asked = list(site.paths)
    assert main(args) == 0
    assert site.paths == asked
    assert pairs_of(download_folder(output, tmp_path / "there")) == EXPECTED
    assert not os.listdir(Path(os.environ["VLMILL_CACHE"], "uploads"))


def _stop(*_: object, **__: object) -> None:
    raise OSError("the machine is gone")


def test_it_needs_a_contact(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = [a for a in arguments(archive, archive.parent / "out") if a != "me@example.org"]
    args.remove("--contact")
    assert main(args) == 2
    assert "--fetch needs --contact" in capsys.readouterr().err
