"""Fits a scorer of pairs on labels: python -m vlmill.pipelines.fit_scorer --help"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from vlmill.pipelines.filters.flags import add_vocabulary
from vlmill.pipelines.filters.labels import add_fit_flags, require_fit_flags
from vlmill.runtime.console.command import Parser, run_command


class ListFeatures(argparse.Action):
    """Prints the names of all features with their groups, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from vlmill.pipelines.filters.scorer import GROUPS

        for group, names in GROUPS.items():
            print(*(f"{group}\t{name}" for name in names), sep="\n")
        parser.exit()


def parser() -> Parser:
    """Returns the parser of the job's flags."""
    p = Parser(
        prog="python -m vlmill.pipelines.fit_scorer",
        description="Fits a model that scores how well a text describes its image, on a few "
        "hundred labelled pairs: boosted trees over 299 named features of the text, "
        "the image and both. Inputs that are not given count as missing values.",
        epilog="Example:\n"
        "  python -m vlmill.pipelines.fit_scorer --pairs out/pairs --images out/pairs --labels "
        "described.tsv \\\n"
        "    --output scorer.model\n"
        "\n"
        "LABELS has one line per pair: pair_id, a tab, 1 (describes) or 0. Prints a "
        "cross-validated report\n"
        "and writes it as FILE.html; all pairs of an image are in the same fold. Memory: the "
        "features of the\n"
        "labelled pairs, and indices of --images and --regions (100 bytes per row).",
        allow_abbrev=False,
    )
    p.add_argument("--pairs", required=True, help="pairs table: a folder, a file or a glob")
    p.add_argument("--images", help="images table, for image features")
    p.add_argument("--regions", help="regions table, for features of detected objects")
    add_vocabulary(p)
    add_fit_flags(p, "score that counts as describing")
    p.add_argument(
        "--list-features", action=ListFeatures, nargs=0, help="print all features and exit"
    )
    return p


def run(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs the job."""
    args = parser().parse_args(arguments)
    require_fit_flags(args)
    # scikit-learn is slow to import, so it is imported after the arguments are checked.
    from vlmill.pipelines.fit_scorer import job

    return job.run(args)


main = partial(run_command, run)

if __name__ == "__main__":
    sys.exit(main())
