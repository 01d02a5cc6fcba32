"""Trains a run of several parts, tests it, and keeps its figures as lines of a file."""

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from real.tables import Tables, Test
from vlmill.runtime.files.manifest import MANIFEST
from vlmill.runtime.settings.plain_fields import to_plain
from vlmill.train.checkpoints.folders import saved_steps
from vlmill.train.run.inputs import Inputs
from vlmill.train.run.job import pretrain
from vlmill.train.settings.spec import Recipe
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.finetuning.job import TaskInputs, finetune
from vlmill.train.tasks.retrieval.evaluation import evaluate_retrieval
from vlmill.train.tasks.retrieval.job import RetrievalOptions

Line = dict[str, Any]
RECALLS = tuple(f"{way}_retrieval/r{k}" for way in ("text", "image") for k in (1, 5, 10))


@dataclass(frozen=True, kw_only=True)
class Part:
    """A pretraining or a fine-tuning that starts from the part before, or from MiniLM."""

    recipe: Recipe | TaskRecipe
    hard_negatives: bool = False


@dataclass(frozen=True, kw_only=True)
class Run:
    """Parts that follow each other, and where the tables are. ``name`` as in ``vilbert/base``.

    ``from_text`` starts from MiniLM, else from random weights.
    """

    name: str
    seed: int
    parts: tuple[Part, ...]
    tables: Tables
    from_text: bool = True

    @property
    def label(self) -> str:
        """Returns the name with the seed."""
        return f"{self.name}/seed-{self.seed}"

    def settings(self, count: int | None = None) -> Line:
        """Returns what decides the figures of the first ``count`` parts, or of all."""
        parts = [
            {"recipe": to_plain(part.recipe), "hard_negatives": part.hard_negatives}
            for part in self.parts[:count]
        ]
        told = {"parts": parts, "from_text": self.from_text, "data": self.tables.digest()}
        plain: Line = json.loads(json.dumps(told))
        return plain

    def folder(self, count: int) -> Path:
        """Returns the folder of a part, which all runs with the same parts before it share."""
        message = json.dumps(self.settings(count), sort_keys=True).encode()
        digest = hashlib.sha256(message).hexdigest()[:10]
        return self.tables.output / "runs" / f"{self.parts[count - 1].recipe.name}-{digest}"

    @property
    def checkpoint(self) -> Path:
        """Returns the folder of the last part."""
        return self.folder(len(self.parts))


def train(run: Run) -> Line:
    """Trains the parts that are missing; returns the CPU minutes of each that ran in one piece."""
    minutes: list[float | None] = []
    for count, part in enumerate(run.parts, 1):
        folder = run.folder(count)
        kept = folder.parent / f"{folder.name}.json"
        if (folder / MANIFEST).exists():
            minutes.append(json.loads(kept.read_text()) if kept.exists() else None)
            continue
        continued, clock = bool(saved_steps(folder)), time.process_time()
        train_part(run, part, folder, run.folder(count - 1) if count > 1 else None)
        spent = round((time.process_time() - clock) / 60, 2)
        minutes.append(None if continued else spent)
        kept.write_text(json.dumps(minutes[-1]))
    return {"cpu_minutes": minutes}


def train_part(run: Run, part: Part, folder: Path, before: Path | None) -> None:
    """Trains one part; what it prints goes to ``log.txt`` beside its folder."""
    start = before or (run.tables.bert if run.from_text else None)
    recipe, feeding = part.recipe, part.recipe.stages[0].feeding
    tables: dict[str, Any] = {
        "regions": str(run.tables.regions) if feeding.reads_regions else None,
        "images": str(run.tables.pairs) if feeding.reads_images else None,
        "init": None if start is None else str(start),
    }
    if recipe.variant == "vlmo" and before is None:
        tables |= {"init": None, "vocab": str(run.tables.bert / "vocab.txt")}
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.parent / f"{folder.name}.log"
    with log.open("a", encoding="utf-8") as text, redirect_stdout(text), redirect_stderr(text):
        if isinstance(recipe, Recipe):
            negatives = str(run.tables.negatives) if part.hard_negatives else None
            pairs = Inputs(pairs=str(run.tables.pairs), negatives=negatives, **tables)
            pretrain(recipe, pairs, folder)
        else:
            finetune(recipe, TaskInputs(examples=str(run.tables.pairs), **tables), folder)


def test_run(run: Run, test: Test) -> dict[str, float]:
    """Returns the recalls of a trained run, in 0..1."""
    kind = run.parts[-1].recipe.stages[0].feeding
    metrics = evaluate_retrieval(
        RetrievalOptions(
            checkpoint=run.checkpoint,
            pairs=str(test.pairs),
            regions=str(test.regions) if kind.reads_regions else None,
            images=str(test.pairs) if kind.reads_images else None,
            output=run.checkpoint.parent / f"{run.checkpoint.name}-{test.name}",
        )
    )
    return {name: metrics[name] for name in RECALLS}


def read_lines(path: Path) -> list[Line]:
    """Returns the lines of a file of results; none where there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def find_line(lines: Sequence[Line], key: Line) -> Line | None:
    """Returns the first line with these values."""
    return next((line for line in lines if all(line.get(n) == v for n, v in key.items())), None)


def add_line(path: Path, line: Line) -> None:
    """Appends a line to a file of results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def run_all(runs: Sequence[Run], tests: Sequence[Test], path: Path) -> Iterator[Line]:
    """Yields the line of each run and test: known ones, or new ones, which ``path`` gets."""
    for run in runs:
        for test in tests:
            key = {
                "name": run.label,
                "test": {"name": test.name, "digest": test.digest},
                "settings": run.settings(),
            }
            line = find_line(read_lines(path), key)
            if line is None:
                trained = train(run)
                line = key | {"metrics": test_run(run, test)} | trained | {"device": "cpu"}
                add_line(path, line)
            yield line


def with_seed(run: Run, seed: int) -> Run:
    """Returns the same run with another seed in all of its parts."""
    parts = tuple(replace(part, recipe=replace(part.recipe, seed=seed)) for part in run.parts)
    return replace(run, seed=seed, parts=parts)
