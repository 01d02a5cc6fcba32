"""The arms of two-picture statements and of texts alone, their tables and their evaluation."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proof.task_arms import BLIND, FROM_BERT, TaskArm
from worlds import Split, World, make_scenes
from worlds.statements import statement_rows

from vlmill.schemas.files.shards import write_shard
from vlmill.schemas.tables import STATEMENTS
from vlmill.train.tasks.evaluating.job import evaluate_task
from vlmill.train.tasks.evaluating.opened import EvaluationOptions

SPLIT = "test"
TASKS = ("nlvr2", "glue")
FOLDER = "statements"
# By chance, as each label has as many rows.
CHANCE = {"glue/test/mnli-m/accuracy": 1 / 3, "glue/test/sst-2/accuracy": 1 / 2}
HEADLINES = ("nlvr2/test/accuracy", *CHANCE)
SHARES = (*HEADLINES, "nlvr2/test/consistency")
VILBERT, INTERBERT, VLMO = (f"nlvr2-{name}-small" for name in ("vilbert", "interbert", "vlmo"))


def text_arms() -> tuple[TaskArm, ...]:
    """NLVR2 with every head, from pretraining and from BERT, and blind; texts with every model,
    beside a BERT of the same captions.
    """
    return (
        nlvr2_arm("vilbert", VILBERT, "vilbert-small"),
        # From BERT alone: without a picture it makes no difference.
        nlvr2_arm(BLIND, VILBERT, "bert-small", (*FROM_BERT, "blind=true")),
        nlvr2_arm("interbert", INTERBERT, "interbert-small"),
        nlvr2_arm("vilbert-from-bert", VILBERT, "bert-small", FROM_BERT),
        nlvr2_arm("vlmo", VLMO, "vlmo-small"),
        glue_arm("bert-entailment", "glue-bert-small", "bert-small", "mnli"),
        glue_arm("interbert-entailment", "glue-interbert-small", "interbert-small", "mnli"),
        glue_arm(
            "interbert-from-bert-entailment",
            "glue-interbert-small",
            "bert-small",
            "mnli",
            FROM_BERT,
        ),
        glue_arm("vlmo-entailment", "glue-vlmo-small", "vlmo-small", "mnli"),
        glue_arm("bert-warmth", "glue-bert-small", "bert-small", "sst-2"),
        glue_arm("interbert-warmth", "glue-interbert-small", "interbert-small", "sst-2"),
    )


def nlvr2_arm(
    name: str, recipe: str, pretrained: str, changes: tuple[str, ...] = (), *, steps: int = 1_500
) -> TaskArm:
    """An arm with 32 statements a step: after 500 steps of 16 ViLBERT's loss is that of chance."""
    return TaskArm(
        task="nlvr2",
        name=name,
        recipe=recipe,
        pretrained=pretrained,
        changes=(*changes, "batch_size=32"),
        steps=steps,
    )


def glue_arm(
    name: str, recipe: str, pretrained: str, task: str, changes: tuple[str, ...] = ()
) -> TaskArm:
    """An arm with 32 texts a step."""
    return TaskArm(
        task="glue",
        name=name,
        recipe=recipe,
        pretrained=pretrained,
        changes=(*changes, f"settings.task={task}", "batch_size=32"),
        steps=500,
    )


def write_statements(folder: Path, world: World, task: str, *, pairs: int, held_out: int) -> None:
    """Writes the task's rows on the world's scenes, if they are not there.

    A table holds those of one task: NLVR2's evaluation refuses texts without pictures.
    """
    if any(folder.glob(f"{STATEMENTS.name}-*.parquet")):
        return
    counts: tuple[tuple[Split, int], ...] = (("train", pairs), ("test", held_out))
    rows = [
        dict.fromkeys(STATEMENTS.schema.names) | row
        for split, count in counts
        for row in statement_rows(world, split, make_scenes(world, split, count))
        if row["source"].partition("/")[0] == task
    ]
    write_shard(folder, STATEMENTS, rows)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What is evaluated, on which tables, and where to."""

    task: str
    checkpoint: Path
    examples: str
    output: Path
    device: str


def evaluate_statements(
    what: Evaluation, tables: Mapping[str, str | None]
) -> dict[str, float | None]:
    """The official metrics of the held-out statements."""
    options = EvaluationOptions(
        task=what.task,
        checkpoint=what.checkpoint,
        examples=what.examples,
        split=SPLIT,
        output=what.output,
        device=what.device,
        fresh=True,
        regions=tables["regions"],
        images=tables["images"],
    )
    evaluate_task(options)
    metrics: dict[str, Any] = json.loads((what.output / "metrics.json").read_text("utf-8"))
    return {name: value for name, value in metrics.items() if name.startswith(f"{what.task}/")}
