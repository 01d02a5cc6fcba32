import sys
from pathlib import Path

import pytest

from vlmill.runtime.console.log import Log, read_log


def test_a_cut_line_and_later_steps_go(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste')
    assert [line["step"] for line in read_log(path)] == [1, 2, 3]
    with Log(path, after=2) as log:
        log.write({"step": 3, "loss": 0.5})
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n{"step": 3, "loss": 0.5}\n'


def test_a_new_run_starts_an_empty_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1}\n')
    with Log(path, after=0):
        pass
    assert path.read_bytes() == b""


def test_values_that_json_lacks_are_refused(tmp_path: Path) -> None:
    with Log(tmp_path / "log.jsonl", after=0) as log, pytest.raises(ValueError, match="JSON"):
        log.write({"step": 1, "loss": float("nan")})
    assert read_log(tmp_path / "log.jsonl") == []


def test_without_tensorboard_a_run_has_its_log_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with Log(tmp_path / "log.jsonl", after=0, trackers=["tensorboard"]) as log:
        log.write({"step": 1, "loss": 0.5})
        log.write({"step": 2, "loss": 0.25})
    assert [line["loss"] for line in read_log(tmp_path / "log.jsonl")] == [0.5, 0.25]
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]
    assert capsys.readouterr().err.count("tensorboard is not installed") == 1
