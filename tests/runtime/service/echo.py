"""A service without networks, run as ``python -m``: its workers do what a request says.

``echo WORD`` gives the word back, ``sleep S`` takes so long, ``raise`` is our error, ``lose``
loses the device, ``die`` ends the worker.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import Request

from vlmill.runtime.service.server import run_service
from vlmill.runtime.service.settings import ServiceSettings
from vlmill.runtime.service.shell import Shell, guard_application, new_application
from vlmill.runtime.service.workers import Plan, WorkerContext


def compute(words: Sequence[str]) -> list[str]:
    """Does what each word says; the batch's size stands before each answer."""
    answers = []
    for word in words:
        verb, _, rest = word.partition(" ")
        if verb == "sleep":
            time.sleep(float(rest))
        if verb == "raise":
            raise RuntimeError("/etc/secret is broken")
        if verb == "lose":
            raise OSError("the device is gone")
        if verb == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        answers.append(f"{len(words)} {rest}")
    return answers


def opened() -> WorkerContext:
    """Is called in a worker."""
    return WorkerContext(compute=compute, about={"name": "echo"})


def main(words: Sequence[str]) -> int:
    """Serves with settings as ``queue=4``, and ``workers=2``."""
    changes = dict(word.split("=", 1) for word in words)
    workers = int(changes.pop("workers", 1))
    kinds: dict[str, Callable[[str], Any]] = {"token": str}
    kinds |= dict.fromkeys(("batch_wait", "seconds", "header_seconds"), float)
    values = {name: kinds.get(name, int)(value) for name, value in changes.items()}
    shell = Shell(settings=ServiceSettings(**{"port": 0, **values}))
    application = new_application(shell, "echo", "Does what it is told.", lambda: shell.about)

    @application.post("/v1/echo")
    async def echo(request: Request) -> dict[str, object]:
        form = await shell.form(request, words=("do",))
        payloads = [*form.words.get("do", []), *(image.name for image in form.images)]
        return {"answers": await shell.ask(request, payloads)}

    @application.get("/v1/broken")
    async def broken() -> None:
        raise RuntimeError("/etc/secret is broken")

    plans = [Plan(name=f"w{n}", module=MODULE, open=opened) for n in range(workers)]
    return run_service(shell, guard_application(shell, application), plans, "echo")


MODULE = "vlmill.runtime.service.workers"

if __name__ == "__main__":
    from tests.runtime.service.echo import main as main_of_module

    sys.exit(main_of_module(sys.argv[1:]))
