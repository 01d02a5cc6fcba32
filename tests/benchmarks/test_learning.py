"""The learning proof's arms, figures and tables, and a run of it on a handful of pairs."""

import json
from dataclasses import replace
from pathlib import Path

import learning
import pytest
from proof.arms import BARS, MARGINS, Arm, ablation_arms, base_arms, recipe_of
from proof.runs import train_minutes
from proof.summary import Spread, difference, probe_lines, retrieval_lines, table
from shell import KEYS
from worlds import NOISY

from vlmill.train.recipes import recipe_named

pytestmark = pytest.mark.nightly

RUN = {
    "name": "imagebert-small/base/seed-0",
    "recipe": "imagebert-small",
    "arm": "base",
    "seed": 0,
    "steps": 9,
    "pairs": 60,
    "held_out": 12,
    "minutes": 1.5,
    "cpu_minutes": None,
    "device": "cpu",
    "image_retrieval/r1": 0.5,
    "text_retrieval/r1": 0.25,
    "words/colour/own_picture": 0.9,
    "words/colour/other_picture": 0.2,
    "words/colour/seen": 0.7,
    "words/colour/asked": 40,
    "regions/class/own_caption": 0.6,
    "regions/class/no_caption": 0.1,
    "regions/class/other_caption": 0.2,
    "regions/class/asked": 30,
}
R1 = {f"{direction}_retrieval/r1": 0.25 for direction in ("image", "text")}
ORACLES = {
    "colours": R1 | {f"{name}_expected": 0.55 for name in R1},
    "shapes": R1,
    "things": dict.fromkeys(R1, 0.95),
    "everything": dict.fromkeys(R1, 1.0),
}


def test_every_arm_is_a_recipe_of_its_own() -> None:
    arms = (*base_arms(tuple(MARGINS)), *ablation_arms())
    recipes = {(arm.recipe, arm.name): recipe_of(arm, seed=1, steps=7) for arm in arms}
    assert len({(a.recipe, a.name) for a in ablation_arms()}) == len(ablation_arms())
    assert {recipe.seed for recipe in recipes.values()} == {1}
    for (name, arm), recipe in recipes.items():
        base = recipe_named(name).stages[0]
        changed = arm == "from-bert" or recipe.stages[-1] != base or len(recipe.stages) > 1
        assert changed and recipe.variant == recipe_named(name).variant, arm
    first, second = recipes["imagebert-small", "stage-1"].stages
    assert first.sources == (NOISY,) and (first.steps, second.steps) == (3, 4)
    assert recipes["interbert-small", "mixed"].stages[0].steps == 7
    assert recipe_of(Arm(recipe="vilbert-small"), seed=0).stages[0].steps


def test_r1_stands_beside_what_colours_alone_would_give() -> None:
    image, text = retrieval_lines(RUN, ORACLES)
    assert image["margin"] == 0.25 and image["learned"] and image["ratio"] == 2.0
    assert image["margin_to_expected"] == pytest.approx(-0.05)
    assert image["fraction_of_limit"] == 0.5 and image["bag_of_things"] == 0.95
    assert text["margin"] == 0.0 and not text["learned"]


def test_an_hour_has_a_bar_of_its_own() -> None:
    for reached, learned in ((0.91, False), (0.92, True)):
        run = RUN | {"recipe": "imagebert-hour", "image_retrieval/r1": reached}
        image, text = retrieval_lines(run, ORACLES)
        assert image["learned"] is learned and not text["learned"]
        assert image["margin_wanted"] == pytest.approx(0.92 - image["peer_value"])


@pytest.mark.parametrize("name", [name for name in BARS if name != "vlmo-hour"])
def test_an_hour_is_a_small_recipe_with_more_steps(name: str) -> None:
    hour, small = recipe_named(name), recipe_named(name.replace("-hour", "-small"))
    (stage,), (base,) = hour.stages, small.stages
    assert stage.steps and base.steps and stage.steps >= 3 * base.steps
    assert replace(stage, steps=base.steps) == base
    assert replace(hour, name=small.name, about=small.about, stages=small.stages) == small


def test_an_hour_of_vlmo_is_a_dual_encoder() -> None:
    """It learns by contrast alone, and has no head that nothing trains."""
    recipe = recipe_named("vlmo-hour")
    weights = recipe.stages[0].objectives
    assert (weights.itc, weights.itm, weights.mlm) == (1, 0, 0)
    assert recipe.model.contrast and not (recipe.model.match or recipe.model.mlm)


def test_probes_stand_beside_another_image_and_no_caption() -> None:
    words, things = probe_lines(RUN)
    assert words["name"] == "learning/imagebert-small/base/seed-0/words/colour"
    assert (words["value"], words["peer_value"], words["asked"]) == (0.9, 0.2, 40)
    assert words["difference"] == pytest.approx(0.7)
    assert things["peer"] == "no caption" and things["other_caption"] == 0.2


def test_spreads_by_hand() -> None:
    one, other = Spread.of([0.1, 0.2, 0.3]), Spread.of([0.5, 0.5])
    assert one.mean == pytest.approx(0.2) and one.deviation == pytest.approx(0.1)
    assert str(one) == "0.200 ± 0.100" and str(Spread.of([0.5])) == "0.500"
    assert difference(other, one).deviation == pytest.approx(0.1 / 3**0.5)
    assert difference(other, Spread.of([1.0])).deviation is None


def test_an_arm_is_compared_with_the_base_of_its_recipe() -> None:
    other = RUN | {"arm": "masked-groups", "image_retrieval/r1": 0.4}
    lines = table([RUN, RUN | {"seed": 1, "image_retrieval/r1": 0.7}, other, other]).splitlines()
    assert lines[0].startswith("| run | seeds | image R@1 | text R@1 | colour seen |")
    assert lines[2].startswith("| imagebert-small, base | 2 | 0.600 ± 0.141 | 0.250 ± 0.000 |")
    assert lines[4].startswith("| … from base | | -0.200 ± 0.100 | +0.000 ± 0.000 |  |")


def test_minutes_come_from_the_rates_of_a_log() -> None:
    lines = [
        {"step": 1, "stage": "a", "samples_per_second": 1.0},
        {"step": 3, "stage": "a", "samples_per_second": 2.0},
        {"step": 4, "stage": "b", "samples_per_second": 4.0},
    ]
    assert train_minutes(lines, {"a": 30, "b": 120}) == pytest.approx((30 + 30 + 30) / 60)
    assert train_minutes([], {}) == 0


def test_a_finished_run_is_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--pairs", "12", "--held-out", "4", "--steps", "1", "--jobs", "1"]
    flags += ["--variants", "imagebert-small", "--output", str(tmp_path)]
    assert learning.main(flags) == 0
    printed = capsys.readouterr().out
    lines = [json.loads(line) for line in printed.splitlines()]
    assert all(line.keys() >= set(KEYS) for line in lines)
    assert [line["name"].rpartition("seed-0/")[2] for line in lines] == [
        "image_retrieval/r1",
        "text_retrieval/r1",
        "words/colour",
        "words/shape",
        "words/relation",
        "regions/class",
    ]
    assert "imagebert-small, base" in (tmp_path / "table.md").read_text()
    monkeypatch.setattr("proof.runs.pretrain", None)  # the kept figures are enough
    assert learning.main(flags) == 0
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("flag", "value"), [("--held-out", "1"), ("--pairs", "1"), ("--steps", "0")]
)
def test_a_count_that_is_too_small_is_told_in_one_line(
    flag: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        learning.main([flag, value, "--output", str(tmp_path / "out")])
    assert stopped.value.code == 2 and capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "flags",
    [
        ["--variants", "bert-small"],
        ["--arms", "stage-1"],
        ["--ablations", "--arms", "stage-3"],
        ["--seeds", "0,0"],
    ],
)
def test_a_mistake_is_told_in_one_line(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert learning.main([*flags, "--output", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()
