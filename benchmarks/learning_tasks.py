"""Fine-tunes the heads of tasks on a generated world, compared with a model without images.

    python benchmarks/learning_tasks.py
    python benchmarks/learning_tasks.py --full
    python benchmarks/learning_tasks.py --full --arms vqa/vl-bert --seeds 1

Asks for colours, shapes, numbers of things and where they stand (benchmarks/worlds/questions.py),
in images of which no training image shows a combination. An arm is a small model with a head:
from pretraining on the captions of the same images, or from a BERT of the same captions. The
blind one is trained and asked in the same way, and shown no image. Prints lines of JSON: the
share of right answers beside the blind model's, and the same for each kind of question. Retrieval
finds held-out images by their captions and captions by their images; blind, that is chance.
NLVR2 has statements on two images; GLUE has what follows from a caption, and whether it names
more warm colours than cold ones: texts alone, beside chance (benchmarks/worlds/statements.py).
Classification finds the colours of an image, entailment what follows from it, what may be and what
cannot (benchmarks/proof/class_arms.py).
Referring expressions name a thing by its looks, or by where it stands to another; choices ask
for a colour, and given that for a place (benchmarks/worlds/expressions.py), from regions and from
pixels. A blind model of the former is shown where the boxes are.

The short form has a world of two things in three colours and shapes, and starts from drawn weights;
the full one two or three things in five colours and four shapes, so that an arm takes minutes.
--full adds what it trains to a file that is part of the repository, and trains only what is missing
there; --list says what is, and trains nothing. A run that was killed continues: OUTPUT/runs.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

# The products are small: threads cost twice the CPU time and save none.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from proof.arms import Arm, base_arms
from proof.box_arms import BOX_TASKS, box_arms
from proof.class_arms import class_arms, short_class_arms
from proof.side_by_side import add_jobs, failed
from proof.summary import lines_of
from proof.tables import WorldTables
from proof.task_arms import TaskArm, retrieval_arms, short_arms, vqa_arms
from proof.task_runs import TaskJob, finished, run_all
from proof.text_arms import text_arms
from shell import names_of, parse_form, print_lines, read_lines, require_known, seeds_of
from worlds import World

from vlmill.runtime.console.command import Parser, run_command

EASY = World(num_things=(2,), num_colours=3, num_shapes=3)
USUAL = World(num_things=(2, 3), num_colours=5, num_shapes=4)
COMMITTED = Path(__file__).parent / "results" / "learning_tasks.jsonl"


@dataclass(frozen=True, kw_only=True)
class Form:
    """A world and the arms that are trained on it."""

    world: World
    pairs: int
    held_out: int
    arms: tuple[TaskArm, ...]
    more: tuple[TaskArm, ...] = ()  # arms that are trained only if --arms names them


def forms() -> dict[bool, Form]:
    """The short form and the full one."""
    return {
        False: Form(
            world=EASY, pairs=400, held_out=100, arms=short_arms(), more=short_class_arms()
        ),
        True: Form(world=USUAL, pairs=3_000, held_out=300, arms=full_arms()),
    }


def full_arms() -> tuple[TaskArm, ...]:
    """The arms of all tasks."""
    return (*vqa_arms(), *retrieval_arms(), *text_arms(), *box_arms(), *class_arms())


SHORT = {"output": Path("build/learning-tasks"), "results": None}
FULL = {"output": Path("build/learning-tasks-full"), "results": COMMITTED}


def run(arguments: Sequence[str]) -> int:
    """Writes the world, trains what is not trained, and prints the figures."""
    args = parse_form(parser(), arguments, short=SHORT, full=FULL)
    form, path = forms()[args.full], args.results or args.output / "results.jsonl"
    seeds = None if args.seeds is None else seeds_of(args.seeds)
    jobs = jobs_of(form, args.arms, seeds, args.output)
    known = read_lines(path)
    missing = [job for job in jobs if finished(job, known) is None]
    if args.list:
        for job in jobs:
            print(f"{'missing' if job in missing else 'finished':9} {job.name}")
        return 0
    if missing:
        tables = tables_of(form, args.output)
        tables.write(base_arms(()), {})
        if any(job.arm.reads_neighbours for job in missing):
            tables.write_neighbours()
        if any(job.arm.task in BOX_TASKS for job in missing):
            tables.write_boxes()
    lines = {}
    for job, line in run_all(jobs, path, args.jobs):
        if isinstance(line, BaseException):
            failed(job, line)
            continue
        lines[job.name] = line
        print(f"{job.name}: done", file=sys.stderr)
    known = read_lines(path)  # every arm's: a figure stands beside another arm's
    for job in jobs:
        print_lines(lines_of(lines[job.name], known) if job.name in lines else ())
    return int(len(lines) < len(jobs))


def tables_of(form: Form, output: Path) -> WorldTables:
    """The form's world on disk."""
    return WorldTables(folder=output, pairs=form.pairs, held_out=form.held_out, world=form.world)


def jobs_of(
    form: Form, names: Sequence[str] | None, seeds: Sequence[int] | None, output: Path
) -> list[TaskJob]:
    """The arms that are asked for with each of their seeds, first seeds first.

    Raises InputError for unknown arms.
    """
    require_known("--arms", names, [arm.label for arm in (*form.arms, *form.more)])
    arms = [arm for arm in (*form.arms, *form.more) if arm.label in (names or ())]
    arms = list(form.arms) if names is None else arms
    tables = tables_of(form, output).of(Arm(recipe=""))
    jobs = [
        TaskJob(
            arm=arm,
            seed=seed,
            world=form.world,
            tables=tables,
            pairs=form.pairs,
            held_out=form.held_out,
            output=output,
            device="cuda" if torch.cuda.is_available() else "cpu",
        )
        for arm in arms
        for seed in (arm.seeds if seeds is None else seeds)
    ]
    return sorted(jobs, key=lambda job: job.seed)


def add_places(p: Parser) -> None:
    """Adds the flags that say where runs and their figures lie."""
    p.add_argument(
        "--output", type=Path, metavar="DIR", help="folder of worlds and runs, to write or continue"
    )
    p.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        help="JSON lines file of finished runs, to append to",
    )
    add_jobs(p)


def parser() -> Parser:
    """Returns the parser of the flags that do not depend on the form."""
    p = Parser(prog="python benchmarks/learning_tasks.py", description=__doc__)
    add_places(p)
    p.add_argument(
        "--arms",
        type=names_of,
        metavar="A,B",
        help="configurations to run (default: all; --list names them)",
    )
    p.add_argument(
        "--seeds", metavar="N,M", help="seeds of training (default: those of each configuration)"
    )
    p.add_argument(
        "--list", action="store_true", help="print which runs are finished and which are missing"
    )
    return p


main = partial(run_command, run)

if __name__ == "__main__":
    sys.exit(main())
