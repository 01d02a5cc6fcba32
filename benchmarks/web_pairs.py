"""Measures mining: pages per CPU second of each step and in total, growth, memory, start.

The pages are generated (or those of ``--warc``). ``limit`` is the rate at which the fastest parser
(lexbor) alone makes trees of the same pages in the same process. The whole is timed in a plain loop
over the job's units and through Beam. Growth runs 1, 4 and 16 times as many pages with images,
each in a process of its own, whose peak of resident memory counts.

    python benchmarks/web_pairs.py --full
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from selectolax.lexbor import LexborHTMLParser
from shell import add_counts, new_parser, parse_form, print_line, timed
from worlds.web import Web, write_archives

from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.archives.reading import Record, open_archive, read_archive
from vlmill.pipelines.web_pairs.archives import find_archives
from vlmill.pipelines.web_pairs.job import with_mined
from vlmill.pipelines.web_pairs.steps import STEPS
from vlmill.pipelines.web_pairs.units import Job, prepare_work
from vlmill.runtime.units.launch.options import beam_options
from vlmill.runtime.units.run_beam import run_beam

SHORT = {"pages": 600, "rounds": 1, "growth": 4}
FULL = {"pages": 2_000, "rounds": 3, "growth": 16}
GROWTH = (1, 4, 16)
ARCHIVE_PAGES = 500
MEGABYTE = 1e6


def job_over(pattern: str, output: Path) -> Job:
    """The job over archives with the rules' defaults, its folders made."""
    archives = tuple(with_mined(find_archives(pattern), ()))
    job = Job(output=str(output), archives=archives, shards=1, rules=WebPairRules())
    prepare_work(job)
    return job


def pages_of(pattern: str) -> Iterator[bytes]:
    """The bodies of the pages of archives."""
    rules = WebPairRules()
    for path, _ in find_archives(pattern):
        with open_archive(path) as file:
            for _, record in read_archive(file, path, max_bytes=rules.max_record_bytes):
                if isinstance(record, Record) and record.kind == "page":
                    yield record.body


def time_loop(pattern: str, folder: Path) -> dict[str, float]:
    """CPU seconds of each step in a plain loop."""
    job, seconds = job_over(pattern, folder), {}
    for step in STEPS:
        units = step.units(job)
        seconds[step.name] = timed(partial(list, map(partial(step.run, job), units)))[0]
    return seconds


def time_beam(pattern: str, folder: Path) -> float:
    """CPU seconds through Beam's local runner, without the time of its import."""
    job = job_over(pattern, folder)
    return timed(lambda: run_beam(job, STEPS, options=beam_options([])))[0]


def measure_speed(pattern: str, rounds: int, bars: dict[str, float]) -> None:
    """Prints the rates of the parser, of each step, of the loop and of Beam: the best of rounds."""
    bodies = list(pages_of(pattern))
    count, size = len(bodies), sum(map(len, bodies)) / max(1, len(bodies))
    parse, _ = timed(lambda: len([LexborHTMLParser(body) for body in bodies]), rounds)
    bodies.clear()
    limit = count / parse
    print_line("web_pairs/parser", limit, "pages per CPU s", pages=count, page_bytes=round(size))
    loops, beams = [], []
    for _ in range(rounds):
        with ExitStack() as stack:
            folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in "ab"]
            loops.append(time_loop(pattern, folders[0]))
            beams.append(time_beam(pattern, folders[1]))
    best = min(loops, key=lambda seconds: sum(seconds.values()))
    for step, seconds in best.items():
        print_line(f"web_pairs/{step}", 1e3 * seconds / count, "CPU ms a page")
    for name, seconds in (("loop", sum(best.values())), ("beam", min(beams))):
        rate = count / seconds
        print_line(
            f"web_pairs/{name}",
            rate,
            "pages per CPU s",
            limit=round(limit, 1),
            fraction_of_limit=round(rate / limit, 4),
            **({"bar": bars[name]} if name in bars else {}),
        )


def measure_growth(pages: int, most: int, folder: Path) -> None:
    """Prints CPU seconds and peak memory of 1, 4, ... ``most`` times the pages, with images."""
    first: tuple[float, float] | None = None
    for times in (times for times in GROWTH if times <= most):
        web = Web(pages=times * pages, images=True)
        archives = write_archives(folder / f"{times}", web, -(-web.pages // ARCHIVE_PAGES))
        command = [sys.executable, __file__, "--one", f"{archives[0].parent}/*.warc.gz"]
        said = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        first = first or (said["seconds"], said["peak"])
        print_line(
            f"web_pairs/growth-{times}x",
            web.pages / said["seconds"],
            "pages per CPU s",
            peak_mb=round(said["peak"] / MEGABYTE, 1),
            peak_ratio=round(said["peak"] / first[1], 3),
            seconds_ratio=round(said["seconds"] / first[0], 2),
        )


def run_one(pattern: str) -> None:
    """Mines archives in this process, and prints its CPU seconds and peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = sum(time_loop(pattern, Path(folder)).values())
    print(json.dumps({"seconds": seconds, "peak": peak_bytes()}))


def peak_bytes() -> int:
    """The most memory that this program has held; ``ru_maxrss`` counts its parent's, too."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024


def measure_start(folder: Path) -> None:
    """Prints the CPU seconds of a whole run of the command over one page."""
    write_archives(folder / "one", Web(pages=1, images=True), 1)
    command = [sys.executable, "-m", "vlmill.pipelines.web_pairs", *COMMAND_FLAGS]
    command += ["--warc", f"{folder}/one/*.gz", "--output", f"{folder}/one-out"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print_line("web_pairs/start", seconds, "CPU s", bar=3)


COMMAND_FLAGS = ("--safety-model", "none", "--realism-model", "none")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = new_parser(__doc__)
    add_counts(
        parser,
        pages="generated pages of 20 KB",
        rounds="rounds to measure; the best counts",
        growth="largest multiple of --pages to measure",
    )
    parser.add_argument("--warc", metavar="GLOB", help="time the steps on these archives instead")
    parser.add_argument("--one", metavar="GLOB", help=argparse.SUPPRESS)
    args = parse_form(parser, argv, short=SHORT, full=FULL)
    if args.one:
        run_one(args.one)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.warc:
            measure_speed(args.warc, args.rounds, {})
            return
        write_archives(folder / "pages", Web(pages=args.pages), 1)
        pattern = f"{folder}/pages/*.gz"
        measure_speed(pattern, args.rounds, {"loop": 900, "beam": 700})
        measure_start(folder)
        measure_growth(args.pages, args.growth, folder)


if __name__ == "__main__":
    main()
