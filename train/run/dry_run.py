"""Runs the first steps on a sample of the pairs, in a folder that is removed afterwards."""

import dataclasses
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from accelerate import Accelerator

from vlmill.runtime.console.cost import SECONDS_MEASURED, Estimate, size_words
from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import key64
from vlmill.schemas.tables import PAIRS
from vlmill.train.devices.setup import make_accelerator
from vlmill.train.loading.store.pairs import PairTable, get_flag, pair_batches
from vlmill.train.recipes import Recipe, RunSettings
from vlmill.train.recipes.describe import step_bytes
from vlmill.train.run.cost import checkpoints_bytes, measure
from vlmill.train.run.inputs import Inputs, Sources, open_sources, say_what_is_missing
from vlmill.train.run.job import open_runner
from vlmill.train.run.loop import StageRun
from vlmill.train.run.pair_learning import PairRunner
from vlmill.train.run.planning import say_what_never_peaks
from vlmill.train.run.preparing import prepare

SAMPLE_PAIRS = 4096


def estimate_run(recipe: Recipe, inputs: Inputs) -> Estimate:
    """Estimates the cost of ``recipe`` on these inputs. Writes only a folder of temporary files.

    A stage is measured for some seconds on every N-th pair; the length of one that is given in
    epochs is that of the sample, times the share of the sample. Raises InputError as the run would,
    and under a launcher.
    """
    accelerator = only_process(recipe)
    say_what_is_missing(recipe, inputs)
    sources = open_sources(inputs, recipe)
    with tempfile.TemporaryDirectory(prefix="vlmill-dry-run-") as scratch:
        total = sources.pairs.count
        sampled = write_sample(
            inputs.visited,
            total,
            Path(scratch) / "pairs",
            full_images=counts_captions(recipe),
        )
        # Hard negatives cost a step no more than others, and their table is large.
        few = dataclasses.replace(inputs, pairs=str(Path(scratch) / "pairs"), negatives=None)
        recipe = scale_recipe(recipe, sampled / max(total, 1))
        small = dataclasses.replace(sources, inputs=few)
        output = Path(scratch) / "run"
        prepared = prepare(recipe, small, output, {}, fresh=False)
        assert prepared is not None  # a new folder holds no finished run
        runner = open_runner(recipe, small, output, prepared.tokenizer, accelerator)
        say_what_never_peaks(runner.stages)
        return estimate_cost(runner, sources, total, total / max(sampled, 1))


def only_process(recipe: RunSettings) -> Accelerator:
    """Returns the device of a dry run. Raises InputError under a launcher."""
    accelerator = make_accelerator(recipe)
    if accelerator.num_processes > 1:
        raise InputError("--dry-run measures one process; start it without a launcher")
    return accelerator


def counts_captions(recipe: Recipe) -> bool:
    """Returns whether the length of an epoch depends on how many captions each image has."""
    return any(mixed.captions_per_picture for stage in recipe.stages for mixed in stage.mixture)


def write_sample(pairs: PairTable, total: int, folder: Path, *, full_images: bool = False) -> int:
    """Writes every N-th of ``total`` pairs to ``folder``, as far as training reads them, and the
    first of each source and split, so that none is missing; returns how many.

    With ``full_images`` it writes all pairs of about every N-th image, by the hash of its id, and
    of texts alone by the hash of theirs. Memory: the sample.
    """
    every, offset, rows = max(1, -(-total // SAMPLE_PAIRS)), 0, list[dict[str, Any]]()
    empty = dict.fromkeys(PAIRS.schema.names)
    met = set[tuple[str | None, str | None]]()
    for batch in pair_batches(pairs):
        firsts = find_first_rows(batch)
        new = [position for kind, position in firsts.items() if kind not in met]
        met |= firsts.keys()
        positions = {*range(-offset % every, batch.num_rows, every), *new}
        if full_images and every > 1:
            ids = pc.coalesce(batch.column("image_id"), batch.column("pair_id")).to_pylist()
            also = {ids[position] for position in new}
            positions = {i for i, name in enumerate(ids) if name in also or not key64(name) % every}
        sampled = batch.take(pa.array(sorted(positions), pa.int64()))
        rows += [empty | row for row in sampled.to_pylist()]
        offset += batch.num_rows
    write_shard(folder, PAIRS, rows)
    return len(rows)


def find_first_rows(pairs: pa.RecordBatch) -> dict[tuple[str | None, str | None], int]:
    """Returns the row where each source and split of ``pairs`` occurs first."""
    kinds = pa.table(
        {
            "source": pairs.column("source"),
            "split": pairs.column("split"),
            "place": np.arange(pairs.num_rows),
        }
    )
    firsts = kinds.group_by(["source", "split"]).aggregate([("place", "min")]).to_pylist()
    return {(row["source"], row["split"]): row["place_min"] for row in firsts}


def scale_recipe(recipe: Recipe, share: float) -> Recipe:
    """Returns ``recipe`` on ``share`` of its pairs: each stage's limit is reduced accordingly."""
    stages = tuple(
        dataclasses.replace(stage, max_pairs=stage.max_pairs and math.ceil(stage.max_pairs * share))
        for stage in recipe.stages
    )
    return dataclasses.replace(recipe, validate_every=0, stages=stages)


def describe_visits(run: StageRun, share: float) -> dict[str, str]:
    """Returns how many pairs a stage with a share visits, by its name; nothing for other stages.
    ``share``: pairs per sampled pair.
    """
    if run.share is None:
        return {}
    visited, pairs = (round(count * share) for count in run.share)
    about = "" if share == 1 else "about "
    return {f"stage {run.stage.name}": f"visits {about}{visited:,} of {pairs:,} pairs"}


def estimate_cost(runner: PairRunner, sources: Sources, num_pairs: int, share: float) -> Estimate:
    """Returns the steps of each stage at its measured rate; ``share``: pairs, or a task's examples,
    per sampled one.
    """
    seconds, rate = 0.0, None
    total = 0
    for run in runner.stages:
        if not run.steps:
            continue
        rate = measure(runner, run, SECONDS_MEASURED / len(runner.stages))
        steps = run.steps if run.stage.steps is not None else round(run.steps * share)
        seconds += rate.seconds_for(steps) or 0.0
        total += steps
    minimum_bytes = checkpoints_bytes(runner)
    regions, images = sources.regions, sources.images
    visited = get_flag(sources.inputs.visited)
    counts: Mapping[str, Any] = {
        visited: visited != "--images" and f"{num_pairs:,} {visited[2:]}",
        "--regions": regions and f"{len(regions):,} images",
        "--images": images and f"{len(images):,} images",
        "--negatives": sources.inputs.negatives or sources.inputs.neighbours,
        **{
            name: count
            for run in runner.stages
            for name, count in describe_visits(run, share).items()
        },
        "steps": f"{total:,}",
    }
    last = "; the rate is the last stage's" if len(runner.stages) > 1 else ""
    return Estimate(
        inputs={name: count for name, count in counts.items() if count},
        min_bytes=minimum_bytes,
        seconds=seconds,
        rate=rate,
        memory=f"about {size_words(step_bytes(runner.recipe))} for a step (see "
        "`train-vl recipes`; accumulation=N divides the memory for the pairs by N)",
        note="the output is checkpoints; the log, curves and prepared pairs (about 100 "
        f"bytes each) are not included{last}",
    )
