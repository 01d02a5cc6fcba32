"""Chooses a recipe by the tables and the checkpoint of a run, and fits it to the data.

A recipe that the user names is never changed here. Nothing here loads torch, except to see whether
a GPU is available.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from vlmill.runtime.files.paths import readable, to_path
from vlmill.runtime.settings.plain_fields import flatten, to_plain
from vlmill.schemas.errors import InputError, with_article
from vlmill.schemas.labels import LABELS_FILE
from vlmill.train.settings.tasks import TaskRecipe
from vlmill.train.tasks.registry import TASKS

SIZES = ("width", "num_layers", "num_heads", "intermediate_width")  # that distinguish networks
EPOCHS, FEWEST_STEPS = 20, 100  # of recipes that count in steps
VALIDATIONS = 5  # in a run whose recipe has none
ROWS_OF_ANSWER = 2000  # rows for each question that an answer needs


def find_task(examples: str) -> str:
    """Returns the task whose table ``examples`` holds.

    Raises InputError if it holds the table of no task, or of several.
    """
    from vlmill.runtime.files.reading import find_shards
    from vlmill.schemas.tables import TABLES

    tables: list[str] = []
    for table in sorted({row.examples for row in TASKS.values()}):
        try:
            find_shards(examples, TABLES[table], "--examples")
        except InputError:
            continue
        tables.append(table)
    names = [name for name, row in TASKS.items() if row.examples in tables]
    if not names:
        known = ", ".join(sorted({row.examples for row in TASKS.values()}))
        raise InputError(
            f"--examples {examples}: expected a table that `manifest` wrote ({known}); give one, "
            "or the TASK, whose error names the fault"
        )
    if len(names) > 1 and len(tables) == 1:  # statements about two images, one, or none
        num_images = _count_images(examples, tables[0])
        names = [name for name in names if TASKS[name].num_images == num_images] or names
    if len(names) > 1:
        raise InputError(
            f"TASK: --examples {examples} holds {' and '.join(tables)}, which "
            f"{' and '.join(names)} read; give one of these before --init"
        )
    return names[0]


def _count_images(examples: str, table: str) -> int:
    """Returns the number of images of the table's first row; 0 if it has no row."""
    from vlmill.runtime.files.reading import open_dataset

    rows = open_dataset(examples, table).head(1, columns=["image_ids"]).to_pylist()
    return len(rows[0]["image_ids"]) if rows else 0


def count_examples(examples: str, table: str) -> int:
    """Returns the rows of a table. Raises InputError as `find_shards`."""
    import pyarrow.parquet as pq

    from vlmill.runtime.files.reading import find_shards
    from vlmill.schemas.tables import TABLES

    shards = find_shards(examples, TABLES[table], "--examples")
    return sum(pq.read_metadata(readable(shard)).num_rows for shard in shards)


def has_labels(examples: str) -> bool:
    """Returns whether a list of answers is next to the table."""
    return (to_path(examples) / LABELS_FILE).is_file()


def has_gpu() -> bool:
    """Returns whether a GPU is available. Imports torch."""
    import torch

    return torch.cuda.is_available()


def choose_recipe(
    task: str, variant: str, sizes: Mapping[str, Any], inputs: Collection[str]
) -> TaskRecipe:
    """Returns the task's recipe for a checkpoint: one that starts from ``variant``, reads only the
    given tables (``inputs``: their flags), and has the sizes nearest to ``sizes`` (the checkpoint's
    model).

    Raises InputError if no recipe starts from the variant.
    """
    candidates = TASKS[task].make_recipes()
    fitting = [recipe for recipe in candidates if variant in recipe.starts_from]
    if not fitting:
        raise InputError(
            f"TASK {task}: no recipe starts from {with_article(variant)}; there are "
            f"{', '.join(TASKS[task].recipes)}"
        )

    def rank(recipe: TaskRecipe) -> tuple[bool, float, int]:
        """Returns a sort key: missing inputs, difference in size, and hyphens in the name, so that
        ``vqa-vilbert-gqa`` comes after ``vqa-vilbert``.
        """
        distance = _distance(recipe.model, sizes)
        return _lacks_inputs(recipe, inputs), round(distance, 6), recipe.name.count("-")

    return min(fitting, key=rank)


def _lacks_inputs(recipe: TaskRecipe, inputs: Collection[str]) -> bool:
    feeds = [stage.feeding for stage in recipe.stages]
    lacks_images = any(feed.reads_images for feed in feeds) and "images" not in inputs
    lacks_regions = any(feed.reads_regions for feed in feeds) and not (
        {"regions", "annotated_regions"} & set(inputs)
    )
    return lacks_images or lacks_regions


def _distance(model: Any, sizes: Mapping[str, Any]) -> float:
    """Returns the sum of logarithms of the ratios between a model's sizes and a checkpoint's."""
    expected, actual = (
        _collect_sizes(flatten(to_plain(model))),
        _collect_sizes(flatten(dict(sizes))),
    )
    common = expected.keys() & actual.keys()
    return sum(abs(math.log(expected[name] / actual[name])) for name in common)


def _collect_sizes(fields: Mapping[str, Any]) -> dict[str, int]:
    """Returns the sizes by their last names; of several the first (the trunk's)."""
    sizes: dict[str, int] = {}
    for name, value in fields.items():
        last = name.rpartition(".")[2]
        if last in SIZES and isinstance(value, int) and value > 0:
            sizes.setdefault(last, value)
    return sizes


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Describes the inputs that a recipe is fitted to: the rows of ``--examples``,
    the flags that are given, and whether a GPU is available.
    """

    rows: int
    inputs: Collection[str]
    has_gpu: bool


def fit_recipe(
    recipe: TaskRecipe, fit: Fit, given: Collection[str]
) -> tuple[TaskRecipe, list[str]]:
    """Returns the recipe fitted to the data, and a text for each field that it changes.

    ``given``: the paths of fields that the user has set, which are left as they are. Recipes that
    count in steps get at most `EPOCHS` epochs, and a batch is at most half of the rows. A run
    without validation gets `VALIDATIONS` of them, for which examples are held out.
    """
    (stage,) = recipe.stages
    changes: dict[str, Any] = {}

    def change(path: str, old: Any, new: Any, reason: str) -> Any:
        if path.removeprefix("stages.0.") in given or path in given or old == new:
            return old
        changes[path] = f"{path.removeprefix('stages.0.')}={new} ({reason})"
        return new

    batch = min(stage.batch_size, _largest_power_of_two(fit.rows // 2))
    reason = f"of {stage.batch_size}: {fit.rows} rows"
    batch = change("stages.0.batch_size", stage.batch_size, batch, reason)
    if batch % stage.accumulation:
        parts = change("stages.0.accumulation", stage.accumulation, 1, f"batch_size={batch}")
        stage = dataclasses.replace(stage, batch_size=batch, accumulation=parts)
    else:
        stage = dataclasses.replace(stage, batch_size=batch)
    if stage.steps and "epochs" not in given:
        fewer = max(FEWEST_STEPS, math.ceil(EPOCHS * stage.steps_of_epoch(fit.rows)))
        reason = f"of {stage.steps}: {EPOCHS} epochs, at least {FEWEST_STEPS} steps"
        steps = change("stages.0.steps", stage.steps, min(stage.steps, fewer), reason)
        stage = dataclasses.replace(stage, steps=steps)
    steps = stage.length(fit.rows)
    rising = stage.optimizer.warmup_steps
    if rising is not None and 2 * rising > steps:
        reason = f"of {rising}: {steps} steps; {stage.optimizer.warmup:g} of them"
        rising = change("stages.0.optimizer.warmup_steps", rising, None, reason)
        optimizer = dataclasses.replace(stage.optimizer, warmup_steps=rising)
        stage = dataclasses.replace(stage, optimizer=optimizer)
    fields: dict[str, Any] = {"stages": (stage,)}
    if recipe.precision == "fp16" and not fit.has_gpu:
        fields["precision"] = change("precision", "fp16", "no", "no GPU")
    if not recipe.validate_every and steps:
        every = max(1, math.ceil(steps / VALIDATIONS))
        reason = "validate_every=0 trains on all examples"
        fields["validate_every"] = change("validate_every", 0, every, reason)
    fields["settings"] = _fit_settings(recipe.settings, fit, change)
    return dataclasses.replace(recipe, **fields), list(changes.values())


def _fit_settings(settings: Any, fit: Fit, change: Any) -> Any:
    """Returns a task's own fields, fitted: nearest images need their table, and an answer of few
    examples fewer questions.
    """
    reads_nearest = getattr(settings, "nearest", False) and settings.negatives == "alignment"
    if reads_nearest and "negatives" not in fit.inputs:
        nearest = change("settings.nearest", True, False, "no --negatives")
        settings = dataclasses.replace(settings, nearest=nearest)
    if hasattr(settings, "min_questions") and "labels" not in fit.inputs:
        enough = max(1, min(settings.min_questions, fit.rows // ROWS_OF_ANSWER))
        count = change(
            "settings.min_questions",
            settings.min_questions,
            enough,
            f"of {settings.min_questions}: {fit.rows} rows",
        )
        settings = dataclasses.replace(settings, min_questions=count)
    return settings


def _largest_power_of_two(number: int) -> int:
    """Returns the largest power of two that is at most ``number``, at least 2."""
    return 1 << max(1, number.bit_length() - 1)
