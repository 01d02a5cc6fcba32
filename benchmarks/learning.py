"""Does training teach? The small recipes on a generated world, beside what a part of it would give.

    python benchmarks/learning.py
    python benchmarks/learning.py --variants interbert-small,vlmo-small --output build/learning
    python benchmarks/learning.py --long --seeds 0,1,2 --output build/learning-long

The short form trains variants by their small recipes alone (two of the five, unless --variants says
otherwise: all would take more than half an hour) and ranks 500 held-out pairs, of which no training
picture shows a combination. It prints lines of JSON: R@1 both ways beside the best that
a matcher of colours alone is sure of, then probes: masked words guessed beside their own picture
and another one, masked things beside their caption and none, VLMo without each of its experts.

--long is the grid: ablations of ImageBERT and InterBERT (a first stage on noisy pairs, hard
negatives, masked groups against single masks, and shuffled pairs, from which nothing can be
learned), VLMo without each objective, each over seeds. Means and spreads go to OUTPUT/table.md.

A finished run is not repeated, a killed one continues: OUTPUT/results holds the figures,
OUTPUT/runs the rest. On a GPU where there is one.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

# The products are small: threads cost twice the CPU time and save none.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from proof.arms import WANTED, Arm, long_arms, short_arms
from proof.runs import Found, Job, failed, run_all
from proof.summary import other_lines, probe_lines, retrieval_lines, table
from proof.tables import Oracles, WorldTables

from vlmill.schemas.console.command import Parser, run_command
from vlmill.schemas.errors import InputError
from vlmill.schemas.files.atomic import write_text

SHORT = ("imagebert-small", "interbert-small")  # what fits into half an hour on two cores
MOST_AT_ONCE = 8


def run(arguments: Sequence[str]) -> int:
    """Write the world, train what is not trained, print."""
    args = parser().parse_args(arguments)
    arms = arms_of(args.long, args.variants, args.arms)
    seeds = tuple(_numbers("--seeds", args.seeds or ("0,1,2" if args.long else "0")))
    if args.pairs < 2 or args.held_out < 2:
        raise InputError("--pairs and --held-out: want at least 2 each")
    if args.jobs < 1 or (args.steps is not None and args.steps < 1):
        raise InputError("--jobs and --steps: want at least 1")
    tables = WorldTables(folder=args.output, pairs=args.pairs, held_out=args.held_out)
    oracles = tables.oracles()
    tables.write(arms, {"oracles": oracles})
    jobs = [
        Job(
            arm=arm,
            seed=seed,
            tables=tables.of(arm),
            pairs=args.pairs,
            held_out=args.held_out,
            output=args.output,
            world=tables.world,
            steps=args.steps,
            matching=args.long,
            device="cuda" if torch.cuda.is_available() else "cpu",
        )
        for seed in seeds  # outside: a grid that was stopped has some of each arm
        for arm in arms
    ]
    say_what_is_left_out(arms, args.long)
    return report(jobs, oracles, args.output, args.jobs)


def report(jobs: Sequence[Job], oracles: Oracles, output: Path, processes: int) -> int:
    """Run all, print each run's lines as it finishes, and write the table."""
    results: dict[str, Found] = {}
    for job, found in run_all(jobs, min(processes, len(jobs))):
        if isinstance(found, BaseException):
            failed(job, found)
            continue
        results[job.name] = found
        for line in (*retrieval_lines(found, oracles), *probe_lines(found), *other_lines(found)):
            print(json.dumps(line), flush=True)
    ordered = [results[job.name] for job in jobs if job.name in results]
    if ordered:
        text = table(ordered)
        write_text(output / "table.md", text)
        print(text, file=sys.stderr)
    return int(len(results) < len(jobs))


def arms_of(long: bool, variants: str | None, names: str | None) -> tuple[Arm, ...]:
    """The arms that are asked for. Raises InputError for unknown ones."""
    chosen = variants.split(",") if variants else list(WANTED if long else SHORT)
    if unknown := [name for name in chosen if name not in WANTED]:
        raise InputError(f"--variants {unknown[0]}: there are {', '.join(WANTED)}")
    if not long:
        if names is not None:
            raise InputError(f"--arms {names}: arms are of the long form; add --long")
        return short_arms(tuple(chosen))
    arms = tuple(arm for arm in long_arms() if arm.recipe in chosen)
    if names is None:
        return arms
    asked = names.split(",")
    if unknown := [name for name in asked if name not in {arm.name for arm in arms}]:
        there = ", ".join(dict.fromkeys(arm.name for arm in arms))
        raise InputError(f"--arms {unknown[0]}: there are {there}")
    return tuple(arm for arm in arms if arm.name in asked)


def _numbers(flag: str, text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [-1]
    if min(numbers) < 0 or len(set(numbers)) < len(numbers):
        raise InputError(f"{flag} {text}: want different numbers from 0 up, as in 0,1,2")
    return numbers


def say_what_is_left_out(arms: Sequence[Arm], long: bool) -> None:
    """On standard error: the recipes that this form does not run."""
    left = [name for name in WANTED if name not in {arm.recipe for arm in arms}]
    if left and not long:
        every = ",".join(WANTED)
        print(f"not run: {', '.join(left)}; --variants {every} runs all", file=sys.stderr)


def parser() -> Parser:
    """The flags."""
    p = Parser(prog="python benchmarks/learning.py", description=__doc__)
    p.add_argument(
        "--output",
        type=Path,
        default=Path("build/learning"),
        metavar="DIR",
        help="folder to write, and to continue in (build/learning)",
    )
    p.add_argument("--long", action="store_true", help="the grid of ablations")
    p.add_argument(
        "--variants", metavar="A,B", help=f"small recipes to run ({','.join(SHORT)}; --long: all)"
    )
    p.add_argument("--arms", metavar="A,B", help="with --long: only these arms (all)")
    p.add_argument("--seeds", metavar="N,M", help="of training (0; --long: 0,1,2)")
    p.add_argument("--steps", type=int, metavar="N", help="of each stage (the recipe's)")
    p.add_argument("--pairs", type=int, default=6_000, metavar="N", help="to train on (6000)")
    p.add_argument("--held-out", type=int, default=500, metavar="N", help="to rank (500)")
    p.add_argument(
        "--jobs",
        type=int,
        default=min(os.cpu_count() or 1, MOST_AT_ONCE),
        metavar="N",
        help="runs at once, each on one core (%(default)s)",
    )
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run_command(run, argv)


if __name__ == "__main__":
    sys.exit(main())
