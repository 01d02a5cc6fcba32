"""Runs the blocks of the pages in a folder with tiny data of the names that they use.

A block that needs more says so in a comment above it, ``<!-- needs: a GPU -->``; it is skipped, and
the suite's summary counts them. Two things are cut: pretraining to two steps, and the images.
What a line of Python prints is compared with the comment behind it.
"""

import contextlib
import io
import re
import runpy
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vlmill.extract import cli as extract_cli
from vlmill.models import preset
from vlmill.models.inputs import VLInputs
from vlmill.pipelines.manifest import __main__ as manifest
from vlmill.pipelines.nearest_images import __main__ as nearest_images
from vlmill.runtime.console.command import run_command
from vlmill.train import cli as train_cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^(?:<!-- needs: ([^\n]+) -->\n)?```(sh|python)\n(.*?)^```", re.M | re.S)
COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "extract-rois": lambda words: run_command(extract_cli.command, words),
    "train-vl": train_cli.main,
    "python -m vlmill.pipelines.manifest": manifest.main,
    "python -m vlmill.pipelines.nearest_images": nearest_images.main,
}
TINY = ("--arch", "tiny", "--short-side", "240", "--long-side", "400", "--max-boxes", "36")
CAPTIONS = ("a red kite", "a blue boat", "two dogs", "a green hill", "a white wall", "one cat")
NAMES = ("000000132417", "b", "c", "d", "e", "f")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of a page: its language, its text, and what it needs that is not here."""

    page: str
    line: int
    language: str
    text: str
    needs: str | None


def blocks() -> list[Block]:
    """All blocks of shell and Python, in the order of the pages."""
    return [
        Block(
            page=page.relative_to(ROOT).as_posix(),
            line=text[: match.start()].count("\n") + 1,
            language=match[2],
            text=match[3],
            needs=match[1],
        )
        for page in PAGES
        for text in (page.read_text(encoding="utf-8"),)
        for match in BLOCK.finditer(text)
    ]


def succeed(name: str, *words: object) -> None:
    assert COMMANDS[name]([str(word) for word in words]) == 0, (name, words)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six images with captions, their tables, and their regions as a file of another project."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "photos").mkdir()
    generator = np.random.default_rng(0)
    for name in NAMES:
        pixels = generator.integers(0, 256, (240, 320, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{name}.jpg")
    named_captions = zip(NAMES, CAPTIONS, strict=True)
    rows = [f"{n}.jpg,{c},{'test' if n > 'd' else 'train'}" for n, c in named_captions]
    (folder / "captions.csv").write_text("\n".join(["file,caption,split", *rows]) + "\n")
    columns = ("--text-column", "caption", "--image-column", "file", "--split-column", "split")
    photos, pairs, regions = folder / "photos", folder / "pairs", folder / "regions"
    table = ("--input", folder / "captions.csv", "--image-root", photos, "--output", pairs)
    succeed("python -m vlmill.pipelines.manifest", "own", *table, *columns)
    succeed("extract-rois", "run", pairs, "--output", regions, *TINY)
    shutil.copytree(regions, folder / "demo" / "regions")
    tables, trained = ("--pairs", pairs, "--regions", regions), folder / "demo" / "trained"
    succeed("train-vl", "pretrain", "imagebert-small", *tables, "--output", trained, "steps=0")
    named = folder / "named"
    succeed("extract-rois", "run", photos, "--ids", "name", "--output", named, *TINY)
    tsv = folder / "train2014_obj36.tsv"
    succeed("extract-rois", "export", named, "--format", "tsv", "--output", tsv)
    return folder


@pytest.fixture(scope="module")
def places(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A page's own copy of the world, in which its blocks are run one after the other."""
    copies: dict[str, Path] = {}

    def place(page: str) -> Path:
        if page not in copies:
            copies[page] = tmp_path_factory.mktemp("page") / "world"
            shutil.copytree(world, copies[page])
            if page == "docs/regions.md":  # which makes it itself
                shutil.rmtree(copies[page] / "regions")
            if page == "docs/own-data.md":
                shutil.rmtree(copies[page] / "regions")
        return copies[page]

    return place


def shortened(name: str, words: list[str]) -> list[str]:
    """Trainings take two steps a stage, whatever the page says."""
    if name == "extract-rois" and words[0] == "train":
        return [*words, "steps=2", "batch_size=2"]
    if name != "train-vl" or words[0] != "pretrain":
        return words
    return [*words, "stages.0.steps=2", "stages.0.batch_size=2"]


def run_line(line: str) -> None:
    """Runs one command of a shell block; ``> FILE`` takes what it prints."""
    command, _, file = line.partition(" > ")
    with contextlib.ExitStack() as stack:
        if file:
            opened = stack.enter_context(Path(file.split()[0]).open("w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(opened))
        if script := re.fullmatch(r"python (examples/\w+\.py)", command.strip()):
            runpy.run_path(str(ROOT / script[1]), run_name="__main__")
            return
        name = next(name for name in COMMANDS if command.startswith(f"{name} "))
        words = shlex.split(command.removeprefix(name), comments=True)
        assert COMMANDS[name](shortened(name, words)) == 0, line


def inputs_of_a_batch() -> VLInputs:
    """Two texts of four words with three regions each, for the page on models."""
    return VLInputs(
        tokens=torch.randint(5, 100, (2, 4)),
        token_mask=torch.ones(2, 4, dtype=torch.bool),
        region_features=torch.randn(2, 3, preset("imagebert-base").region_width),
        region_locations=torch.rand(2, 3, 5),
        region_mask=torch.ones(2, 3, dtype=torch.bool),
    )


def run_python(text: str) -> None:
    """Runs a block, and compares what its lines print with the comments behind them."""
    printed = io.StringIO()
    names: dict[str, Any] = {"inputs": inputs_of_a_batch()} if "model(inputs)" in text else {}
    with contextlib.redirect_stdout(printed):
        exec(compile(text, "a page", "exec"), names)
    figures = re.findall(r"^print\(.*\)  # (\(.+)$", text, re.M)
    for figure in figures:
        assert figure in printed.getvalue().splitlines()


@pytest.mark.parametrize("block", blocks(), ids=lambda block: f"{block.page}:{block.line}")
def test_a_block_runs(
    block: Block, places: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if block.needs is not None:
        pytest.skip(f"a block of the pages needs {block.needs}")
    monkeypatch.chdir(places(block.page))
    if block.language == "python":
        run_python(block.text)
        return
    for line in block.text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            run_line(line)


def test_most_pages_have_a_block_that_runs() -> None:
    """A marker is no way out: what can be run here is run."""
    running = {block.page for block in blocks() if block.needs is None}
    tutorials = ("images-to-search", "boxes-to-detector", "checkpoint-to-scores")
    names = ["own-data", "regions", "tables", "training", *(f"tutorials/{t}" for t in tutorials)]
    assert {f"docs/{name}.md" for name in names} <= running
