"""Defines the exit statuses, one-line errors and status lines that all commands share.

Exit status 0: done. 1: failed. 2: wrong arguments or input, with one line that names the argument
and the remedy. 130: interrupted. 141: the reader of the output, such as `head`, has ended.

`failure_line` writes one line for errors that are not bugs, from any library.
"""

import argparse
import errno
import math
import os
import re
import select
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

import vlmill
from vlmill.runtime.bus_errors import name_shrunken_files
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

_NO_MEMORY = (
    *("DefaultCPUAllocator", "not enough memory", "out of memory", "std::bad_alloc"),
    *("can't start new thread", "Cannot allocate memory", "cannot allocate memory"),
    *("failed to map segment", "unable to start new thread"),
)
_WORKER = re.compile(r"DataLoader worker \(pid.*?\) (?:is killed by signal: (.*?)\.|exited)")
MAX_LINE = 500
Options = TypeVar("Options")
Flags = argparse.ArgumentParser | argparse._ArgumentGroup


def failure_line(error: Exception) -> str | None:
    """Returns the line for a command that ends with status 1; None for an error that is a bug.

    These are errors of the operating system, too little memory, and killed workers of a loader.
    """
    text = one_line(error)
    if is_about_memory(error):
        return _memory_line(text)
    if isinstance(error, OSError):
        return _os_line(error)
    if isinstance(error, UnicodeEncodeError) and error.encoding != "utf-8":
        return (
            f"{error.object[error.start : error.end]!r} cannot be written in the encoding "
            f"{error.encoding} of this locale; set PYTHONUTF8=1 or LC_ALL=C.UTF-8"
        )
    if isinstance(error, RuntimeError) and (worker := _WORKER.match(text)):
        how = f" (signal: {worker[1]})" if worker[1] else ""
        return (
            f"a worker process of the loader was killed{how}, as the system does where memory is "
            "short; run the same command again, which continues from the last checkpoint, perhaps "
            "with fewer workers (workers=N)"
        )
    return None


# "[Errno 2] No such file or directory: 'a.json'", and the error of text in another encoding
_ERRNO = re.compile(r"\[Errno -?\d+\] ([\w ]+)(?:: b?'([^']*)')?")
_VALUE = re.compile(r"invalid (int|float) value:")
_NUMBERS = {"int": "a whole number", "float": "a number"}
_CODEC = re.compile(r"'([\w-]+)' codec can't decode bytes? .{,20}in position (\d+)[-\d]*: [\w ]+")


def one_line(error: BaseException) -> str:
    """Returns an error's message as one line of at most 500 characters."""
    return " ".join(plain_message(error).split())[:MAX_LINE]


def plain_message(error: BaseException) -> str:
    """Returns an error's message without the notation of Python's own errors, such as [Errno 2]."""
    text = _ERRNO.sub(_without_number, str(error))
    return _CODEC.sub(r"not \1 text (byte \2)", text)


def _without_number(match: re.Match[str]) -> str:
    path = match[2]
    remainder = match.string[: match.start()] + match.string[match.end() :]
    return match[1] if path is None or path in remainder else f"{path}: {match[1]}"


def is_about_memory(error: BaseException) -> bool:
    """Returns whether an error was raised because of too little memory, of a GPU too."""
    text = one_line(error)
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # torch.OutOfMemoryError is a RuntimeError; libraries that cannot be loaded are an ImportError.
    known = isinstance(error, RuntimeError | ImportError)
    return known and any(words in text for words in _NO_MEMORY)


def _memory_line(text: str) -> str:
    detail = f" ({text})" if text else ""
    return f"not enough memory{detail}{_memory_limit()}"


def _memory_limit() -> str:
    """Returns the limit of this process's address space, where there is one, as a remedy."""
    if sys.platform == "win32":
        return ""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return ""
    return f"; the shell allows {limit / 1e9:.1f} GB (ulimit -v): raise it"


def _os_line(error: OSError) -> str:
    if error.errno is None or error.strerror is None:
        return one_line(error)
    names = [
        os.fsdecode(n) for n in (error.filename, error.filename2) if isinstance(n, str | bytes)
    ]
    return ": ".join([" -> ".join(names), error.strerror] if names else [error.strerror])


class ShowVersions(argparse.Action):
    """Prints :func:`versions` and exits with status 0."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """Prints and exits."""
        print(versions())
        parser.exit()


def versions() -> str:
    """Returns the versions that affect results, from package metadata without importing them."""
    from importlib import metadata  # takes 20 ms, so only for --version

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


RERUN_FLAGS = frozenset(
    ("--dry-run", "--fresh", "--force", "--lock-seconds", "--verify", "--trust", "--version")
)
"""Flags that most commands share and few users need: every help lists them last"""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser with --version, --verify and --trust and with one-line errors.

    Its help keeps the line breaks of the epilog and lists :data:`RERUN_FLAGS` last. Flags of type
    float refuse ``nan`` and ``inf``.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._reruns = self.add_argument_group("estimates, reruns and checks")
        self.register("type", float, finite_float)
        self.register("type", int, whole_number)
        self.add_argument("--version", action=ShowVersions, help="print versions and exit")
        self.add_argument(
            "--verify",
            action=SetCheck,
            help="compare the SHA-256 of every input table with its manifest before reading it "
            "(about a second per GB); sizes are always compared",
        )
        self.add_argument(
            "--trust",
            action=SetCheck,
            help="do not compare checkpoints, detectors, indexes and vectors with their "
            "recorded SHA-256 (saves about a second per GB)",
        )

    def add_argument(self, *args: Any, **kwargs: Any) -> argparse.Action:
        """Adds an argument; one of :data:`RERUN_FLAGS` joins the last group of the help."""
        if args and args[0] in RERUN_FLAGS:
            return self._reruns.add_argument(*args, **kwargs)
        return super().add_argument(*args, **kwargs)

    def format_help(self) -> str:
        """Returns the help, with the group of :data:`RERUN_FLAGS` after all others."""
        self._action_groups.sort(key=lambda group: group is self._reruns)
        return super().format_help()

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parses, and refuses arguments that name a pipe or a device, which might never end."""
        parsed, unknown = super().parse_known_args(args, namespace)
        for action in self._actions:
            for text in _argument_texts(getattr(parsed, action.dest, None)):
                if kind := irregular_kind(text):
                    name = action.option_strings[0] if action.option_strings else action.metavar
                    self.error(f"{name or action.dest} {text} is {kind}; give a file or a folder")
        return parsed, unknown

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parses all arguments. An unknown one is an error of the subcommand that it follows."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self._chosen_parser(parsed).error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed

    def _chosen_parser(self, parsed: argparse.Namespace) -> argparse.ArgumentParser:
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                subparsers: dict[str, argparse.ArgumentParser] = action.choices
                return subparsers.get(getattr(parsed, action.dest, None) or "", self)
        return self

    def error(self, message: str) -> NoReturn:
        """Prints one line and exits with status 2."""
        message = _VALUE.sub(lambda match: f"expected {_NUMBERS[match[1]]}, got", message)
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _argument_texts(value: object) -> list[str]:
    """Returns the strings among an argument's values that may be paths, also in ``field=path``."""
    values = value if isinstance(value, list | tuple) else [value]
    texts = [str(each) for each in values if isinstance(each, str | Path)]
    return texts + [text.partition("=")[2] for text in texts if "=" in text]


def path_or_url(text: str) -> Path:
    """Parses an argument that is a local path or the URL of an object store."""
    try:
        return to_path(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def int_at_least(lowest: int) -> Callable[[str], int]:
    """Returns the parser of an argument that is a whole number, ``lowest`` or more."""

    def number(text: str) -> int:
        with suppress(ValueError):
            if lowest <= (value := int(text)) <= MAX_WHOLE:
                return value
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected a whole number from {lowest}")

    return number


def whole_number(text: str) -> int:
    """Parses an argument that is a whole number of at most 64 bits, as counters are."""
    with suppress(ValueError):
        if abs(value := int(text)) <= MAX_WHOLE:
            return value
    raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected a whole number of at most 64 bits")


def finite_float(text: str) -> float:
    """Parses an argument that is a finite number: range checks would accept ``nan``."""
    if not math.isfinite(value := float(text)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a finite number")
    return value


def non_negative_float(text: str) -> float:
    """Parses an argument that is a number, 0 or more."""
    if (value := finite_float(text)) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 0")
    return value


def make_options(kind: Callable[..., Options], args: argparse.Namespace, **more: Any) -> Options:
    """Builds a dataclass from the arguments with the names of its fields, and from ``more``."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in vars(args).items() if name in names} | more)


def add_count(
    parser: Flags,
    flag: str,
    help: str,
    *,
    least: int = 1,
    default: int | None = None,
    metavar: str = "N",
    dest: str | None = None,
) -> None:
    """Adds a flag that is a whole number, ``least`` or more.

    The help ends with the default, unless it states one itself.
    """
    if default is not None and "(default: " not in help:
        help += " (default: %(default)s)"
    number, dest = int_at_least(least), dest or flag.strip("-").replace("-", "_")
    parser.add_argument(flag, type=number, default=default, metavar=metavar, dest=dest, help=help)


def add_fresh(parser: argparse.ArgumentParser) -> None:
    """Adds ``--fresh``, for jobs that continue an earlier run in ``--output``."""
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="delete the output of an earlier run in --output and start over",
    )


def add_lock_seconds(parser: argparse.ArgumentParser) -> None:
    """Adds ``--lock-seconds``, the age at which the lock of a killed run is stale."""
    parser.add_argument(
        "--lock-seconds",
        type=non_negative_float,
        metavar="S",
        help="for an --output in an object store: treat another run's lock as stale if it "
        "was not renewed for S seconds (default: 120; 0: immediately)",
    )


def run_command(command: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> int:
    """Runs ``command`` on the arguments and returns its exit status.

    ``argv`` defaults to the arguments of the process. A user's mistake and a missing extra give
    status 2. Errors of the operating system (a full disk, a missing permission), too little memory
    and a killed worker (:func:`failure_line`) give status 1. Each prints one line without a
    traceback. Any other exception is a bug and keeps its traceback.
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
        return _fail(f"error: {plain_message(error)}", 2)
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
    """Returns whether ``output`` still has a reader. If not, further output is discarded."""
    poll = select.poll()
    poll.register(output)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return True
    replace_descriptor(output.fileno())
    return False


def print_status(line: str) -> None:
    """Prints a line on standard error; standard output is for results."""
    print(line, file=sys.stderr, flush=True)


def print_reading_hint(folder: str | Path, table: str) -> None:
    """Prints how to list the rejects of a job's finished local folder, and how to read a table."""
    if is_remote(folder):
        return
    if num_rejects(Path(folder)):
        print_status(f"to list the rejects: train-vl show {folder} --rejects")
    pattern = f"{folder}/{table}-*.parquet"
    print_status(
        f"to read this table in Python: pq.read_table(sorted(glob({pattern!r})))  (docs/tables.md)"
    )


def num_rejects(folder: Path) -> int:
    """Returns the number of rejects in a folder's manifest; 0 without a manifest."""
    from vlmill.runtime.files.manifest import MANIFEST, read_manifest  # loads pyarrow

    if not (folder / MANIFEST).exists():
        return 0
    return sum(s.rows for s in read_manifest(folder)["shards"] if s.table == "rejects")
