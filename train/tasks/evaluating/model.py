"""Predicts examples with a checkpoint's model and the head of its task.

``train-vl evaluate`` and ``vlmill.load`` compute predictions by :class:`TaskModel` alone: the one
of the rows of a table, the other of raw images and texts.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from vlmill.models.registry import get_variant
from vlmill.runtime.readers.images import Images
from vlmill.runtime.readers.regions import Regions
from vlmill.runtime.settings.plain_fields import from_plain
from vlmill.schemas.errors import InputError, with_article
from vlmill.train.checkpoints.files import LoadedCheckpoint
from vlmill.train.loading.features import get_global_widths, read_features
from vlmill.train.loading.images.crop import DecodePixels, evaluation_image
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.loading.undecodable import Undecodable
from vlmill.train.settings.parts import Optimizer
from vlmill.train.settings.spec import TrainingStage
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.batches import TaskBatches
from vlmill.train.tasks.registry import TASKS
from vlmill.train.tasks.task import Prediction, Task


@dataclass(frozen=True, kw_only=True)
class TaskModel:
    """Holds a checkpoint's model with its task, on a device, fed by ``recipe`` as in training."""

    device: torch.device
    loaded: LoadedCheckpoint
    recipe: TaskRecipe
    task: Task

    @property
    def stage(self) -> TrainingStage:
        """Returns how examples are fed: as in training, but nothing is random or omitted."""
        return dataclasses.replace(self.recipe.stages[0].as_measured(), sources=())

    @property
    def max_tokens(self) -> int:
        """Returns the largest number of tokens of a text."""
        longest = self.recipe.max_text_tokens
        return min(self.recipe.stages[0].feeding.max_tokens or longest, longest)

    def make_batches(
        self,
        samples: Path | SampleTable,
        regions: Regions | None,
        images: Images | None,
        decode: DecodePixels = evaluation_image,
    ) -> TaskBatches:
        """Returns the batches of prepared examples."""
        loaded = self.loaded
        body = get_variant(loaded.variant).get_body(loaded.config)
        return TaskBatches(
            samples=samples,
            stage=self.stage,
            stage_number=0,
            seed=0,
            regions=regions,
            images=images,
            longest=self.recipe.max_text_tokens,
            global_features=bool(get_global_widths(body)),
            asking="--examples",
            task=self.task,
            training=False,
            blind=loaded.task is not None and loaded.task.blind,
            decode=decode,
        )

    @torch.no_grad()
    def predict(
        self, batches: TaskBatches, rows: Sequence[int]
    ) -> tuple[list[Prediction], tuple[Undecodable, ...]]:
        """Returns the predictions for some rows, and the images that cannot be decoded.

        Raises InputError if the rows do not fit into the device's memory together.
        """
        host, undecodable = batches.make_batch(rows)
        if host is None:
            return [], undecodable
        try:
            batch = read_features(host, batches.regions).to(self.device)
            values = self.task.predict(self.task.outputs(self.loaded.model, batch), batch)
        except torch.OutOfMemoryError:
            raise InputError(
                f"--batch-size {len(rows)} does not fit into the memory of --device {self.device}; "
                "give a smaller batch size"
            ) from None
        predicted = zip(batches.find_rows(host, rows), values, strict=True)
        return [Prediction(row=row, value=value) for row, value in predicted], undecodable


def open_task(
    recipe: TaskRecipe, loaded: LoadedCheckpoint, examples: str | None, labels: Path | None
) -> Task:
    """Returns the task of a checkpoint that is fed by ``recipe``, with the labels of its head.

    ``examples`` is the table, if there is one. Raises InputError unless the head's outputs are
    known to be the task's labels.
    """
    make = TASKS[recipe.task].make
    task: Task = make(recipe, examples, labels, loaded).with_vocabulary(loaded.tokenizer)
    who = f"--checkpoint {loaded.path}"
    if task.sizes and loaded.task is None and labels is None:
        raise InputError(
            f"{who} does not record the labels of its outputs; give --labels FILE, the "
            "checkpoint's own list in its own order"
        )
    for name, size in task.sizes.items():
        if getattr(loaded.config, name) != size:
            raise InputError(
                f"--labels {labels} has {size} labels, {who} has {name}="
                f"{getattr(loaded.config, name)}; give that checkpoint's own list"
            )
    return task


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
