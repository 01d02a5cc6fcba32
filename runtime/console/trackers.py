"""Sends a run's log to trackers: TensorBoard's files, Weights & Biases, MLflow.

The trackers are accelerate's. TensorBoard hides steps that a resumed run repeats; the others cannot
replace a value, so no step is sent twice (the values are the same). Weights & Biases and MLflow may
be servers, and a server must not end a run of days: one that fails is dropped until the next start.
"""

import importlib.util
import os
import re
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate.tracking import GeneralTracker, MLflowTracker, TensorBoardTracker, WandBTracker

from vlmill.runtime.console.command import print_status
from vlmill.runtime.extras import missing_line
from vlmill.runtime.files.atomic import write_json
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json

TENSORBOARD, WANDB, MLFLOW = "tensorboard", "wandb", "mlflow"  # folders under the output, too
STATE = "trackers.json"  # ids by which a continued run finds its curves, and their last steps
PROJECT = "vlmill"  # unless a variable of the tracker names another
MLFLOW_NAME = 250  # characters that it accepts
MESSAGE = 300  # characters of another program's message


def require_trackers(names: Sequence[str]) -> None:
    """Raises InputError for a tracker that is not installed.

    A missing TensorBoard only prints a note, because it is every recipe's default and the log is
    complete.
    """
    for name in names:
        if name != TENSORBOARD and importlib.util.find_spec(name) is None:
            raise InputError(f"trackers: {missing_line(name)}, or remove {name} from trackers")


class Trackers:
    """Holds the trackers of a run in ``output``, which continues after step ``after``.

    ``last`` is the last step logged by an earlier start, ``settings`` describe the run.
    :meth:`close` closes them. Raises InputError for one that cannot start.
    """

    def __init__(
        self,
        names: Sequence[str],
        output: Path,
        *,
        after: int,
        last: int,
        settings: Mapping[str, Any],
    ) -> None:
        state = _read_state(output)
        self._given = max(last, int(state.get("last", 0)))
        self._replaying: list[GeneralTracker] = []  # trackers that hide repeated steps
        self._appending: list[GeneralTracker] = []
        if TENSORBOARD in names and _has_tensorboard(output / TENSORBOARD):
            tracker = TensorBoardTracker(TENSORBOARD, str(output), purge_step=after + 1)
            tracker.start()
            self._replaying.append(tracker)
        ids = dict(state.get("ids", {}))
        for name, start in ((WANDB, _start_wandb), (MLFLOW, _start_mlflow)):
            if name not in names:
                continue
            try:
                tracker, ids[name] = start(output, ids.get(name))
                if name not in state.get("ids", {}):
                    tracker.store_init_configuration(dict(settings))
            except Exception as error:
                raise InputError(
                    f"trackers: {name} cannot start: {_in_a_line(error)}; set it up (docs/"
                    "training.md), or remove it"
                ) from error
            self._appending.append(tracker)
        if self._appending:
            write_json(output / STATE, {"ids": ids, "last": self._given})

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Passes the values of a step to all trackers."""
        for tracker in self._replaying:
            tracker.log(dict(values), step=step)
        if step > self._given:
            self._tell(lambda tracker: tracker.log(_named(tracker.name, values), step=step))

    def flush(self) -> None:
        """Writes buffered values to the files."""
        for tracker in self._replaying:
            tracker.writer.flush()

    def close(self) -> None:
        """Writes everything and closes the trackers."""
        for tracker in self._replaying:
            tracker.finish()
        self._tell(lambda tracker: tracker.finish())

    def _tell(self, what: Callable[[GeneralTracker], None]) -> None:
        """Calls ``what`` on trackers that may be servers, and drops one that fails."""
        for tracker in tuple(self._appending):
            try:
                what(tracker)
            except Exception as error:
                self._appending.remove(tracker)
                print_status(
                    f"warning: {tracker.name} failed and gets no further values; the run's log "
                    f"is complete: {_in_a_line(error)}"
                )


def _in_a_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:MESSAGE]


def _read_state(output: Path) -> dict[str, Any]:
    path = output / STATE
    state: dict[str, Any] = read_json(path) if path.exists() else {}
    return state


def _has_tensorboard(folder: Path) -> bool:
    if importlib.util.find_spec(TENSORBOARD) is not None:
        return True
    print(f"no curves in {folder}: {missing_line(TENSORBOARD)}", file=sys.stderr)
    return False


def _start_wandb(output: Path, run: str | None) -> tuple[GeneralTracker, str]:
    """Starts Weights & Biases in ``output``; its own variables such as WANDB_MODE apply."""
    run = run or secrets.token_hex(8)
    tracker = WandBTracker(
        os.environ.get("WANDB_PROJECT", PROJECT),
        id=run,
        name=output.name,
        dir=str(output),
        resume="allow",
        # Progress bars redraw themselves, and thousands of lines are not a result of a run.
        settings={"console": "off"},
    )
    tracker.start()
    return tracker, run


def _named(tracker: str, values: Mapping[str, float]) -> dict[str, float]:
    """Returns the values by names that the tracker accepts."""
    return {_mlflow_name(n) if tracker == MLFLOW else n: v for n, v in values.items()}


def _mlflow_name(name: str) -> str:
    """Returns a number's name as MLflow accepts it: letters, digits and a few signs.

    No slash, though MLflow accepts it: in its file store `loss` is a file and cannot be a folder.
    """
    return re.sub(r"[^\w.\- :]", "_", name.replace("/", "."))[:MLFLOW_NAME]


def _start_mlflow(output: Path, run: str | None) -> tuple[GeneralTracker, str]:
    """Starts MLflow; the server is MLFLOW_TRACKING_URI, by default a file store in ``output``."""
    import mlflow

    if "MLFLOW_TRACKING_URI" not in os.environ:
        # mlflow-skinny needs no database for files; newer versions ask for a confirmation.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        mlflow.set_tracking_uri((output / MLFLOW).resolve().as_uri())
    tracker = MLflowTracker(PROJECT, run_id=run, run_name=output.name)
    tracker.start()
    return tracker, tracker.tracker.info.run_id
