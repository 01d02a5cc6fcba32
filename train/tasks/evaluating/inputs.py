"""Opens the inputs of a task's evaluation, and checks that they fit together."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from vlmill.runtime.files.listed import hash_file
from vlmill.runtime.files.reading import iter_batches
from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import LoadedCheckpoint, load_checkpoint
from vlmill.train.checkpoints.folders import MODEL
from vlmill.train.devices.setup import device_named
from vlmill.train.loading.store.pairs import Examples
from vlmill.train.run.inputs import Inputs, Sources, open_examples
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.batches import TaskModel
from vlmill.train.tasks.evaluating.recipe import find_recipe, open_task


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Holds the options of ``train-vl evaluate TASK``; tables are folders, files or globs."""

    task: str
    checkpoint: Path
    examples: str
    output: Path
    regions: str | None = None
    annotated_regions: str | None = None
    boxes: Literal["detected", "annotated"] | None = None  # None: as trained
    iou: str | None = None  # the rule by which boxes are right; None: the task's own
    scores: str | None = None  # an evaluation of the other sub-task
    images: str | None = None
    labels: Path | None = None
    split: str | None = None
    missing: Literal["error", "skip"] = "error"  # how examples without their image are handled
    device: str = "cpu"
    batch_size: int = 64
    fresh: bool = False


@dataclass(frozen=True, kw_only=True)
class EvaluationSetup(TaskModel):
    """Holds the inputs of an evaluation, opened and found to fit together."""

    options: EvaluationOptions
    sources: Sources


def open_evaluation(
    options: EvaluationOptions, loaded: LoadedCheckpoint | None = None
) -> EvaluationSetup:
    """Opens everything that is read; the checkpoint unless it is ``loaded`` already.

    Raises InputError for inputs that do not fit together.
    """
    device = device_named(options.device)
    if options.batch_size < 1:
        raise InputError(f"--batch-size {options.batch_size}: expected at least 1")
    loaded = load_checkpoint(options.checkpoint) if loaded is None else loaded
    recipe = apply_options(find_recipe(loaded, options.task), options)
    task = open_task(recipe, loaded, options.examples, options.labels)
    examples = task.examples(options.examples)
    if options.split is not None:
        examples = select_split(examples, options.split)
    inputs = Inputs(
        examples=examples,
        regions=options.regions,
        annotated_regions=options.annotated_regions,
        images=options.images,
    )
    sources = open_examples(inputs, recipe, loaded)
    if not sources.pairs.count:
        what = "" if options.split is None else f" of split {options.split}"
        known = ", ".join(list_splits(examples))
        there = f" (it has {known})" if what and known else ""
        raise InputError(f"--examples {options.examples} has no example{what}{there}")
    return EvaluationSetup(
        options=options, device=device, loaded=loaded, recipe=recipe, task=task, sources=sources
    )


def apply_options(recipe: TaskRecipe, options: EvaluationOptions) -> TaskRecipe:
    """Returns the recipe with the user's boxes and metric, by default those of the training.

    Detected boxes alone replace ``joined-in-training``. Raises InputError if the task does not
    have the metric.
    """
    (stage,) = recipe.stages
    boxes = stage.feeding.boxes if options.boxes is None else options.boxes
    if boxes == "joined-in-training":
        boxes = "detected"
    feeding, settings = dataclasses.replace(stage.feeding, boxes=boxes), recipe.settings
    for name in ("iou", "scores"):
        if (value := getattr(options, name)) is None:
            continue
        if not hasattr(settings, name):
            raise InputError(f"--{name} {value}: {options.task} does not use it; remove it")
        settings = dataclasses.replace(settings, **{name: value})
    stages = (dataclasses.replace(stage, feeding=feeding),)
    return dataclasses.replace(recipe, stages=stages, settings=settings)


def select_split(examples: Examples, split: str) -> Examples:
    """Returns the examples of one split."""

    def as_pairs(batch: pa.RecordBatch) -> pa.RecordBatch:
        return examples.as_pairs(batch.filter(pc.equal(batch.column("split"), split)))

    return dataclasses.replace(examples, as_pairs=as_pairs)


def list_splits(examples: Examples) -> list[str]:
    """Returns the names of the splits of a table."""
    batches = iter_batches(examples.path, examples.table, columns=["split"], flag="--examples")
    names = {name for batch in batches for name in batch.column(0).unique().to_pylist()}
    return sorted(names - {None})


def collect_settings(setup: EvaluationSetup) -> dict[str, Any]:
    """Returns the settings that decide the figures, contents included."""
    options, loaded, sources = setup.options, setup.loaded, setup.sources
    weights = hash_file(loaded.path / MODEL)
    return {
        "checkpoint": str(options.checkpoint),
        "variant": loaded.variant,
        "recipe": loaded.training.recipe,
        "step": loaded.training.step,
        "weights_sha256": weights,
        "examples": f"{sources.pairs.count} examples, {sources.pairs.digest[:16]}",
        "labels": None if options.labels is None else str(options.labels),
        "split": options.split,
        "missing": options.missing,
        "regions": options.regions,
        "annotated_regions": options.annotated_regions,
        "boxes": setup.stage.feeding.boxes,
        "iou": options.iou,
        "scores": options.scores,
        "images": options.images,
        "pictures_bytes": table_sizes(sources),
        "detector_fingerprint": sources.fingerprint,
        "feeding.max_regions": setup.stage.feeding.max_regions,
    }


def table_sizes(sources: Sources) -> list[int]:
    """Returns the sizes in bytes of the tables that images, or their regions, are read from."""
    readers = (sources.regions or sources.images, sources.annotated)
    return [path.stat().st_size for reader in readers if reader for path in reader.paths]
