"""Reads untrusted pickles in a separate process with limits on memory and time.

:mod:`~vlmill.models.convert.plain_pickle` refuses every name and limits the number of instructions.
Other attacks, such as a small file that unfolds to far more than it has bytes, end with the
process. The result comes back by :mod:`marshal`: texts, numbers and containers.
"""

import io
import marshal
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from vlmill.models.convert.plain_pickle import NO_MEMORY, BadPickle, load

MAX_PICKLE = 256 << 20  # bytes; published files have some 20 MB
MEMORY = 2 << 30  # bytes in addition to Python itself; RefCOCO's need some 300 MB
SECONDS = 600  # of processor time; RefCOCO's take some ten
LIST, OTHER, ERROR, END = "list", "other", "error", "end"


def read_pickled_list(content: bytes, *, encoding: str = "latin1") -> Generator[Any, None, None]:
    """Yields the elements of the list in a pickle, as plain data, one at a time.

    ``encoding`` applies to Python 2 texts: "bytes" returns them as bytes. Raises BadPickle unless
    the pickle holds a list of plain data and stays within MEMORY and SECONDS.
    """
    with _reader(content, encoding) as answers:
        kind, payload = next(answers)
        if kind == OTHER:
            raise BadPickle(f"it holds a {payload}, expected a list")
        for kind, element in answers:
            if kind == END:
                return
            yield element


def check_bounds(content: bytes) -> None:
    """Raises BadPickle for a pickle that is not plain data, or needs more than MEMORY or SECONDS.
    :func:`~vlmill.models.convert.plain_pickle.load` may read a pickle that passes.
    """
    with _reader(content, "latin1") as answers:
        next(answers)


@contextmanager
def _reader(content: bytes, encoding: str) -> Iterator[Iterator[tuple[str, Any]]]:
    """Yields the messages of a process that reads the pickle; the process ends with the block."""
    if len(content) > MAX_PICKLE:
        raise BadPickle(f"{len(content)} bytes, limit {MAX_PICKLE}")
    command = [sys.executable, "-P", "-m", __name__, encoding, str(MEMORY), str(SECONDS)]
    # The child imports from this process's paths, and not from the current folder.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as child:
        assert child.stdin is not None and child.stdout is not None
        try:
            try:
                child.stdin.write(content)
                child.stdin.close()
            except BrokenPipeError:
                pass  # its exit status shows why
            yield _answers(child, child.stdout)
        finally:
            child.kill()


def _answers(child: "subprocess.Popen[bytes]", output: Any) -> Iterator[tuple[str, Any]]:
    while True:
        try:
            kind, payload = marshal.load(output)
        except (EOFError, ValueError, TypeError):
            status = child.wait()
            if status in (-signal.SIGXCPU, -signal.SIGKILL):
                why = f"more than {SECONDS} seconds of processor time, or {MEMORY} bytes"
                raise BadPickle(f"reading it takes {why}") from None
            raise BadPickle(f"the process that read it ended with status {status}") from None
        if kind == ERROR:
            raise BadPickle(payload)
        yield kind, payload


def _limit(memory: int, seconds: int) -> None:
    """Limits the memory and processor time of this process."""
    statm = Path("/proc/self/statm")  # on other systems the limit includes Python
    own_memory = int(statm.read_text().split()[0]) * resource.getpagesize() if statm.exists() else 0
    for kind, limit in ((resource.RLIMIT_AS, own_memory + memory), (resource.RLIMIT_CPU, seconds)):
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, hard))


def _answer(content: bytes, encoding: str, output: BinaryIO) -> None:
    """Reads the pickle and writes its content."""
    value = load(io.BytesIO(content), len(content), encoding=encoding)
    if not isinstance(value, list):
        marshal.dump((OTHER, type(value).__name__), output)
        return
    marshal.dump((LIST, None), output)
    for element in value:
        marshal.dump((LIST, element), output)
    marshal.dump((END, None), output)


def main(arguments: list[str]) -> int:
    """Runs the process: reads a pickle from standard input, writes messages to standard output."""
    encoding, memory, seconds = arguments
    output = sys.stdout.buffer
    content = sys.stdin.buffer.read()
    _limit(int(memory), int(seconds))
    try:
        _answer(content, encoding, output)
    except BadPickle as error:
        marshal.dump((ERROR, str(error)), output)
    except MemoryError:  # also while the reader reported it
        marshal.dump((ERROR, NO_MEMORY), output)
    except ValueError as error:  # marshal does not support it, or it contains itself
        marshal.dump((ERROR, f"an element is not plain data ({error})"), output)
    output.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
