"""One command mines pages, fetches their images and joins both, through a kill: the local rows."""

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from flink_cluster import Cluster
from tests.factories import NO_MODELS, caption
from tests.flink.jobs import finish, job_command, read, start
from tests.flink.observed import await_some, failures_of, task_managers_of
from tests.flink.test_kills import kill
from tests.pipelines.conftest import make_image, write_archive
from tests.web import FileServer, file_server

pytestmark = [pytest.mark.flink, pytest.mark.long]
ARCHIVES, PAGES, HOSTS = 4, 240, 12
JOBS = 20  # of a run, at most: each round of fetching is one


def number_image(number: int) -> bytes:
    """An image of its own for each number: a comment in the JPEG tells those of one seed apart."""
    body, comment = make_image(400, 320, seed=number), b"%08d" % number
    return body[:2] + b"\xff\xfe\x00\x0a" + comment + body[2:]


def find_image(path: str) -> bytes | None:
    """The image of a number; there is nothing else."""
    name = path.strip("/").removesuffix(".jpg")
    return number_image(int(name)) if name.isdigit() else None


def fetched(images: FileServer) -> list[int]:
    """How often each image was asked for; each is of one host."""
    return [count for path, count in Counter(images.paths).items() if path.endswith(".jpg")]


def write_pages(folder: Path, port: int, *, archives: int, pages: int, hosts: int) -> None:
    """Archives of pages without their images, of hosts 127.0.0.2 and the next ones."""
    folder.mkdir()
    for part in range(archives):
        records = []
        for number in range(part, pages, archives):
            site, text = f"http://127.0.0.{2 + number % hosts}:{port}", caption(number)
            page = (
                f"<html lang=en><title>{text}</title><p>Some words before it stand here."
                f"<img src='/{number}.jpg' width=400 height=320 alt='{text} at noon'></html>"
            )
            records.append((f"{site}/page-{number}.html", page.encode(), "text/html"))
        write_archive(folder / f"{part}.warc.gz", records)


def rows_of(folder: Path, table: str) -> list[str]:
    """A table's rows, sorted: images are in the order in which they were fetched."""
    rows = [row for f in folder.glob(f"{table}-*") for row in pq.read_table(f).to_pylist()]
    return sorted(map(str, rows))


def run_and_compare(
    cluster: Cluster,
    flags: list[str],
    folder: Path,
    *,
    archives: int = ARCHIVES,
    pages: int = PAGES,
    hosts: int = HOSTS,
) -> dict[str, float]:
    """Runs the command here, and on the cluster with a task manager that is killed; returns how
    many images were asked for, and the most often one.
    """
    polite = ["--delay", "0", "--retries", "0", "--buckets", "8", "--lock-seconds", "10"]
    access = ["--fetch", "--contact", "me@example.org", "--allow-address", "127.0.0.0/8"]
    with file_server(find_image, address="0.0.0.0") as images:
        write_pages(folder / "warc", images.port, archives=archives, pages=pages, hosts=hosts)
        warc = ["--warc", str(folder / "warc/*.warc.gz"), "--shards", "3", *NO_MODELS]
        command = job_command("web_pairs", *warc, *access, *polite)
        finish(start(command, folder / "local"))
        assert sorted(fetched(images)) == [1] * pages
        images.asked.clear()
        output = folder / "cluster"
        job = start(command, output, *flags)
        await_some(lambda: max(0, len(fetched(images)) - pages // 4), job)
        revive = kill(cluster, "a task manager")
        before = len(fetched(images))
        revive()
        finish(job)
        counts = fetched(images)
    assert before < pages
    assert len(counts) == pages
    assert len(rows_of(folder / "local", "pairs")) == pages
    for table in ("pairs", "images", "rejects"):
        assert rows_of(folder / "local", table) == rows_of(output, table)
    assert read(folder / "local" / "funnel.json") == read(output / "funnel.json")
    assert failures_of(cluster, JOBS) > 0
    return {"asked": sum(counts), "most": max(counts), "before the kill": before}


def test_pages_and_images_of_hosts_through_a_kill(
    cluster: Cluster, endpoint: list[str], process: list[str], tmp_path: Path
) -> None:
    """What was in flight at the kill is asked for again, at most one image of each host."""
    found = run_and_compare(cluster, [*endpoint, *process], tmp_path)
    assert found["asked"] <= PAGES + HOSTS
    assert found["most"] <= 2
    assert len(task_managers_of(cluster, "Fetch")) == 2
