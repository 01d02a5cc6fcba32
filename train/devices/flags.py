"""Declares the flag of training commands that divides steps into parts; needs no torch."""

import argparse

AUTO = "auto"


def add_device_batch(parser: argparse.ArgumentParser) -> None:
    """Declares ``--device-batch``."""
    parser.add_argument(
        "--device-batch",
        type=_rows_or_auto,
        metavar="N|auto",
        help="largest number of rows that a device computes together; larger steps are divided "
        "into parts. auto: try the first step and choose the largest part that fits into memory "
        "(default: the recipe's accumulation)",
    )


def device_batch_words(args: argparse.Namespace) -> list[str]:
    """Returns the change to a recipe that the flag requests, if it is given."""
    return [] if args.device_batch is None else [f"device_batch={args.device_batch}"]


def _rows_or_auto(text: str) -> int | str:
    if text == AUTO:
        return AUTO
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of rows from 1, or {AUTO}")
    return int(text)
