"""Trains a run of several parts, tests it, and stores its figures as lines of a file."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from proof.side_by_side import digest_of, logged, plain
from shell import add_line, read_lines
from torch import Tensor

from real.alignment import Alignment, align
from real.recipes import TASK_VARIANTS
from real.tables import Tables, TaskTables, Test
from real.zero_shot import ZERO_SHOT, measure_zero_shot
from vlmill.models.registry import get_variant
from vlmill.models.rows import get_part
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.manifest import MANIFEST
from vlmill.runtime.readers.regions import RegionReader
from vlmill.runtime.settings.plain_fields import to_plain
from vlmill.schemas.plain_json import read_json
from vlmill.train.checkpoints.files import (
    CheckpointRecord,
    LoadedCheckpoint,
    load_checkpoint,
    save_checkpoint,
)
from vlmill.train.checkpoints.folders import SETTINGS, saved_steps
from vlmill.train.loading.batch import Batch
from vlmill.train.loading.vocabulary import encode_texts
from vlmill.train.run.inputs import Inputs
from vlmill.train.run.job import pretrain
from vlmill.train.settings.spec import Recipe
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.evaluating.inputs import EvaluationOptions
from vlmill.train.tasks.evaluating.job import evaluate_task
from vlmill.train.tasks.finetuning.job import TaskInputs, finetune
from vlmill.train.tasks.retrieval.candidates import read_pairs
from vlmill.train.tasks.retrieval.checks import find_feeding, longest_text
from vlmill.train.tasks.retrieval.evaluation import evaluate_retrieval
from vlmill.train.tasks.retrieval.inputs import RegionImages
from vlmill.train.tasks.retrieval.job import RetrievalOptions
from vlmill.train.tasks.retrieval.matching import EncodeScorer, match_scores
from vlmill.train.tasks.retrieval.metrics import retrieval_metrics

BATCH_SIZE = 200


@dataclass(frozen=True, kw_only=True)
class HalfScorer(EncodeScorer):
    """Scores pairs in bfloat16, with the head in float32."""

    def read_image(self, batch: Batch) -> Float[Tensor, "1 E H"]:
        """Returns embedded regions without padding."""
        fields = ("region_features", "region_locations")
        half = {name: getattr(batch.inputs, name).bfloat16() for name in fields}
        return super().read_image(replace(batch, inputs=replace(batch.inputs, **half)))

    def match(self, texts: Any, image: Float[Tensor, "1 E H"]) -> Float[Tensor, " B"]:
        """Returns the head's logits in float32."""
        return self.logit(self.pool(texts, image).float())


def half_scorer(loaded: LoadedCheckpoint, max_elements: int | None = None) -> HalfScorer:
    """Returns the scorer of a model, which it converts."""
    variant = get_variant(loaded.variant)
    body, logit = variant.get_body(loaded.model), get_part(loaded.model, variant.match_logit)
    body.bfloat16()
    for name in ("match_head", "score_head"):
        for owner in (body, loaded.model):
            if (head := getattr(owner, name, None)) is not None:
                head.float()
    return HalfScorer(model=body, logit=logit, max_elements=max_elements)


def rank_pairs(checkpoint: Path, test: Test, split: str | None = None) -> dict[str, float]:
    """Returns the recalls of a checkpoint on a test, in 0..1."""
    loaded = load_checkpoint(checkpoint)
    pairs = read_pairs(str(test.pairs), split).pairs
    image_ids = list(dict.fromkeys(str(pair.image_id) for pair in pairs))
    numbers = {image_id: number for number, image_id in enumerate(image_ids)}
    owners = np.array([numbers[str(pair.image_id)] for pair in pairs])
    feeding: Any = find_feeding(loaded)
    texts = [pair.text for pair in pairs]
    tokens = encode_texts(loaded.tokenizer, texts, longest_text(loaded, feeding)).tokens
    with Progress(total=len(texts) * len(image_ids), unit="pair", label="ranking") as progress:
        scores = match_scores(
            half_scorer(loaded, feeding.max_elements),
            tokens,
            image_ids,
            RegionImages(RegionReader(str(test.regions)), feeding),
            device=torch.device("cpu"),
            batch_size=BATCH_SIZE,
            advance=progress.advance,
        )
    return retrieval_metrics(scores, owners)


Line = dict[str, Any]
RECALLS = tuple(f"{way}_retrieval/r{k}" for way in ("text", "image") for k in (1, 5, 10))


@dataclass(frozen=True, kw_only=True)
class Part:
    """A pretraining or a fine-tuning that starts from the part before, or from MiniLM; or an
    alignment, which is always the first part.

    ``co_attention`` switches ViLBERT's co-attention on or off in the checkpoint that it starts
    from; None: as it is there. ``examples`` is the task set that it learns from; None: the
    captions.
    """

    recipe: Recipe | TaskRecipe | Alignment
    hard_negatives: bool = False
    co_attention: bool | None = None
    examples: str | None = None


@dataclass(frozen=True, kw_only=True)
class Run:
    """Parts that follow each other, and where the tables are. ``name`` as in ``vilbert/base``.

    ``from_text`` starts from MiniLM, else from random weights. ``small`` runs are tested on the
    small test alone, unless the tests are named.
    """

    name: str
    seed: int
    parts: tuple[Part, ...]
    tables: Tables
    from_text: bool = True
    small: bool = False

    @property
    def label(self) -> str:
        """Returns the name with the seed."""
        return f"{self.name}/seed-{self.seed}"

    def settings(self, count: int | None = None) -> Line:
        """Returns what decides the figures of the first ``count`` parts, or of all."""
        parts = [vars(part) | {"recipe": to_plain(part.recipe)} for part in self.parts[:count]]
        return plain({"parts": parts, "from_text": self.from_text, "data": self.tables.digest()})

    def folder(self, count: int) -> Path:
        """Returns the folder of a part, which all runs with the same parts before it share."""
        digest = digest_of(self.settings(count))[:10]
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
        if is_finished(part, folder):
            minutes.append(json.loads(kept.read_text()) if kept.exists() else None)
            continue
        continued, clock = bool(saved_steps(folder)), time.process_time()
        train_part(run, part, folder, run.folder(count - 1) if count > 1 else None)
        spent = round((time.process_time() - clock) / 60, 2)
        minutes.append(None if continued else spent)
        kept.write_text(json.dumps(minutes[-1]))
    return {"cpu_minutes": minutes}


def is_finished(part: Part, folder: Path) -> bool:
    """Returns whether a part is trained. An alignment's folder appears complete."""
    return (folder / (SETTINGS if isinstance(part.recipe, Alignment) else MANIFEST)).exists()


def train_part(run: Run, part: Part, folder: Path, before: Path | None) -> None:
    """Trains one part; what it prints goes to a log beside its folder."""
    with logged(folder.parent / f"{folder.name}.log"):
        if isinstance(part.recipe, Alignment):
            align(part.recipe, run.tables, folder)
        else:
            train_recipe(run, part, part.recipe, folder, before)


def train_recipe(
    run: Run, part: Part, recipe: Recipe | TaskRecipe, folder: Path, before: Path | None
) -> None:
    """Trains one part by a recipe."""
    start = before or (run.tables.bert if run.from_text else None)
    if before is not None and part.co_attention is not None:
        start = folder.parent / f"{folder.name}-start"
        switch_co_attention(before, start, on=part.co_attention)
    feeding = recipe.stages[0].feeding
    tables: dict[str, Any] = {
        "regions": str(run.tables.regions) if feeding.reads_regions else None,
        "images": str(run.tables.pairs) if feeding.reads_images else None,
        "init": None if start is None else str(start),
    }
    if recipe.variant == "vlmo" and before is None:
        tables |= {"init": None, "vocab": str(run.tables.bert / "vocab.txt")}
    if isinstance(recipe, Recipe):
        negatives = str(run.tables.negatives) if part.hard_negatives else None
        pretrain(recipe, Inputs(pairs=str(run.tables.pairs), negatives=negatives, **tables), folder)
        return
    examples = run.tables.pairs
    if part.examples is not None:
        sets = TaskTables(tables=run.tables)
        examples = sets.examples(part.examples)
        tables["regions"] = str(sets.regions(part.examples))
    finetune(recipe, TaskInputs(examples=str(examples), **tables), folder)


def switch_co_attention(before: Path, folder: Path, *, on: bool) -> None:
    """Writes a ViLBERT's checkpoint again, with its co-attention on or off."""
    if folder.exists():
        return
    loaded = load_checkpoint(before)
    variant = get_variant(loaded.variant)
    body = replace(variant.get_body(loaded.config), co_attention=on)
    model = variant.build(variant.with_body(loaded.config, body))
    model.load_state_dict(loaded.model.state_dict())
    names = [field.name for field in fields(CheckpointRecord)]
    save_checkpoint(
        folder, model, CheckpointRecord(**{name: getattr(loaded, name) for name in names})
    )


def test_run(run: Run, test: Test) -> dict[str, float]:
    """Returns the recalls of a trained run, or a task's figures, in 0..1."""
    if run.parts[-1].examples is not None:
        return test_task(run, test)
    if test.name in ZERO_SHOT:
        return measure_zero_shot(run.checkpoint, test)
    recipe = run.parts[-1].recipe
    assert isinstance(recipe, TaskRecipe)
    kind = recipe.stages[0].feeding
    if kind.reads_regions and recipe.variant != TASK_VARIANTS["vilbert"]:
        metrics = rank_pairs(run.checkpoint, test)
        return {name: metrics[name] for name in RECALLS}
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


def test_task(run: Run, test: Test) -> dict[str, float]:
    """Returns the figures of a task set's test examples."""
    recipe = run.parts[-1].recipe
    assert isinstance(recipe, TaskRecipe)
    options = EvaluationOptions(
        task=recipe.task,
        checkpoint=run.checkpoint,
        examples=str(test.pairs),
        regions=str(test.regions),
        split="test",
        output=run.checkpoint.parent / f"{run.checkpoint.name}-{test.name}",
        missing="skip",
    )
    evaluate_task(options)
    metrics = read_json(options.output / "metrics.json")
    return {name: value for name, value in metrics.items() if is_share(name, value)}


def is_share(name: str, value: Any) -> bool:
    """Returns whether a task's figure is a share of right answers."""
    return isinstance(value, float) and name.endswith("accuracy") and 0 <= value <= 1


def find_line(lines: Sequence[Line], key: Line) -> Line | None:
    """Returns the first line of this run, test and settings."""
    return next((line for line in lines if all(agrees(line.get(n), key[n]) for n in key)), None)


def agrees(recorded: Any, current: Any) -> bool:
    """Returns whether a recorded value is the current one; fields that the code has got since then
    are not compared.
    """
    if isinstance(recorded, dict) and isinstance(current, dict):
        return all(
            name in current and agrees(value, current[name]) for name, value in recorded.items()
        )
    if isinstance(recorded, list) and isinstance(current, list):
        return len(recorded) == len(current) and all(map(agrees, recorded, current))
    return bool(recorded == current)


def run_all(jobs: Sequence[tuple[Run, Sequence[Test]]], path: Path) -> Iterator[Line]:
    """Yields the line of each run on each of its tests: known ones, or new ones, which ``path``
    gets.
    """
    for run, tests in jobs:
        for test in tests:
            key = make_key(run, test)
            line = find_line(read_lines(path), key)
            if line is None:
                trained = train(run)
                line = key | {"metrics": test_run(run, test)} | trained | {"device": "cpu"}
                add_line(path, line)
            yield line


def make_key(run: Run, test: Test) -> Line:
    """Returns what identifies the line of a run on a test."""
    test_key = {"name": test.name, "digest": test.digest}
    return {"name": run.label, "test": test_key, "settings": run.settings()}


def with_seed(run: Run, seed: int) -> Run:
    """Returns the same run with another seed in all of its parts."""
    parts = tuple(replace(part, recipe=replace(part.recipe, seed=seed)) for part in run.parts)
    return replace(run, seed=seed, parts=parts)
