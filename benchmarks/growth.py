"""Measures the cost of each step of web_pairs by the number of archives, and computes 90,000.

Every archive has one page and one image. For each step and each number of archives: CPU seconds,
files opened for reading, bytes read and written, and the peak memory of this process, which does
all the work itself: images are examined here and not in a process, and files are on a memory disk.
``exponent`` is that of a power of the number of archives, between the smallest and the largest of
them. ``opens_an_archive`` of the table for 90,000 is computed from the numbers of units and spools.

    python benchmarks/growth.py --full
"""

import gzip
import math
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from shell import new_parser, parse_form, print_line
from worlds.web import Web, page_records

from vlmill.pipelines.rules import WebPairRules
from vlmill.pipelines.web.pages.images import examine_image
from vlmill.pipelines.web_pairs import decode, mine
from vlmill.pipelines.web_pairs.spool import SLICES
from vlmill.pipelines.web_pairs.steps import STEPS
from vlmill.pipelines.web_pairs.units import MERGE_RANGES, Archive, Job, count_merged, prepare_work
from vlmill.runtime.units.run_here import run_here

SHORT = {"archives": [50, 200]}
FULL = {"archives": [1_000, 4_000, 16_000]}
MONTH = 90_000  # archives of a month of Common Crawl
MEMORY_DISK = Path("/dev/shm")
MOST_EXPONENT = 1.05
FIGURES = ("cpu_s", "opens", "mb_read", "mb_written")


@dataclass
class Meter:
    """Counts what this process does: opened files, by an audit hook, and the kernel's counts."""

    opens: int = 0
    began: dict[str, float] = field(default_factory=dict)

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Counts a file that is opened for reading."""
        self.opens += event == "open" and arguments[1] in ("r", "rb")

    def read(self) -> dict[str, float]:
        """The counts since the process began."""
        io = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return {
            "cpu_s": time.process_time(),
            "opens": self.opens,
            "mb_read": int(io["rchar"]) / 1e6,
            "mb_written": int(io["wchar"]) / 1e6,
        }


def peak_mb() -> float:
    """The peak of this process's memory since the last call, which the kernel then forgets."""
    status = Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return int(peak.split()[1]) / 1e3


class SameProcess:
    """Examines images as the job's examiner does, without a process."""

    def __init__(self, rules: WebPairRules, *, headers: bool) -> None:
        self._examine = partial(
            examine_image,
            min_side_px=rules.min_side_px,
            max_pixels=rules.max_pixels,
            hashed=not headers,
            headers=headers,
            blank=False,
        )

    def submit(self, data: bytes) -> Callable[[], Any]:
        """A function that returns the facts of an image."""
        return lambda: self._examine(data)


@contextmanager
def examining(rules: WebPairRules, _: Any, *, headers: bool = False) -> Iterator[SameProcess]:
    """Stands in for the job's examiners."""
    yield SameProcess(rules, headers=headers)


def write_small_archives(folder: Path, number: int) -> list[Archive]:
    """Writes so many archives: a page with its image each, and two hosts for nine pages."""
    folder.mkdir()
    web = Web(pages=number, page_bytes=6_000, pages_per_site=9, images=True)
    archives = []
    for page in range(number):
        path = folder / f"{page:06d}.warc.gz"
        records = list(page_records(web, page))[:2]
        path.write_bytes(b"".join(gzip.compress(record, 1, mtime=0) for record in records))
        archives.append(Archive(path=str(path), size=path.stat().st_size))
    return archives


def run_steps(folder: Path, number: int, meter: Meter) -> dict[str, dict[str, float]]:
    """The figures of each step over so many archives."""
    archives = tuple(write_small_archives(folder / "in", number))
    shards = max(1, number // 1_000)
    job = Job(output=str(folder / "out"), archives=archives, shards=shards, rules=WebPairRules())
    prepare_work(job)
    figures = {}
    for step in STEPS:
        peak_mb()
        before, units = meter.read(), len(step.units(job))
        run_here(job, [step], workers=1, module="vlmill.pipelines.web_pairs.job")
        after = meter.read()
        figures[step.name] = {name: round(after[name] - before[name], 2) for name in FIGURES}
        figures[step.name] |= {"peak_mb": round(peak_mb(), 1), "units": units}
    return figures


def exponents(
    figures: dict[int, dict[str, dict[str, float]]], step: str
) -> dict[str, float | None]:
    """The exponent of each figure of a step, between the smallest and the largest number."""
    few, many = min(figures), max(figures)
    found: dict[str, float | None] = {}
    for name in (*FIGURES, "peak_mb"):
        low, high = figures[few][step][name], figures[many][step][name]
        enough = low > 0 and high > 0
        found[name] = round(math.log(high / low) / math.log(many / few), 3) if enough else None
    return found


def month_opens() -> dict[str, float]:
    """Spools that each step opens for one of 90,000 archives, computed with all ranges in use."""
    level_1, level_2 = count_merged(MONTH)
    ranged, ranges = SLICES, MERGE_RANGES
    merged = SLICES * level_2  # of one kind, by all ranges
    opens = Counter(
        {"merge keys 1": 3 * MONTH, "merge rows 1": 3 * MONTH, "merge rest 1": 3 * MONTH}
    )
    opens |= {"merge keys 2": 3 * level_1 * ranges, "merge rows 2": 5 * level_1 * ranges}
    opens |= {"follow": 2 * merged, "join": merged + ranged**2, "choose": merged + ranged**2}
    opens |= {"best": 2 * ranged**2, "shared": ranged**2, "settle": 2 * ranged**2}
    opens |= {"gather": ranged**2, "decode": MONTH, "groups": level_2 * ranges}
    return {step: round(count / MONTH, 2) for step, count in opens.items()}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = new_parser(__doc__)
    parser.add_argument(
        "--archives", type=int, nargs="+", metavar="N", help="numbers of archives to measure"
    )
    args = parse_form(parser, argv, short=SHORT, full=FULL)
    mine.examining = decode.examining = examining  # type: ignore[assignment, attr-defined]
    meter = Meter()
    sys.addaudithook(meter.hook)
    figures: dict[int, dict[str, dict[str, float]]] = {}
    for number in sorted(args.archives):
        where = MEMORY_DISK if MEMORY_DISK.is_dir() else None
        with tempfile.TemporaryDirectory(dir=where) as name:
            figures[number] = run_steps(Path(name), number, meter)
        print_line(
            f"web_pairs/growth/{number}",
            round(sum(step["cpu_s"] for step in figures[number].values()), 2),
            "CPU s",
            archives=number,
            steps=figures[number],
        )
    totals = {
        number: {name: sum(step[name] for step in steps.values()) for name in FIGURES}
        | {"peak_mb": max(step["peak_mb"] for step in steps.values())}
        for number, steps in figures.items()
    }
    print_line(
        "web_pairs/growth",
        exponents({number: {"all": total} for number, total in totals.items()}, "all")["cpu_s"]
        or 0,
        "exponent of CPU seconds",
        bar=MOST_EXPONENT,
        exponents={step.name: exponents(figures, step.name) for step in STEPS},
        opens_an_archive=month_opens(),
        load=round(os.getloadavg()[0], 1),
    )


if __name__ == "__main__":
    main()
