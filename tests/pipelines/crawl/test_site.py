"""The generated web of 50 hosts is crawled: every URL's outcome, every host's rate, and kills."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fastwarc.warc import ArchiveIterator
from worlds.host_server import Hit, Served, serve_site

from vlmill.pipelines.crawl.__main__ import main
from vlmill.pipelines.web.fetching import rounds
from vlmill.pipelines.web.fetching.tables import CrawlSummary, write_tables
from vlmill.pipelines.web.fetching.work import FetchState, open_bucket
from vlmill.runtime.files.manifest import verify_folder
from vlmill.schemas.rejects import MAX_KEY

DELAY_S = 0.05
SLACK_S = 0.002  # of two processes' clocks
ROOT = Path(__file__).parents[3]


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Served]:
    """A web that nobody has asked anything."""
    with serve_site(tmp_path / "hits") as served:
        yield served


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A web that several tests ask for hosts of their own."""
    with serve_site(tmp_path_factory.mktemp("hosts") / "hits") as served:
        yield served


def arguments(urls: Path, output: Path, *more: str) -> list[str]:
    fixed = ["--contact", "me@example.org", "--allow-address", "127.0.0.0/8"]
    quick = ["--delay", str(DELAY_S), "--retry-wait", "0.1", "--timeout", "1"]
    bounds = ["--max-bytes", "1000000", "--buckets", "3"]
    return ["--urls", str(urls), "--output", str(output), *fixed, *quick, *bounds, *more]


def write_list(path: Path, urls: Sequence[str]) -> Path:
    path.write_text("".join(f"{url}\n" for url in urls), encoding="utf-8")
    return path


def rows_of(output: Path, table: str) -> list[dict[str, Any]]:
    paths = sorted(output.glob(f"{table}-*.parquet"))
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


def outcomes_of(output: Path) -> dict[str, str]:
    """The outcome of each URL, that of lines which are none included."""
    lines = {r["key"]: r["reason"] for r in rows_of(output, "rejects") if r["stage"] == "urls"}
    return lines | {row["url"]: row["outcome"] for row in rows_of(output, "outcomes")}


def expected(served: Served) -> dict[str, str]:
    return {url[:MAX_KEY]: outcome for url, outcome in served.site.outcomes().items()}


def gaps(hits: Sequence[Hit]) -> dict[int, float]:
    """The shortest time between two requests of each host that had two."""
    times = defaultdict[int, list[float]](list)
    for hit in hits:
        times[hit.host].append(hit.at)
    return {h: min(b - a for a, b in pairwise(at)) for h, at in times.items() if len(at) > 1}


def kept_rates(served: Served) -> None:
    """Checks at the servers that no host was asked faster or more at once than it may be."""
    hits = served.hits()
    assert max(hit.running for hit in hits) == 1
    slow = next(host for host, kind in served.site.kinds.items() if kind == "robots_delay")
    shortest = gaps(hits)
    assert shortest[slow] >= 0.5 - SLACK_S
    assert min(shortest.values()) >= DELAY_S - SLACK_S


def test_every_url_has_the_outcome_that_the_table_says(tmp_path: Path, fresh: Served) -> None:
    urls = [*fresh.site.urls(), fresh.site.urls()[0]]
    output = tmp_path / "crawl"
    listed = write_list(tmp_path / "urls", urls)
    assert main(arguments(listed, output, "--workers", "1", "--warc-bytes", "20000")) == 0
    assert Counter(row["reason"] for row in rows_of(output, "rejects"))["duplicate"] == 1
    wrong = outcomes_of(output)
    wrong.update({url: outcome for url, outcome in expected(fresh).items() if url not in wrong})
    repeated = urls[0]
    assert wrong == expected(fresh) | {repeated: outcomes_of(output)[repeated]}
    kept_rates(fresh)
    agents = {hit.agent for hit in fresh.hits()}
    assert len(agents) == 1 and "me@example.org" in agents.pop()
    is_whole(output)


def is_whole(output: Path) -> None:
    """Checks that the tables, the funnel and the archives tell one story."""
    assert verify_folder(output) == []
    funnel = json.loads((output / "funnel.json").read_text())
    assert all(s["in"] == s["out"] + sum(s["rejects"].values()) for s in funnel)
    rejects, outcomes = rows_of(output, "rejects"), rows_of(output, "outcomes")
    assert len(rejects) == sum(sum(stage["rejects"].values()) for stage in funnel)
    assert sum(stage["in"] for stage in funnel[1:]) == len(outcomes)
    kept = {row["url"]: row for row in outcomes if row["warc"] is not None}
    assert {r["outcome"] for r in outcomes if r["warc"] is None}.isdisjoint(
        ("fetched", "redirected")
    )
    archived = dict(records_of(output))
    assert archived == {url: (row["warc"], row["warc_offset"]) for url, row in kept.items()}
    warcs = json.loads((output / "warcs.json").read_text())
    assert sum(warc["records"] for warc in warcs) == len(kept)
    archives = sorted(output.glob("*.warc.gz"))
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in archives] == [
        warc["sha256"] for warc in warcs
    ]
    assert {path.name for path in output.iterdir() if path.is_dir()} == set()


def records_of(output: Path) -> Iterator[tuple[str, tuple[str, int]]]:
    for path in sorted(output.glob("*.warc.gz")):
        with path.open("rb") as file:
            for record in ArchiveIterator(file):
                url = record.headers.get("WARC-Target-URI")
                if url is not None:
                    yield url, (path.name, record.stream_pos)


def start(args: Sequence[str]) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "vlmill.pipelines.crawl", *args]
    return subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def killed_when(process: subprocess.Popen[bytes], happened: Callable[[], bool]) -> None:
    """Kills a run once something has happened; fails if it ends, or never gets there."""
    for _ in range(3_000):
        if happened():
            process.send_signal(signal.SIGKILL)
            process.wait()
            return
        assert process.poll() is None, "the run has ended before its kill"
        time.sleep(0.02)
    process.kill()
    raise AssertionError("nothing has happened")


@pytest.mark.slow
def test_two_workers_that_are_killed_go_on(tmp_path: Path, fresh: Served) -> None:
    """Twice, while they fetch. Nothing that was answered is asked for again, and rates hold."""
    listed = write_list(tmp_path / "urls", fresh.site.urls())
    output = tmp_path / "crawl"
    args = arguments(listed, output, "--workers", "2", "--retries", "0")
    for number in (60, 200):
        killed_when(start(args), lambda n=number: len(fresh.hits()) > n)  # type: ignore[misc]
    assert not list(output.glob("outcomes-*"))
    assert start(args).wait() == 0
    assert outcomes_of(output) == expected(fresh)
    kept_rates(fresh)
    is_whole(output)
    assert most_asked_again(fresh) <= 2


def most_asked_again(fresh: Served) -> int:
    """Of all hosts, the largest number of repeated requests: at most one for each kill.

    What asks for patience, or is asked for again until it says how long, is not counted.
    """
    patient = {h for h, kind in fresh.site.kinds.items() if kind in PATIENT}
    asked = Counter((hit.host, hit.path) for hit in fresh.hits() if hit.host not in patient)
    again = Counter(host for (host, _), times in asked.items() for _ in range(times - 1))
    return max(again.values(), default=0)


@pytest.mark.nightly  # the kill above is of workers of one run
def test_parts_crawl_their_hosts_and_a_killed_part_goes_on(tmp_path: Path, fresh: Served) -> None:
    """Two parts at the same time; the second is killed while it fetches, and started again."""
    listed = write_list(tmp_path / "urls", fresh.site.urls())
    output = tmp_path / "crawl"
    args = arguments(listed, output, "--retries", "0", "--workers", "1")
    first, second = ([*args, "--part", part] for part in ("1/2", "2/2"))
    running = start(first)
    killed_when(start(second), lambda: len(fresh.hits()) > 100)
    assert not list(output.glob("outcomes-*"))
    assert start(second).wait() == 0 and running.wait() == 0
    assert outcomes_of(output) == expected(fresh)
    kept_rates(fresh)
    is_whole(output)
    assert most_asked_again(fresh) <= 1


PATIENT = ("busy", "unavailable", "never_available", "robots_endless")


def test_a_crawl_is_fetched_again_where_something_has_changed(
    tmp_path: Path, served: Served
) -> None:
    images = [url for url in served.site.urls() if url.endswith("/listed.jpg")][:4]
    listed, first = write_list(tmp_path / "urls", images), tmp_path / "first"
    assert main(arguments(listed, first, "--workers", "1")) == 0
    again = tmp_path / "again"
    assert main(arguments(first, again, "--workers", "1")) == 0
    assert outcomes_of(again) == dict.fromkeys(images, "not_modified")
    assert all(row["etag"] and row["status"] == 304 for row in rows_of(again, "outcomes"))
    third = tmp_path / "third"
    assert main(arguments(again, third, "--workers", "1")) == 0
    assert outcomes_of(third) == dict.fromkeys(images, "not_modified")


def test_rejects_are_tried_again_by_giving_them_back(tmp_path: Path, served: Served) -> None:
    """Of a host that asks for patience twice; one attempt at each run."""
    busy = next(h for h, kind in served.site.kinds.items() if kind == "unavailable")
    listed = write_list(tmp_path / "urls", [served.site.url(busy, "/a.jpg")])
    first, again = tmp_path / "first", tmp_path / "again"
    impatient = ("--workers", "1", "--retries", "0", "--max-wait", "0")
    assert main(arguments(listed, first, *impatient)) == 1
    assert set(outcomes_of(first).values()) == {"bad_status"}
    assert main(arguments(first / "rejects-*.parquet", again, *impatient)) == 0
    assert set(outcomes_of(again).values()) == {"fetched"}


def test_a_finished_crawl_asks_nobody(tmp_path: Path, served: Served) -> None:
    listed = write_list(tmp_path / "urls", [served.site.url(2, "/a.jpg")])
    args = arguments(listed, tmp_path / "crawl", "--workers", "1")
    assert main(args) == 0
    hits = served.hits()
    assert [hit.path for hit in hits if hit.host == 2] == [
        *("/robots.txt", "/.well-known/tdmrep.json", "/a.jpg")
    ]
    assert main(args) == 0
    assert served.hits() == hits


def flip_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_an_archive_that_has_changed_is_named(
    tmp_path: Path, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """By ``verify`` and by a second run, which also checks the tables."""
    output = tmp_path / "crawl"
    listed = write_list(tmp_path / "urls", [served.site.url(2, "/a.jpg")])
    args = arguments(listed, output, "--workers", "1")
    assert main(args) == 0
    (archive,) = output.glob("*.warc.gz")
    content = archive.read_bytes()
    for damage in (flip_byte, lambda path: path.write_bytes(content[:-1]), Path.unlink):
        damage(archive)
        assert [archive.name in problem for problem in verify_folder(output)] == [True]
        assert main(args) == 2
        assert str(archive) in capsys.readouterr().err
        archive.write_bytes(content)
    flip_byte(next(output.glob("outcomes-*.parquet")))
    assert main(args) == 2
    # What an older version has written lists no SHA-256.
    warcs = json.loads((output / "warcs.json").read_text())
    (output / "warcs.json").write_text(
        json.dumps([{k: v for k, v in warc.items() if k != "sha256"} for warc in warcs])
    )
    flip_byte(archive)
    assert not [problem for problem in verify_folder(output) if archive.name in problem]


def test_a_crawl_that_has_lost_a_journal_or_an_archive_keeps_the_rest(
    tmp_path: Path,
    served: Served,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was killed before its tables; then files went that it goes on from."""
    output = tmp_path / "crawl"
    listed = write_list(tmp_path / "urls", [served.site.url(2, "/a.jpg")])
    args = arguments(listed, output, "--workers", "1")
    with monkeypatch.context() as patch:
        patch.setattr(rounds, "write_tables", _finish_and_stop)
        assert main(args) == 1
    (archive,) = output.glob("*.warc.gz")
    content = archive.read_bytes()
    bucket = int(archive.name.split("-")[1])
    journal = output / "work" / "buckets" / f"{bucket:05d}.journal"
    os.replace(journal, tmp_path / "journal")
    assert main(args) == 1
    assert str(journal) in capsys.readouterr().err
    assert archive.read_bytes() == content
    os.replace(tmp_path / "journal", journal)
    archive.unlink()
    assert main(args) == 1
    assert str(archive) in capsys.readouterr().err and journal.exists()
    archive.write_bytes(content)
    stray = output / "crawl-00000-00077.warc.gz"
    stray.write_bytes(b"")
    assert main(args) == 1
    assert str(stray) in capsys.readouterr().err
    stray.unlink()
    assert main(args) == 0
    is_whole(output)


def _finish_and_stop(job: FetchState, bucket: int) -> CrawlSummary:
    """Ends a run when all archives have their names, before the last bucket's tables."""
    if bucket < job.buckets - 1:
        return write_tables(job, bucket)
    with open_bucket(job, bucket) as opened:
        opened.finish_part()
    raise OSError("killed")


def test_an_empty_list_is_a_crawl(tmp_path: Path) -> None:
    listed = write_list(tmp_path / "urls", [])
    assert main(arguments(listed, tmp_path / "crawl", "--workers", "1")) == 0
    assert rows_of(tmp_path / "crawl", "outcomes") == []


def test_a_dry_run_asks_nobody_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = [f"http://{host}.example/{n}.jpg" for host in ("a", "b") for n in range(3600)]
    listed, output = write_list(tmp_path / "urls", [*urls, "no URL"]), tmp_path / "crawl"
    assert main(arguments(listed, output, "--dry-run", "--delay", "1")) == 0
    said = capsys.readouterr().out
    assert "7,200 URLs on 2 hosts, 1 line that is not a URL" in said and "60 min" in said
    assert not output.exists()


def test_a_page_may_be_fetched_without_its_images(tmp_path: Path, served: Served) -> None:
    index = served.site.url(30, "/index.html")
    listed = write_list(tmp_path / "urls", [index])
    more = ("--workers", "1", "--addresses", "0")
    assert main(arguments(listed, tmp_path / "crawl", *more)) == 0
    assert outcomes_of(tmp_path / "crawl") == {index: "fetched"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--contact", "nobody"], "contact 'nobody'"),
        (["--delay", "-1"], "--delay is -1.0; it must be 0 or more"),
        (["--buckets", "1001"], "--buckets 1001: must be at most 1000"),
        (["--allow-address", "localhost"], "'localhost' does not appear to be"),
        (["--urls", "nothing-here.txt"], "--urls nothing-here.txt: no such file"),
        (["--runer", "X"], "--runer: neither this job nor Apache Beam has this flag"),
    ],
)
def test_mistakes_are_one_line(
    more: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(write_list(tmp_path / "urls", []), tmp_path / "crawl", *more)) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not (tmp_path / "crawl").exists()
