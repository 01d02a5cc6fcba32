"""Defines the short and the full form of the scripts, and their lines of JSON."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

KEYS = ("name", "value", "unit", "peer", "ratio", "limit", "fraction_of_limit")


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


def result_line(name: str, value: float, unit: str, **more: Any) -> dict[str, Any]:
    """A result as every benchmark prints it: all of KEYS, None where there is no peer or limit.

    ``more`` gives those and whatever else the benchmark has to say.
    """
    return dict.fromkeys(KEYS) | {"name": name, "value": value, "unit": unit} | more
