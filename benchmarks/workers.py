"""Growth of mining from one process to more: wall seconds of the same job with ``--workers`` 1, 2.

The command runs on generated archives with images, once with each number of processes. ``limit``
is what this machine gives so many processes that only calculate, in the same minutes: measured
before and after, beside one such process. On a machine with other work both suffer alike.

    python benchmarks/workers.py --full
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from shell import parse_form, result_line
from worlds.web import Web, write_archives

SHORT = {"pages": 1_000, "workers": 2}
FULL = {"pages": 24_000, "workers": 2}
ARCHIVE_PAGES = 250
# About half a second of work without memory or files.
CALCULATION = (
    "import hashlib\nfor _ in range(50): hashlib.pbkdf2_hmac('sha256', b'word', b'salt', 20_000)"
)
FLAGS = ("--safety-model", "none", "--realism-model", "none")
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


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", type=int, metavar="N", help="of 20 KB, with three images each")
    parser.add_argument("--workers", type=int, metavar="N", help="processes beside one")
    args = parse_form(parser, argv, short=SHORT, full=FULL)
    with tempfile.TemporaryDirectory() as name:
        folder, web = Path(name), Web(pages=args.pages, images=True)
        write_archives(folder / "archives", web, -(-web.pages // ARCHIVE_PAGES))
        limits = [machine_growth(args.workers)]
        one, many = (mine(folder, workers) for workers in (1, args.workers))
        limits.append(machine_growth(args.workers))
    limit, growth = sum(limits) / 2, one / many
    line = result_line(
        f"web_pairs/{args.workers}-workers",
        round(growth, 3),
        "times one",
        limit=round(limit, 3),
        fraction_of_limit=round(growth / limit, 3),
        bar=BAR * args.workers,
        wall_s=[round(one, 1), round(many, 1)],
        load=round(os.getloadavg()[0], 1),
    )
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
