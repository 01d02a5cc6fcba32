"""Commands where extras are not installed: help texts, jobs without Beam, one line for the rest.

A new process hides the modules of extras, runs every command line that it is given, and prints for
each its exit status and the messages.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from vlmill.runtime.extras import MODULES
from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.ids import compute_image_id
from vlmill.schemas.tables import IMAGES, PAIRS

# argv: the hidden modules, and [module, arguments] of each command.
PROGRAM = """
import contextlib, importlib, io, json, sys
hidden, commands = (json.loads(word) for word in sys.argv[1:])

class Finder:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, *words):
        return None if name in hidden else self.finder.find_spec(name, *words)

sys.meta_path[:] = [Finder(finder) for finder in sys.meta_path]
for module, words in commands:
    said, printed = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed):
        try:
            sys.argv = [module, *words]
            status = importlib.import_module(module).main()
        except SystemExit as stopped:
            status = stopped.code
    print(json.dumps([status, said.getvalue(), printed.getvalue()]), flush=True)
"""
JOB = "vlmill.pipelines.{}.__main__".format
EXTRACT, TRAIN = "vlmill.extract.cli", "vlmill.train.cli"
FITTING = ("fit_image_filter", "fit_scorer")
OTHERS = ("crawl", "hard_negatives", "manifest", "nearest_images", "regions", "tables", "web_pairs")
WITH_HELP = [EXTRACT, TRAIN, *map(JOB, (*FITTING, *OTHERS))]
SIZES = ["--arch", "tiny", "--short-side", "48", "--long-side", "64", "--max-boxes", "5"]
NO_MODELS = ["--safety-model", "none", "--realism-model", "none", "--workers", "1"]
ALL = sorted({module for modules in MODULES.values() for module in modules})


class Outcome(NamedTuple):
    """What a command did."""

    status: int
    errors: str
    printed: str


class Files(NamedTuple):
    """Small inputs of commands."""

    folder: Path
    warc: Path
    pairs: Path
    images: Path
    captions: Path
    urls: Path


@pytest.fixture(scope="module")
def files(
    tmp_path_factory: pytest.TempPathFactory,
    image: Callable[..., bytes],
    archive: Callable[..., Path],
) -> Iterator[Files]:
    folder = tmp_path_factory.mktemp("inputs")
    data = image(96, 64)
    (folder / "photo.jpg").write_bytes(data)
    page = b"<html lang=en><body><p>A page without images.</p></body></html>"
    archive(folder / "a.warc.gz", [("http://a.example/", page, "text/html")])
    texts = [{"pair_id": str(k), "text": f"a red cat {k}"} for k in range(3)]
    write_shard(folder / "pairs", PAIRS, texts)
    write_shard(folder / "images", IMAGES, [{"image_id": compute_image_id(data), "bytes": data}])
    (folder / "captions.csv").write_text("file,caption\nphoto.jpg,a red kite\n")
    (folder / "urls.txt").write_text("http://127.0.0.1:9/page\n")
    names = ("a.warc.gz", "pairs", "images", "captions.csv", "urls.txt")
    yield Files(folder, *(folder / name for name in names))


def run_hidden(
    hidden: Sequence[str], commands: Sequence[tuple[str, Sequence[object]]]
) -> list[Outcome]:
    """The outcomes of commands, in a process in which modules are not installed."""
    given = [[module, [str(word) for word in words]] for module, words in commands]
    program = [sys.executable, "-c", PROGRAM, json.dumps(hidden), json.dumps(given)]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [Outcome(*json.loads(line)) for line in done.stdout.splitlines()]


def jobs(files: Files, output: Path) -> dict[str, tuple[str, list[object]]]:
    """Every job on the files, without flags of Beam."""
    crawl = ["--urls", files.urls, "--contact", "me@example.org", "--workers", "1"]
    words: dict[str, list[object]] = {
        "crawl": crawl,
        "hard_negatives": ["--pairs", files.pairs, "--workers", "1"],
        "manifest": [
            *("own", "--input", files.captions, "--text-column", "caption"),
            *("--image-column", "file", "--image-root", files.folder),
        ],
        "regions": ["--images", files.images, *SIZES],
        "tables": ["concat", files.pairs],
        "web_pairs": ["--warc", files.warc, *NO_MODELS],
    }
    return {name: (JOB(name), [*own, "--output", output / name]) for name, own in words.items()}


def test_jobs_without_a_runner_need_no_beam(files: Files, tmp_path: Path) -> None:
    commands = jobs(files, tmp_path)
    outcomes = run_hidden(MODULES["beam"], list(commands.values()))
    for outcome in outcomes:  # web_pairs finds nothing, and the crawl's only URL is refused
        assert "done: " in outcome.printed and not re.search("beam", outcome.errors, re.I)
    assert all((tmp_path / name / "_manifest.json").is_file() for name in commands)


def test_a_runner_without_beam_is_one_line(files: Files, tmp_path: Path) -> None:
    commands = {
        name: (module, [*words, "--runner=FlinkRunner"])
        for name, (module, words) in jobs(files, tmp_path).items()
    }
    for outcome in run_hidden(MODULES["beam"], list(commands.values())):
        assert outcome.status == 2
        assert outcome.errors == (
            "error: --runner is not a flag of this job, and apache_beam is not installed, which "
            "the extra `beam` has: run pip install -e '.[beam]' in vlmill's checkout\n"
        )
    assert list(tmp_path.iterdir()) == []


def test_help_texts_need_no_extra() -> None:
    assert len(WITH_HELP) == 11
    for outcome in run_hidden(ALL, [(module, ["--help"]) for module in WITH_HELP]):
        assert outcome.status == 0 and outcome.printed.startswith("usage: ") and not outcome.errors


def test_what_a_command_lacks_is_one_line_that_names_its_extra(
    files: Files, tmp_path: Path
) -> None:
    job = jobs(files, tmp_path)
    labels = ["--labels", files.urls, "--output", tmp_path / "model"]
    feature_file = tmp_path / "features.h5"
    feature_file.write_bytes(b"\x89HDF\r\n\x1a\n")
    lacking: list[tuple[str, tuple[str, list[object]]]] = [
        ("extract", (EXTRACT, ["import", feature_file, "--output", tmp_path / "import"])),
        ("service", (EXTRACT, ["serve", *SIZES, "--port", "0"])),
        ("mining", job["crawl"]),
        ("mining", job["web_pairs"]),
        ("mining", job["hard_negatives"]),
        ("safety", (JOB("fit_image_filter"), ["--images", files.images, *labels])),
        ("mining", (JOB("fit_scorer"), ["--pairs", files.pairs, *labels])),
        (
            "search",
            (
                JOB("nearest_images"),
                ["--regions", tmp_path / "regions", "--output", tmp_path / "nearest"],
            ),
        ),
        ("search", (TRAIN, ["search", "--index", files.folder, "--text", "a kite"])),
    ]
    # On a CPU a detector with RoI max pooling needs no operator of torchvision.
    detected, *outcomes = run_hidden(ALL, [job["regions"], *(command for _, command in lacking)])
    assert detected.status == 0, detected
    for (extra, command), outcome in zip(lacking, outcomes, strict=True):
        message = f"which the extra `{extra}` has: run pip install -e '.[{extra}]' in vlmill's"
        assert outcome.status == 2, (command, outcome)
        *warnings, line = outcome.errors.splitlines()
        assert message in line and line.startswith("error: "), (command, outcome)
        assert all(text.startswith("WARNING: ") for text in warnings), (command, outcome)
