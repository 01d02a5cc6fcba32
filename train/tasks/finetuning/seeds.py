"""Trains one task from several seeds, and reports the spread of the results."""

import dataclasses
import statistics
from pathlib import Path
from typing import Any

from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.mirror import push, restore_paths
from vlmill.train.checkpoints.files import publish, read_record
from vlmill.train.checkpoints.folders import find_checkpoint
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.finetuning.job import TaskInputs, finetune

SEEDS = "seeds.json"


def finetune_seeds(
    recipe: TaskRecipe, inputs: TaskInputs, output: Path, *, fresh: bool, force: bool
) -> str:
    """Runs ``recipe`` once, or once for each of its ``seeds``. Each seed has a separate folder,
    which is continued like any run. The best seed's checkpoint is at the top, with ``seeds.json``.

    Returns a sentence on the result.
    """
    if not recipe.seeds:
        return finetune(recipe, inputs, output, fresh=fresh, force=force)
    folders = {seed: output / f"seed-{seed}" for seed in recipe.seeds}
    for seed, folder in folders.items():
        seed_recipe = dataclasses.replace(recipe, seed=seed, seeds=())
        message = finetune(seed_recipe, inputs, folder, fresh=fresh, force=force)
        if message:
            print_status(restore_paths(message))
        push(output)
    if not message:  # one of several processes that leave the files to the first
        return ""
    values = {
        seed: read_record(find_checkpoint(folder)).validation for seed, folder in folders.items()
    }
    measured = {seed: value for seed, value in values.items() if value is not None}
    summary = compute_spread(measured)
    best = max(measured, key=measured.__getitem__) if measured else recipe.seeds[0]
    publish(output, find_checkpoint(folders[best]))
    write_json(output / SEEDS, {"seeds": values, "best": best, **summary})
    summary_text = (
        f"mean {summary['mean']:.4f}, standard deviation {summary['std']:.4f}"
        if summary
        else "none was validated"
    )
    return f"{output}: {len(folders)} seeds, {summary_text}; the best is {best}"


def compute_spread(values: dict[int, float]) -> dict[str, Any]:
    """Returns mean, sample standard deviation and range; empty without values."""
    numbers = list(values.values())
    if not numbers:
        return {}
    deviation = statistics.stdev(numbers) if len(numbers) > 1 else 0.0
    return {
        "mean": statistics.fmean(numbers),
        "std": deviation,
        "lowest": min(numbers),
        "highest": max(numbers),
    }
