"""A run's log: ``log.jsonl``, a line of JSON for each logged step, and TensorBoard's curves."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from vlmill.schemas.files.atomic import write_bytes

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

CURVES = "tensorboard"


def read_log(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a log; one that a kill cut is left out."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


class Log:
    """Appends lines to a log after cutting off what lies beyond step ``after``.

    A killed run may have logged steps that its last checkpoint does not hold, and half a line.
    Numbers go to TensorBoard's files in the folder beside it too, which hides the steps that a
    resumed run makes again.
    """

    def __init__(self, path: Path, *, after: int, active: bool = True) -> None:
        """``active`` is False in the processes of a run that leave the log to the first one."""
        self._active = active
        if not active:
            return
        lines = [line for line in read_log(path) if line["step"] <= after]
        write_bytes(path, b"".join(_encode(line) for line in lines))
        self._file = path.open("ab", buffering=0)
        self._curves = open_curves(path.parent / CURVES, purge_step=after + 1)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line. Raises ValueError for values that are not finite."""
        if not self._active:
            return
        self._file.write(_encode(line))
        if self._curves is None:
            return
        for name, value in line.items():
            if name != "step" and isinstance(value, int | float):
                self._curves.add_scalar(name, value, line["step"])

    def __enter__(self) -> "Log":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._active:
            self._file.close()
            if self._curves is not None:
                self._curves.close()


def open_curves(folder: Path, *, purge_step: int) -> "SummaryWriter | None":
    """TensorBoard's files; None where it is not installed, which is said: the log has it all."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        if error.name != "tensorboard":
            raise
        print(f"no curves in {folder}: tensorboard is not installed", file=sys.stderr)
        return None
    return SummaryWriter(str(folder), purge_step=purge_step)


def _encode(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, allow_nan=False).encode() + b"\n"
