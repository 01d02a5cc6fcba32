"""Defines the filters' flags in the web-pairs job, without slow imports."""

import argparse
from pathlib import Path

from vlmill.schemas.errors import InputError

NONE = "none"
MODELS = {"--safety-model": "images that are racy", "--realism-model": "drawings, charts, logos"}


def add_filter_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the filters of images and texts to the job's parser."""
    for flag, what in MODELS.items():
        parser.add_argument(
            flag,
            metavar="FILE|none",
            help=f"model of fit_image_filter that drops {what}; required, `none` runs without it",
        )
    parser.add_argument(
        "--blocked-words",
        metavar="FILE",
        action="append",
        default=[],
        help="file of words and phrases, one per line; texts with one of them are dropped "
        "(repeatable)",
    )
    parser.add_argument(
        "--blocked-pages",
        metavar="FILE",
        action="append",
        default=[],
        help="list of domains (with their subdomains) and URLs, one per line, whose pages are "
        "dropped (repeatable)",
    )
    parser.add_argument(
        "--vocabulary",
        metavar="FILE|PAIRS",
        help="list of words, or a table of pairs whose words occur three times or more; "
        "texts with more than three in ten other words are dropped",
    )
    parser.add_argument(
        "--keep-personal-data",
        action="store_true",
        default=None,
        help="keep texts with e-mail addresses, telephone or card numbers (default: drop)",
    )


def filter_files(args: argparse.Namespace) -> dict[str, Path | None]:
    """Returns the model files by their flags; None if the flag is ``none``.

    Raises InputError for a missing flag, and for a missing file: running without a filter must be
    an explicit choice.
    """
    values = {flag: getattr(args, flag.strip("-").replace("-", "_")) for flag in MODELS}
    if missing := [flag for flag, value in values.items() if value is None]:
        raise InputError(
            f"{' and '.join(missing)} must be given: a file that python -m "
            "vlmill.pipelines.fit_image_filter wrote, or none, which lets such images pass"
        )
    files = {flag: None if value == NONE else Path(value) for flag, value in values.items()}
    for flag, file in files.items():
        if file is not None and not file.is_file():
            raise InputError(
                f"{flag} {file}: no such file; give a model of fit_image_filter, or none"
            )
    return files


def add_scoring_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags for scoring mined candidates or a finished output."""
    group = parser.add_argument_group(
        "scoring: with --warc by --scorer, else the pairs of a finished --output again, or all "
        "texts of --candidates"
    )
    group.add_argument(
        "--candidates",
        metavar="DIR",
        help="finished output of --keep-texts: score each text with its image, drop texts below "
        "the threshold and write the best of each image to --output",
    )
    group.add_argument("--regions", help="regions table of the images (without --warc)")
    group.add_argument(
        "--classes",
        metavar="FILE",
        help="file with the names of the regions' classes, one per line, synonyms "
        "separated by commas",
    )
    group.add_argument(
        "--attributes", metavar="FILE", help="file with the names of the regions' attributes"
    )
    group.add_argument(
        "--scorer",
        metavar="FILE",
        help="model of fit_scorer; with --warc it chooses among the texts of each image by text "
        "and image content (default without --warc: agreement of texts with regions)",
    )


def scores_again(args: argparse.Namespace) -> bool:
    """Returns whether the flags request scoring again. Raises InputError if the flags request both
    modes or neither.
    """
    names = ("candidates", "regions", "classes", "attributes")
    flags = [f"--{name}" for name in names if getattr(args, name)]
    if args.warc is not None or args.index is not None:
        if flags:
            raise InputError(
                f"{flags[0]} cannot be combined with --warc or --index: mine first, "
                "then score the same --output or the candidates of --keep-texts"
            )
        return False
    if args.regions is None and args.scorer is None:
        raise InputError(
            "give --warc GLOB or --index FILE to mine, or --regions R --classes FILE to score a "
            "finished --output again"
        )
    return True
