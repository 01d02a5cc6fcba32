"""The main job at a tiny size: archive to pairs, negatives, regions, model, retrieval."""

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from markupsafe import escape
from tests.factories import NO_MODELS

import vlmill
from vlmill.extract import cli as extract_cli
from vlmill.pipelines.hard_negatives import __main__ as hard_negatives
from vlmill.pipelines.web_pairs import __main__ as web_pairs
from vlmill.runtime.console.command import run_command
from vlmill.runtime.files.manifest import read_manifest, verify_folder
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.tables import IMAGES, NEGATIVES, PAIRS, REJECTS
from vlmill.train import cli as train_cli

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
EXPECTED: dict[str, Any] = json.loads((EXAMPLES / "expected.json").read_text(encoding="utf-8"))
STEPS = 6


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def words(text: str) -> str:
    """Lower case, letters and digits only."""
    kept = "".join(c if c.isalnum() else " " for c in text.lower())
    return " ".join(kept.split())


@dataclass(frozen=True)
class Job:
    """A folder with the whole job's outputs, and its steps to run again."""

    folder: Path
    steps: dict[str, Callable[[], int]]


def steps_of(out: Path) -> dict[str, Callable[[], int]]:
    """Each command of the job, from the archive on, as a function that gives its exit status."""
    pairs, regions = str(out / "pairs"), str(out / "regions")
    tables = ["--pairs", pairs, "--regions", regions]
    recipe = ["batch_size=4", "model.num_layers=1", "model.width=32", "model.num_heads=2"]
    extract = ["run", pairs, "--output", regions, "--arch", "tiny", "--max-boxes", "8"]
    sides = ["--short-side", "96", "--long-side", "160", "--images-per-shard", "4"]
    near = ["--pairs", pairs, "--output", str(out / "negatives")]
    warc = ["--warc", str(out / "site.warc.gz"), "--output", pairs, *NO_MODELS]

    def pretrain(name: str, steps: int) -> int:
        words = ["pretrain", "imagebert-small", *tables, "--negatives", str(out / "negatives")]
        run = ["--output", str(out / name), f"steps={steps}", "log_every=1", "save_every=3"]
        return train_cli.main([*words, *run, *recipe])

    def evaluate(model: str, name: str) -> int:
        words = ["evaluate", "retrieval", *tables, "--checkpoint", str(out / model)]
        return train_cli.main([*words, "--images", pairs, "--output", str(out / name)])

    return {
        "pairs": lambda: web_pairs.main(warc),
        "negatives": lambda: hard_negatives.main(near),
        "regions": lambda: run_command(extract_cli.command, [*extract, *sides]),
        "untrained": lambda: pretrain("untrained", 0),
        "before": lambda: evaluate("untrained", "before"),
        "trained": lambda: pretrain("trained", STEPS),
        "after": lambda: evaluate("trained", "after"),
    }


NAMES = ["pairs", "negatives", "regions", "untrained", "before", "trained", "after"]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The job on a few pages of the example site."""
    out = tmp_path_factory.mktemp("job")
    site = load("build_site")
    parts = ("/food/", "/museum/", "/garden/", "/static/", "/de/", "/notes/")
    some = [r for r in site.site_responses(EXAMPLES) if any(p in r.url for p in parts)]
    site.write_warc(out / "site.warc.gz", some)
    steps = steps_of(out)
    for name, step in steps.items():
        assert step() == 0, name
    return Job(folder=out, steps=steps)


@pytest.mark.parametrize("name", NAMES)
def test_every_output_verifies(job: Job, name: str) -> None:
    assert verify_folder(job.folder / name) == []
    assert read_manifest(job.folder / name)["shards"]


def test_the_funnel_adds_up_to_the_tables(job: Job) -> None:
    funnel = json.loads((job.folder / "pairs/funnel.json").read_text())
    for stage in funnel:
        assert stage["in"] == stage["out"] + sum(stage["rejects"].values()), stage
    assert funnel[-1]["out"] == read_table(job.folder / "pairs", PAIRS).num_rows > 5
    dropped = sum(sum(stage["rejects"].values()) for stage in funnel)
    assert dropped == read_table(job.folder / "pairs", REJECTS).num_rows


def test_every_pair_has_its_image_negatives_and_regions(job: Job) -> None:
    pairs = read_table(job.folder / "pairs", PAIRS)
    images = {r["image_id"]: r for r in read_table(job.folder / "pairs", IMAGES).to_pylist()}
    assert set(pairs.column("image_id").to_pylist()) == set(images)
    assert all(min(r["width"], r["height"]) > 300 for r in images.values())
    negatives = read_table(job.folder / "negatives", NEGATIVES).column("pair_id").to_pylist()
    assert negatives == sorted(pairs.column("pair_id").to_pylist())
    regions = RegionReader(job.folder / "regions")
    assert set(regions.image_ids) == set(images)
    assert "random" in json.dumps(regions.producer).lower()
    for row in regions:
        assert (row.width, row.height) == tuple(
            images[row.image_id][k] for k in ("width", "height")
        )
        assert 0 < len(row.boxes) <= 8
        assert row.features is not None and row.features.shape == (
            len(row.boxes),
            regions.feature_dim,
        )


def test_training_logs_every_step(job: Job) -> None:
    lines = [
        json.loads(line) for line in (job.folder / "trained/log.jsonl").read_text().splitlines()
    ]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert {"loss", "lr", "samples_per_second"} <= lines[0].keys()


def test_metrics_are_fractions_of_all_pairs(job: Job) -> None:
    metrics = json.loads((job.folder / "after/metrics.json").read_text())
    assert metrics["pairs"] == read_table(job.folder / "pairs", PAIRS).num_rows
    for direction in ("image_retrieval", "text_retrieval"):
        recalls = [metrics[f"{direction}/r{k}"] for k in (1, 5, 10)]
        assert 0 <= recalls[0] <= recalls[1] <= recalls[2] <= 1


@pytest.mark.parametrize("name", NAMES)
def test_a_finished_step_is_not_done_twice(
    job: Job, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def state() -> dict[str, tuple[int, int]]:
        files = [p for p in (job.folder / name).rglob("*") if p.is_file()]
        return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in files}

    before = state()
    assert job.steps[name]() == 0
    assert state() == before
    said = capsys.readouterr()
    assert "finished" in said.out + said.err


def test_the_demos_page_shows_every_step(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    demo, page = load("demo"), load("demo_report")
    (job.folder / "funnel.json").write_bytes((job.folder / "pairs/funnel.json").read_bytes())
    metrics = demo.collect_metrics(job.folder, {"web_pairs": 1.5, "pretrain": 2.5})
    assert metrics["seconds"] == {"web_pairs": 1.5, "pretrain": 2.5, "total": 4.0}
    assert metrics["pairs"] == read_table(job.folder / "pairs", PAIRS).num_rows
    for name in ("before/image_retrieval/r1", "after/text_retrieval/r10"):
        assert 0 <= metrics[name] <= 1
    about = {"peak_rss_mib": 100.0, "machine": demo.machine()}
    page.write_report(job.folder, {**metrics, **about})
    html = (job.folder / "report.html").read_text()
    assert f"vlmill {vlmill.__version__}, Python" in html and "cores" in html
    linked = re.findall(r"<a href=['\"](?!#)([^'\"]+)", html)
    assert linked == list(page.REPORTS) and len(linked) == 4
    for path in linked:
        assert (job.folder / path).is_file(), path
    assert "random numbers" in html and "by heart" in html
    for text in read_table(job.folder / "pairs", PAIRS).column("text").to_pylist():
        assert escape(text) in html
    assert html.count("data:image/jpeg") > 20


def test_the_whole_site_gives_what_a_reader_expects(tmp_path: Path) -> None:
    site = load("build_site")
    assert run_command(site.main, ["--output", str(tmp_path / "site.warc.gz")]) == 0
    command = ["--warc", str(tmp_path / "site.warc.gz"), "--output", str(tmp_path / "pairs")]
    assert web_pairs.main([*command, *NO_MODELS]) == 0
    found = {r["image_url"]: r for r in read_table(tmp_path / "pairs", PAIRS).to_pylist()}

    dropped = {entry["url"] for entry in EXPECTED["dropped"]}
    assert not dropped & set(found)
    wrong = []
    for entry in EXPECTED["kept"] + [{**e, "urls": [e["url"]]} for e in EXPECTED["undecided"]]:
        texts = [found.pop(url)["text"] for url in entry["urls"] if url in found]
        if len(texts) != 1 or words(texts[0]) not in map(words, entry["texts"]):
            wrong.append((entry["urls"][0], texts))
    assert not wrong
    assert not found, "images that nobody expects"


def test_the_demo_stops_at_a_failing_step(tmp_path: Path) -> None:
    (tmp_path / "demo" / "site.warc.gz").mkdir(parents=True)  # a folder where a file must go
    command = [sys.executable, str(EXAMPLES / "demo.py"), "--output", str(tmp_path / "demo")]
    failed = subprocess.run(command, capture_output=True, text=True)
    assert failed.returncode == 1
    assert "failed: step site" in failed.stderr
    assert "Traceback" not in failed.stderr
