"""What are the models worth on real photographs with captions that people wrote?

    python benchmarks/real_pairs.py --data DIR
    python benchmarks/real_pairs.py --data DIR --test OTHER
    python benchmarks/real_pairs.py --data DIR --runs vilbert/base,baseline --tests 400x1
    python benchmarks/real_pairs.py --data DIR --list

DIR has captions.tsv (image, caption, split) and images/, as OTHER has, whose Flickr8k images are
all test images. Regions have features of EfficientNet-Lite0 (benchmarks/real/regions.py), and texts
start from MiniLM, both from the package index (benchmarks/real/networks.py). Each model is
pretrained and fine-tuned for retrieval in some 20 minutes on two cores, and ranks Flickr8k's test
images: 400 of them with one caption each, all of them with their first caption (first) or with all
captions (all; only where --tests names it: hours for a model that reads pairs). The baseline
(benchmarks/real/baseline.py) has no vision-language training.

Prints a line of JSON for each recall. Records are added to a file that is part of the repository,
and only what is missing there is trained and tested; a killed run continues: OUTPUT/runs.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "2")

from real.arms import all_runs
from real.baseline import measure_baseline
from real.runs import (
    RECALLS,
    Line,
    Run,
    add_line,
    find_line,
    make_key,
    read_lines,
    run_all,
)
from real.tables import ALL, FIRST, SMALL, Tables, Test
from shell import result_line

from vlmill.runtime.console.command import Parser, int_at_least, run_command
from vlmill.schemas.errors import InputError

COMMITTED = Path(__file__).parent / "results" / "real_pairs.jsonl"
OUTPUT = Path("build/real-pairs")
BASELINE = "baseline"


def run(arguments: Sequence[str]) -> int:
    """Writes the tables, trains and tests what is missing, and prints the figures."""
    args = parser().parse_args(arguments)
    tables = Tables(data=args.data, output=args.output, test=args.test, jobs=args.jobs)
    every = [*tables.tests(), *tables.other_tests()]
    runs = all_runs(tables)
    names = [BASELINE, *dict.fromkeys(run.name for run in runs)]
    if unknown := [name for name in args.runs or () if name not in names]:
        raise InputError(f"--runs {unknown[0]}: there are {', '.join(names)}")
    runs = [one for one in runs if args.runs is None or one.name in args.runs]
    has_baseline = args.runs is None or BASELINE in args.runs
    jobs = [(one, [t for t in every if is_chosen(t, args.tests, small=one.small)]) for one in runs]
    tests = [test for test in every if is_chosen(test, args.tests)] if has_baseline else []
    if args.list:
        list_figures(tables, tests, jobs, args.results)
        return 0
    tables.write()
    if any(part.hard_negatives for one in runs for part in one.parts):
        tables.write_negatives()
    for line in (*baseline_lines(tables, tests, args.results), *run_all(jobs, args.results)):
        print_recalls(line)
    return 0


def is_chosen(test: Test, names: Sequence[str] | None, *, small: bool = False) -> bool:
    """Returns whether a test is asked for: those named, else the small one, and the images' first
    captions except for ``small`` runs. Another folder counts as its own small test.
    """
    plain = test.name.removeprefix("other-")
    if names is not None:
        return plain in names
    return plain == SMALL or (plain == FIRST and (not small or plain != test.name))


def baseline_lines(tables: Tables, tests: Sequence[Test], path: Path) -> Iterator[Line]:
    """Yields the baseline's line of each test: known ones, or new ones, which are added."""
    keys = [baseline_key(tables, test) for test in tests]
    known = [find_line(read_lines(path), key) for key in keys]
    missing = [test for test, line in zip(tests, known, strict=True) if line is None]
    measured = measure_baseline(tables, missing) if missing else {}
    for key, test, line in zip(keys, tests, known, strict=True):
        if line is None:
            metrics = measured[test.name]
            line = key | {"metrics": {name: metrics[name] for name in RECALLS}}
            add_line(path, line)
        yield line


def baseline_key(tables: Tables, test: Test) -> Line:
    """Returns what identifies the baseline's line of a test."""
    test_key = {"name": test.name, "digest": test.digest}
    return {"name": BASELINE, "test": test_key, "settings": {"data": tables.digest()}}


def list_figures(
    tables: Tables,
    tests: Sequence[Test],
    jobs: Sequence[tuple[Run, Sequence[Test]]],
    path: Path,
) -> None:
    """Prints which figures are known and which are missing."""
    keys = [baseline_key(tables, test) for test in tests]
    keys += [make_key(run, test) for run, tests in jobs for test in tests]
    lines = read_lines(path)
    for key in keys:
        state = "missing" if find_line(lines, key) is None else "finished"
        print(f"{state:9} {key['name']} {key['test']['name']}")


def print_recalls(line: Line) -> None:
    """Prints a line of JSON for each recall of a run on a test."""
    for name in RECALLS:
        full = f"real-pairs/{line['test']['name']}/{line['name']}/{name}"
        print(json.dumps(result_line(full, line["metrics"][name], "share")))


def names_of(text: str) -> list[str]:
    """Returns names between commas."""
    return text.split(",")


def parser() -> Parser:
    """Returns the parser."""
    p = Parser(
        prog="python benchmarks/real_pairs.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of photographs")
    p.add_argument("--test", type=Path, metavar="DIR", help="another folder, to test on as well")
    p.add_argument(
        "--output",
        type=Path,
        default=OUTPUT,
        metavar="DIR",
        help="folder of tables and runs, and to continue in (default: %(default)s)",
    )
    p.add_argument(
        "--results",
        type=Path,
        default=COMMITTED,
        metavar="FILE",
        help="JSON lines of finished runs, to be added to (default: %(default)s)",
    )
    p.add_argument("--runs", type=names_of, metavar="A,B", help="only these (--list shows all)")
    p.add_argument(
        "--tests",
        type=names_of,
        metavar="A,B",
        help=f"of {SMALL}, {FIRST} and {ALL} (default: {SMALL},{FIRST})",
    )
    p.add_argument(
        "--jobs",
        type=int_at_least(1),
        default=1,
        metavar="N",
        help="processes that extract regions (default: %(default)s)",
    )
    p.add_argument("--list", action="store_true", help="print what is missing, and train nothing")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    return run_command(run, argv)


if __name__ == "__main__":
    sys.exit(main())
