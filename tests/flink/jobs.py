"""Jobs that a cluster runs: their inputs, their commands, and what they leave."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.factories import NO_MODELS, PLACES, Tables, caption, write_photographs
from tests.pipelines.conftest import make_image, write_archive

ROOT = Path(__file__).parents[2]
ARCHIVES, PAGES = 48, 20  # enough that a kill after the first finds some undone
CAPTIONS, ROWS = 6_000, 200  # rows of a shard of negatives
IMAGES = 24  # each a shard


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The folder of what the jobs read."""

    folder: Path

    def command(self, name: str) -> list[str]:
        """A job's command, without ``--output`` and Beam's flags."""
        pairs = Tables(self.folder).pairs
        warc, images = str(self.folder / "*.warc.gz"), str(self.folder / "images")
        negatives = ["--pairs", pairs, "--pairs-per-shard", str(ROWS), "--workers", "1"]
        tiny = ["--arch", "tiny", "--short-side", "48", "--long-side", "64"]
        commands = {
            "web_pairs": ["web_pairs", "--warc", warc, *NO_MODELS, "--shards", "3"],
            "hard_negatives": ["hard_negatives", *negatives],
            "hard_negatives in parts": ["hard_negatives", *negatives, "--document-parts", "3"],
            "regions": ["regions", "--images", images, *tiny, "--images-per-shard", "1"],
        }
        return job_command(*commands[name])


def job_command(job: str, *words: str) -> list[str]:
    """The command of a job in a process of its own."""
    return [sys.executable, "-m", f"vlmill.pipelines.{job}", *words]


def write_inputs(
    folder: Path, *, archives: int = ARCHIVES, pages: int = PAGES, captions: int = CAPTIONS
) -> Inputs:
    """Archives of pages with an image each, captions and images."""
    for number in range(archives):
        first = number * pages
        records = [record for k in range(first, first + pages) for record in responses(k)]
        write_archive(folder / f"{number}.warc.gz", records)
    rows = [(f"image-{k}", f"{caption(k % 560)} of {PLACES[k % 7]} {k}") for k in range(captions)]
    Tables(folder).write_pairs(rows)
    write_photographs(folder / "images", IMAGES, cut=[3])
    return Inputs(folder=folder)


def responses(number: int) -> list[tuple[str, bytes, str]]:
    """A page and its image."""
    site, text = f"http://site-{number % 40}.example", caption(number)
    page = (
        f"<html lang=en><title>{text}</title><p>Some words before it stand here."
        f"<img src='/{number}.jpg' width=400 height=320 alt='{text} at noon'></html>"
    )
    return [
        (f"{site}/page-{number}.html", page.encode(), "text/html"),
        (f"{site}/{number}.jpg", make_image(400, 320, seed=number), "image/jpeg"),
    ]


def environment() -> dict[str, str]:
    """What a job's process needs to find this checkout, and its job server to start sooner."""
    java = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **java}


def start(command: list[str], output: Path, *flags: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*command, "--output", str(output), *flags],
        env=environment(),
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: "subprocess.Popen[str]") -> str:
    """What the job has said. Fails if it failed."""
    said, _ = process.communicate()
    assert process.returncode == 0, said[-3000:]
    return said


def assert_same(expected: Path, output: Path) -> None:
    """The same files, rows and counts, and rows at all; so nothing is there that a kill left."""
    whole, there = content(expected), content(output)
    assert there.keys() == whole.keys()
    assert [name for name, value in whole.items() if there[name] != value] == []
    assert any(name.endswith(".parquet") for name in whole)


def content(folder: Path) -> dict[str, Any]:
    """All files that a job left: tables byte by byte, counts as numbers, of others the name."""
    files = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    return {name: read(path) for name, path in sorted(files.items())}


def read(path: Path) -> Any:
    if path.name == "funnel.json":
        return json.loads(path.read_text(encoding="utf-8"))
    return path.read_bytes() if path.suffix == ".parquet" else None
