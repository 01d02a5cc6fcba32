"""Parts made by Beam's workers: the same bytes as on one machine, whatever the rows depend on."""

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from markupsafe import Markup
from tests.pipelines.manifest.layouts import LAYOUTS

from vlmill.pipelines.manifest import report
from vlmill.pipelines.manifest.job import main
from vlmill.pipelines.manifest.on_beam import MakePart
from vlmill.pipelines.manifest.published import report as published_report
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.manifest import verify_folder

BEAM = "--runner=FnApiRunner"


@pytest.fixture(autouse=True)
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (published_report, report):
        monkeypatch.setattr(module, "pair_charts", lambda _: Markup(""))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.parquet"))}


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("coco", ["--require-images"]),  # a row depends on an image that an earlier part names
        ("coco", ["--exclude-hash", "LIST"]),
        ("vg", ["--boxes"]),
    ],
)
def test_workers_of_a_runner_write_the_same_bytes(
    name: str, flags: list[str], tmp_path: Path, image: Callable[..., bytes]
) -> None:
    LAYOUTS[name](tmp_path / "in", image)
    words = [name, "--input", str(tmp_path / "in"), "--rows-per-shard", "2"]
    if "LIST" in flags:
        assert main([*words, "--output", str(tmp_path / "list")]) == 0
        flags = [str(tmp_path / "list") if flag == "LIST" else flag for flag in flags]
    else:
        for path in sorted(tmp_path.glob("in/val2014/*")):
            path.unlink()
    here, there = tmp_path / "here", tmp_path / "there"
    assert main([*words, *flags, "--output", str(here)]) == 0
    assert main([*words, *flags, "--output", str(there), BEAM]) == 0
    assert contents(there) == contents(here) and len(contents(here)) > 6
    assert verify_folder(there) == []
    assert (there / "funnel.json").read_bytes() == (here / "funnel.json").read_bytes()
    (there / "_manifest.json").unlink()
    (there / "rejects-0-00001.parquet").unlink()
    assert main([*words, *flags, "--output", str(there), BEAM]) == 0
    assert contents(there) == contents(here)


def test_own_captions_are_made_by_workers_too(tmp_path: Path, image: Callable[..., bytes]) -> None:
    (tmp_path / "a.jpg").write_bytes(image(20, 20))
    rows = ["file,caption", *(f"a.jpg,a kite {n % 4}" for n in range(6)), "b.jpg,lost", "b.jpg,too"]
    (tmp_path / "own.csv").write_text("\n".join(rows))
    words = ["own", "--input", str(tmp_path / "own.csv"), "--text-column", "caption"]
    words += ["--image-column", "file", "--image-root", str(tmp_path), "--rows-per-shard", "3"]
    assert main([*words, "--output", str(tmp_path / "here")]) == 0
    assert main([*words, "--output", str(tmp_path / "there"), BEAM]) == 0
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


class Counted:
    """Parts that only note what was asked of them."""

    def __init__(self) -> None:
        self.index, self.made = 0, list[int]()

    def make(self) -> None:
        self.made.append(self.index)
        self.index += 1

    def skip(self) -> None:
        self.index += 1


OPENED: list[Counted] = []


def open_counted(_: argparse.Namespace, __: ThreadPoolExecutor, ___: Progress) -> Counted:
    OPENED.append(Counted())
    return OPENED[-1]


def test_a_worker_reads_on_and_begins_anew_only_to_go_back() -> None:
    OPENED.clear()
    step = MakePart(open_counted, argparse.Namespace(workers=1))
    step.setup()
    for index in (1, 2, 5, 3, 4):
        assert list(step.process(index)) == [index]
    step.teardown()
    assert [parts.made for parts in OPENED] == [[1, 2, 5], [3, 4]]


@pytest.mark.parametrize("word", ["--runer=Flink", "more"])
def test_words_that_nobody_knows_are_refused(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    words = ["text", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), word]
    assert main(words) == 2
    assert word.partition("=")[0] in capsys.readouterr().err and not (tmp_path / "out").exists()
