from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from tests.forked import run_script

from vlmill.runtime.console.log import read_log
from vlmill.runtime.settings.plain_fields import to_yaml
from vlmill.train.checkpoints.files import load_checkpoint
from vlmill.train.cli import main
from vlmill.train.recipes import RECIPES, Recipe

CLOCK = ("samples_per_second", "mfu", "data_wait", "process_memory_bytes")


if TYPE_CHECKING:
    from tests.factories import Tables


@pytest.fixture
def config(recipe: Recipe, tmp_path: Path) -> str:
    path = tmp_path / "tiny.yaml"
    path.write_text(to_yaml(recipe))
    return str(path)


def test_recipes_are_listed_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tables: Tables
) -> None:
    assert main(["recipes"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in RECIPES)
    assert main(["recipes", "show", "imagebert-small"]) == 0
    (tmp_path / "mine.yaml").write_text(capsys.readouterr().out)
    inputs = tables.write()
    arguments = ["--pairs", tables.pairs, "--regions", str(inputs.regions), "--output"]
    shown = ["pretrain", "--config", str(tmp_path / "mine.yaml"), *arguments]
    assert main([*shown, str(tmp_path / "a"), "steps=0"]) == 0
    named = ["pretrain", "imagebert-small", *arguments, str(tmp_path / "b"), "steps=0"]
    assert main(named) == 0
    a, b = ((tmp_path / name / "_plan.json").read_bytes() for name in "ab")
    assert a == b


def test_options_and_changes_may_come_in_any_order(
    tables: Tables, config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = tables.write()
    words = ["pretrain", "steps=1", "--pairs", tables.pairs, "seed=5", "--config", config]
    words += ["--output", str(tmp_path / "out"), "--regions", str(inputs.regions), "batch_size=2"]
    assert main(words) == 0
    assert "tiny: 1 steps on 12 pairs" in capsys.readouterr().out
    assert main(words) == 0
    assert "finished at step 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["imagebert-smal"], "did you mean imagebert-small?"),
        ([], "give one recipe or --config FILE (got none)"),
        (["imagebert", "imagebert-small"], "(got imagebert, imagebert-small)"),
        (["imagebert-small", "--config", "x.yaml"], "(got imagebert-small and --config)"),
        (["imagebert-small", "stpes=1"], "did you mean stages.0.steps?"),
        (["--config", "missing.yaml"], "--config missing.yaml cannot be read"),
        (["imagebert-small", "--negatives", "nowhere"], "--negatives nowhere: no table"),
        (["imagebert-small", "--init", "nowhere"], "--init nowhere holds no checkpoint"),
        (["imagebert-small", "--vocab", "nowhere"], "--vocab nowhere cannot be read"),
        (["imagebert-small", "--pairs", "nowhere"], "--pairs nowhere: no table of pairs there"),
        (["imagebert-small", "--regions", "nowhere"], "--regions nowhere: no table of regions"),
    ],
)
def test_wrong_arguments_exit_with_2_and_one_line(
    words: list[str],
    message: str,
    tables: Tables,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    inputs = tables.write()
    given = ["--pairs", tables.pairs, "--regions", str(inputs.regions)]
    assert main(["pretrain", *given, "--output", str(tmp_path / "out"), *words]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["pretrain", "imagebert-small"],
        ["pretrain", "imagebert-small", "--pairs", "a", "--regions", "b", "--output", "c", "--x"],
        ["recipes", "hide"],
        ["recipes", "list", "a", "b"],
        ["evaluate", "poetry"],
    ],
)
def test_arguments_that_do_not_parse_exit_with_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as status:
        main(words)
    assert status.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_show_without_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "show"]) == 2
    assert "name a recipe" in capsys.readouterr().err


KILLED_AFTER_STEP_15 = """
import os, signal, sys
from vlmill.train.cli import main
from vlmill.runtime.console.log import Log

write = Log.write

def write_and_die(log, line):
    write(log, line)
    if line["step"] == 15:
        os.kill(os.getpid(), signal.SIGKILL)

Log.write = write_and_die
sys.exit(main(sys.argv[1:]))
"""


def test_a_run_killed_by_the_system_continues_bit_for_bit(
    tables: Tables, config: str, tmp_path: Path
) -> None:
    inputs = tables.write()
    common = [
        "pretrain",
        "--config",
        config,
        "--pairs",
        tables.pairs,
        "--regions",
        str(inputs.regions),
    ]
    common += ["steps=20", "save_every=10", "--output"]
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    assert run_script(KILLED_AFTER_STEP_15, *common, killed).returncode == -signal.SIGKILL
    log = killed / "log.jsonl"
    assert [line["step"] for line in read_log(log)] == list(range(1, 16))
    assert [path.name for path in (killed / "checkpoints").iterdir()] == ["step-00000010"]
    assert main([*common, str(killed)]) == 0
    assert main([*common, str(whole)]) == 0
    lines = [
        [{k: v for k, v in line.items() if k not in CLOCK} for line in read_log(path)]
        for path in (log, whole / "log.jsonl")
    ]
    assert lines[0] == lines[1]
    expected = load_checkpoint(whole).model.state_dict()
    for name, value in load_checkpoint(killed).model.state_dict().items():
        assert torch.equal(value, expected[name])
