"""Prepares a job before Beam is loaded, and loads Beam.

Beam takes seconds to load, and prints a warning if its Google Cloud extra is missing.
"""

import argparse
import difflib
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from vlmill.runtime.extras import missing_line
from vlmill.schemas.errors import InputError

OPTIONS = "options/pipeline_options.py"  # the module in which Beam declares every flag


def parse_job(
    parser: argparse.ArgumentParser, arguments: Sequence[str]
) -> tuple[argparse.Namespace, list[str]]:
    """Returns a job's parsed arguments, and the other ones, which are for Beam.

    Raises InputError for a flag that neither knows, without loading Beam, and for a flag of Beam if
    Beam is not installed.
    """
    args, words = parser.parse_known_args(arguments)
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    if flags and find_spec("apache_beam") is None:
        raise InputError(f"{flags[0]} is not a flag of this job, and {missing_line('apache_beam')}")
    if unknown := [flag for flag in flags if flag not in flags_of_beam()]:
        own_flags = re.findall(r"--[a-z][\w-]*", parser.format_help())
        near = difflib.get_close_matches(unknown[0], own_flags, n=1)
        raise unknown_flag(unknown[0], f"did you mean {near[0]}?" if near else "see --help")
    return args, words


def require_flags(words: Sequence[str]) -> None:
    """Raises InputError for Beam's arguments if the first one is not a flag."""
    if words and not words[0].startswith("-"):
        raise InputError(
            f"{words[0]}: expected a flag before it; put quotes around a glob pattern (see --help)"
        )


def unknown_flag(flag: str, remedy: str = "see --help") -> InputError:
    """Returns the error for an unknown argument; Beam itself would ignore it."""
    return InputError(f"{flag}: neither this job nor Apache Beam has this flag; {remedy}")


def flags_of_beam() -> set[str]:
    """Returns every flag in the source text of Beam's options, without loading Beam."""
    spec = find_spec("apache_beam")
    assert spec is not None and spec.submodule_search_locations
    text = Path(spec.submodule_search_locations[0], OPTIONS).read_text(encoding="utf-8")
    return set(re.findall(r"""["'](--[A-Za-z][\w-]*)["']""", text))


@contextmanager
def quiet_beam_import() -> Iterator[None]:
    """Drops Beam's warning that "apitools" was not found while the block imports a job.

    A job needs no Google Cloud, and its user can do nothing about the warning. All other records
    pass, and after the block the root logger is restored.
    """
    root = logging.getLogger()
    root.addFilter(_passes)
    try:
        yield
    finally:
        root.removeFilter(_passes)


def _passes(record: logging.LogRecord) -> bool:
    return "apitools not found" not in record.getMessage()
