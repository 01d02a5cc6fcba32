"""What a worker of another process or machine died of, from the text that its runner hands on.

There is no exception to look at: a cluster gives the worker's traceback as a part of its own.
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
    # From 128 on it was killed: the next one may live.
    r"|IllegalStateException: (?P<died>Process died with exit code (?:1[01]\d|12[0-7]|\d{1,2})\b)"
)
JAVA = ("java.", "org.apache.")
OURS = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in (InputError, StoreFailed)}


def without_step(error: BaseException) -> BaseException:
    """The error as it was raised: Beam writes the step's name behind what it says."""
    error.args = tuple(STEP.sub("", arg) if isinstance(arg, str) else arg for arg in error.args)
    return error


def format_refusal(message: str) -> str:
    """What a worker answers that cannot work: a line that :func:`useless_worker` finds again."""
    return f"VLMILL-WORKER: {' '.join(message.split())} :VLMILL-WORKER"


def useless_worker(text: str) -> OSError | None:
    """The error of a worker that cannot work wherever its task is started again, or None."""
    if refused := REFUSED.search(text):
        return OSError(refused["said"])
    raised = _last_raised(text)
    if raised is not None and (missing := MISSING.match(raised[0])):
        return OSError(
            f"a worker cannot import {missing[1]}: install this version of vlmill, with what it "
            "needs, where the workers run (docs/clusters.md)"
        )
    if unstarted := UNSTARTED.search(text):
        return OSError(
            f"a task manager could not start a worker ({unstarted['said'] or unstarted['died']}): "
            "the command of --environment_config has to run on the host of each (docs/clusters.md)"
        )
    return None


def worker_error(text: str) -> OSError | InputError | StoreFailed | None:
    """The error of a worker that one line can answer, or None: then the text is what there is."""
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
    """The line of the error that a worker ended with; those before it may have been handled."""
    raised = [match for match in RAISED.finditer(text) if not match["name"].startswith(JAVA)]
    return raised[-1] if raised else None


def _is_answered(name: str) -> bool:
    """Whether a class of errors is the operating system's, a store's, or a user's mistake."""
    kind = getattr(builtins, name, None)
    return name in OURS or (isinstance(kind, type) and issubclass(kind, OSError))
