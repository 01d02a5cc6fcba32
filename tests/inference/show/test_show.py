"""``train-vl show``: what it says of runs, checkpoints and tables, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from safetensors.torch import load_file

from vlmill.inference.show.folder import last_line, read_folder, read_weights
from vlmill.inference.show.lines import stage_lines, summary_lines
from vlmill.runtime.files.checkpoints import step_folder
from vlmill.runtime.files.inputs import parse_inputs
from vlmill.runtime.files.manifest import MANIFEST, read_manifest
from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason, reject
from vlmill.schemas.tables import REJECTS
from vlmill.train.checkpoints.detector import detector_words
from vlmill.train.checkpoints.files import load_checkpoint
from vlmill.train.checkpoints.folders import MODEL, SETTINGS
from vlmill.train.cli import main
from vlmill.train.recipes import Recipe
from vlmill.train.run.job import pretrain

if TYPE_CHECKING:
    from tests.factories import Tables


@pytest.fixture
def run(tables: Tables, recipe: Recipe, tmp_path: Path) -> Path:
    pretrain(recipe, tables.write(), tmp_path / "run")
    return tmp_path / "run"


def facts(folder: Path) -> dict[str, str]:
    """The lines by their name; further lines of a fact joined to it."""
    said: dict[str, str] = {}
    name = ""
    for line in summary_lines(read_folder(folder)):
        name = line[:12].strip() or name
        said[name] = f"{said.get(name, '')} {line[13:]}".strip()
    return said


def test_a_finished_run_says_what_it_is(run: Path) -> None:
    said = facts(run)
    assert (said["variant"], said["recipe"]) == ("imagebert", "tiny")
    assert said["stages"] == "pairs: 6 steps of 4 pairs, done this checkpoint: pairs, step 6"
    assert said["checkpoints"] == "steps 2, 4, 6" and said["data"] == "12 pairs, 0 rejected"
    assert "--pairs" in said["inputs"] and "12 regions" in said["inputs"]
    assert "fingerprint detector-a" in said["detector"]
    assert "at step 6: loss" in said["metrics"] and "loss/mlm" in said["metrics"]
    assert f"--checkpoint {run}" in said["load"] and "--regions" in said["load"]


def test_the_size_is_that_of_the_weights(run: Path) -> None:
    weights = read_weights(run / MODEL)
    assert weights.parameters == sum(t.numel() for t in load_file(run / MODEL).values())
    assert dict(weights.dtypes) == {"F32": weights.parameters}
    assert weights.bytes == (run / MODEL).stat().st_size


def test_a_run_that_was_killed_says_where_it_is(run: Path) -> None:
    for name in (MANIFEST, SETTINGS, MODEL):
        (run / name).unlink()
    shutil.rmtree(step_folder(run, 6))
    said = facts(run)
    assert said["stages"] == (
        "pairs: 6 steps of 4 pairs, at step 4 of the run this checkpoint: pairs, step 4"
    )
    assert said["data"] == "12 pairs" and "--regions" in said["inputs"]


def test_stages_are_done_under_way_or_to_come() -> None:
    recipe = {
        "stages": [
            {"name": "a", "steps": 5, "batch_size": 2},
            {"name": "b", "steps": None, "epochs": 2.0, "batch_size": 4},
            {"name": "c", "steps": 1000, "batch_size": 8},
        ]
    }
    assert stage_lines(recipe, {"stage": "b", "step": 7}, finished=False) == [
        "a: 5 steps of 2 pairs, done",
        "b: 2.0 epochs of 4 pairs, at step 7 of the run",
        "c: 1,000 steps of 8 pairs, to come",
        "this checkpoint: b, step 7",
    ]
    assert stage_lines({}, {"stage": "b", "step": 7}, finished=True) == ["b, step 7 of the run"]


def test_a_checkpoint_keeps_what_the_regions_say_of_their_making(
    tables: Tables, recipe: Recipe, tmp_path: Path, run: Path
) -> None:
    settings = json.loads((run / SETTINGS).read_text())
    assert settings["detector"]["detector_fingerprint"] == "detector-a"
    assert load_checkpoint(run).detector == settings["detector"]
    flags = [entry.flag for entry in parse_inputs(settings["inputs"])]
    assert flags == [entry.flag for entry in read_manifest(run)["inputs"]]
    assert flags[:2] == ["--pairs", "--regions"]
    next_run = dataclasses.replace(tables.write(), init=str(run))
    pretrain(recipe, next_run, tmp_path / "next")
    assert [e.flag for e in read_manifest(tmp_path / "next")["inputs"]][-1] == "--init"


def test_the_detector_in_words() -> None:
    record = {
        "weights": "vg.pth",
        "weights_sha256": "abc",
        "detector": {"depth": 101, "num_classes": 1600, "short_side": 600, "long_side": 1000},
        "selection": {"threshold": 0.2, "min_boxes": 10, "max_boxes": 36},
        "limits": {"short_side": None, "long_side": 800},
        "storage": {"class_probs": "full"},
    }
    assert detector_words(record) == (
        "vg.pth, SHA-256 abc, ResNet-101, 1600 classes, 10 to 36 boxes from 0.2, short side 600, "
        "long side 800, --class-probs full"
    )
    assert detector_words(None) == "" and detector_words({"selection": 3}) == ""


def test_lineage_tells_what_changed(
    run: Path, tables: Tables, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(run), "--lineage"]) == 0
    assert "every input still matches" in capsys.readouterr().out
    tables.write_pairs([("a", "one caption")])
    assert main(["show", str(run), "--lineage"]) == 1
    said = capsys.readouterr().out
    assert "rows 12 then, 1 now" in said and "changed or missing: 1" in said
    assert main(["show", str(step_folder(run, 4)), "--lineage"]) == 1


def test_a_folder_of_tables_is_shown_too(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "table").mkdir()
    shutil.copy(run / MANIFEST, tmp_path / "table")
    assert main(["show", str(tmp_path / "table")]) == 0
    said = capsys.readouterr().out
    assert "train-vl pretrain" in said and "0 rejects" in said


def test_an_older_checkpoint_says_that_nothing_was_recorded(run: Path) -> None:
    settings = json.loads((run / SETTINGS).read_text())
    (run / MANIFEST).unlink()
    old = {k: v for k, v in settings.items() if k not in ("inputs", "detector")}
    (run / SETTINGS).write_text(json.dumps(old))
    said = facts(run)
    assert "older vlmill" in said["inputs"] and said["detector"] == "fingerprint detector-a"
    assert load_checkpoint(run).detector is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        struct.pack("<Q", 1 << 62) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 13) + b'{"a": {"b":1}',
        struct.pack("<Q", 40) + b'{"a": {"dtype": "F32", "shape": "long"}}',
    ],
)
def test_damaged_weights_are_told_in_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / MODEL).write_bytes(content)
    with pytest.raises(InputError, match="is damaged"):
        read_weights(tmp_path / MODEL)


@pytest.mark.parametrize(("name", "content"), [(SETTINGS, "[]"), (SETTINGS, "{"), (MANIFEST, "{")])
def test_damaged_records_are_told_in_one_line(
    name: str, content: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / name).write_text(content)
    assert main(["show", str(run)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1


def test_what_is_no_folder_of_ours_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError, match="give the --output"):
            read_folder(folder)


@pytest.mark.parametrize(
    ("content", "line"),
    [(b"", {}), (b'{"step": 1}\n{"step": 2}\n', {"step": 2}), (b'{"step": 1}\n{"st', {"step": 1})],
)
def test_the_last_whole_line_of_a_log(content: bytes, line: Any, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(content)
    assert last_line(tmp_path / "log.jsonl") == line
    assert last_line(tmp_path / "none") == {}


def test_rejects_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        reject("rows", "captions.csv:3", Reason.NO_TEXT),
        reject("images", "46.jpg", Reason.UNREADABLE_IMAGE, "cut\tshort"),
    ]
    write_shard(tmp_path, REJECTS, rows)
    assert main(["show", str(tmp_path), "--rejects"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "no_text\trows\tcaptions.csv:3\t",
        "unreadable_image\timages\t46.jpg\tcut short",
    ]
    assert "2 rejects (1 unreadable_image, 1 no_text)" in printed.err
    assert main(["show", str(tmp_path / "absent"), "--rejects"]) == 2
    assert "DIR" in capsys.readouterr().err
