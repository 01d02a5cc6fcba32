"""Declares the arguments of ``train-vl export``, and runs it."""

import argparse
import sys

from vlmill.runtime.console.command import add_lock_seconds, path_or_url
from vlmill.runtime.extras import require_extra
from vlmill.runtime.net.flags import add_allow_address
from vlmill.runtime.weights.names import path_or_name
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.folders import find_checkpoint
from vlmill.train.checkpoints.named import CHECKPOINT_HELP

EXPORT_HELP = """\
Export a checkpoint to ONNX.

examples:
  train-vl export --onnx --checkpoint runs/vlmo --output vlmo-onnx
      A dual encoder: text.onnx and image.onnx, whose vectors' products rank.
  train-vl export --onnx --checkpoint runs/vilbert --output vilbert-onnx
      A model of regions: scores.onnx, the logits that a text belongs to an image.

DIR also gets the vocabulary (vocab.txt, tokenizer.json) and export.json, which describes each
input and output: names, types, shapes, and how texts, pixels and regions are prepared. Numbers of
pairs, tokens and regions are free. Each graph is run in onnxruntime on a batch of other sizes and
compared with PyTorch; a difference above 1e-4 is an error. Needs the extra `onnx`. Memory: about
four times the weights.
"""


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``train-vl export``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--onnx", action="store_true", help="write ONNX, the only format so far")
    add("--checkpoint", type=path_or_name, required=True, metavar="DIR", help=CHECKPOINT_HELP)
    add_allow_address(parser)
    add("--output", type=path_or_url, required=True, metavar="DIR", help="folder to write")
    add_lock_seconds(parser)


def run_export(args: argparse.Namespace) -> int:
    """Runs ``train-vl export``; returns the exit status."""
    if not args.onnx:
        raise InputError("--onnx is missing: give the format to write")
    find_checkpoint(args.checkpoint)
    require_extra("onnx")
    # torch loads slowly: import it only after the arguments are checked.
    from vlmill.inference.export.job import Differs, export_onnx

    try:
        print(export_onnx(args.checkpoint, args.output))
    except Differs as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    return 0
