"""What every command line shares: a user's mistakes, exit statuses, one-line errors.

Exit status 0: done. 1: failed. 2: wrong arguments or input, told in one line that names the
argument and the remedy. 130: interrupted.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn


class InputError(ValueError):
    """A user's mistake: the message names the argument or file, its value, and the remedy."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line, and whose help keeps the epilog's line
    breaks.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with status 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def run_command(command: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> int:
    """Run ``command`` on the arguments and return its exit status.

    ``argv`` defaults to the process's own. A user's mistake gives status 2 and the operating
    system's refusals (a full disk, a missing permission) status 1, both as one line without a
    traceback; any other exception is a bug and keeps its traceback.
    """
    try:
        return command(sys.argv[1:] if argv is None else argv)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command continues where it can", file=sys.stderr)
        return 130
