"""Data sets as tables: python -m vlmill.pipelines.manifest --help"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from vlmill.pipelines.launch.loading import parsed, require_flags
from vlmill.pipelines.manifest.listed import TITLES
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


def datasets() -> dict[str, Dataset]:
    """The subcommands by their names: one's own captions, and every published data set."""
    from vlmill.pipelines.manifest.own.command import add_own_arguments, run_own
    from vlmill.pipelines.manifest.published.command import add_arguments, run_published
    from vlmill.pipelines.manifest.sets import SETS

    own = Dataset(title=TITLES["own"], add_arguments=add_own_arguments, run=run_own)
    published = {
        name: Dataset(
            title=data_set.title,
            add_arguments=partial(add_arguments, name=name, data_set=data_set),
            run=partial(run_published, name, data_set),
        )
        for name, data_set in SETS.items()
    }
    return {"own": own, **published}


def parser() -> Parser:
    """Returns the parser of all data sets, with their flags."""
    top, commands = _parser_without_flags()
    for name, dataset in datasets().items():
        dataset.add_arguments(commands.add_parser(name, help=dataset.title, allow_abbrev=False))
    return top


def listing() -> Parser:
    """Returns a parser that lists the data sets and has none of their flags."""
    top, commands = _parser_without_flags()
    for name, title in TITLES.items():
        commands.add_parser(name, help=title)
    return top


def _parser_without_flags() -> tuple[Parser, "argparse._SubParsersAction[Parser]"]:
    top = Parser(
        prog="python -m vlmill.pipelines.manifest",
        description="Data sets as tables of pairs, pictures and examples of tasks.",
        epilog="example:\n  python -m vlmill.pipelines.manifest own --help",
    )
    return top, top.add_subparsers(dest="dataset", required=True, metavar="DATASET")


def run(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs the data set's job."""
    # Without the name of a data set, argparse prints a help text, versions or an error, and exits.
    names_a_data_set = any(not word.startswith("-") for word in arguments)
    args, beam_flags = parsed(parser() if names_a_data_set else listing(), arguments)
    require_flags(beam_flags)
    args.beam_flags = beam_flags
    with locked(None if args.dry_run else args.output, seconds=args.lock_seconds):
        return datasets()[args.dataset].run(args)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run_command(run, argv)
