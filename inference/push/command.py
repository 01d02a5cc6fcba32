"""Declares the arguments of ``train-vl push``, and runs it."""

import argparse

from vlmill.runtime.console.command import make_options, path_or_url
from vlmill.runtime.weights.names import parse_repository
from vlmill.train.checkpoints.folders import find_checkpoint

PUSH_HELP = """\
Upload a checkpoint to the Hugging Face hub, with a model card.

examples:
  train-vl push --checkpoint runs/vlmo --to hf://me/vlmo-kites --license apache-2.0
  train-vl push --checkpoint runs/vilbert --to hf://me/vilbert-kites --dry-run
      Prints the card and uploads nothing.
  train-vl push --checkpoint runs/vilbert --to hf://me/vilbert-kites \\
      --with-detector detector.pth --metrics runs/vilbert-found/metrics.json

vlmill.load("hf://me/vlmo-kites") opens it. One commit has weights, vocabulary, settings, recipe,
the hashes of the training data, and README.md, which is generated from these. Inputs are listed
by name, without their paths. The token is that of `hf auth login` or HF_TOKEN; HF_ENDPOINT
selects another hub. A missing repository is created, private unless you pass --public.
"""


def add_push_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``train-vl push``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--checkpoint", type=path_or_url, required=True, help="output of a run or of `convert`")
    add("--to", required=True, metavar="hf://OWNER/NAME", help="repository to upload to")
    add(
        "--with-detector",
        nargs="?",
        const="",
        metavar="FILE",
        help="also upload the detector of the regions; optional weights file (default: "
        "the file named in the metadata of the regions, or the same random weights)",
    )
    add("--license", metavar="ID", help="licence of the weights, with the hub's name: apache-2.0")
    add("--data-license", metavar="TEXT", help="licence of the training data, for the card")
    add(
        "--metrics",
        type=path_or_url,
        action="append",
        default=[],
        metavar="FILE",
        help="metrics.json whose values are added to the card (repeatable)",
    )
    add("--public", action="store_true", help="make a new repository public (default: private)")
    add("--dry-run", action="store_true", help="print the card and the sizes without uploading")


def run_push(args: argparse.Namespace) -> int:
    """Runs ``train-vl push``; returns the exit status."""
    parse_repository(args.to)
    find_checkpoint(args.checkpoint)
    # torch loads slowly: import it only after the arguments are checked.
    from vlmill.inference.push.upload import PushOptions, push

    return push(make_options(PushOptions, args))
