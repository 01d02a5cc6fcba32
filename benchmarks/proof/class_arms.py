"""Defines the runs of own labels and of statements about one image, and their tables.

Labels: which colours an image shows, several at once, without a text; a model that sees no image
can only learn how frequent each is. Statements: ``the ring is red`` of an image in which the only
ring is red (entailment) or has another colour (contradiction), or that has none (neutral); each
class has as many rows, and the statement alone says nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from proof.task_arms import BLIND, TaskArm, small_arm
from worlds import Split, World, make_scenes
from worlds.scenes import Scene
from worlds.statements import ENTAILMENT, hypotheses

from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.tables import LABELS, STATEMENTS

TASKS = ("classification", "entailment")
FOLDER = "classes"
HEADLINES = ("classification/test/mean_average_precision", "entailment/test/accuracy")
MODELS = ("vilbert", "vl-bert", "imagebert", "interbert", "vlmo")


def class_arms() -> tuple[TaskArm, ...]:
    """Both tasks with every model from pretraining, and with a blind ViLBERT."""
    arms = [class_arm(task, name, f"{name}-small", steps=600) for task in TASKS for name in MODELS]
    blind = ("blind=true",)
    arms += [
        class_arm(task, BLIND, "vilbert-small", blind, model="vilbert", steps=600) for task in TASKS
    ]
    return tuple(arms)


def short_class_arms() -> tuple[TaskArm, ...]:
    """ImageBERT and the blind model from drawn weights, with three seeds."""
    arms: list[TaskArm] = []
    for task, steps in zip(TASKS, SHORT_STEPS, strict=True):
        seen = class_arm(task, "imagebert", None, NARROW, model="imagebert", steps=steps)
        blind = replace(seen, name=BLIND, changes=("blind=true", *seen.changes))
        arms += [seen, blind]
    return tuple(arms)


SHORT_STEPS = (100, 400)  # colours are found soon, which thing has which colour late
NARROW = ("model.trunk.width=96", "model.trunk.intermediate_width=192", "model.trunk.num_layers=3")


def class_arm(
    task: str,
    name: str,
    pretrained: str | None,
    changes: tuple[str, ...] = (),
    *,
    steps: int,
    model: str = "",
) -> TaskArm:
    """An arm with three seeds."""
    recipe = f"{task}-{model or name}-small"
    return small_arm(task, name, recipe, pretrained, changes, steps=steps, seeds=(0, 1, 2))


def write_classes(folder: Path, world: World, task: str, *, pairs: int, held_out: int) -> None:
    """Writes the task's rows on the world's scenes, if they are not there."""
    table, rows_of = (LABELS, label_rows) if task == TASKS[0] else (STATEMENTS, statement_rows)
    if any(folder.glob(f"{table.name}-*.parquet")):
        return
    counts: tuple[tuple[Split, int], ...] = (("train", pairs), ("test", held_out))
    rows = [
        dict.fromkeys(table.schema.names) | row
        for split, count in counts
        for row in rows_of(world, split, make_scenes(world, split, count))
    ]
    write_shard(folder, table, rows)


def label_rows(world: World, split: Split, scenes: Sequence[Scene]) -> Iterator[dict[str, Any]]:
    """Yields the colours of each scene's things as labels."""
    numbers = {colour: number for number, colour in enumerate(world.colours)}
    for index, scene in enumerate(scenes):
        shown = sorted({numbers[thing.colour] for thing in scene.things})
        yield {
            "example_id": f"own/{split}-{index}",
            "image_ids": [f"world/{split}/{index:06d}"],
            "labels": [world.colours[number] for number in shown],
            "label_ids": shown,
            "split": split,
            "source": "own",
        }


def statement_rows(world: World, split: Split, scenes: Sequence[Scene]) -> Iterator[dict[str, Any]]:
    """Yields what follows from each scene, what may be, and what cannot."""
    for number, (index, label, text) in enumerate(hypotheses(world, split, scenes)):
        yield {
            "example_id": f"own/{split}-{number}",
            "image_ids": [f"world/{split}/{index:06d}"],
            "text_a": text,
            "label": ENTAILMENT[label],
            "label_id": label,
            "split": split,
            "source": "own",
        }
