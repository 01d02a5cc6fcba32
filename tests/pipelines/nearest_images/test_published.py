"""The published list of nearest images comes in as plain data."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.factories import Call

from vlmill.pipelines.nearest_images import published
from vlmill.pipelines.nearest_images.__main__ import main
from vlmill.runtime.files.contents import content_problems
from vlmill.runtime.files.manifest import verify_folder
from vlmill.runtime.files.reading import read_table
from vlmill.schemas.tables import NEIGHBOURS, REJECTS

IDS = [1007129816, 36979, 65567]
POOL = np.array([[0, 2, 1], [1, 0, 2], [2, 1, 0]], dtype=np.float64)


def import_file(folder: Path, content: Any, *flags: str, protocol: int = 2) -> int:
    path = folder / "hard_negative.pkl"
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return main(["--import", str(path), "--output", str(folder / "out"), *flags])


def pool_of(ids: Any = IDS, pool: Any = POOL) -> dict[str, Any]:
    return {"train_image_list": ids, "train_hard_pool": pool}


def lists(folder: Path) -> dict[str, list[str]]:
    rows = read_table(folder / "out", NEIGHBOURS).to_pylist()
    assert all(row["distances"] is None for row in rows)
    return {row["image_id"]: row["neighbour_ids"] for row in rows}


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("ids", [IDS, np.array(IDS), [np.int64(i) for i in IDS]])
def test_the_published_list(ids: Any, protocol: int, tmp_path: Path) -> None:
    assert import_file(tmp_path, pool_of(ids), "--id-prefix", "f/", protocol=protocol) == 0
    a, b, c = (f"f/{i}" for i in IDS)
    assert lists(tmp_path) == {a: [c, b], b: [a, c], c: [b, a]}
    assert verify_folder(tmp_path / "out") == content_problems(tmp_path / "out") == []
    assert "f/36979" in (tmp_path / "out" / "report.html").read_text()


def test_the_list_is_cut_and_itself_left_out_wherever_it_stands(tmp_path: Path) -> None:
    pool = np.array([[1, 0, 2], [2, 0, 0], [0, 1, 2]], dtype=np.int64)
    pool[1] = [2, 1, 0]
    assert import_file(tmp_path, pool_of(["a", "b", "c"], pool), "--top", "1") == 0
    assert lists(tmp_path) == {"a": ["b"], "b": ["c"], "c": ["a"]}


def test_broken_lists_are_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = np.array([[0, 1], [1, 7], [2, -1], [3, np.nan], [4, 0.5], [0, 0]])
    assert import_file(tmp_path, pool_of(list("abcdef"), pool)) == 0
    assert lists(tmp_path) == {"a": ["b"]}
    rejects = read_table(tmp_path / "out", REJECTS).to_pylist()
    assert {row["key"]: row["reason"] for row in rejects} == dict.fromkeys("bcdef", "bad_record")
    assert "5 rejects (5 bad_record)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([1, 2], "must be a dict with train_image_list"),
        ({"train_image_list": IDS}, "must be a dict with train_image_list"),
        (pool_of("abc"), "must be a list of ids"),
        (pool_of([1, 2.5, 3]), "neither a whole number nor text"),
        (pool_of([1, 1, 3]), "must have ids, each once"),
        (pool_of([], np.zeros((0, 3))), "must have ids, each once"),
        (pool_of(IDS[:2]), "3 rows of train_hard_pool for 2 ids"),
        (pool_of(IDS, [[0], [1], [2]]), "must be an array [N, K] of numbers"),
        (pool_of(IDS, np.zeros(3)), "must be an array [N, K] of numbers"),
        (pool_of(IDS, np.array([["a"]] * 3)), "must be an array [N, K] of numbers"),
        (pool_of({1, 2, 3}), "the pickle asks for __builtin__.set"),
        (pool_of(Call(os.mkdir, "made")), "the pickle asks for"),
    ],
)
def test_other_pickles_are_one_line(
    content: Any,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert import_file(tmp_path, content) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --import ") and said in line
    assert not (tmp_path / "made").exists() and not (tmp_path / "out").exists()


def test_a_file_too_large_or_missing_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(published, "MOST_BYTES", 100)
    assert import_file(tmp_path, pool_of()) == 2
    assert "at most 100 are read" in capsys.readouterr().err
    assert main(["--import", str(tmp_path / "no"), "--output", str(tmp_path / "out")]) == 2
    assert "no such file" in capsys.readouterr().err
