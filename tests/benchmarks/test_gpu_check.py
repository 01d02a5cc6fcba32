"""The check of a GPU at its small size on a CPU, where a borrowed machine's missing libraries are
missing too; and what it does with parts that fail, crash or hang.
"""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu_check.__main__ import main
from benchmarks.gpu_check.own_process import ROOT
from benchmarks.gpu_check.parts import LIMIT_S, PARTS, Part, share_of

pytestmark = pytest.mark.nightly

ABSENT = (
    "apache_beam",
    "beartype",
    "faiss",
    "fastwarc",
    "h5py",
    "hypothesis",
    "lmdb",
    "matplotlib",
    "requests",
    "resiliparse",
    "scipy",
    "selectolax",
    "sklearn",
    "tensorboard",
    "transformers",
)
# Not there at all, also to whoever only asks whether they are.
BLOCKER = f"""
import sys
from importlib.machinery import PathFinder

class Present(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        absent = name.split(".")[0] in {ABSENT!r}
        return None if absent else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Present
"""
# Of every kind one, of the shorter; the others take minutes.
TRIED = ["extract-fast", "extract-kernels", "steps-imagebert", "bf16", "loader"]
# Of the compiled steps one in either form: tracing them all is what test_no_waits does.
COMPILED = ("steps-vilbert-compiled", "steps-vlmo-compiled-packed")
MOST = [name for name in PARTS if "-compiled" not in name or name in COMPILED]
SECONDS = (90, 80, 60, 50, 40, 10)
FIELDS = {"name", "value", "unit", "peer", "ratio", "limit", "fraction_of_limit"}


def bare_environment(folder: Path) -> dict[str, str]:
    """In which the absent libraries cannot be imported, by no process."""
    (folder / "sitecustomize.py").write_text(BLOCKER)
    return {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.gpu_check", *arguments]


@pytest.mark.parametrize("parts", [TRIED, pytest.param(MOST, marks=pytest.mark.long)])
def test_parts_work_without_what_a_bare_machine_lacks(parts: list[str], tmp_path: Path) -> None:
    environment = bare_environment(tmp_path)
    blocked = subprocess.run([sys.executable, "-c", "import scipy"], env=environment)
    assert blocked.returncode == 1
    done = subprocess.run(
        command("--tiny", "--device", "cpu", *parts),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert [line["name"] for line in lines] == parts
    for line in lines:
        assert line.keys() >= FIELDS
        assert line["status"] == "ok" and line["size"] == "tiny"
        assert line["card"]["name"] == "cpu"
        assert math.isfinite(line["value"]) and line["unit"] and line["seconds"] > 0
    by_name = {line["name"]: line for line in lines}
    if "tests" in parts:
        assert by_name["tests"]["value"] >= 5
    stages = by_name["extract-fast"]["stages"]
    assert {"upload", "backbone", "proposals", "selection", "download", "rows"} <= stages.keys()
    assert by_name["extract-fast"]["runs"][0]["images"] > 0


def wrong(name: str) -> Part:
    return Part(run=f"tests.benchmarks.gpu_parts:{name}", seconds=1)


def lines_of(capsys: pytest.CaptureFixture[str]) -> tuple[list[dict[str, Any]], str]:
    said = capsys.readouterr()
    return [json.loads(line) for line in said.out.splitlines()], said.err


def test_a_part_that_fails_does_not_stop_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    parts = {"raises": wrong("fails"), "crashes": wrong("dies"), "works": wrong("works")}
    assert main(["--device", "cpu"], parts) == 1
    (raised, crashed, worked), said = lines_of(capsys)
    assert (raised["name"], raised["status"]) == ("raises", "failed")
    assert raised["reason"] == "ValueError: first line second line"
    assert 'raise ValueError("first line' in said  # the traceback
    assert crashed["reason"] == "ended with status 7: last words"
    assert worked["status"] == "ok" and worked["folder"] and worked["value"] == 1.0
    assert "# failed: raises, crashes" in said


def test_a_part_past_its_limit_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    marker = tmp_path / "child"
    monkeypatch.setenv("HANGING_CHILD", str(marker))
    assert main(["--device", "cpu", "--limit", "20"], {"hangs": wrong("hangs")}) == 1
    ((line,), _) = lines_of(capsys)
    assert line["reason"] == "took more than 20 s and was ended"
    child = Path("/proc") / marker.read_text() / "stat"
    for _ in range(100):
        if not child.exists() or child.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.1)
    raise AssertionError("what the part started goes on")


def test_an_unknown_part_is_a_user_s_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["test"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "no part test; there are tests, extract-exact" in said


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b"])
def test_a_share_that_is_none(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--share", text])
    assert ended.value.code == 2
    assert "give 1/4, 2/4 or the like" in capsys.readouterr().err


def test_shares_are_balanced_and_make_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    parts = {name: Part(run="", seconds=s) for name, s in zip("abcdef", SECONDS, strict=True)}
    shares = [share_of(parts, number, 3) for number in (1, 2, 3)]
    assert shares == [["a", "f"], ["b", "e"], ["c", "d"]]
    assert main(["--list", "--share", "3/3"], parts) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["c", "d"]


def test_four_calls_of_eight_minutes_do_for_all() -> None:
    for number in (1, 2, 3, 4):
        assert sum(PARTS[name].seconds for name in share_of(PARTS, number, 4)) <= 8 * 60
    assert all(part.seconds <= LIMIT_S for part in PARTS.values())
