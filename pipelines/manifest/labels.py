"""The option that names a list of labels."""

import argparse

from vlmill.runtime.console.command import path_or_url


def add_labels(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Adds ``--labels``."""
    parser.add_argument(
        "--labels",
        type=path_or_url,
        required=required,
        metavar="FILE",
        help="the answers that a classifier knows, in its order: JSON list, JSON object "
        "{label: number}, or a label a line (an answer list of a checkpoint, of another project)",
    )
