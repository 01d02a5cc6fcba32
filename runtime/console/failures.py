"""Describes, in one line, errors that end a command and are not bugs."""

import errno
import os
import re
import sys

_NO_MEMORY = (
    *("DefaultCPUAllocator", "not enough memory", "out of memory", "std::bad_alloc"),
    *("can't start new thread", "Cannot allocate memory", "cannot allocate memory"),
    *("failed to map segment", "unable to start new thread"),
)
_WORKER = re.compile(r"DataLoader worker \(pid.*?\) (?:is killed by signal: (.*?)\.|exited)")
MAX_LINE = 500


def failure_line(error: Exception) -> str | None:
    """Returns the line for a command that ends with status 1; None for an error that is a bug.

    These are errors of the operating system, too little memory, and killed workers of a loader.
    """
    text = one_line(error)
    if isinstance(error, MemoryError) or _is_about_memory(error, text):
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


def one_line(error: BaseException) -> str:
    """Returns an error's message as one line."""
    return " ".join(str(error).split())[:MAX_LINE]


def _is_about_memory(error: Exception, text: str) -> bool:
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
