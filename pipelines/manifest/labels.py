"""Defines the option that names a list of labels."""

import argparse

from vlmill.runtime.console.command import path_or_url


def add_labels(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Adds ``--labels``."""
    parser.add_argument(
        "--labels",
        type=path_or_url,
        required=required,
        metavar="FILE",
        help="answer list of a classifier or checkpoint, in its order: a JSON list, a JSON "
        "object {label: number}, or one label per line",
    )
