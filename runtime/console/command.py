"""Every command line shares these exit statuses, one-line errors and lines for the user.

Exit status 0: done. 1: failed. 2: wrong arguments or input, told in one line that names the
argument and the remedy. 130: interrupted. 141: who read the output, such as `head`, has gone.
"""

import argparse
import math
import select
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TextIO

import vlmill
from vlmill.runtime.bus_errors import name_shrunken_files
from vlmill.runtime.console.failures import failure_line, one_line
from vlmill.runtime.console.streams import (
    drop_unwritable_output,
    prepare_streams,
    replace_descriptor,
)
from vlmill.runtime.extras import missing_line
from vlmill.runtime.files.listed import CHECKS, own_checks
from vlmill.runtime.files.paths import irregular_kind, to_path
from vlmill.runtime.files.remote import is_remote
from vlmill.runtime.settings.numbers import MAX_WHOLE
from vlmill.schemas.errors import InputError, StoreFailed


class ShowVersions(argparse.Action):
    """Prints :func:`versions` and exits with status 0."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """Prints and exits."""
        print(versions())
        parser.exit()


def versions() -> str:
    """The versions that decide a run's numbers, of what is installed; nothing is imported."""
    from importlib import metadata  # takes 20 ms: for this answer alone

    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = "not installed"
    python = sys.version.split()[0]
    return f"vlmill {vlmill.__version__}, Python {python}, torch {torch}"


class SetCheck(argparse.Action):
    """Sets one of :data:`vlmill.runtime.files.listed.CHECKS` for the rest of the command."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, *_: object) -> None:
        """Sets it."""
        setattr(CHECKS, self.option_strings[0].removeprefix("--"), True)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser with --version, --verify and --trust, whose errors are one line, whose
    help keeps the epilog's line breaks, and whose flags of type float take no ``nan`` or ``inf``.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.register("type", float, finite_float)
        self.register("type", int, whole_number)
        self.add_argument("--version", action=ShowVersions, help="print versions and exit")
        self.add_argument(
            "--verify",
            action=SetCheck,
            help="compare the SHA-256 of every input table with its manifest before reading it "
            "(about a second a GB); sizes are always compared",
        )
        self.add_argument(
            "--trust",
            action=SetCheck,
            help="skip comparing checkpoints, detectors, indexes and vectors with the SHA-256 "
            "that they record (about a second a GB)",
        )

    def parse_known_args(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        namespace: argparse.Namespace | None = None,
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parses, and refuses arguments that name a pipe or a device: reading one may never end."""
        parsed, unknown = super().parse_known_args(args, namespace)
        for action in self._actions:
            for text in _argument_texts(getattr(parsed, action.dest, None)):
                if kind := irregular_kind(text):
                    name = action.option_strings[0] if action.option_strings else action.metavar
                    self.error(f"{name or action.dest} {text} is {kind}; give a file or a folder")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Prints one line and exits with status 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _argument_texts(value: object) -> list[str]:
    """Returns the texts among an argument's values that may be paths, those of ``field=path``
    included.
    """
    values = value if isinstance(value, list | tuple) else [value]
    texts = [str(each) for each in values if isinstance(each, str | Path)]
    return texts + [text.partition("=")[2] for text in texts if "=" in text]


def path_or_url(text: str) -> Path:
    """The type of an argument that is a path of this machine or a place in a store."""
    try:
        return to_path(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def int_at_least(lowest: int) -> Callable[[str], int]:
    """The type of an argument that is a whole number from ``lowest``."""

    def number(text: str) -> int:
        with suppress(ValueError):
            if lowest <= (value := int(text)) <= MAX_WHOLE:
                return value
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: want a whole number from {lowest}")

    return number


def whole_number(text: str) -> int:
    """The type of an argument that is a whole number, of 64 bits as whatever counts with it."""
    with suppress(ValueError):
        if abs(value := int(text)) <= MAX_WHOLE:
            return value
    raise argparse.ArgumentTypeError(f"{text[:40]!r}: want a whole number of 64 bits")


def finite_float(text: str) -> float:
    """The type of an argument that is a number: every check of a range lets ``nan`` through."""
    if not math.isfinite(value := float(text)):
        raise argparse.ArgumentTypeError(f"{text!r}: want a finite number")
    return value


def non_negative_float(text: str) -> float:
    """The type of an argument that is a number, 0 or more."""
    if (value := finite_float(text)) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: want a number from 0")
    return value


def add_fresh(parser: argparse.ArgumentParser) -> None:
    """Adds ``--fresh``, for jobs that continue what they find in ``--output``."""
    parser.add_argument(
        "--fresh", action="store_true", help="delete what an earlier run left in --output"
    )


def add_lock_seconds(parser: argparse.ArgumentParser) -> None:
    """Adds the flag that says when the lock of a killed run is taken over."""
    parser.add_argument(
        "--lock-seconds",
        type=non_negative_float,
        metavar="S",
        help="of an --output in a store: a run that has not renewed its lock for so long is taken "
        "for killed (120); 0: at once",
    )


def run_command(command: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> int:
    """Runs ``command`` on the arguments and returns its exit status.

    ``argv`` defaults to the process's own. A user's mistake and a module of an extra that is not
    installed give status 2; the operating system's refusals (a full disk, a missing permission),
    memory that there is not, and a killed worker (:func:`failure_line`) status 1, each as one line
    without a traceback. Any other exception is a bug and keeps its traceback.
    """
    name_shrunken_files()
    prepare_streams()
    try:
        with own_checks():
            status = command(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return status
    except BrokenPipeError as error:
        return _fail(f"failed: {one_line(error)}", 1) if _is_read(sys.stdout) else 141
    except InputError as error:
        return _fail(f"error: {error}", 2)
    except StoreFailed as error:
        return _fail(f"failed: {error}", 1)
    except ModuleNotFoundError as error:
        if (line := missing_line(error.name)) is None:
            raise
        return _fail(f"error: {line}", 2)
    except (OSError, MemoryError, ImportError, RuntimeError, UnicodeEncodeError) as error:
        if (line := failure_line(error)) is None:
            raise
        return _fail(f"failed: {line}", 1)
    except KeyboardInterrupt:
        return _fail("interrupted; the same command continues where it can", 130)


def _fail(line: str, status: int) -> int:
    """Prints a line on standard error; returns the status."""
    print(line, file=sys.stderr)
    drop_unwritable_output()
    return status


def _is_read(output: TextIO) -> bool:
    """Whether there is still a reader. Where not, what is left to print goes nowhere."""
    poll = select.poll()
    poll.register(output)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return True
    replace_descriptor(output.fileno())
    return False


def print_status(line: str) -> None:
    """Tell the user on standard error; standard output is for the result."""
    print(line, file=sys.stderr, flush=True)


def print_reading_hint(folder: str | Path, table: str) -> None:
    """Tells how another program reads one table of a job's local folder, which holds several."""
    if is_remote(folder):
        return
    pattern = f"{folder}/{table}-*.parquet"
    print_status(
        f"each table by itself: pq.read_table(sorted(glob({pattern!r})))  (docs/tables.md)"
    )
