"""Explains the end of a worker in another process or machine from the text that its runner reports.

There is no exception object: a cluster includes the worker's traceback in its own.
"""

import builtins
import re

from vlmill.schemas.errors import InputError, StoreFailed

MISSING = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
REFUSED = re.compile(r"VLMILL-WORKER: (?P<said>.+?) :VLMILL-WORKER")
RAISED = re.compile(r"^(?P<name>[\w.]+): (?P<said>.+)$", re.MULTILINE)
STEP = re.compile(r" \[while running '(?P<step>.+?)(?:-ptransform-\d+)?'\]\s*$")
UNSTARTED = re.compile(
    r"java\.io\.IOException: (?:Cannot run program .*?)?error=\d+, (?P<said>.+)"
    # From 128 on it was killed: the next one may succeed.
    r"|IllegalStateException: (?P<died>Process died with exit code (?:1[01]\d|12[0-7]|\d{1,2})\b)"
)
JAVA = ("java.", "org.apache.")
OURS = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in (InputError, StoreFailed)}


def without_step(error: BaseException) -> BaseException:
    """Returns the original error: Beam appends the step's name."""
    error.args = tuple(STEP.sub("", arg) if isinstance(arg, str) else arg for arg in error.args)
    return error


def format_refusal(message: str) -> str:
    """Returns the response of a useless worker: a line for :func:`useless_worker`."""
    return f"VLMILL-WORKER: {' '.join(message.split())} :VLMILL-WORKER"


def useless_worker(text: str) -> OSError | None:
    """Returns the error of a worker that would fail wherever its task is restarted, or None."""
    if refused := REFUSED.search(text):
        return OSError(refused["said"])
    raised = _last_raised(text)
    if raised is not None and (missing := MISSING.match(raised[0])):
        return OSError(
            f"a worker cannot import {missing[1]}: install this version of vlmill with "
            "its dependencies on every worker's host (docs/clusters.md)"
        )
    if unstarted := UNSTARTED.search(text):
        return OSError(
            f"a task manager could not start a worker ({unstarted['said'] or unstarted['died']}): "
            "the command of --environment_config has to run on the host of each (docs/clusters.md)"
        )
    return None


def worker_error(text: str) -> OSError | InputError | StoreFailed | None:
    """Returns the error of a worker if one line explains it, or None: then the text is shown."""
    if (useless := useless_worker(text)) is not None:
        return useless
    raised = _last_raised(text)
    if raised is None or not _is_answered(raised["name"]):
        return None
    message = raised["said"]
    step = STEP.search(message)
    where = f" (on a worker, step {step['step']})" if step else " (on a worker)"
    return OURS.get(raised["name"], OSError)(STEP.sub("", message) + where)


def _last_raised(text: str) -> re.Match[str] | None:
    """Returns the line of the last error of a worker; earlier ones may have been handled."""
    raised = [match for match in RAISED.finditer(text) if not match["name"].startswith(JAVA)]
    return raised[-1] if raised else None


def _is_answered(name: str) -> bool:
    """Returns whether errors of a class are the operating system's, a store's or a user's."""
    kind = getattr(builtins, name, None)
    return name in OURS or (isinstance(kind, type) and issubclass(kind, OSError))
