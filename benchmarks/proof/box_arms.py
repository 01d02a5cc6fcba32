"""Defines the runs of tasks with boxes: referring expressions, and four choices with tags."""

from collections.abc import Mapping

from proof.task_arms import BLIND, TaskArm
from worlds.expressions import ATTRIBUTE, RELATION

BOX_TASKS = ("refcoco", "vcr")
# The metrics that are told of each, the first the headline; and what chance gives of VCR's.
FIGURES: Mapping[str, tuple[str, ...]] = {
    "refcoco": tuple(f"{kind}/test/accuracy" for kind in (ATTRIBUTE, RELATION)),
    "vcr": ("vcr/test/q_a", "vcr/test/qa_r"),
}
CHANCE: Mapping[str, float | None] = {"refcoco": None, "vcr": 0.25}
STEPS: Mapping[str, int] = {"refcoco": 2_250, "vcr": 1_800}
# Shapes are none of COCO's categories.
NO_CATEGORIES = ("settings.regions=none",)
FEWER = ("batch_size=16",)  # questions, of four texts each
# The paper's loss. By the released one, of each choice alone, VL-BERT learns where a thing stands
# to 0.41 in as many steps, by this to 0.92.
ONE_OF_FOUR = ("settings.loss=softmax",)
# Choices say where things stand: a mirrored image would make them wrong (the released code
# mirrors nonetheless).
UNMIRRORED = ("feeding.flip=0",)
CHOICES = (*FEWER, *NO_CATEGORIES, *ONE_OF_FOUR)


def box_arms() -> tuple[TaskArm, ...]:
    """Both tasks with both heads from regions, from pixels with drawn weights, and blind."""
    return (
        box_arm("refcoco", "vilbert", "refcoco-vilbert-small", "vilbert-small"),
        box_arm("refcoco", BLIND, "refcoco-vilbert-small", "vilbert-small", ("blind=true",)),
        box_arm("vcr", "vilbert", "vcr-vilbert-small", "vilbert-small", FEWER),
        box_arm("vcr", BLIND, "vcr-vilbert-small", "vilbert-small", (*FEWER, "blind=true")),
        box_arm("refcoco", "vl-bert", "refcoco-vl-bert-small", "vl-bert-small"),
        box_arm("vcr", "vl-bert", "vcr-vl-bert-small", "vl-bert-small", CHOICES),
        box_arm(
            "refcoco", "vl-bert-from-pixels", "refcoco-vl-bert-end-to-end-small", None, steps=600
        ),
        box_arm("vcr", "vl-bert-from-pixels", "vcr-vl-bert-end-to-end-small", None, CHOICES),
    )


def box_arm(
    task: str,
    name: str,
    recipe: str,
    pretrained: str | None,
    changes: tuple[str, ...] = (),
    steps: int | None = None,
) -> TaskArm:
    """An arm of a task with boxes, of so many ``steps`` or as many as the task's others."""
    usual = (*UNMIRRORED, *(("batch_size=32",) if task == "refcoco" else ()))
    return TaskArm(
        task=task,
        name=name,
        recipe=recipe,
        pretrained=pretrained,
        changes=(*usual, *changes),
        steps=steps or STEPS[task],
    )
