"""The proof for tasks: its lines and what is missing; VQA of a small world is learnt."""

import json
from dataclasses import replace
from pathlib import Path

import learning_tasks
import pyarrow.parquet as pq
import pytest
from proof import text_arms
from proof.summary import lines_of
from proof.task_arms import BLIND, MARGIN, TaskArm, short_arms, task_recipe
from proof.task_runs import Line, finished
from shell import KEYS, read_lines

from vlmill.train.tasks.registry import task_recipe_named

pytestmark = pytest.mark.nightly

# Without pretraining on images, in as many steps as ViLBERT learns them in: RESULTS.md says so.
NOT_LEARNT = {"learning_tasks/nlvr2/vilbert-from-bert/seed-0/accuracy"}
ARMS, KINDS = ("vilbert", BLIND), ("accuracy", "colour")


def line(name: str, accuracy: float, **settings: object) -> Line:
    """A finished run that is right of colours alone."""
    world = {"task": "vqa", "name": name, "world": {}, "pairs": 60, "held_out": 12, "steps": 9}
    return {
        "name": f"vqa/{name}/seed-0",
        "metrics": {
            "vqa/test/accuracy": accuracy,
            "vqa/test/accuracy_n": 50,
            "vqa/test/accuracy_stderr": 0.01,
            "vqa/test/accuracy/question_type/colour": accuracy / 2,
            "vqa/test/accuracy/question_type/colour_n": 10,
            "vqa/test/accuracy/question_type/colour_stderr": 0.02,
            "vqa/test/accuracy/answer_type/other": accuracy,
            "vqa/test/soft_score": accuracy,
        },
        "cpu_minutes": 1.0,
        "device": "cpu",
        "settings": world | {"seed": 0} | settings,
    }


def test_answers_stand_beside_those_of_a_model_that_sees_no_image() -> None:
    ours, blind, other = line("vl-bert", 0.6), line(BLIND, 0.4), line(BLIND, 0.1, pairs=7)
    of_all, of_colours = lines_of(ours, [other, blind, ours])
    assert of_all.keys() >= set(KEYS)
    assert of_all["name"] == "learning_tasks/vqa/vl-bert/seed-0/accuracy"
    assert of_all["peer_value"] == 0.4 and of_all["questions"] == 50
    assert of_all["margin"] == pytest.approx(0.2) and of_all["learned"]
    assert of_colours["name"].endswith("/colour") and of_colours["questions"] == 10
    assert of_colours["margin"] == pytest.approx(0.1) and "learned" not in of_colours
    assert not lines_of(line("vlmo", 0.45), [blind])[0]["learned"]
    for alone in (lines_of(blind, [blind, ours]), lines_of(ours, [other])):
        assert [(told["peer"], told["ratio"]) for told in alone] == [(None, None)] * 2


def test_recall_stands_beside_chance() -> None:
    metrics = {"image_retrieval/r1": 0.5, "text_retrieval/r1": 0.1, "text_retrieval/r5": 0.7}
    ours = line("vilbert", 0.0, task="retrieval", held_out=20) | {"metrics": metrics}
    image, text = lines_of(ours, [ours])
    assert image["name"].endswith("/image_retrieval/r1") and text["name"].endswith("/r1")
    assert image["peer_value"] == 0.05 and image["ratio"] == 10 and image["learned"]
    assert text["margin"] == pytest.approx(0.05) and not text["learned"]


def test_texts_stand_beside_chance_and_statements_beside_a_blind_model() -> None:
    metrics = {"glue/test/mnli-m/accuracy": 0.5, "glue/test/mnli-m/n": 30}
    ours = line("bert-entailment", 0.0, task="glue") | {"metrics": metrics}
    (told,) = lines_of(ours, [ours])
    assert told["peer"] == "chance" and told["margin"] == pytest.approx(1 / 6) and told["learned"]
    right = {"nlvr2/test/accuracy": 0.7, "nlvr2/test/consistency": 0.6}
    ours = line("vilbert", 0.0, task="nlvr2") | {"metrics": right}
    blind = line(BLIND, 0.0, task="nlvr2") | {"metrics": dict.fromkeys(right, 0.5)}
    accuracy, consistency = lines_of(ours, [line(BLIND, 0.9), blind, ours])
    assert accuracy["peer_value"] == 0.5 and accuracy["learned"]
    assert consistency["name"].endswith("/consistency") and "learned" not in consistency


def test_a_seed_is_compared_with_the_blind_one_of_its_own() -> None:
    ours = line("vilbert", 0.6, seed=1)
    blind = [line(BLIND, 0.4), line(BLIND, 0.3, seed=1)]
    assert lines_of(ours, blind)[0]["peer_value"] == 0.3
    assert lines_of(ours, blind[:1])[0]["peer_value"] == 0.4


@pytest.mark.parametrize(
    "arm", [*learning_tasks.full_arms(), *short_arms()], ids=lambda arm: arm.label
)
def test_every_arm_is_a_small_recipe_that_starts_from_its_checkpoint(arm: TaskArm) -> None:
    recipe = task_recipe(arm, seed=3, steps=7)
    (stage,) = recipe.stages
    assert (recipe.seed, stage.steps, stage.epochs, recipe.precision) == (3, 7, None, "no")
    assert recipe.blind is (arm.name == BLIND)
    assert not stage.optimizer.drops and stage.batch_size <= 64
    starts = {"vilbert-small": "vilbert", "vl-bert-small": "vl-bert", "vlmo-small": "vlmo"}
    starts |= {f"{name}-small": name for name in ("bert", "interbert", "imagebert")}
    assert arm.pretrained is None or starts[arm.pretrained] in recipe.starts_from
    assert arm.label.startswith(task_recipe_named(arm.recipe).task)


def test_what_is_missing_is_listed_and_nothing_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--output", str(tmp_path / "out"), "--results", str(tmp_path / "results"), "--list"]
    assert learning_tasks.main(flags) == 0
    assert capsys.readouterr().out.split() == [
        *("missing", "vqa/vilbert/seed-0"),
        *("missing", "vqa/blind/seed-0"),
    ]
    assert not any(tmp_path.iterdir())
    for wrong in (["--arms", "vqa/blinded"], ["--seeds", "0,0"], ["--seeds", "-1"]):
        assert learning_tasks.main([*flags, *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_every_committed_line_is_of_an_arm_that_stands() -> None:
    lines = read_lines(learning_tasks.COMMITTED)
    form = learning_tasks.forms()[True]
    jobs = learning_tasks.jobs_of(form, None, [0, 1, 2], Path("nowhere"))
    known = [found for job in jobs if (found := finished(job, lines)) is not None]
    assert len(known) == len(lines) > 0
    margins = {
        figure["name"]: figure["margin"]
        for told in lines
        for figure in lines_of(told, lines)
        if "learned" in figure
    }
    assert {name for name, margin in margins.items() if margin < MARGIN} == NOT_LEARNT


def test_relations_are_learnt_by_more_than_boxes_tell() -> None:
    boxes_alone, name = 0.5, "relation/test/accuracy"  # as the test of the expressions counts it
    lines = {told["name"]: told["metrics"] for told in read_lines(learning_tasks.COMMITTED)}
    assert lines["refcoco/blind/seed-0"][name] <= boxes_alone + MARGIN
    for arm in ("vl-bert", "vl-bert-from-pixels"):
        assert lines[f"refcoco/{arm}/seed-0"][name] >= boxes_alone + MARGIN


def test_a_table_holds_the_statements_of_one_task(tmp_path: Path) -> None:
    world = learning_tasks.forms()[False].world
    for task, sources in (("nlvr2", {"nlvr2"}), ("glue", {"glue/mnli", "glue/sst-2"})):
        text_arms.write_statements(tmp_path / task, world, task, pairs=8, held_out=4)
        rows = pq.read_table(tmp_path / task)
        assert set(rows.column("source").to_pylist()) == sources


def test_vqa_of_a_small_world_is_learnt_and_not_from_the_questions_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--output", str(tmp_path), "--jobs", "1"]
    assert learning_tasks.main(flags) == 0
    printed = [json.loads(told) for told in capsys.readouterr().out.splitlines()]
    right = {told["name"].removeprefix("learning_tasks/vqa/"): told["value"] for told in printed}
    seen, blind = ({kind: right[f"{arm}/seed-0/{kind}"] for kind in KINDS} for arm in ARMS)
    assert seen["accuracy"] >= blind["accuracy"] + MARGIN / 2  # relations come later
    assert seen["colour"] >= blind["colour"] + MARGIN
    monkeypatch.setattr("proof.task_runs.finetune", None)  # the kept figures are enough
    assert learning_tasks.main(flags) == 0
    again = [json.loads(told) for told in capsys.readouterr().out.splitlines()]
    assert [told["value"] for told in again] == [told["value"] for told in printed]


@pytest.mark.long
def test_every_arm_goes_from_pretraining_to_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short, full = learning_tasks.forms().values()
    arms = tuple(replace(arm, steps=1, seeds=(0,)) for arm in full.arms)
    tiny = replace(full, arms=arms, pairs=40, held_out=6)
    monkeypatch.setattr(learning_tasks, "forms", lambda: {False: tiny, True: short})
    monkeypatch.setattr("proof.task_runs.PRETRAINING_STEPS", 1)
    assert learning_tasks.main(["--output", str(tmp_path), "--jobs", "1"]) == 0
    printed = [json.loads(told) for told in capsys.readouterr().out.splitlines()]
    names = {"/".join(told["name"].split("/")[1:3]) for told in printed}
    assert names == {arm.label for arm in arms}
    assert all(0 <= told["value"] <= 1 for told in printed)
