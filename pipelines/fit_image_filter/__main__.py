"""Fits an image filter on labels: python -m vlmill.pipelines.fit_image_filter --help"""

import sys
from collections.abc import Sequence
from functools import partial

from vlmill.pipelines.filters.labels import add_fit_flags, require_fit_flags
from vlmill.runtime.console.command import Parser, run_command
from vlmill.runtime.extras import require_extra


def parser() -> Parser:
    """Returns the parser of the job's flags."""
    p = Parser(
        prog="python -m vlmill.pipelines.fit_image_filter",
        description="Fits an image filter on a few hundred labels: a safety model (1: racy) or a "
        "realism model (1: natural). Boosted trees use the colours, palette, edges "
        "and text-like areas of a small copy of each image.",
        epilog="Example:\n"
        "  python -m vlmill.pipelines.fit_image_filter --images out/pairs --labels realism.tsv \\\n"
        "    --kind realism --output realism.model\n"
        "\n"
        "LABELS has one line per image: image_id (or the file's path inside DIR), a tab, 1 or 0.\n"
        "Prints a cross-validated report and writes it as FILE.html. Memory: the features of the\n"
        "labelled images, and one decoded image.",
        allow_abbrev=False,
    )
    p.add_argument(
        "--images", required=True, metavar="TABLE|DIR", help="images table, or a folder of images"
    )
    p.add_argument(
        "--kind",
        choices=("safety", "realism"),
        help="purpose of the filter; web_pairs refuses it for the other purpose (default: either)",
    )
    p.add_argument(
        "--backbone",
        metavar="FILE",
        help="torchvision ResNet whose pooled vector is an additional feature; it becomes "
        "part of the model file",
    )
    add_fit_flags(p, "probability that counts as 1")
    return p


def run(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs the job."""
    args = parser().parse_args(arguments)
    require_fit_flags(args)
    require_extra("safety", "sklearn", *(["torchvision"] if args.backbone else []))
    # scikit-learn is slow to import, so it is imported after the arguments are checked.
    from vlmill.pipelines.fit_image_filter import job

    return job.run(args)


main = partial(run_command, run)

if __name__ == "__main__":
    sys.exit(main())
