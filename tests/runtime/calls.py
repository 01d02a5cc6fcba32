"""What the processes of the tests of bounded calls do."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from vlmill.schemas.errors import InputError


def start(word: str) -> Callable[[str], object]:
    """Gives what answers a call by its first word."""
    calls = {
        "id": lambda rest: os.getpid(),
        "echo": lambda rest: f"{word} {rest}",
        "spin": spin,
        "sleep": lambda rest: time.sleep(3_600),
        "take": lambda rest: len(bytearray(int(rest))),
        "raise": refuse,
        "kill": lambda rest: os.kill(os.getpid(), signal.SIGKILL),
        "kill_once": kill_once,
    }
    return lambda task: calls[task.partition(" ")[0]](task.partition(" ")[2])


def fail_to_start() -> Callable[[str], object]:
    """Finds that it cannot be started."""
    raise InputError("no such model")


def end_at_start() -> Callable[[str], object]:
    """Ends its process before it is ready."""
    os._exit(3)


def spin(_: str) -> None:
    """Computes without end."""
    while True:
        pass


def refuse(text: str) -> None:
    """Raises an error of a user."""
    raise InputError(text)


def kill_once(path: str) -> str:
    """Ends its process the first time, as the system does when memory runs out."""
    if not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"
