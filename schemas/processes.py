"""How many worker processes pay, how they start, and that they end with who started them."""

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any


class _Fork(ForkServerProcess):
    """A fork of the server with the environment of who starts it.

    The server has that of the first start in this process: who has set AWS_ENDPOINT_URL or
    credentials since, as in a notebook, would have workers that know nothing of them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._environment = dict(os.environ)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        super().run()


class _Forks(ForkServerContext):
    Process = _Fork


def all_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def process_context(module: str) -> ForkServerContext:
    """Says how processes are started: as forks of one that has imported ``module`` and run nothing.

    A fork of this process may hang, because it has run threads; to import anew takes each process
    seconds. The first call decides what is imported: who decodes loads less than who detects, and
    torchvision alone takes two seconds.
    """
    context = _Forks()
    context.set_forkserver_preload([module])
    return context


def live_as_long_as_the_parent() -> None:
    """Ends this process when the parent does, even by SIGKILL; interrupts are the parent's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        sentinel = parent.sentinel

        def watch() -> None:
            wait([sentinel])
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()
