"""Jobs that are killed at random moments end, when called again, as an undisturbed run does.

``--kills N`` (2; make test-long: 50) moments for each job. A moment is a share of the time that the
undisturbed run took, drawn by the moment's number: a failure's number tells where to look. The jobs
of one engine (``vlmill.runtime.units``) are three that differ: many steps in processes, shards that
one process writes in the background, and rounds whose units have no records. ``make test`` kills
the first and pretraining, as one job of the one trainer; ``make test-nightly`` the other two and
the other trainings, whose continuing without a kill is tested in ``tests/extract`` and
``tests/train``; ``make test-long`` the others of the engine. Flink's kills are in ``tests/flink``.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.factories import NO_MODELS, Tables, caption, write_images
from tests.pipelines.conftest import make_image, write_archive
from tests.train.detector.shapes import write_shapes
from tests.train.detector.test_job import TINY as DETECTOR
from tests.train.tasks.questions import TINY as TASK_MODELS
from tests.train.tasks.questions import question, write_questions
from worlds.host_server import serve_site

from vlmill.runtime.readers.regions import RegionReader

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
CLOCK = {
    "samples_per_second",
    "mfu",
    "data_wait",
    "process_memory_bytes",
    "seconds",
}  # what no two runs have alike
OF_AN_ANSWER = ["fetched_at", "seconds", "warc_offset", "warc_length"]  # neither do two answers
EARLIEST = 0.2  # of the time: before, a process has only begun to import
IMAGES = 8
TINY = ["--arch", "tiny", "--short-side", "48", "--long-side", "64", "--images-per-shard", "2"]
MODEL = ["model.width=16", "model.num_layers=2", "model.num_heads=2", "model.intermediate_width=32"]
TASK_MODEL = TASK_MODELS["vqa-vilbert-small"]
RUN = ["steps=24", "batch_size=4", "save_every=6", "log_every=1", "vocabulary_size=90"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A command without its ``--output``, and how long it takes undisturbed."""

    command: list[str]
    whole: Path
    took_s: float


def command_of(name: str, inputs: Path) -> list[str]:
    """The command of a job over the tiny inputs in a folder."""
    tables = Tables(inputs)
    pairs, regions = ["--pairs", tables.pairs], ["--regions", tables.regions]
    pipeline = "vlmill.pipelines."
    commands = {
        "web_pairs": [
            *[f"{pipeline}web_pairs", "--warc", str(inputs / "*.warc.gz"), *NO_MODELS],
            *["--workers", "2"],
        ],
        "hard_negatives": [f"{pipeline}hard_negatives", *pairs],
        "nearest_images": [
            *[f"{pipeline}nearest_images", *regions, *pairs, "--top", "5"],
            *["--images-per-shard", "5", "--threads", "1"],
        ],
        "manifest": [
            *[f"{pipeline}manifest", "own", "--input", str(inputs / "own.csv")],
            *["--text-column", "text", "--image-column", "image"],
            *["--image-root", str(inputs / "pictures")],
        ],
        "tables": [f"{pipeline}tables", "concat", tables.pairs, tables.pairs, "--workers", "2"],
        "crawl": [
            *[f"{pipeline}crawl", "--urls", str(inputs / "urls.txt"), "--delay", "0.05"],
            *["--contact", "me@example.org", "--allow-address", "127.0.0.0/8"],
        ],
        "regions": [
            *[f"{pipeline}regions", "--images", str(inputs / "images"), *TINY],
        ],
        "extract": ["vlmill.extract.cli", "run", str(inputs / "pictures"), *TINY],
        "train": [
            *["vlmill.extract.cli", "train", "--boxes", str(inputs / "shapes")],
            *["--images", str(inputs / "shapes"), "--recipe", "small", *DETECTOR],
            *["steps=24", "save_every=6"],
        ],
        "pretrain": [
            *["vlmill.train.cli", "pretrain", "imagebert-small", *pairs, *regions, *MODEL, *RUN]
        ],
        "finetune": [
            *["vlmill.train.cli", "finetune", "vqa-vilbert-small", *regions, *TASK_MODEL, *RUN],
            *["--examples", str(inputs / "questions"), "validate_every=6"],
        ],
    }
    return [sys.executable, "-m", *commands[name]]


ENGINE = ("web_pairs", "extract", "crawl")
ENGINE_TOO = ("hard_negatives", "nearest_images", "manifest", "tables", "regions")
TRAINING = ("train", "pretrain", "finetune")
NIGHTLY = ("extract", "crawl", "train", "finetune")


def jobs(names: Sequence[str]) -> list[Any]:
    """Names of jobs as parameters, with the mark of the suite that they are in."""
    marks = dict.fromkeys(NIGHTLY, pytest.mark.nightly) | dict.fromkeys(
        ENGINE_TOO, pytest.mark.long
    )
    return [pytest.param(name, marks=marks.get(name, ())) for name in names]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Archives, images with captions, pairs and regions; and hosts that are being served."""
    folder = tmp_path_factory.mktemp("inputs")
    images = folder / "pictures"
    images.mkdir()
    rows = ["image,text"]
    for number in range(IMAGES):
        data = make_image(400, 320, seed=number)
        (images / f"{number}.jpg").write_bytes(data)
        rows.append(f"{number}.jpg,{caption(number)}")
        page = (
            f"<html lang=en><title>{caption(number)}</title><p>Some words before it stand here."
            f"<img src='/{number}.jpg' width=400 height=320 alt='{caption(number)} at noon'></html>"
        )
        site = f"http://site-{number}.example"
        responses = [
            (f"{site}/page.html", page.encode(), "text/html"),
            (f"{site}/{number}.jpg", data, "image/jpeg"),
        ]
        write_archive(folder / f"{number}.warc.gz", responses)
    (folder / "own.csv").write_text("\n".join(rows) + "\n")
    write_images(folder / "images", IMAGES)
    Tables(folder).write(24)
    write_shapes(folder / "shapes", IMAGES, held_out=2)
    write_questions(folder, [question(number) for number in range(48)])
    with serve_site(None) as served:
        plain = [host for host, kind in served.site.kinds.items() if kind == "plain"]
        pages = [served.site.url(host, "/index.html") for host in plain[:3]]
        (folder / "urls.txt").write_text("".join(f"{page}\n" for page in pages))
        yield folder


@pytest.fixture(scope="module")
def undisturbed(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Job]:
    """Each job's one undisturbed run."""
    jobs: dict[str, Job] = {}

    def of(name: str) -> Job:
        if name not in jobs:
            command, whole = command_of(name, inputs), tmp_path_factory.mktemp(name) / "whole"
            started = time.monotonic()
            finish(command, whole)
            jobs[name] = Job(command=command, whole=whole, took_s=time.monotonic() - started)
        return jobs[name]

    return of


def start(command: list[str], output: Path) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, "--output", str(output)],
        env=environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(command: list[str], output: Path) -> None:
    process = start(command, output)
    said, _ = process.communicate()
    assert process.returncode == 0, said[-3000:]


def kill_after(seconds: float, command: list[str], output: Path) -> None:
    """Kills the job with all its processes, unless it has ended before."""
    process = start(command, output)
    try:
        process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def content(folder: Path) -> dict[str, Any]:
    """What a run left: tables and weights byte by byte, logs and measures without the clock's."""
    files = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "tensorboard" not in path.parts
    }
    return {name: read(path) for name, path in files.items()}


def read(path: Path) -> Any:
    if path.name == "log.jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [{k: v for k, v in line.items() if k not in CLOCK} for line in lines]
    if path.name.startswith("outcomes-"):
        return pq.read_table(path).drop_columns(OF_AN_ANSWER).to_pylist()
    return path.read_bytes() if path.suffix in (".parquet", ".safetensors") else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "moment" in metafunc.fixturenames:
        metafunc.parametrize("moment", range(metafunc.config.getoption("--kills")))


@pytest.mark.parametrize("name", jobs([*ENGINE, *ENGINE_TOO, *TRAINING]))
def test_a_killed_job_ends_as_an_undisturbed_one(
    name: str, moment: int, undisturbed: Callable[[str], Job], tmp_path: Path
) -> None:
    job, output = undisturbed(name), tmp_path / "out"
    share = random.Random(f"{name} {moment}").uniform(EARLIEST, 1.0)
    kill_after(share * job.took_s, job.command, output)
    finish(job.command, output)
    whole, again = content(job.whole), content(output)
    assert whole.keys() == again.keys()
    assert [file for file, value in whole.items() if again[file] != value] == []


def test_a_killed_worker_is_replaced(
    moment: int, undisturbed: Callable[[str], Job], tmp_path: Path
) -> None:
    """One of the two processes of a job, in the middle of a unit: the run itself goes on."""
    job, output = undisturbed("web_pairs"), tmp_path / "out"
    process = start(job.command, output)
    kill_a_worker(process, wait_for=moment % IMAGES, output=output)
    said, _ = process.communicate()
    assert process.returncode == 0, said[-3000:]
    whole, again = content(job.whole), content(output)
    assert whole.keys() == again.keys()
    assert [file for file, value in whole.items() if again[file] != value] == []


def kill_a_worker(process: "subprocess.Popen[str]", *, wait_for: int, output: Path) -> None:
    """Kills the writer of an unfinished file, which has its process in its name, once so many
    archives are mined.
    """
    while process.poll() is None:
        names = [path.name.split("-") for path in output.glob("work/archives/.tmp-*")]
        writers = {int(name[2]) for name in names} - {process.pid}
        if writers and len(list(output.glob("work/archives/*.json"))) >= wait_for:
            with suppress(ProcessLookupError):
                os.kill(min(writers), signal.SIGKILL)
            return
        time.sleep(0.001)


@pytest.mark.parametrize("name", jobs([*ENGINE, *TRAINING]))
def test_a_job_has_something_to_lose(name: str, undisturbed: Callable[[str], Job]) -> None:
    """Rows in its tables, or a test above would compare nothing with nothing."""
    whole = undisturbed(name).whole
    if name == "extract":
        assert len(list(RegionReader(whole))) == IMAGES
    elif name in TRAINING:
        assert len(content(whole)["log.jsonl"]) == 24
    else:
        table = {"web_pairs": "pairs", "crawl": "outcomes"}[name]
        assert any(file.startswith(table) for file in content(whole))
