"""Which pairs are trained on and which validated on: by names, by a stage's word, by a hash."""

import dataclasses

import numpy as np
import pytest

from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import key64
from vlmill.train.loading.store.splits import (
    FOR_TRAINING,
    Rows,
    SplitPlan,
    describe_plan,
    holdout_threshold,
    plan_splits,
    unit_key,
)
from vlmill.train.recipes import Recipe, change_recipe

TABLE = {None: 3, "train": 5, "Val": 2, "testA": 1}


def planned(recipe: Recipe, *changes: str, table: dict[str | None, int] | None = None) -> SplitPlan:
    return plan_splits(change_recipe(recipe, changes), TABLE if table is None else table)


def two_stages(recipe: Recipe, *changes: str) -> Recipe:
    stages = (recipe.stages[0], dataclasses.replace(recipe.stages[0], name="second"))
    return change_recipe(dataclasses.replace(recipe, stages=stages), changes)


def test_names_decide_whatever_their_case(recipe: Recipe) -> None:
    plan = planned(recipe)
    assert plan.training == (frozenset({None, "train"}),)
    assert plan.validation == (frozenset({"Val"}),)
    assert not plan.draws
    learnt, measured, left = describe_plan(plan, TABLE).split("; ")
    assert learnt == "splits: trains on null (3), train (5)"
    assert (measured, left) == ("keeps for validation Val (2)", "leaves out testA (1)")


def test_a_stage_names_what_it_trains_on_and_validates_on(recipe: Recipe) -> None:
    plan = planned(recipe, "train_splits=[train, VAL]")
    assert plan.training == (frozenset({None, "train", "Val"}),)
    assert plan.validation == (frozenset(),)  # what is trained on measures nothing
    plan = planned(recipe, "validation_splits=[testa]")
    assert plan.trained == {None, "train"} and plan.validated == {"testA"}
    plan = planned(recipe, "train_splits=[testA]", "validation_splits=[train]")
    assert plan.trained == {"testA"} and plan.validated == {None, "train"}


def test_what_one_stage_names_no_other_uses_otherwise(recipe: Recipe) -> None:
    both = two_stages(recipe, "stages.0.train_splits=[train,val]")
    assert plan_splits(both, TABLE).validation == (frozenset(), frozenset())
    both = two_stages(recipe, "stages.1.validation_splits=[train]")
    assert plan_splits(both, {"train": 1, "trainval": 1}).training == (frozenset({"trainval"}),) * 2
    with pytest.raises(InputError, match="train_splits and validation_splits both name val"):
        two_stages(recipe, "stages.0.train_splits=[Val]", "stages.1.validation_splits=[val]")


def test_unknown_and_absent_names_stop_the_run(recipe: Recipe) -> None:
    with pytest.raises(InputError, match=r"--pairs: the split 'eval', 'tset' is neither"):
        planned(recipe, table={"train": 1, "eval": 1, "tset": 1})
    with pytest.raises(
        InputError, match=r"stages\.0\.train_splits: --pairs has no split minival \("
    ):
        planned(recipe, "train_splits=[train,minival]")
    named = planned(recipe, "train_splits=[mine]", table={"mine": 1, "eval": 1})
    assert named.trained == {"mine"} and named.validated == set()
    named = planned(recipe, "validation_splits=[eval]", table={"train": 1, "eval": 1})
    assert named.trained == {"train"} and named.validated == {"eval"}


def test_images_are_drawn_only_where_the_recipe_validates_and_no_split_is_for_it(
    recipe: Recipe,
) -> None:
    without: dict[str | None, int] = {"train": 5, "test": 2}
    assert not planned(recipe, table=without).draws
    plan = planned(recipe, "validate_every=1", table=without)
    assert plan.draws and plan.training == plan.validation == (frozenset({"train"}),)
    assert describe_plan(plan, without) == "splits: trains on train (5); leaves out test (2)"
    assert not planned(recipe, "validate_every=1").draws


@pytest.mark.parametrize(
    ("images", "share"), [(0, 0), (1, 0), (2, 1), (59, 5), (700, 70), (2_000, 100), (30_000, 300)]
)
def test_so_many_images_are_drawn(images: int, share: int) -> None:
    keys = np.array([key64(str(i)) for i in range(images)] * 2, np.uint64)  # two captions each
    assert np.count_nonzero(np.unique(keys) < holdout_threshold(keys)) == share


def test_no_more_than_some_thousands_are_drawn() -> None:
    keys = np.arange(1_000_000, dtype=np.uint64)
    assert holdout_threshold(keys) == 5_000


def test_rows_are_chosen_by_split_and_by_the_hash_of_their_image() -> None:
    row = {"pair_id": "p", "image_id": "i", "split": None}
    assert unit_key(row) == unit_key({**row, "pair_id": "q"}) == key64("i")
    assert unit_key({**row, "image_id": None}) == key64("p")
    assert FOR_TRAINING.has(row) and not FOR_TRAINING.has({**row, "split": "Test"})
    assert not Rows(splits=frozenset({"train"})).has(row)
    assert Rows(splits=frozenset({None}), first=key64("i")).has(row)
    assert not Rows(splits=frozenset({None}), end=key64("i")).has(row)
