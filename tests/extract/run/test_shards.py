"""Writing in the background: order, bounds, errors."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vlmill.extract.cli import command
from vlmill.extract.run import job as writing
from vlmill.extract.run.job import TASKS_WAITING, Background, PartWriter
from vlmill.runtime.console.command import run_command
from vlmill.runtime.readers import region_rows
from vlmill.runtime.readers.regions import RegionReader, RegionRow, encode_regions, region_arrays

SMALL = ["--arch", "tiny", "--short-side", "48", "--long-side", "64", "--max-boxes", "6"]


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_rows, "ROWS_PER_GROUP", 16)


def row(number: int) -> RegionRow:
    return RegionRow(
        image_id=str(number),
        width=9,
        height=9,
        boxes=np.zeros((1, 4), np.float32),
        features=np.full((1, 4), number, np.float16),
    )


def writer(background: Background, folder: Path, index: int = 0) -> PartWriter:
    return PartWriter(
        background,
        folder,
        index,
        3,
        producer={},
        arrays=region_arrays(dtype="float16", feature_dim=4),
        dtype="float16",
        compression="none",
    )


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_tasks_are_done_in_order_and_few_wait() -> None:
    done: list[int] = []
    gate = threading.Event()
    with Background() as background:
        background.submit(gate.wait)
        for number in range(TASKS_WAITING - 1):
            background.submit(lambda number=number: done.append(number))  # type: ignore[misc]
        late = threading.Thread(target=background.submit, args=(lambda: done.append(9),))
        late.start()
        assert late.is_alive() and not done
        gate.set()
        late.join()
    assert done == [*range(TASKS_WAITING - 1), 9]


def test_rows_appear_in_order(tmp_path: Path) -> None:
    with Background() as background, writer(background, tmp_path) as part:
        for number in range(40):
            part.add(row(number))
        part.reject({"stage": "regions", "key": "x", "reason": "empty", "detail": None})
    assert [shard.rows for shard in part.shards] == [40, 1]
    assert RegionReader(tmp_path).image_ids == [str(n) for n in range(40)]


def test_an_interruption_leaves_what_is_finished(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Background() as background:
        with writer(background, tmp_path, 0) as part:
            part.add(row(0))
        with writer(background, tmp_path, 1) as part:
            for number in range(20):
                part.add(row(number))
            raise KeyboardInterrupt
    assert files(tmp_path) == ["regions-00000-of-00003.parquet", "rejects-00000-of-00003.parquet"]


def test_an_error_of_the_thread_ends_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    original = encode_regions

    def full_disk(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError(28, "No space left on device")
        return original(*arguments, **named)

    monkeypatch.setattr(writing, "encode_regions", full_disk)
    with pytest.raises(OSError, match="No space left"), Background() as background:
        for index in range(3):
            with writer(background, tmp_path, index) as part:
                for number in range(20):
                    part.add(row(number))
    assert files(tmp_path) == ["regions-00000-of-00003.parquet", "rejects-00000-of-00003.parquet"]


def test_a_full_disk_ends_the_command_with_status_1(
    shared_images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full_disk(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    arguments = ["run", str(shared_images), "--output", str(tmp_path / "out"), *SMALL]
    with monkeypatch.context() as patch:
        patch.setattr(writing, "encode_regions", full_disk)
        assert run_command(command, arguments) == 1
    assert "No space left on device" in capsys.readouterr().err.splitlines()[-1]
    assert files(tmp_path / "out") == ["_plan.json"]
    assert run_command(command, arguments) == 0


def test_no_temporary_file_is_left_by_a_part_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the error comes up when the part itself has been left."""

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("broken")

    monkeypatch.setattr(writing, "write_shard", fail)
    with pytest.raises(OSError, match="broken"), Background() as background:  # noqa: SIM117
        with writer(background, tmp_path) as part:
            part.add(row(0))
    assert not [name for name in files(tmp_path) if "rejects" in name or name.startswith(".")]
