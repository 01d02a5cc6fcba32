"""Makes a run save and exit when it receives SIGTERM or SIGUSR1."""

import signal
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accelerate import Accelerator

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # ask a run to stop: Slurm sends either


class StopRequest:
    """Records whether one of STOP_SIGNALS has arrived in its block; a second one changes nothing.

    ``reduce_any`` shares the request among all processes of a run.
    """

    def __init__(self, reduce_any: Callable[[bool], bool]) -> None:
        self._any_of = reduce_any
        self._came = False
        self._before: dict[signal.Signals, Any] = {}  # the handlers to restore

    def __enter__(self) -> "StopRequest":
        self._before = {number: signal.signal(number, self._note) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True

    def is_requested(self) -> bool:
        """Returns whether any process received a signal; all processes must call this."""
        return self._any_of(self._came)


def reduce_flags(accelerator: "Accelerator", flag: bool) -> bool:
    """Returns whether a flag is true in any process; all processes must call this."""
    if accelerator.num_processes == 1:
        return flag
    import torch  # training runs have already loaded it

    flag_tensor = torch.tensor([float(flag)], device=accelerator.device)
    return bool(accelerator.reduce(flag_tensor, reduction="sum").item())
