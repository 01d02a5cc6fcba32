"""Runs the first steps of fine-tuning on its examples, in a folder that is removed afterwards."""

import dataclasses
import tempfile
from pathlib import Path

from tokenizers import Tokenizer

from vlmill.runtime.console.cost import Estimate
from vlmill.train.run.dry_run import estimate_cost, only_process
from vlmill.train.run.planning import say_what_never_peaks
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.finetuning.job import (
    TaskInputs,
    open_task,
    open_task_runner,
    prepare_examples,
)


def estimate_finetuning(recipe: TaskRecipe, inputs: TaskInputs) -> Estimate:
    """Estimates the cost of ``recipe`` on these inputs. Writes only a folder of temporary files.

    All examples are prepared, because a task has few of them and they may need each other; the
    first steps are measured for some seconds. Several seeds multiply the cost by their number.
    Raises InputError as the run would, and under a launcher.
    """
    accelerator, runs = only_process(recipe), max(len(recipe.seeds), 1)
    recipe = dataclasses.replace(recipe, validate_every=0, patience=0, seeds=())
    task, sources = open_task(recipe, inputs, speaks=True)
    with tempfile.TemporaryDirectory(prefix="vlmill-dry-run-") as scratch:
        output = Path(scratch) / "run"
        preparation = prepare_examples(recipe, sources, task, output, {}, fresh=False)
        assert preparation is not None  # a new folder holds no finished run
        words = Tokenizer.from_str(preparation.tokenizer)
        runner = open_task_runner(
            recipe, sources, output, words, task.with_vocabulary(words), accelerator
        )
        say_what_never_peaks(runner.stages)
        run_estimate = estimate_cost(runner, sources, sources.pairs.count, 1.0)
    if runs == 1:
        return run_estimate
    return dataclasses.replace(
        run_estimate,
        inputs={
            **run_estimate.inputs,
            "steps": f"{run_estimate.inputs['steps']} for each of {runs} seeds",
        },
        min_bytes=runs * run_estimate.min_bytes,
        seconds=run_estimate.seconds and runs * run_estimate.seconds,
    )
