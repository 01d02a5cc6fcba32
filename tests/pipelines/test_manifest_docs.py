"""docs/own-data.md: every command in it is one, with flags that exist."""

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from vlmill.extract import cli as extract_cli
from vlmill.pipelines import manifest
from vlmill.schemas.rejects import Reason
from vlmill.train import cli as train_cli
from vlmill.train.recipes import RECIPES

PAGE = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text(encoding="utf-8")
Main = Callable[[Sequence[str]], object]
COMMANDS: dict[str, Main] = {
    "python -m vlmill.pipelines.manifest": manifest.main,
    "extract-rois": extract_cli.parser().parse_args,
    "train-vl": train_cli.main,
}


def commands() -> list[str]:
    """The commands of the page's shell blocks, one line each."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith(tuple(COMMANDS))]


def help_of(main: Main, words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as left:
        main([*words, "--help"])
    assert left.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", commands())
def test_the_flags_of_a_command_exist(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = next(name for name in COMMANDS if command.startswith(name))
    words = shlex.split(command.removeprefix(name), comments=True)
    flags = [word for word in words if word.startswith("--")]
    text = help_of(COMMANDS[name], words[:1], capsys)
    missing = [flag for flag in flags if not re.search(rf"{flag}\b(?!-)", text)]
    assert flags and not missing


def test_the_page_has_the_four_commands_in_their_order() -> None:
    begun = [command.split(" --")[0] for command in commands()[:4]]
    assert begun == [
        "python -m vlmill.pipelines.manifest own",
        "extract-rois run own",
        "train-vl pretrain imagebert-small",
        "train-vl evaluate retrieval",
    ]


def test_what_the_page_names_exists() -> None:
    assert all(recipe in RECIPES for recipe in re.findall(r"train-vl pretrain (\S+)", PAGE))
    table = PAGE.split("| reason |")[1].split("\n\n")[0]
    named = re.findall(r"^\| `(\w+)`", table, re.M)
    assert named and set(named) <= {reason.value for reason in Reason}
