"""Repeats every published ablation with small models on a generated world.

    python benchmarks/reproduce.py
    python benchmarks/reproduce.py --full
    python benchmarks/reproduce.py --full --tables vilbert-layers,vilbert-data --seeds 0

A row of a published table of ablations is a small model with the same thing changed, pretrained and
measured on the row's task (benchmarks/published/). Figures are other ones, as the world is; what is
compared is whether a row gains or loses beside the table's base as it did in the paper. Prints a
line of JSON for each row and figure: the change here, its standard error, and the paper's.

The short form runs one small table, to show that all of this runs. --full adds what it trains to
a file that is part of the repository, trains only what is missing there, seed by seed, and writes
docs/reproduction.md from it; --list says what is missing, and which rows cannot run. A run that was
killed continues: OUTPUT/runs.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

# The products are small: threads cost twice the CPU time and save none.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from learning_tasks import EASY, USUAL, add_places
from proof.side_by_side import failed
from proof.tables import WorldTables
from proof.task_runs import finished, run_all
from published import AblationTable, all_tables
from published.compare import (
    Lines,
    RowJob,
    compared,
    comparisons,
    jobs_of,
    lines_by_label,
    write_tables,
)
from published.page import image, page
from shell import (
    names_of,
    parse_form,
    print_lines,
    read_lines,
    require_known,
    result_line,
    seeds_of,
)
from worlds import World

from vlmill.runtime.console.command import Parser, run_command
from vlmill.runtime.files.atomic import write_text

FOLDER = Path(__file__).parent
COMMITTED = FOLDER / "results" / "reproduction.jsonl"
PAGE = FOLDER.parent / "docs" / "reproduction.md"
IMAGE = PAGE.parent / "images" / "reproduction.svg"
SEEDS = (0, 1, 2)


@dataclass(frozen=True, kw_only=True)
class Form:
    """A world, the tables that are run on it, and the steps in place of the rows' own."""

    world: World
    pairs: int
    held_out: int
    tables: tuple[AblationTable, ...]
    steps: int | None = None


def forms() -> dict[bool, Form]:
    """The short form and the full one."""
    some = tuple(table for table in all_tables() if table.key == "imagebert-mrfr")
    return {
        False: Form(world=EASY, pairs=400, held_out=60, tables=some, steps=40),
        True: Form(world=USUAL, pairs=3_000, held_out=300, tables=all_tables()),
    }


SHORT = {"output": Path("build/reproduction"), "seeds": "0", "results": None}
FULL = {
    "output": Path("build/reproduction-full"),
    "seeds": ",".join(map(str, SEEDS)),
    "results": COMMITTED,
}


def run(arguments: Sequence[str]) -> int:
    """Writes the worlds, trains what is not trained, prints the figures and writes the page."""
    args = parse_form(parser(), arguments, short=SHORT, full=FULL)
    form, path = forms()[args.full], args.results or args.output / "results.jsonl"
    tables = tables_named(form.tables, args.tables)
    jobs = jobs_of_form(form, tables, tuple(seeds_of(args.seeds)), args.output)
    known = read_lines(path)
    missing = [job for job in jobs if finished(job, known) is None]
    if args.list:
        for one in jobs:
            print(f"{'missing' if one in missing else 'finished':9} {one.name}")
        for table in tables:
            for row in table.rows:
                if row.missing:
                    print(f"cannot    {table.key}: {row.label}: {row.missing}")
        return 0
    if missing:
        write_tables(missing, worlds_of(form, args.output))
    if args.full:
        write_page(lines_of_form(form, path))
    told = 0
    for job, line in run_all(jobs, path, args.jobs):
        if isinstance(line, BaseException):
            failed(job, line)
            continue
        told += 1
        print(f"{job.name}: done", file=sys.stderr)
        if args.full and job in missing:
            write_page(lines_of_form(form, path))
    lines = lines_of_form(form, path)
    for table in tables:
        print_lines(printed(table, lines))
    return int(told < len(jobs))


def write_page(lines: Lines) -> None:
    """Writes the page of the documentation and its image."""
    tables = all_tables()
    by_table = compared(tables, lines)
    write_text(IMAGE, image(tables, by_table))
    write_text(PAGE, page(tables, by_table))


def lines_of_form(form: Form, path: Path) -> Lines:
    """The lines of runs as this form has them, by the runs' labels: others are of other code."""
    jobs = jobs_of_form(form, form.tables, SEEDS, path.parent)
    return lines_by_label(jobs, read_lines(path))


def printed(table: AblationTable, lines: Lines) -> list[dict[str, object]]:
    """A line for each figure of each row that has one, as every benchmark prints it."""
    return [
        result_line(
            f"reproduction/{table.key}/{one.row}/{one.figure}",
            one.ours.mean,
            "share",
            deviation=one.ours.deviation,
            seeds=one.ours.count,
            published=one.published,
            change=one.change and one.change.mean,
            standard_error=one.error,
            published_change=one.published_change,
            agrees=one.verdict,
        )
        for one in comparisons(table, lines)
        if one.ours is not None
    ]


def tables_named(
    tables: Sequence[AblationTable], names: Sequence[str] | None
) -> tuple[AblationTable, ...]:
    """The tables of these keys, or all. Raises InputError for unknown ones."""
    require_known("--tables", names, [table.key for table in tables])
    return tuple(table for table in tables if names is None or table.key in names)


def worlds_of(form: Form, output: Path) -> WorldTables:
    """The form's worlds on disk."""
    return WorldTables(folder=output, pairs=form.pairs, held_out=form.held_out, world=form.world)


def jobs_of_form(
    form: Form, tables: Sequence[AblationTable], seeds: tuple[int, ...], output: Path
) -> list[RowJob]:
    """The runs of these tables in a form."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    jobs = jobs_of(tables, seeds, worlds_of(form, output), device)
    return jobs if form.steps is None else [shortened(job, form.steps) for job in jobs]


def shortened(job: RowJob, steps: int) -> RowJob:
    """The same run in so many steps of each part."""
    chain = tuple(replace(step, steps=steps) for step in job.arm.chain)
    own = steps if job.arm.steps else 0
    return replace(job, arm=replace(job.arm, chain=chain, steps=own))


def parser() -> Parser:
    """Returns the parser of the flags that do not depend on the form."""
    p = Parser(prog="python benchmarks/reproduce.py", description=__doc__)
    add_places(p)
    p.add_argument(
        "--tables",
        type=names_of,
        metavar="A,B",
        help="tables to compute (default: all; --list shows their rows)",
    )
    p.add_argument("--seeds", metavar="N,M", help="seeds of pretraining and of the tasks")
    p.add_argument("--list", action="store_true", help="print which runs are missing and exit")
    return p


main = partial(run_command, run)

if __name__ == "__main__":
    sys.exit(main())
