"""The arms of the tasks with boxes: each is a small recipe, and its figures stand beside others."""

from __future__ import annotations

import pytest
from proof.box_arms import BOX_TASKS, FIGURES, box_arms
from proof.summary import lines_of
from proof.tables import ArmTables
from proof.task_arms import BLIND, TaskArm, task_recipe
from proof.task_runs import Line, box_inputs
from shell import KEYS

pytestmark = pytest.mark.nightly

STARTS = {"vilbert-small": "vilbert", "vl-bert-small": "vl-bert"}
TABLES = ArmTables(pairs="p", regions="r", images="i", boxes="b")


@pytest.mark.parametrize("arm", box_arms(), ids=lambda arm: arm.label)
def test_every_arm_is_a_small_recipe_and_reads_what_it_says(arm: TaskArm) -> None:
    recipe = task_recipe(arm, seed=3, steps=7)
    (stage,) = recipe.stages
    assert (recipe.seed, stage.steps, recipe.blind) == (3, 7, arm.name == BLIND)
    assert arm.task in BOX_TASKS and stage.batch_size <= 32 and not stage.feeding.flip
    assert arm.pretrained is None or STARTS[arm.pretrained] in recipe.starts_from
    tables = box_inputs(TABLES, stage.feeding)
    from_pixels = "pixels" in arm.name
    assert (tables["images"] == "i") is from_pixels
    own_boxes = arm.task == "vcr" and from_pixels
    assert tables["annotated_regions"] == (None if own_boxes else "b")


def test_figures_stand_beside_those_of_the_blind_model() -> None:
    def line(name: str, values: tuple[float, float]) -> Line:
        settings = {"task": "vcr", "name": name, "world": {}, "pairs": 60, "held_out": 12}
        metrics = dict(zip(FIGURES["vcr"], values, strict=True)) | {"vcr/test/q_a_n": 50}
        told = {"name": f"vcr/{name}/seed-0", "metrics": metrics, "cpu_minutes": 1.0}
        return told | {"device": "cpu", "settings": settings | {"seed": 0, "steps": 9}}

    ours, blind = line("vilbert", (0.7, 0.3)), line(BLIND, (0.25, 0.25))
    answers, reasons = lines_of(ours, [blind, ours])
    assert answers.keys() >= set(KEYS) and answers["name"].endswith("/vilbert/seed-0/vcr/q_a")
    assert answers["peer_value"] == 0.25 and answers["chance"] == 0.25 and answers["learned"]
    assert answers["examples"] == 50 and not reasons["learned"]
    assert [told["peer"] for told in lines_of(blind, [blind, ours])] == [None, None]
