"""Converts data sets to tables: python -m vlmill.pipelines.manifest --help"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from vlmill.pipelines.manifest.flags import TITLES
from vlmill.runtime.console.command import Parser, run_command
from vlmill.runtime.units.flags import lock_job
from vlmill.runtime.units.launch.loading import parse_job, require_flags
from vlmill.schemas.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Defines a subcommand: its flags, and its function."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def own() -> dict[str, Dataset]:
    """Returns the subcommand for the user's own captions, by name."""
    from vlmill.pipelines.manifest.own.command import run_own
    from vlmill.pipelines.manifest.own.flags import add_own_arguments

    return {"own": Dataset(add_arguments=add_own_arguments, run=run_own)}


def list_published() -> dict[str, Dataset]:
    """Returns the subcommands of published data sets, by name."""
    from vlmill.pipelines.manifest.published.command import add_arguments, run_published
    from vlmill.pipelines.manifest.sets import SETS

    return {
        name: Dataset(
            add_arguments=partial(add_arguments, name=name, data_set=data_set),
            run=partial(run_published, name, data_set),
        )
        for name, data_set in SETS.items()
    }


def datasets(arguments: Sequence[str]) -> dict[str, Dataset]:
    """Loads the subcommand that the arguments name, and perhaps others with it.

    Without a name argparse prints a help text, versions or an error, which needs no subcommand.
    """
    name = next((word for word in arguments if not word.startswith("-")), None)
    return {} if name is None else own() if name == "own" else list_published()


def parser(loaded: Mapping[str, Dataset] | None = None) -> Parser:
    """Returns the parser of all data sets, with the flags of the loaded ones (None: all)."""
    if loaded is None:
        loaded = {**own(), **list_published()}
    top = Parser(
        prog="python -m vlmill.pipelines.manifest",
        description="Converts data sets to tables of pairs, images and task examples.",
        epilog="example:\n  python -m vlmill.pipelines.manifest own --help",
    )
    commands = top.add_subparsers(dest="dataset", required=True, metavar="DATASET")
    for name, title in TITLES.items():
        command = commands.add_parser(name, help=title, allow_abbrev=False)
        if name in loaded:
            loaded[name].add_arguments(command)
    return top


def run(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs the data set's job."""
    loaded = datasets(arguments)
    args, beam_flags = parse_job(parser(loaded), arguments)
    require_flags(beam_flags)
    args.beam_flags = beam_flags
    if args.part is not None and getattr(args, "fetch", False):
        raise InputError("--part and --fetch do not go together; run --fetch on one machine")
    with lock_job(args, beam_flags):
        return loaded[args.dataset].run(args)


main = partial(run_command, run)

if __name__ == "__main__":
    sys.exit(main())
