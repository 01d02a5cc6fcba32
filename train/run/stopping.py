"""A run that is asked to stop (SIGTERM) saves and leaves."""

import signal
from types import FrameType, TracebackType
from typing import Any

import torch
from accelerate import Accelerator


class StopRequest:
    """Says whether SIGTERM has come while it lasts; a second one changes nothing."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self._came = False
        self._before: Any = None  # the handler that is put back

    def __enter__(self) -> "StopRequest":
        self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True

    def came(self) -> bool:
        """Whether any process was asked; all processes have to call this."""
        if self.accelerator.num_processes == 1:
            return self._came
        asked = torch.tensor([float(self._came)], device=self.accelerator.device)
        return bool(self.accelerator.reduce(asked, reduction="sum").item())
