"""Defines the arguments of ``train-vl show`` and runs it."""

import argparse

from vlmill.runtime.net.flags import add_allow_address
from vlmill.runtime.weights.names import path_or_name

EPILOG = """\
examples:
  train-vl show runs/small
  train-vl show runs/small --lineage
  train-vl show demo/pairs --rejects

DIR is the --output of `train-vl pretrain`, one of its checkpoints/step-*, the output of `train-vl
convert`, or the output of any other job. --lineage follows the recorded inputs of each job, from
the checkpoint to pairs, regions, archives and weights, and compares them with the present files
(by names, sizes and checksums, without reading tables again: docs/tables.md). It exits with 1 if
an input is changed or missing. --rejects prints reason, stage, key and detail of every rejected
item, separated by tabs. No weights are loaded, so a model of any size takes a second.
"""


def add_show_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``train-vl show`` to a subcommand's parser."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = "Print a checkpoint's variant, recipe, stages, data, detector and size."
    parser.add_argument(
        "folder",
        type=path_or_name,
        metavar="DIR",
        help="a run, a checkpoint (hf://OWNER/NAME too), or a table",
    )
    add_allow_address(parser)
    parser.add_argument(
        "--rejects", action="store_true", help="print the rejected items of DIR instead"
    )
    parser.add_argument(
        "--lineage",
        action="store_true",
        help="also show the jobs that wrote the inputs, and which inputs have changed since",
    )


def run_show(args: argparse.Namespace) -> int:
    """Prints DIR; exit status 1 if ``--lineage`` finds an input that is changed or missing."""
    # pyarrow takes a while to load, so it is not needed for a help text.
    from vlmill.inference.show.folder import print_rejects, read_folder
    from vlmill.inference.show.lines import summary_lines
    from vlmill.runtime.console.lineage import format_lines, lineage, mismatches

    if args.rejects:
        print_rejects(args.folder)
        return 0
    summary = read_folder(args.folder)
    print("\n".join(summary_lines(summary)))
    if not args.lineage:
        return 0
    nodes = lineage(summary.record_folder)
    print("\nlineage")
    print("\n".join(f"  {line}" for line in format_lines(nodes)) or "  no input is recorded")
    wrong = mismatches(nodes)
    if nodes:
        verdict = f"changed or missing: {wrong}" if wrong else "every input still matches"
        print(f"{args.folder}: {verdict}")
    return int(bool(wrong))
