"""Data sets as tables: python -m vlmill.pipelines.manifest --help"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vlmill.pipelines.launch.loading import parsed, require_flags
from vlmill.pipelines.manifest.own.command import add_own_arguments, run_own
from vlmill.pipelines.manifest.published.command import add_arguments, run_published
from vlmill.pipelines.manifest.sets import SETS
from vlmill.schemas.console.command import (
    Parser,
    run_command,
)
from vlmill.schemas.files.lock import locked


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A subcommand: what it is for, its flags, and what runs it."""

    title: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def published(name: str) -> Dataset:
    """Returns the subcommand of a published data set."""
    data_set = SETS[name]
    return Dataset(
        title=data_set.title,
        add_arguments=lambda p: add_arguments(p, name, data_set),
        run=lambda args: run_published(name, data_set, args),
    )


OWN = Dataset(title="your own captions and pictures", add_arguments=add_own_arguments, run=run_own)


def datasets() -> dict[str, Dataset]:
    """The subcommands by their names: one's own captions, and every published data set."""
    return {"own": OWN, **{name: published(name) for name in SETS}}


def parser() -> Parser:
    """Returns the parser of all data sets."""
    top = Parser(
        prog="python -m vlmill.pipelines.manifest",
        description="Data sets as tables of pairs, pictures and examples of tasks.",
        epilog="example:\n  python -m vlmill.pipelines.manifest own --help",
    )
    commands = top.add_subparsers(dest="dataset", required=True, metavar="DATASET")
    for name, dataset in datasets().items():
        dataset.add_arguments(commands.add_parser(name, help=dataset.title, allow_abbrev=False))
    return top


def run(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs the data set's job."""
    args, beam_flags = parsed(parser(), arguments)
    require_flags(beam_flags)
    args.beam_flags = beam_flags
    with locked(None if args.dry_run else args.output, seconds=args.lock_seconds):
        return datasets()[args.dataset].run(args)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run_command(run, argv)
