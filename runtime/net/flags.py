"""Declares the flag of tests with which the guarded client may connect to private networks."""

import argparse


def add_allow_address(parser: argparse.ArgumentParser) -> None:
    """Declares ``--allow-address``."""
    parser.add_argument(
        "--allow-address",
        action="append",
        default=[],
        metavar="CIDR",
        help="private network to which connections are allowed (for tests only)",
    )
