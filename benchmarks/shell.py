"""Defines the short and the full form of the scripts, their options and their lines of JSON."""

import argparse
import json
import resource
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from vlmill.schemas.errors import InputError

Result = TypeVar("Result")
KEYS = ("name", "value", "unit", "peer", "ratio", "limit", "fraction_of_limit")


def new_parser(doc: str | None) -> argparse.ArgumentParser:
    """Returns a parser whose help is a script's docstring as it is written."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_counts(parser: argparse.ArgumentParser, **helps: str | tuple[int, str]) -> None:
    """Adds options of whole numbers by their names, with their help, or a default and help."""
    for name, about in helps.items():
        default, text = (None, about) if isinstance(about, str) else about
        text += "" if default is None else f" (default: {default})"
        parser.add_argument(_flag(name), type=int, default=default, metavar="N", help=text)


def add_choices(parser: argparse.ArgumentParser, flag: str, known: Collection[str]) -> None:
    """Adds a flag that takes some of the ``known`` names; all without it."""
    about = f"{flag.removeprefix('--')} to measure (default: all)"
    parser.add_argument(flag, nargs="+", choices=known, default=list(known), help=about)


def add_output(parser: argparse.ArgumentParser, default: str) -> None:
    """Adds ``--output``, the folder of what a script makes and continues."""
    about = f"folder to write or continue (default: {default})"
    parser.add_argument("--output", type=Path, default=Path(default), metavar="DIR", help=about)


def names_of(text: str) -> list[str]:
    """Returns names between commas."""
    return text.split(",")


def seeds_of(text: str) -> list[int]:
    """Returns seeds between commas. Raises InputError for others than different ones from 0 up."""
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise InputError(f"--seeds {text}: expected different numbers from 0 up, as in 0,1,2")
    return [int(part) for part in parts]


def require_known(flag: str, names: Iterable[str] | None, known: Collection[str]) -> None:
    """Raises InputError for a name that is none of the ``known`` ones."""
    if unknown := [name for name in names or () if name not in known]:
        raise InputError(f"{flag} {unknown[0]}: there are {', '.join(known)}")


def parse_form(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    *,
    short: Mapping[str, Any],
    full: Mapping[str, Any],
) -> argparse.Namespace:
    """Adds ``--full``, parses, and fills the options that are None with the form's values.

    ``short`` and ``full`` give these values by the options' names (``held_out``). The short form
    takes at most two minutes on two idle cores; the full one is for RESULTS.md.
    """
    by_form = ", ".join(
        f"{_flag(name)} {_shown(short[name])} or {_shown(full[name])}" for name in short
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="the form for RESULTS.md; without it the short one, of at most two minutes on two "
        f"idle cores (short or full: {by_form})",
    )
    options = parser.parse_args(argv)
    for name, value in (full if options.full else short).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _shown(value: object) -> str:
    if value is None:
        return "as published"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def timed(work: Callable[[], Result], rounds: int = 1) -> tuple[float, Result]:
    """Returns the least CPU seconds, of all threads, of the rounds, and the last one's result."""
    seconds, result = [], list[Result]()
    for _ in range(rounds):
        result.clear()
        start = time.process_time()
        result.append(work())
        seconds.append(time.process_time() - start)
    return min(seconds), result[0]


def peak_gb() -> float:
    """Returns the largest resident memory of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def result_line(name: str, value: float, unit: str, **more: Any) -> dict[str, Any]:
    """A result as every benchmark prints it: all of KEYS, None where there is no peer or limit.

    ``more`` gives those and whatever else the benchmark has to say.
    """
    return dict.fromkeys(KEYS) | {"name": name, "value": value, "unit": unit} | more


def print_line(name: str, value: float, unit: str, **more: Any) -> None:
    """Prints the line of a result."""
    print_lines([result_line(name, value, unit, **more)])


def print_lines(lines: Iterable[Mapping[str, Any]]) -> None:
    """Prints lines of JSON, each as soon as it is there."""
    for line in lines:
        print(json.dumps(line), flush=True)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a file of results; none where there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def add_line(path: Path, line: Mapping[str, Any]) -> None:
    """Appends a line to a file of results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
