"""Selects runs and tests of real photographs, runs them, and prints recalls."""

import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from shell import result_line

from real.alignment import Alignment
from real.arms import all_runs
from real.baseline import measure_baseline
from real.photographs import FIRST, SMALL
from real.runs import RECALLS, Line, Run, add_line, find_line, make_key, read_lines, run_all
from real.tables import Tables, Test
from real.task_tables import TaskTables
from real.zero_shot import ZERO_SHOT, find_file, make_test
from vlmill.schemas.errors import InputError

BASELINE = "baseline"


def carry_out(args: Namespace) -> int:
    """Writes the tables, trains and tests what is missing, and prints the figures."""
    tables = Tables(data=args.data, output=args.output, test=args.test, jobs=args.jobs)
    every = [*tables.tests(), *tables.other_tests()]
    runs = all_runs(tables)
    names = [BASELINE, *dict.fromkeys(run.name for run in runs)]
    if unknown := [name for name in args.runs or () if name not in names]:
        raise InputError(f"--runs {unknown[0]}: there are {', '.join(names)}")
    runs = [one for one in runs if args.runs is None or one.name in args.runs]
    has_baseline = args.runs is None or BASELINE in args.runs
    jobs = [(one, tests_of(one, every, args.tests)) for one in runs]
    tests = [test for test in every if is_chosen(test, args.tests)] if has_baseline else []
    if args.list:
        list_figures(tables, tests, jobs, args.results)
        return 0
    tables.write()
    if any(part.hard_negatives for one in runs for part in one.parts):
        tables.write_negatives()
    sets = {part.examples for one in runs for part in one.parts if part.examples is not None}
    TaskTables(tables=tables).write(sets)
    for line in (*baseline_lines(tables, tests, args.results), *run_all(jobs, args.results)):
        print_recalls(line)
    return 0


def tests_of(run: Run, every: Sequence[Test], names: Sequence[str] | None) -> list[Test]:
    """Returns a run's tests: its task set's, or those of retrieval that are asked for. The main run
    of each region model is tested without training, too.
    """
    last = run.parts[-1]
    if last.examples is not None:
        return [TaskTables(tables=run.tables).test(last.examples)]
    tests = [test for test in every if is_chosen(test, names, small=run.small)]
    if isinstance(last.recipe, Alignment) or run.small:
        return tests
    if not last.recipe.stages[0].feeding.reads_regions:
        return tests
    zero_shot = [
        make_test(run.tables, name)
        for name in ZERO_SHOT
        if (names is None or name in names) and find_file(run.tables, name).is_file()
    ]
    return [*tests, *zero_shot]


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
    """Prints a line of JSON for each recall, or a task's figure, of a run on a test."""
    for name in line["metrics"]:
        full = f"real-pairs/{line['test']['name']}/{line['name']}/{name}"
        print(json.dumps(result_line(full, line["metrics"][name], "share")))
