"""Starts worker processes, and ends them with their parent."""

import multiprocessing
import os
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.queues import SimpleQueue
from typing import Any

from vlmill.runtime.bus_errors import name_shrunken_files


class _Fork(ForkServerProcess):
    """Represents a fork of the server with the environment of its parent.

    The server has the environment of the first start in this process. Without this, workers would
    miss AWS_ENDPOINT_URL or credentials that were set later, for example in a notebook.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._environment = dict(os.environ)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        name_shrunken_files()
        super().run()


if sys.platform == "linux":
    import fcntl

# The limit of Linux for all users. A photograph's pixels are 1 MB: through the default 64 KB of a
# pipe, reading them takes half as long again.
PIPE_BYTES = 1 << 20
DECODERS = "vlmill.schemas.images.plugins"


class _Forks(ForkServerContext):
    Process = _Fork

    def SimpleQueue(self) -> SimpleQueue[Any]:
        """Creates the queue by which a pool's processes send their results."""
        queue: SimpleQueue[Any] = super().SimpleQueue()
        widen(queue)
        return queue


def widen(queue: SimpleQueue[Any]) -> None:
    """Enlarges the buffer of a queue's pipe, if the system and the user's limit allow it."""
    if sys.platform == "linux":
        # Otherwise it is unchanged and still works; its reading end is a private attribute.
        with suppress(OSError, AttributeError):
            fcntl.fcntl(queue._reader.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)  # type: ignore[attr-defined]


def process_context(module: str) -> ForkServerContext:
    """Returns the context for starting processes: forks of one that has only imported ``module``.

    A fork of this process may hang, because it has run threads; importing again takes each process
    seconds. The first call determines the import: decoding needs less than detection.
    """
    context = _Forks()
    modules = [module]
    if "PIL.Image" in sys.modules:  # a fork that decodes would take 40 ms to load the decoders
        modules.append(DECODERS)
    context.set_forkserver_preload(modules)
    return context


def live_as_long_as_the_parent() -> None:
    """Ends this process when the parent does, even by SIGKILL; interrupts are the parent's.

    A daemon may then start processes too, which is otherwise forbidden because they would outlive
    it.
    """
    multiprocessing.current_process().daemon = False
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        sentinel = parent.sentinel

        def watch() -> None:
            wait([sentinel])
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()
