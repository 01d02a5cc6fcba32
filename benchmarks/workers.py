"""Measures mining with one process and with more: wall seconds by ``--workers``.

The command runs on generated archives with images, once with each number of processes. ``limit``
is what this machine gives so many processes that only calculate, in the same minutes: measured
before and after, beside one such process. On a machine with other work both suffer alike.

``--copies N`` mines a single archive, whose parts are the units: the first steps of the job,
alternately with each number of processes. The archive is the real sites of ``$VLMILL_DATA``, joined
N times to one file of N times 69 MB, or a generated one.

    python benchmarks/workers.py --full
    VLMILL_DATA=DIR python benchmarks/workers.py --copies 5
"""

import ctypes
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from shell import add_counts, new_parser, parse_form, print_line, result_line
from worlds.web import Web, write_archives

SHORT = {"pages": 1_000, "workers": 2}
FULL = {"pages": 24_000, "workers": 2}
ARCHIVE_PAGES = 250
# About half a second of work without memory or files.
CALCULATION = (
    "import hashlib\nfor _ in range(50): hashlib.pbkdf2_hmac('sha256', b'word', b'salt', 20_000)"
)
FLAGS = ("--safety-model", "none", "--realism-model", "none")
# The steps over archives alone: ARCHIVE OUTPUT WORKERS.
MINE_PROGRAM = """
import sys
from pathlib import Path
from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web_pairs.steps import LINK, MINE
from vlmill.pipelines.web_pairs.units import Archive, Job, cut_archives, prepare_work
from vlmill.runtime.units.run_here import run_here
archive = Archive(path=sys.argv[1], size=Path(sys.argv[1]).stat().st_size)
archives = tuple(cut_archives([archive]))
job = Job(output=sys.argv[2], archives=archives, shards=1, rules=WebPairRules())
prepare_work(job)
run_here(job, [MINE, LINK], workers=int(sys.argv[3]), module="vlmill.pipelines.web_pairs.job")
"""
PR_SET_CHILD_SUBREAPER = 36
TIMES = 3  # with --copies
BAR = 0.85  # of as many processes: 1.7 for two


def calculate(processes: int) -> float:
    """Wall seconds of so many processes that only calculate, at the same time."""
    start = time.perf_counter()
    running = [subprocess.Popen([sys.executable, "-c", CALCULATION]) for _ in range(processes)]
    for process in running:
        process.wait()
    return time.perf_counter() - start


def machine_growth(workers: int) -> float:
    """How much more so many processes calculate than one does, in the same time."""
    return workers * calculate(1) / calculate(workers)


def mine(folder: Path, workers: int) -> float:
    """Wall seconds of the command."""
    command = [sys.executable, "-m", "vlmill.pipelines.web_pairs", *FLAGS]
    command += ["--warc", f"{folder}/archives/*.gz", "--output", f"{folder}/{workers}"]
    start = time.perf_counter()
    subprocess.run([*command, "--workers", str(workers)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def one_archive(folder: Path, pages: int, copies: int) -> Path:
    """Writes the archive: the real sites of ``$VLMILL_DATA``, or generated pages."""
    path = folder / "one.warc.gz"
    sites = sorted(Path(os.environ.get("VLMILL_DATA", "missing"), "sites").glob("*.warc.gz"))
    if not sites:
        (generated,) = write_archives(folder / "archives", Web(pages=pages, images=True), 1)
        return generated
    with path.open("wb") as file:
        for site in sites * copies:
            with site.open("rb") as part:
                shutil.copyfileobj(part, file)
    return path


def mine_archive(archive: Path, output: Path, workers: int) -> tuple[float, float]:
    """Wall and CPU seconds of mining one archive, with the processes of ``workers``."""
    shutil.rmtree(output, ignore_errors=True)
    command = [sys.executable, "-c", MINE_PROGRAM, str(archive), str(output), str(workers)]
    start, before = time.perf_counter(), cpu_of_children()
    subprocess.run(command, check=True)
    wall = time.perf_counter() - start
    with suppress(ChildProcessError):  # the server of forks, and so what it has waited for
        while True:
            os.wait()
    return wall, cpu_of_children() - before


def cpu_of_children() -> float:
    """CPU seconds of all processes that this one has waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def adopt_orphans() -> None:
    """Lets this process wait for the processes that its children leave (Linux)."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def measure_one_archive(folder: Path, pages: int, workers: int, copies: int) -> dict[str, Any]:
    """Mines one archive with one and with ``workers`` processes, alternately."""
    adopt_orphans()
    archive = one_archive(folder, pages, copies)
    limits, runs = [machine_growth(workers)], dict[int, list[tuple[float, float]]]()
    for _ in range(TIMES):
        for number in (1, workers):
            runs.setdefault(number, []).append(mine_archive(archive, folder / "mined", number))
    limit = (limits[0] + machine_growth(workers)) / 2
    wall, cpu = (
        {number: [round(pair[which], 1) for pair in pairs] for number, pairs in runs.items()}
        for which in (0, 1)
    )
    growth = statistics.median(wall[1]) / statistics.median(wall[workers])
    return result_line(
        f"web_pairs/one-archive-{workers}-workers",
        round(growth, 3),
        "times one",
        limit=round(limit, 3),
        fraction_of_limit=round(growth / limit, 3),
        bar=BAR * workers,
        archive_bytes=archive.stat().st_size,
        wall_s=wall,
        cpu_s=cpu,
        load=round(os.getloadavg()[0], 1),
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = new_parser(__doc__)
    add_counts(
        parser,
        pages="pages of 20 KB, with three images each",
        workers="number of workers to compare with one",
        copies=(0, "copies of the pages in one archive"),
    )
    args = parse_form(parser, argv, short=SHORT, full=FULL)
    with tempfile.TemporaryDirectory() as name:
        folder, web = Path(name), Web(pages=args.pages, images=True)
        if args.copies:
            line = measure_one_archive(folder, args.pages, args.workers, args.copies)
            print(json.dumps(line), flush=True)
            return
        write_archives(folder / "archives", web, -(-web.pages // ARCHIVE_PAGES))
        limits = [machine_growth(args.workers)]
        one, many = (mine(folder, workers) for workers in (1, args.workers))
        limits.append(machine_growth(args.workers))
    limit, growth = sum(limits) / 2, one / many
    print_line(
        f"web_pairs/{args.workers}-workers",
        round(growth, 3),
        "times one",
        limit=round(limit, 3),
        fraction_of_limit=round(growth / limit, 3),
        bar=BAR * args.workers,
        wall_s=[round(one, 1), round(many, 1)],
        load=round(os.getloadavg()[0], 1),
    )


if __name__ == "__main__":
    main()
