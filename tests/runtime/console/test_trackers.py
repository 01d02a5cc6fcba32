"""Curves are whole after a run that was killed and continued: each step once, in every tracker."""

import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accelerate.state import PartialState

from vlmill.runtime.console import trackers
from vlmill.runtime.console.log import Log, read_log
from vlmill.runtime.console.trackers import MLFLOW, STATE, TENSORBOARD, WANDB, require_trackers
from vlmill.schemas.errors import InputError

EXPECTED = [(step, step / 8) for step in range(1, 7)]


@pytest.fixture(autouse=True)
def one_process() -> None:
    """As in a run, whose accelerator is there before its log: accelerate's trackers ask for it."""
    PartialState(cpu=True)


def logged_to(path: Path) -> list[tuple[int, float]]:
    """Steps and losses in a file of Weights & Biases, which it would send to its server."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    messages: Any = wandb_internal_pb2  # made as it is imported: no type knows them
    file, values = DataStore(), []
    file.open_for_scan(str(path))
    while (content := file.scan_data()) is not None:
        record = messages.Record()
        record.ParseFromString(content)
        if record.WhichOneof("record_type") == "history":
            items = {
                item.nested_key[0]: json.loads(item.value_json) for item in record.history.item
            }
            values.append((items["_step"], items["loss"]))
    return values


def starts(
    output: Path, tracker: str, of: Sequence[tuple[int, int]] = ((0, 4), (2, 3), (2, 6))
) -> Iterator[int]:
    """Logs steps 1 to 4, then again from 3 to 3, then from 3 to 6, as resumed runs do; yields the
    last step after each start.
    """
    for after, last in of:
        log = Log(
            output / "log.jsonl", after=after, trackers=[tracker], settings={"seed": 3, "a.b": None}
        )
        with log:
            for step in range(after + 1, last + 1):
                losses = {"loss": step / 8, "loss/mlm": step / 8}
                log.write({"step": step, "stage": "pairs", **losses, "pairs/web (2)": 4})
        yield last


def test_tensorboard_hides_what_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.summary.writer import event_file_writer

    # Files are read in the order of their names, which begin with the second of their start.
    seconds = SimpleNamespace(time=partial(next, count(1_700_000_000.0)))
    monkeypatch.setattr(event_file_writer, "time", seconds)
    assert list(starts(tmp_path, TENSORBOARD)) == [4, 3, 6]
    curves = EventAccumulator(str(tmp_path / TENSORBOARD)).Reload()
    assert [(event.step, event.value) for event in curves.Scalars("loss")] == EXPECTED
    assert not (tmp_path / STATE).exists()


def test_mlflow_keeps_one_run_with_each_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip(MLFLOW, reason="mlflow-skinny is not installed")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # as the run sets it, and back
    assert list(starts(tmp_path / "out", MLFLOW)) == [4, 3, 6]
    client = mlflow.MlflowClient((tmp_path / "out" / MLFLOW).resolve().as_uri())
    (experiment,) = client.search_experiments(filter_string="name = 'vlmill'")
    (run,) = client.search_runs([experiment.experiment_id])
    for name in ("loss", "loss.mlm"):
        history = client.get_metric_history(run.info.run_id, name)
        assert [(entry.step, entry.value) for entry in history] == EXPECTED
    assert set(run.data.metrics) == {"loss", "loss.mlm", "pairs.web _2_"}
    assert run.data.params["seed"] == "3" and run.info.run_name == "out"


def test_weights_and_biases_gets_each_step_once_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip(WANDB, reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    steps, runs = [], set()
    for last in starts(tmp_path / "out", WANDB, of=((0, 4), (2, 6))):
        wandb.teardown()  # as a process that ends: its service has written all by then
        # Its folders are named by the second: those of two starts may be the same.
        folder = (tmp_path / "out" / WANDB).rename(tmp_path / f"{last}")
        (path,) = folder.glob("offline-run-*/*.wandb")
        runs.add(path.name)
        steps += logged_to(path)
    assert steps == EXPECTED and len(runs) == 1


def test_a_tracker_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(InputError, match=r"wandb is not installed.* '\.\[wandb\]'"):
        require_trackers(["tensorboard", "wandb"])
    require_trackers(["tensorboard"])


def test_a_server_that_is_gone_costs_its_curves_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Gone:
        name = "mlflow"

        def log(self, values: dict[str, float], step: int) -> None:
            if step == 2:
                raise ConnectionError("no route\nto the server")

        def store_init_configuration(self, values: dict[str, Any]) -> None:
            pass

    monkeypatch.setattr(trackers, "_start_mlflow", lambda output, run: (Gone(), "1"))
    assert next(starts(tmp_path, MLFLOW)) == 4
    said = "mlflow failed and gets no further values; the run's log is complete: "
    assert capsys.readouterr().err == f"warning: {said}ConnectionError: no route to the server\n"
    assert [line["step"] for line in read_log(tmp_path / "log.jsonl")] == [1, 2, 3, 4]


def test_a_tracker_that_does_not_start_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(output: Path, run: str | None) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(trackers, "_start_mlflow", start)
    with pytest.raises(InputError, match="mlflow cannot start: ConnectionError: no route; set"):
        next(starts(tmp_path, MLFLOW))
