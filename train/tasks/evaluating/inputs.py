"""Opens the inputs of a task's evaluation, and checks that they fit together."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import torch

from vlmill.models.registry import get_variant
from vlmill.runtime.files.listed import hash_file
from vlmill.runtime.files.reading import iter_batches
from vlmill.runtime.settings.plain_fields import from_plain
from vlmill.schemas.errors import InputError, with_article
from vlmill.train.checkpoints.files import LoadedCheckpoint, load_checkpoint
from vlmill.train.checkpoints.folders import MODEL
from vlmill.train.devices.setup import device_named
from vlmill.train.loading.features import get_global_widths
from vlmill.train.loading.store.pairs import Examples
from vlmill.train.run.inputs import Inputs, Sources, open_examples
from vlmill.train.run.validation import as_measured
from vlmill.train.settings.parts import Optimizer
from vlmill.train.settings.spec import TrainingStage
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.registry import TASKS
from vlmill.train.tasks.task import Task


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
class EvaluationSetup:
    """Holds the inputs of an evaluation, opened and found to fit together."""

    options: EvaluationOptions
    device: torch.device
    loaded: LoadedCheckpoint
    recipe: TaskRecipe
    task: Task
    sources: Sources

    @property
    def stage(self) -> TrainingStage:
        """Returns how examples are fed: as in training, but nothing is random or omitted."""
        plain = as_measured(self.recipe.stages[0])
        return dataclasses.replace(plain, sources=())

    @property
    def blind(self) -> bool:
        """Returns whether the checkpoint was trained without images."""
        return self.loaded.task is not None and self.loaded.task.blind

    @property
    def global_features(self) -> bool:
        """Returns whether the model takes features of full images."""
        return bool(
            get_global_widths(get_variant(self.loaded.variant).get_body(self.loaded.config))
        )


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
    make = TASKS[options.task].make
    task: Task = make(recipe, options.examples, options.labels, loaded).with_vocabulary(
        loaded.tokenizer
    )
    require_head(loaded, task, options)
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


def find_recipe(loaded: LoadedCheckpoint, task: str) -> TaskRecipe:
    """Returns how the checkpoint is fed: by the recipe of its training; a converted checkpoint, or
    one that was trained by a custom recipe, by the task's first recipe of its model.

    Raises InputError for a checkpoint of another task, or without the task's head.
    """
    who = f"--checkpoint {loaded.path}"
    if loaded.task is not None and loaded.task.name != task:
        raise InputError(
            f"{who} was fine-tuned for {loaded.task.name}; evaluate {loaded.task.name}, or give "
            f"one of {task}"
        )
    recipe = _variant_recipe(loaded, task)
    if recipe is None and loaded.task is not None:
        recipe = checkpoint_recipe(loaded, task)
    if recipe is None or (loaded.task is None and loaded.training.stage):
        raise InputError(
            f"{who} is {with_article(loaded.variant)}, which was not fine-tuned for {task}; "
            f"`train-vl finetune {task} --init` makes such a checkpoint from it"
        )
    stage = recipe.stages[0]
    feeding = stage.feeding if loaded.feeding is None else loaded.feeding
    if feeding.kind == "pixels":  # the weights' own: that of a converted checkpoint may differ
        side = get_variant(loaded.variant).get_body(loaded.config).image_size
        feeding = dataclasses.replace(feeding, image_size=side)
    stages = (dataclasses.replace(stage, feeding=feeding, train_splits=(), validation_splits=()),)
    settings = recipe.settings
    if loaded.task is not None and loaded.task.settings:
        settings = from_plain(type(settings), loaded.task.settings, who)
    return dataclasses.replace(recipe, model=loaded.config, stages=stages, settings=settings)


def _variant_recipe(loaded: LoadedCheckpoint, task: str) -> TaskRecipe | None:
    """Returns the recipe of the training if it is one of the task's, else the task's first recipe
    of the checkpoint's model; None if the task has none.
    """
    recipes = TASKS[task].recipes
    trained = recipes.get(loaded.training.recipe)
    makers = [*([trained] if trained else []), *recipes.values()]
    return next((one for make in makers if (one := make()).variant == loaded.variant), None)


def checkpoint_recipe(loaded: LoadedCheckpoint, task: str) -> TaskRecipe:
    """Returns a recipe for a model that was trained by a custom recipe (``--config``) and matches
    none of the task's recipes. Evaluation reads the inputs that the checkpoint records.
    """
    stage = TrainingStage(
        name=loaded.training.stage, steps=0, batch_size=1, optimizer=Optimizer(lr=1.0)
    )
    return TASKS[task].recipe(
        name=loaded.training.recipe,
        variant=loaded.variant,
        model=loaded.config,
        stages=(stage,),
        starts_from=(),
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


def require_head(loaded: LoadedCheckpoint, task: Task, options: EvaluationOptions) -> None:
    """Raises InputError unless the head's outputs are known to be the task's labels."""
    who = f"--checkpoint {loaded.path}"
    if task.sizes and loaded.task is None and options.labels is None:
        raise InputError(
            f"{who} does not record the labels of its outputs; give --labels FILE, the "
            "checkpoint's own list in its own order"
        )
    for name, size in task.sizes.items():
        if getattr(loaded.config, name) != size:
            raise InputError(
                f"--labels {options.labels} has {size} labels, {who} has {name}="
                f"{getattr(loaded.config, name)}; give that checkpoint's own list"
            )


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
