"""Writes the tables of README.md and RESULTS.md that have records in results/.

    python benchmarks/write_tables.py
    python benchmarks/write_tables.py --check

A table is the text between ``<!-- table: NAME -->`` and ``<!-- end of table -->`` in a page, and
:data:`TABLES` has the function that writes it. ``--check`` changes nothing; it prints the tables
that differ from their records and then ends with status 1.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from vlmill.runtime.console.command import Parser, run_command
from vlmill.runtime.files.atomic import write_text

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
PAGES = ("README.md", "benchmarks/RESULTS.md")
TABLE = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(<!-- end of table -->)", re.S)
DIRECTIONS = ("text_retrieval", "image_retrieval")
MODELS = {
    "vilbert": "ViLBERT",
    "vl-bert": "VL-BERT",
    "imagebert": "ImageBERT",
    "interbert": "InterBERT",
    "vlmo": "VLMo",
}
PHOTOGRAPHS = "400x1"  # the test of real_pairs.py with 400 images, each with one caption
NUM_PHOTOGRAPHS = 400
Record = Mapping[str, Any]


def read_records(name: str) -> list[dict[str, Any]]:
    """Returns the records of ``results/NAME.jsonl``, in the order of its lines."""
    lines = (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def format_result(record: Record) -> str:
    """Returns the result of a record of ``measured.jsonl`` with its values filled in."""
    values = {name: float(text.replace(",", "")) for name, text in record["values"].items()}
    return str(record["result"]).format(**values)


def measured_table() -> Iterator[str]:
    """Yields the lines of README's first table, one for each record of ``measured.jsonl``."""
    yield "| task | result | measured on |"
    yield "|---|---|---|"
    for record in read_records("measured"):
        yield f"| {record['task']} | {format_result(record)} | {record['measured_on']} |"


def photographs_table() -> Iterator[str]:
    """Yields the recalls on photographs, the mean over the recorded seeds of each model."""
    yield (
        "| | captions for images, R@1 / 5 / 10 | images for captions, R@1 / 5 / 10 "
        "| CPU minutes of training |"
    )
    yield "|---|---|---|---|"
    chance = " / ".join(format_percent(k / NUM_PHOTOGRAPHS) for k in (1, 5, 10))
    yield f"| chance | {chance} | {chance} | |"
    records = [r for r in read_records("real_pairs") if r["test"]["name"] == PHOTOGRAPHS]
    baseline = [r for r in records if r["name"] == "baseline"]
    yield _photographs_row("ridge regression (baseline)", baseline)
    for model, label in MODELS.items():
        runs = [r for r in records if r["name"].startswith(f"{model}/base/seed-")]
        if runs:
            note = ", without co-attention" if model == "vilbert" else ""
            yield _photographs_row(f"{label}{note}", runs)


def _photographs_row(label: str, runs: Sequence[Record]) -> str:
    cells = [
        " / ".join(
            format_percent(mean(run["metrics"][f"{direction}/r{k}"] for run in runs))
            for k in (1, 5, 10)
        )
        for direction in DIRECTIONS
    ]
    minutes = [sum(run["cpu_minutes"]) for run in runs if "cpu_minutes" in run]
    cost = f" {mean(minutes):.1f}" if minutes else ""
    return f"| {label} | {' | '.join(cells)} |{cost} |"


def world_table() -> Iterator[str]:
    """Yields the results on the generated world: retrieval, and questions answered."""
    records = read_records("learning_tasks")
    retrieval = next(r for r in records if r["name"].startswith("retrieval/"))
    num_images = retrieval["settings"]["held_out"]
    chance = f"{1 / num_images:.3f} / {10 / num_images:.2f}"
    blind = mean_metric(records, "vqa/blind", "vqa/test/accuracy") or 0.0
    yield (
        "| | images for captions, R@1 / R@10 | captions for images, R@1 / R@10 "
        f"| questions answered (blind: {blind:.2f}) |"
    )
    yield "|---|---|---|---|"
    yield f"| chance | {chance} | {chance} | |"
    for model, label in MODELS.items():
        cells = []
        for direction in reversed(DIRECTIONS):
            recalls = [
                mean_metric(records, f"retrieval/{model}", f"{direction}/r{k}") for k in (1, 10)
            ]
            cells.append(" / ".join(f"{r:.2f}" for r in recalls if r is not None))
        answered = mean_metric(records, f"vqa/{model}", "vqa/test/accuracy")
        cells.append("" if answered is None else f"{answered:.2f}")
        note = ", from pixels" if model == "vlmo" else ""
        yield "|".join(["", f" {label}{note} ", *(f" {c} " if c else " " for c in cells), ""])


def mean_metric(records: Iterable[Record], run: str, metric: str) -> float | None:
    """Returns a metric's mean over the seeds of a run; None if no seed is recorded."""
    values = [r["metrics"][metric] for r in records if r["name"].startswith(f"{run}/seed-")]
    return mean(values) if values else None


def answers_table() -> Iterator[str]:
    """Yields the shares of correct answers on the generated world, in all and by question type."""
    kinds = ("colour", "shape", "relation", "count", "yes/no")
    runs = [r for r in read_records("learning_tasks") if r["name"].startswith("vqa/")]
    usual = runs[0]["settings"]["steps"]
    yield f"| | all (standard error 0.013) | {' | '.join(kinds)} |"
    yield "|---" * (len(kinds) + 2) + "|"
    for run in sorted(runs, key=lambda run: int(run["settings"]["seed"])):
        metrics, settings = run["metrics"], run["settings"]
        name = run["name"].split("/")[1]
        steps = "" if settings["steps"] == usual else f", {settings['steps']:,} steps"
        cells = [f"{metrics[f'vqa/test/accuracy/question_type/{kind}']:.2f}" for kind in kinds]
        label = f"`{name}`, seed {settings['seed']}{steps}"
        yield f"| {label} | {metrics['vqa/test/accuracy']:.3f} | {' | '.join(cells)} |"


def spread_table() -> Iterator[str]:
    """Yields retrieval on the generated world: the mean of the seeds, the least and the most."""
    records = read_records("learning_tasks")
    columns = [(k, direction) for k in (1, 10) for direction in reversed(DIRECTIONS)]
    names = {"image_retrieval": "images", "text_retrieval": "captions"}
    yield f"| | {' | '.join(f'R@{k}, {names[direction]}' for k, direction in columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    for model in ("vilbert", "interbert", "imagebert", "vlmo"):
        runs = [r for r in records if r["name"].startswith(f"retrieval/{model}/seed-")]
        cells = []
        for k, direction in columns:
            values = [run["metrics"][f"{direction}/r{k}"] for run in runs]
            cells.append(f"{mean(values):.2f} ({min(values):.2f} to {max(values):.2f})")
        yield f"| `{model}` | {' | '.join(cells)} |"


def format_percent(share: float) -> str:
    """Returns a share in percent with two decimals, as 400 images give steps of 0.25."""
    return f"{100 * share:.2f}"


TABLES: Mapping[str, Callable[[], Iterator[str]]] = {
    "measured": measured_table,
    "photographs": photographs_table,
    "world": world_table,
    "answers": answers_table,
    "spread": spread_table,
}


def with_tables(page: str) -> str:
    """Returns a page's text with each of its tables as the records have it."""

    def table(match: re.Match[str]) -> str:
        return match[1] + "".join(f"{line}\n" for line in TABLES[match[2]]()) + match[4]

    return TABLE.sub(table, page)


def run(arguments: Sequence[str]) -> int:
    """Writes the pages, or compares them."""
    parser = Parser(prog="python benchmarks/write_tables.py", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="print the pages that differ and change nothing"
    )
    check = parser.parse_args(arguments).check
    differing = 0
    for name in PAGES:
        old = (ROOT / name).read_text(encoding="utf-8")
        new = with_tables(old)
        if new != old:
            differing += 1
            print(f"{name}: {'differs from' if check else 'written from'} benchmarks/results")
            if not check:
                write_text(ROOT / name, new)
    return int(check and differing > 0)


main = partial(run_command, run)

if __name__ == "__main__":
    sys.exit(main())
