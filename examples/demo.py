"""Runs the main job from web pages to a retrieval report on a CPU; nothing is downloaded.

Each step is a command that you can also type. The script runs the commands, measures their times
and writes one report of the results. ``make demo`` calls it.
"""

import json
import os
import platform
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo_report import write_report

from vlmill.runtime.console.command import Parser, run_command, versions
from vlmill.runtime.files.atomic import write_bytes, write_json

EXAMPLES = Path(__file__).resolve().parent
STEPS_FILE = "steps.json"
# A narrow network and small images: the demo shows the steps on a CPU, not quality.
DETECTOR = ("--arch", "tiny", "--short-side", "240", "--long-side", "400", "--max-boxes", "36")
# The photographs are known, so no model has to filter them.
NO_MODELS = ("--safety-model", "none", "--realism-model", "none")
RECIPE = "imagebert-small"
SHORTER = ("steps=600", "batch_size=32")  # than the recipe, which is made for thousands of pairs


@dataclass(frozen=True, kw_only=True)
class Step:
    """Holds a command, and the file that exists when it has finished."""

    name: str
    command: tuple[str, ...]
    product: Path


def steps(out: Path) -> list[Step]:
    """Returns the steps of the demo, in order."""
    python, bin_folder = sys.executable, Path(sys.executable).parent
    pairs, regions = out / "pairs", out / "regions"
    rois, train = str(bin_folder / "extract-rois"), str(bin_folder / "train-vl")
    tables = ("--pairs", f"{pairs}", "--regions", f"{regions}")
    pretrain = (train, "pretrain", RECIPE, *tables, "--negatives", f"{out / 'negatives'}")
    evaluate = (train, "evaluate", "retrieval", *tables, "--images", f"{pairs}")

    def job(name: str, *flags: str) -> tuple[str, ...]:
        return (python, "-m", f"vlmill.pipelines.{name}", *flags)

    def step(name: str, product: str, *command: str) -> Step:
        return Step(name=name, command=command, product=out / product)

    site = out / "site.warc.gz"
    warc = ("--warc", f"{site}", "--output", f"{pairs}", *NO_MODELS)
    near = ("--pairs", f"{pairs}", "--output", f"{out / 'negatives'}")
    untrained, trained = out / "untrained", out / "trained"
    return [
        step("site", site.name, python, f"{EXAMPLES / 'build_site.py'}", "--output", f"{site}"),
        step("web_pairs", "pairs/_manifest.json", *job("web_pairs", *warc)),
        step("hard_negatives", "negatives/_manifest.json", *job("hard_negatives", *near)),
        step(
            "regions",
            "regions/_manifest.json",
            *(rois, "run", f"{pairs}", "--output", f"{regions}", *DETECTOR),
        ),
        step(
            "untrained",
            "untrained/model.safetensors",
            *(*pretrain, "--output", f"{untrained}", "steps=0"),
        ),
        step(
            "evaluate_before",
            "before/metrics.json",
            *(*evaluate, "--checkpoint", f"{untrained}", "--output", f"{out / 'before'}"),
        ),
        step(
            "pretrain",
            "trained/model.safetensors",
            *(*pretrain, "--output", f"{trained}", *SHORTER),
        ),
        step(
            "evaluate_after",
            "after/metrics.json",
            *(*evaluate, "--checkpoint", f"{trained}", "--output", f"{out / 'after'}"),
        ),
    ]


def run_step(step: Step, seconds: dict[str, float], out: Path) -> None:
    """Runs a step unless an earlier run has finished it. Raises CalledProcessError if it fails."""
    if step.name in seconds and step.product.exists():
        print(f"== {step.name}: done before in {seconds[step.name]:.1f} s", flush=True)
        return
    print(f"== {step.name}: {shlex.join(step.command)}", flush=True)
    start = time.monotonic()
    subprocess.run(step.command, check=True)
    seconds[step.name] = round(time.monotonic() - start, 2)
    write_json(out / STEPS_FILE, seconds)


def read_seconds(out: Path) -> dict[str, float]:
    """Returns the seconds of the steps that an earlier run has finished."""
    path = out / STEPS_FILE
    content: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    return content


def collect_metrics(out: Path, seconds: dict[str, float]) -> dict[str, Any]:
    """Returns ``before/...``, ``after/...``, ``pairs``, and ``seconds`` by step."""
    metrics: dict[str, Any] = {}
    for when in ("before", "after"):
        told = json.loads((out / when / "metrics.json").read_text())
        metrics |= {f"{when}/{name}": value for name, value in told.items() if "/" in name}
        metrics |= {name: told[name] for name in ("pairs", "images") if name in told}
    return {**metrics, "seconds": {**seconds, "total": round(sum(seconds.values()), 2)}}


def machine() -> str:
    """Returns the versions, and the machine that the steps ran on."""
    system = f"{platform.system()} on {platform.machine()}, {os.cpu_count()} cores"
    return f"{versions()}; {system}"


def run(argv: Sequence[str]) -> int:
    """Runs the steps, then writes metrics.json, funnel.json and report.html."""
    parser = Parser(
        prog="examples/demo.py",
        description="Web pages to a retrieval report: packs the example site into a WARC, mines "
        "pairs, finds hard negatives, extracts regions with a random narrow detector, pretrains a "
        "small ImageBERT and evaluates retrieval before and after.",
        epilog="Example:\n  python examples/demo.py --output demo\n\nThe same command continues "
        "where a killed one stopped; make clean starts over.",
    )
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    out: Path = parser.parse_args(argv).output
    out.mkdir(parents=True, exist_ok=True)
    seconds = read_seconds(out)
    for step in steps(out):
        try:
            run_step(step, seconds, out)
        except subprocess.CalledProcessError as error:
            print(f"failed: step {step.name}, exit status {error.returncode}", file=sys.stderr)
            return 1
    metrics = collect_metrics(out, seconds)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    metrics["machine"] = machine()
    metrics["peak_rss_mib"] = round(peak / 1024, 1)  # of the largest process, kernel's KiB
    write_json(out / "metrics.json", metrics)
    write_bytes(out / "funnel.json", (out / "pairs" / "funnel.json").read_bytes())
    write_report(out, metrics)
    print(f"done in {metrics['seconds']['total']:.0f} s: open {out / 'report.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(run))
