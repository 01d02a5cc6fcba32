"""Runs a whole crawl of a list of images by one of two tools in this process, and times it.

``python benchmarks/peers/crawls.py TOOL FILE FOLDER CONNECTIONS`` prints a line of JSON. ``vlmill``
is the crawl with one worker, from the list to archives, tables and report; ``img2dataset`` its
``download`` with one process of so many threads into tar files, run by an interpreter that has it:
images as they came, as the crawl keeps them, or, ``img2dataset-resized``, at 256 pixels as its
examples do. CPU seconds are those of all processes, with imports.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path


def by_vlmill(urls: Path, folder: Path, connections: int) -> None:
    """Crawls a list of 50 hosts of this machine without pauses."""
    from vlmill.pipelines.crawl.command import main

    manners = ["--contact", "benchmark@example.org", "--delay", "0", "--retries", "0"]
    allowed = ["--allow-address", "127.0.0.0/8", "--per-host", str(max(1, connections // 50))]
    places = ["--urls", str(urls), "--output", str(folder)]
    status = main([*places, *manners, *allowed, "--buckets", "1", "--workers", "1"])
    assert status in (0, 1), f"the crawl has failed with status {status}"


def by_img2dataset(urls: Path, folder: Path, connections: int, *, resized: bool = False) -> None:
    """Downloads a list by img2dataset 1.47.0."""
    from img2dataset import download

    download(
        url_list=str(urls),
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
    """The same at 256 pixels, encoded anew."""
    by_img2dataset(urls, folder, connections, resized=True)


TOOLS: dict[str, Callable[[Path, Path, int], None]] = {
    "vlmill": by_vlmill,
    "img2dataset": by_img2dataset,
    "img2dataset-resized": by_img2dataset_resized,
}


def fetched_by(tool: str, folder: Path) -> int:
    """How many URLs the tool says that it has fetched."""
    if tool == "vlmill":
        metrics = json.loads((folder / "metrics.json").read_text())
        return int(metrics["outcomes"].get("fetched", 0))
    stats = [json.loads(path.read_text()) for path in folder.glob("*_stats.json")]
    return sum(int(one["successes"]) for one in stats)


def peak_mb() -> float:
    """The peak of this process's resident memory; getrusage's may be that of its parent."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1_024


def cpu_s() -> float:
    """User and system seconds of this process and of those that it has waited for."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


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
