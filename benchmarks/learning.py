"""Trains the small recipes on a generated world, and compares them with exact bounds.

    python benchmarks/learning.py
    python benchmarks/learning.py --full --output build/learning-full
    python benchmarks/learning.py --full --variants vl-bert-hour --pairs 24000 --output build/hour
    python benchmarks/learning.py --ablations --seeds 0,1,2 --output build/learning-ablations

Trains variants by their small recipes and ranks held-out pairs, of which no training image shows
a combination. Prints lines of JSON: R@1 both ways beside the best that a matcher of colours alone
is sure of, then probes: masked words guessed beside their own image and another one, masked
things beside their caption and none, VLMo without each of its experts. The short form ends long
before a model sees more than colours: it shows that all of this runs. --full trains all five as
their recipes say, 41 CPU minutes, and alone answers the question. Those of an hour want more pairs.

--ablations is the grid: ablations of ImageBERT and InterBERT (a first stage on noisy pairs, hard
negatives, masked groups against single masks, and shuffled pairs, from which nothing can be
learned), the models on regions on top of a BERT of the same captions, VLMo without each objective,
and VLMo on images with several captions, which come from anywhere or side by side and are
negatives of each other or not, each over seeds. Means and spreads go to OUTPUT/table.md.

A finished run is not repeated, a killed one continues: OUTPUT/results holds the figures,
OUTPUT/runs the rest. On a GPU where there is one.
"""

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

# The products are small: threads cost twice the CPU time and save none.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from proof.arms import BARS, MARGINS, Arm, ablation_arms, base_arms
from proof.runs import Figures, Job, run_all
from proof.side_by_side import add_jobs, failed
from proof.summary import other_lines, probe_lines, retrieval_lines, table
from proof.tables import Oracles, WorldTables
from shell import add_output, names_of, parse_form, print_lines, require_known, seeds_of

from vlmill.runtime.console.command import Parser, add_count, run_command
from vlmill.runtime.files.atomic import write_text
from vlmill.schemas.errors import InputError

SHORT = {"variants": ["imagebert-small"], "steps": 200, "pairs": 1_500, "held_out": 100}
FULL = {"variants": list(MARGINS), "steps": None, "pairs": 6_000, "held_out": 500}


def run(arguments: Sequence[str]) -> int:
    """Writes the world, trains what is not trained, and prints the figures."""
    args = parse_form(parser(), arguments, short=SHORT, full=FULL)
    arms = arms_of(args.variants, args.arms, ablations=args.ablations)
    seeds = tuple(seeds_of(args.seeds or ("0,1,2" if args.ablations else "0")))
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
            matching=args.ablations,
            device="cuda" if torch.cuda.is_available() else "cpu",
        )
        for seed in seeds  # outside: a grid that was stopped has some of each arm
        for arm in arms
    ]
    return report(jobs, oracles, args.output, args.jobs)


def report(jobs: Sequence[Job], oracles: Oracles, output: Path, processes: int) -> int:
    """Runs all jobs, prints each one's lines as it finishes, and writes the table."""
    results: dict[str, Figures] = {}
    for job, result in run_all(jobs, min(processes, len(jobs))):
        if isinstance(result, BaseException):
            failed(job, result)
            continue
        results[job.name] = result
        print_lines((*retrieval_lines(result, oracles), *probe_lines(result), *other_lines(result)))
    ordered = [results[job.name] for job in jobs if job.name in results]
    if ordered:
        text = table(ordered)
        write_text(output / "table.md", text)
        print(text, file=sys.stderr)
    return int(len(results) < len(jobs))


def arms_of(
    variants: Sequence[str], names: Sequence[str] | None, *, ablations: bool
) -> tuple[Arm, ...]:
    """Returns the arms that are asked for. Raises InputError for unknown ones."""
    require_known("--variants", variants, [*MARGINS, *BARS])
    if not ablations:
        if names is not None:
            raise InputError(f"--arms {','.join(names)}: only with --ablations")
        return base_arms(tuple(variants))
    arms = tuple(arm for arm in ablation_arms() if arm.recipe in variants)
    if names is None:
        return arms
    require_known("--arms", names, dict.fromkeys(arm.name for arm in arms))
    return tuple(arm for arm in arms if arm.name in names)


def parser() -> Parser:
    """Returns the parser of the flags that do not depend on the form."""
    p = Parser(prog="python benchmarks/learning.py", description=__doc__)
    add_output(p, "build/learning")
    p.add_argument(
        "--ablations", action="store_true", help="run the grid of ablations (hours with --full)"
    )
    p.add_argument("--variants", type=names_of, metavar="A,B", help="recipes to run")
    p.add_argument(
        "--arms",
        type=names_of,
        metavar="A,B",
        help="configurations of --ablations to run (default: all)",
    )
    p.add_argument(
        "--seeds", metavar="N,M", help="seeds of training (default: 0; with --ablations: 0,1,2)"
    )
    add_count(p, "--steps", "training steps of each recipe")
    add_count(p, "--pairs", "pairs to train on", least=2)
    add_count(p, "--held-out", "pairs to rank", least=2)
    add_jobs(p)
    return p


main = partial(run_command, run)

if __name__ == "__main__":
    sys.exit(main())
