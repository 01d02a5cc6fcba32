"""How worker processes are started, and that they end with the process that started them."""

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext


def process_context(module: str) -> BaseContext:
    """Says how processes are started: as forks of one that has imported ``module`` and run nothing.

    A fork of this process may hang, because it has run threads; to import anew takes each process
    seconds. Where there is no such server (Windows), they do import anew. The first call decides:
    who decodes loads less than who detects, and torchvision alone takes two seconds.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
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
