"""Every benchmark has a short and a full form, says what it measures, and prints the same keys."""

import importlib.util
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
from shell import KEYS, parse_form, result_line

from vlmill.runtime.console.command import Parser

ROOT = Path(__file__).parents[2]
# In one form, on third-party data: labelled archives, photographs with captions, images for the
# filters of images (one fits a model, one measures); one that runs others; one that writes tables.
OTHERS = ("mining", "real_pairs", "realism", "image_filters", "resilience", "write_tables")
SCRIPTS = sorted(
    path.stem
    for path in (ROOT / "benchmarks").glob("*.py")
    if "__main__" in path.read_text() and path.stem not in OTHERS
)
TRAINING = {
    "learning",
    "learning_tasks",
    "reproduce",
    "detector_world",
    "hostile_images",
}  # which have tests of their own
# Less than even the short form.
SMALLEST = {
    "crawl": ["--urls", "60", "--rounds", "1", "--growth", "1", "--lines", "40"],
    "extract": ["--arch", "tiny", "--images", "1", "--rounds", "1"],
    "formats": ["--images", "3", "--rounds", "1"],
    "finetuning": ["--models", "vl-bert", "--questions", "2"],
    "growth": ["--archives", "2", "4"],
    "hard_negatives": ["--captions", "1000", "2000", "--queries", "200"],
    "loader": ["--images", "16", "--batch-size", "4", "--rounds", "1", "--workers", "0"],
    "manifest": ["--cc", "200", "--coco", "200", "--vg", "200"],
    "models": ["--full", "--variants", "interbert", "--rounds", "1"],
    "nearest_images": ["--images", "300", "--width", "16", "--queries", "20"],
    "retrieval": ["--variants", "vlmo", "--captions", "1", "--images", "1", "--rounds", "1"],
    "search": ["--vectors", "400", "--width", "16", "--queries", "20"],
    "serve": [
        *["--requests", "4", "--concurrency", "2", "--long", "40"],
        *["--overload", "0", "--idle", "50", "--kills", "1"],
    ],
    "serve_similar": [
        *("--vectors", "400", "--width", "16", "--type", "flat", "--neighbours", "2"),
        *("--requests", "4", "--rounds", "1"),
    ],
    "tokenizer": ["--images", "20", "--tokenizer-steps", "2", "--steps", "2", "--output", "out"],
    "train_detector": [
        *["--narrow", "--images", "1", "--height", "64", "--width", "80"],
        *["--regions", "8", "--rounds", "1"],
    ],
    "web_pairs": ["--pages", "12", "--rounds", "1", "--growth", "1"],
    "workers": ["--pages", "12"],
    "world": ["--pairs", "6", "--held-out", "4", "--output", "out"],
}


def load(name: str) -> ModuleType:
    """Loads a script by its path: ``import models`` would find the package's folder."""
    spec = importlib.util.spec_from_file_location(
        f"benchmark_{name}", ROOT / "benchmarks" / f"{name}.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_make_runs_every_benchmark() -> None:
    listed = re.search(r"^BENCHMARKS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed is not None and sorted(listed[1].split()) == SCRIPTS
    assert SMALLEST.keys() | TRAINING == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_says_what_is_measured_and_what_full_means(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load(name)
    with pytest.raises(SystemExit) as stopped:
        raise SystemExit(module.main(["--help"]))
    text = " ".join(capsys.readouterr().out.split())
    assert not stopped.value.code
    assert module.__doc__ is not None
    assert " ".join(module.__doc__.splitlines()[0].split()) in text
    assert "--full" in text and "two minutes on two idle cores" in text
    assert module.SHORT.keys() == module.FULL.keys() and module.SHORT != module.FULL


@pytest.mark.nightly
@pytest.mark.parametrize("name", SMALLEST)
def test_every_line_has_the_keys_that_all_benchmarks_share(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VLMILL_DATA", raising=False)
    module = load(name)
    if name == "models":  # base size takes gigabytes; the words drawn are of BERT's vocabulary
        monkeypatch.setattr(module, "preset", partial(module.preset, vocab_size=30_522))
        case = replace(module.CASES["interbert"], preset="interbert-small").halved().halved()
        monkeypatch.setitem(module.CASES, "interbert", case)
    if name == "finetuning":
        small = {"vqa": "vqa-vl-bert-small", "vcr": "vcr-vl-bert-small"}
        recipes = {task: {"vl-bert": recipe} for task, recipe in small.items()}
        monkeypatch.setattr(module, "RECIPES", recipes)
    run: Callable[[list[str]], int | None] = module.main
    assert not run(SMALLEST[name])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines
    for line in lines:
        assert line.keys() >= set(KEYS), line["name"]
        assert isinstance(line["name"], str) and isinstance(line["unit"], str)
        assert isinstance(line["value"], float | int)


def test_a_form_fills_what_is_not_given() -> None:
    def options(*flags: str) -> tuple[int, int | None]:
        parser = Parser(prog="benchmark")
        for name in ("--rounds", "--steps"):
            parser.add_argument(name, type=int)
        short, full = {"rounds": 1, "steps": 20}, {"rounds": 3, "steps": None}
        parsed = parse_form(parser, flags, short=short, full=full)
        return parsed.rounds, parsed.steps

    assert options() == (1, 20)
    assert options("--full") == (3, None)
    assert options("--rounds", "7", "--full") == (7, None)


def test_a_line_without_a_peer_says_so() -> None:
    line = result_line("loader/regions", 2.0, "GB/s", limit=4.0, batch_size=8)
    assert tuple(line) == (*KEYS, "batch_size")
    assert (line["peer"], line["ratio"], line["limit"]) == (None, None, 4.0)
