"""Runs a whole crawl of a list of images by one of two tools in this process, and times it.

``python benchmarks/peers/crawls.py TOOL FILE FOLDER CONNECTIONS`` prints a line of JSON. ``vlmill``
is the crawl of a list with one worker, to archives, tables and report. Of a table of URLs and
captions, FILE with the ending .csv, ``vlmill-pairs`` makes pairs and images, and ``img2dataset``
tar files, by its ``download`` with one process of CONNECTIONS threads, run by an interpreter that
has it. Both keep images as received, or with ``-resized`` scale them to 256 pixels with a border.
CPU seconds are those of all processes, with imports.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def by_vlmill(urls: Path, folder: Path, connections: int, *source: str) -> None:
    """Crawls a list of 50 hosts of this machine without pauses."""
    from vlmill.pipelines.crawl.__main__ import main

    manners = ["--contact", "benchmark@example.org", "--delay", "0", "--retries", "0"]
    allowed = ["--allow-address", "127.0.0.0/8", "--per-host", str(max(1, connections // 50))]
    places = [*(source or ("--urls", str(urls))), "--output", str(folder)]
    status = main([*places, *manners, *allowed, "--buckets", "1", "--workers", "1"])
    assert status in (0, 1), f"the crawl has failed with status {status}"


def by_vlmill_pairs(urls: Path, folder: Path, connections: int, *more: str) -> None:
    """Makes pairs and images of a table."""
    by_vlmill(urls, folder, connections, "--input", str(urls.with_suffix(".csv")), *more)


def by_vlmill_pairs_resized(urls: Path, folder: Path, connections: int) -> None:
    """Makes pairs and images of 256 pixels."""
    by_vlmill_pairs(urls, folder, connections, "--resize", "256", "--resize-mode", "border")


def by_img2dataset(urls: Path, folder: Path, connections: int, *, resized: bool = False) -> None:
    """Downloads a table by img2dataset 1.47.0."""
    from img2dataset import download

    download(
        url_list=str(urls.with_suffix(".csv")),
        input_format="csv",
        url_col="url",
        caption_col="caption",
        output_folder=str(folder),
        processes_count=1,
        thread_count=connections,
        output_format="webdataset",
        image_size=256,
        resize_mode="border" if resized else "no",
        skip_reencode=not resized,
        compute_hash="sha256",
        retries=0,
    )


def by_img2dataset_resized(urls: Path, folder: Path, connections: int) -> None:
    """Downloads images of 256 pixels, encoded again."""
    by_img2dataset(urls, folder, connections, resized=True)


TOOLS: dict[str, Callable[[Path, Path, int], None]] = {
    "vlmill": by_vlmill,
    "vlmill-pairs": by_vlmill_pairs,
    "vlmill-pairs-resized": by_vlmill_pairs_resized,
    "img2dataset": by_img2dataset,
    "img2dataset-resized": by_img2dataset_resized,
}


def fetched_by(tool: str, folder: Path) -> int:
    """How many URLs the tool says that it has fetched."""
    if tool.startswith("vlmill"):
        metrics = json.loads((folder / "metrics.json").read_text())
        return int(metrics["outcomes"].get("fetched", 0))
    stats = [json.loads(path.read_text()) for path in folder.glob("*_stats.json")]
    return sum(int(one["successes"]) for one in stats)


def peak_mb() -> float:
    """The peak of this process's resident memory; getrusage's may be that of its parent."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1_024


def cpu_s() -> float:
    """User and system seconds of this process, of its descendants, and of those that have ended.

    Decoders are started by another process, which is alive and has waited for them.
    """
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    ended = sum(usage.ru_utime + usage.ru_stime for usage in both)
    return ended + sum(ticks for _, ticks in descendants()) / os.sysconf("SC_CLK_TCK")


def descendants() -> list[tuple[int, int]]:
    """The (id, clock ticks with those of ended children) of the living descendants."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            fields = path.read_text().rpartition(")")[2].split()
            stats[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    found, parents = list[tuple[int, int]](), {os.getpid()}
    while parents:
        children = [(pid, ticks) for pid, (parent, ticks) in stats.items() if parent in parents]
        found += children
        parents = {pid for pid, _ in children}
    return found


def main(tool: str, urls: str, folder: str, connections: int) -> None:
    """Prints what the whole crawl cost."""
    started, standard_output = time.perf_counter(), os.dup(1)
    os.dup2(2, 1)  # the tools' own words
    TOOLS[tool](Path(urls), Path(folder), connections)
    os.dup2(standard_output, 1)
    figures = {
        "fetched": fetched_by(tool, Path(folder)),
        "cpu_s": cpu_s(),
        "wall_s": time.perf_counter() - started,
        "peak_mb": peak_mb(),
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
