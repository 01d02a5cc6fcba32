"""Trains models on real photographs with human-written captions, and measures retrieval.

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

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "2")

from real.photographs import ALL, FIRST, SMALL
from shell import add_output, names_of

from vlmill.runtime.console.command import Parser, add_count, run_command

COMMITTED = Path(__file__).parent / "results" / "real_pairs.jsonl"


def run(arguments: Sequence[str]) -> int:
    """Writes the tables, trains and tests what is missing, and prints the figures."""
    from real.command import carry_out  # processes of jobs import this file again: without torch

    return carry_out(parser().parse_args(arguments))


def parser() -> Parser:
    """Returns the parser."""
    p = Parser(prog="python benchmarks/real_pairs.py", description=__doc__)
    p.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of photographs")
    p.add_argument(
        "--test", type=Path, metavar="DIR", help="another folder of photographs to test on"
    )
    add_output(p, "build/real-pairs")
    p.add_argument(
        "--results",
        type=Path,
        default=COMMITTED,
        metavar="FILE",
        help="JSON lines file of finished runs, to append to (default: %(default)s)",
    )
    p.add_argument(
        "--runs", type=names_of, metavar="A,B", help="runs to do (default: all; --list names them)"
    )
    p.add_argument(
        "--tests",
        type=names_of,
        metavar="A,B",
        help=f"of {SMALL}, {FIRST} and {ALL} (default: {SMALL},{FIRST})",
    )
    add_count(p, "--jobs", "processes that extract regions", default=1)
    p.add_argument("--list", action="store_true", help="print which runs are missing and exit")
    return p


main = partial(run_command, run)

if __name__ == "__main__":
    sys.exit(main())
