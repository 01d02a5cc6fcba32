"""A run tried on a sample of its pairs, in a folder that goes when the first steps are measured."""

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vlmill.schemas.console.cost import SECONDS_MEASURED, Estimate
from vlmill.schemas.errors import InputError
from vlmill.schemas.files.reading import find_shards, iter_batches
from vlmill.schemas.files.shards import write_shard
from vlmill.schemas.tables import PAIRS
from vlmill.train.devices.setup import make_accelerator
from vlmill.train.recipes import Recipe
from vlmill.train.run.cost import checkpoints_bytes, measure
from vlmill.train.run.inputs import Inputs, Sources, open_sources, say_what_is_missing
from vlmill.train.run.job import open_runner, prepare
from vlmill.train.run.runner import Runner

SAMPLE_PAIRS = 4096


def estimate_run(recipe: Recipe, inputs: Inputs) -> Estimate:
    """What ``recipe`` costs on these inputs. Writes nothing but a folder of temporary files.

    A stage is measured for some seconds on every so-many-th pair; the length of one that is given
    in epochs is that of the sample, times the share of the sample. Raises InputError as the run
    would, and under a launcher.
    """
    accelerator = make_accelerator(recipe)
    if accelerator.num_processes > 1:
        raise InputError("--dry-run measures one process; start it without a launcher")
    say_what_is_missing(recipe, inputs)
    sources = open_sources(inputs, recipe)
    with tempfile.TemporaryDirectory(prefix="vlmill-dry-run-") as scratch:
        total, sampled = write_sample(inputs.pairs, Path(scratch) / "pairs")
        # Hard negatives cost a step no more than others, and their table is large.
        few = dataclasses.replace(inputs, pairs=str(Path(scratch) / "pairs"), negatives=None)
        recipe = dataclasses.replace(recipe, validate_every=0)
        small = dataclasses.replace(sources, inputs=few)
        output = Path(scratch) / "run"
        prepared = prepare(recipe, small, output, {}, fresh=False)
        assert prepared is not None  # a new folder holds no finished run
        runner = open_runner(recipe, small, output, prepared[2], accelerator)
        return estimate_of(runner, sources, total, total / max(sampled, 1))


def write_sample(pairs: str, folder: Path) -> tuple[int, int]:
    """Writes every so-many-th pair to ``folder``; returns how many there are, and how many those.

    Memory: the sample.
    """
    total = sum(pq.read_metadata(path).num_rows for path in find_shards(pairs, PAIRS, "--pairs"))
    every, at, batches = max(1, -(-total // SAMPLE_PAIRS)), 0, []
    for batch in iter_batches(pairs, PAIRS, flag="--pairs"):
        first = -at % every
        batches.append(batch.take(pa.array(range(first, batch.num_rows, every), pa.int64())))
        at += batch.num_rows
    table = pa.Table.from_batches([b.cast(PAIRS.schema) for b in batches], schema=PAIRS.schema)
    write_shard(folder, PAIRS, table)
    return total, table.num_rows


def estimate_of(runner: Runner, sources: Sources, num_pairs: int, share: float) -> Estimate:
    """Steps of each stage at its measured rate; ``share``: pairs for one of the sample."""
    seconds, rate = 0.0, None
    total = 0
    for run in runner.stages:
        if not run.steps:
            continue
        rate = measure(runner, run, SECONDS_MEASURED / len(runner.stages))
        steps = run.steps if run.stage.steps is not None else round(run.steps * share)
        seconds += rate.seconds_for(steps) or 0.0
        total += steps
    least = checkpoints_bytes(runner)
    regions, images = sources.regions, sources.images
    counts: Mapping[str, Any] = {
        "--pairs": f"{num_pairs:,} pairs",
        "--regions": regions and f"{len(regions):,} pictures",
        "--images": images and f"{len(images):,} pictures",
        "--negatives": sources.inputs.negatives,
        "steps": f"{total:,}",
    }
    last = "; the rate is the last stage's" if len(runner.stages) > 1 else ""
    return Estimate(
        inputs={name: count for name, count in counts.items() if count},
        least_bytes=least,
        seconds=seconds,
        rate=rate,
        note="output is checkpoints; log, curves and prepared pairs (some 100 bytes each) come "
        f"on top{last}",
    )
