"""Defines the runs of two-image statements and of texts alone, and their tables."""

from functools import partial
from pathlib import Path

from proof.task_arms import BLIND, FROM_BERT, TaskArm, small_arm
from worlds import Split, World, make_scenes
from worlds.statements import statement_rows

from vlmill.runtime.files.shards import write_shard
from vlmill.schemas.tables import STATEMENTS

TASKS = ("nlvr2", "glue")
FOLDER = "statements"
# By chance, as each label has as many rows.
CHANCE = {"glue/test/mnli-m/accuracy": 1 / 3, "glue/test/sst-2/accuracy": 1 / 2}
HEADLINES = ("nlvr2/test/accuracy", *CHANCE)
SHARES = (*HEADLINES, "nlvr2/test/consistency")
ENTAILMENT, WARMTH = "mnli", "sst-2"
GLUE_STEPS = {ENTAILMENT: 1_500, WARMTH: 500}
VILBERT, INTERBERT, VLMO = (f"nlvr2-{name}-small" for name in ("vilbert", "interbert", "vlmo"))


def text_arms() -> tuple[TaskArm, ...]:
    """NLVR2 with every head, from pretraining and from BERT, and blind; texts with every model,
    beside a BERT of the same captions.
    """
    return (
        nlvr2_arm("vilbert", VILBERT, "vilbert-small"),
        # From BERT alone: without an image it makes no difference.
        nlvr2_arm(BLIND, VILBERT, "bert-small", (*FROM_BERT, "blind=true")),
        nlvr2_arm("interbert", INTERBERT, "interbert-small"),
        nlvr2_arm("vilbert-from-bert", VILBERT, "bert-small", FROM_BERT),
        nlvr2_arm("vlmo", VLMO, "vlmo-small"),
        glue_arm("bert-entailment", "glue-bert-small", "bert-small", ENTAILMENT),
        glue_arm("interbert-entailment", "glue-interbert-small", "interbert-small", ENTAILMENT),
        glue_arm(
            "interbert-from-bert-entailment",
            "glue-interbert-small",
            "bert-small",
            ENTAILMENT,
            FROM_BERT,
        ),
        glue_arm("vlmo-entailment", "glue-vlmo-small", "vlmo-small", ENTAILMENT),
        glue_arm("bert-warmth", "glue-bert-small", "bert-small", WARMTH),
        glue_arm("interbert-warmth", "glue-interbert-small", "interbert-small", WARMTH),
    )


# After 500 steps of 16 ViLBERT's loss is that of chance.
nlvr2_arm = partial(small_arm, "nlvr2", steps=1_500)


def glue_arm(
    name: str, recipe: str, pretrained: str, task: str, changes: tuple[str, ...] = ()
) -> TaskArm:
    """An arm of texts alone: which sentence follows from which comes after hundreds of steps."""
    changes = (*changes, f"settings.task={task}")
    return small_arm("glue", name, recipe, pretrained, changes, steps=GLUE_STEPS[task])


def write_statements(folder: Path, world: World, task: str, *, pairs: int, held_out: int) -> None:
    """Writes the task's rows on the world's scenes, if they are not there.

    A table holds those of one task: NLVR2's evaluation refuses texts without images.
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
