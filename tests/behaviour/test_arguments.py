"""What every argument of every command refuses in one line: pipes, devices, too large numbers."""

import argparse
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from vlmill.extract import cli as extract
from vlmill.pipelines.crawl import __main__ as crawl
from vlmill.pipelines.fit_image_filter import __main__ as fit_image_filter
from vlmill.pipelines.fit_scorer import __main__ as fit_scorer
from vlmill.pipelines.hard_negatives import __main__ as hard_negatives
from vlmill.pipelines.manifest import __main__ as manifest
from vlmill.pipelines.nearest_images import __main__ as nearest_images
from vlmill.pipelines.regions import __main__ as regions
from vlmill.pipelines.tables import __main__ as tables
from vlmill.pipelines.web_pairs import __main__ as web_pairs
from vlmill.runtime.console.command import Parser
from vlmill.runtime.files.paths import irregular_kind, read_regular
from vlmill.train import cli as train

PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "extract-rois": extract.parser,
    "train-vl": train._parser,
    "crawl": crawl.parser,
    "fit_image_filter": fit_image_filter.parser,
    "fit_scorer": fit_scorer.parser,
    "hard_negatives": hard_negatives.parser,
    "manifest": manifest.parser,
    "nearest_images": nearest_images.parser,
    "regions": regions.parser,
    "tables": tables.parser,
    "web_pairs": web_pairs.parser,
}
LARGE = "1" + "0" * 30


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """A minute for each test: what waits for a writer of a pipe waits for ever."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("name", PARSERS)
def test_every_command_parses_by_the_shared_parser(name: str) -> None:
    """So that the checks below are those of all of them."""
    waiting = [PARSERS[name]()]
    while waiting:
        parser = waiting.pop()
        assert isinstance(parser, Parser), parser.prog
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += action.choices.values()
            elif action.type in (int, float):
                assert parser._registry_get("type", action.type) is not action.type


def refused(run: Callable[[], object], capsys: pytest.CaptureFixture[str], *words: str) -> None:
    try:
        status = run()
    except SystemExit as stop:
        status = stop.code
    error = capsys.readouterr().err
    assert status == 2 and error.count("\n") == 1
    assert all(word in error for word in words), error


@pytest.mark.parametrize(
    "argv",
    [
        ["--weights", "PIPE"],
        ["--weights=PIPE"],
        ["PIPE", "--weights", "w"],
        ["field=PIPE", "--weights", "w"],
        ["a", "--list", "b", "PIPE", "--weights", "w"],
    ],
)
def test_a_pipe_is_refused_wherever_it_is_named(
    argv: list[str], pipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = Parser(prog="job")
    parser.add_argument("words", nargs="*")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--list", nargs="+", default=[])
    filled = [word.replace("PIPE", str(pipe)) for word in argv]
    refused(lambda: parser.parse_args(filled), capsys, f"{pipe} is a pipe; give a file")


def test_commands_refuse_pipes(pipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = str(pipe.parent / "out")
    run = ["run", "images", "--weights", str(pipe), "--output", output]
    refused(lambda: extract.command(run), capsys, f"--weights {pipe} is a pipe")
    pretrain = ["pretrain", "vlmo-base", f"picture_tokenizer={pipe}", "--output", output]
    refused(lambda: train.main(pretrain), capsys, f"{pipe} is a pipe")
    urls = ["--urls", str(pipe), "--contact", "me@example.org", "--output", output]
    refused(lambda: crawl.main(urls), capsys, f"--urls {pipe} is a pipe")


def test_what_is_no_file_is_named(tmp_path: Path, pipe: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        kinds = {str(pipe): "a pipe", str(tmp_path / "socket"): "a socket", "/dev/zero": "a device"}
        assert {path: irregular_kind(path) for path in kinds} == kinds
        for path, kind in kinds.items():
            with pytest.raises(OSError, match=kind):
                read_regular(Path(path))
    ordinary = (str(tmp_path), "/dev/null", "s3://a/b", "", "a\0b", str(tmp_path / "nothing"))
    assert [irregular_kind(path) for path in ordinary] == [None] * len(ordinary)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["bert-small", f"steps={LARGE}"], ("steps", "at most 9223372036854775807")),
        (["bert-small", "steps=2000000000000"], ("steps=2000000000000", "0 to 1000000000000")),
        (["bert-small", "epochs=1e30"], ("epochs=1e+30", "0 to 1000000000000")),
        (["bert-small", f"batch_size={10**12}"], ("batch_size=1000000000000", "16777216")),
        (["bert-small", f"model.width={10**12}"], ("width=1000000000000", "at most 1073741824")),
        (["bert-small", f"seed=-{LARGE}"], ("seed", "at most 9223372036854775807")),
        (["bert-small", "steps=5", "--stopped-status", LARGE], ("--stopped-status", "64 bits")),
    ],
)
def test_numbers_too_large_are_refused_before_any_work(
    argv: list[str], words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["pretrain", *argv, "--pairs", "nothing", "--output", str(tmp_path / "out")]
    refused(lambda: train.main(command), capsys, *words)
    assert not (tmp_path / "out").exists()
