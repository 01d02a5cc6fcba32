"""A run that is asked to stop (SIGTERM, SIGUSR1) saves and leaves."""

import signal
from types import FrameType, TracebackType
from typing import Any

import torch
from accelerate import Accelerator

from vlmill.train.loading.loader import STOP_SIGNALS


class StopRequest:
    """Says whether one of STOP_SIGNALS has come while it lasts; a second one changes nothing."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self._came = False
        self._before: dict[signal.Signals, Any] = {}  # the handlers that are put back

    def __enter__(self) -> "StopRequest":
        self._before = {number: signal.signal(number, self._note) for number in STOP_SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True

    def came(self) -> bool:
        """Whether any process was asked; all processes have to call this."""
        if self.accelerator.num_processes == 1:
            return self._came
        asked = torch.tensor([float(self._came)], device=self.accelerator.device)
        return bool(self.accelerator.reduce(asked, reduction="sum").item())
