"""``--init`` and ``--examples`` choose a recipe, which is fitted to the data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.train.tasks.statements import statement, write_statements

from vlmill.runtime.settings.plain_fields import to_plain
from vlmill.schemas.errors import InputError
from vlmill.train.recipes import recipe_named
from vlmill.train.tasks.finetuning.choice import (
    FEWEST_STEPS,
    Fit,
    choose_recipe,
    count_examples,
    find_task,
    fit_recipe,
)
from vlmill.train.tasks.registry import task_recipe_named

if TYPE_CHECKING:
    from tests.factories import Tables

SMALL = Fit(rows=60, inputs=("images",), has_gpu=False)


@pytest.mark.parametrize(
    ("task", "pretrained", "inputs", "chosen"),
    [
        ("vqa", "vilbert-small", ["regions"], "vqa-vilbert-small"),
        ("vqa", "vilbert", ["regions"], "vqa-vilbert"),
        ("vqa", "vl-bert", ["regions"], "vqa-vl-bert"),
        ("vqa", "vlmo-small", ["images"], "vqa-vlmo-small"),
        ("vqa", "vlmo-large", ["images"], "vqa-vlmo-large"),
        ("vqa", "bert-base", ["regions"], "vqa-vilbert-from-bert"),
        ("retrieval", "vlmo-base", ["images"], "retrieval-vlmo-base-coco"),
        ("retrieval", "vlmo-small", ["images"], "retrieval-vlmo-small"),
        ("retrieval", "imagebert-small", ["regions"], "retrieval-imagebert-small"),
        ("glue", "bert-small", [], "glue-bert-small"),
    ],
)
def test_variant_and_size_choose_the_recipe(
    task: str, pretrained: str, inputs: list[str], chosen: str
) -> None:
    recipe = recipe_named(pretrained)
    sizes = to_plain(recipe.model)
    assert choose_recipe(task, recipe.variant, sizes, inputs).name == chosen


def test_a_variant_without_a_recipe_is_refused() -> None:
    with pytest.raises(InputError, match="no recipe starts from a beit"):
        choose_recipe("vqa", "beit", {}, [])


def test_a_published_recipe_is_fitted_to_sixty_rows() -> None:
    recipe = task_recipe_named("retrieval-vlmo-base-coco")
    fitted, told = fit_recipe(recipe, SMALL, given=())
    (stage,) = fitted.stages
    assert (stage.batch_size, stage.steps, stage.accumulation) == (16, FEWEST_STEPS, 1)
    assert (fitted.precision, fitted.validate_every) == ("no", 20)
    assert "batch_size=16 (of 3072: 60 rows)" in told and "precision=no (no GPU)" in told
    assert fitted.name == recipe.name and fitted.model == recipe.model


def test_what_the_user_sets_stays() -> None:
    recipe = task_recipe_named("retrieval-vlmo-base-coco")
    given = (
        "batch_size",
        "stages.0.steps",
        "validate_every",
        "precision",
        "optimizer.warmup_steps",
    )
    fitted, told = fit_recipe(recipe, SMALL, given=given)
    assert fitted == recipe and not told


def test_as_much_data_as_the_paper_had_leaves_the_paper_recipe() -> None:
    recipe = task_recipe_named("retrieval-vlmo-base-coco")
    fit = Fit(rows=566_747, inputs=("images",), has_gpu=True)
    fitted, told = fit_recipe(recipe, fit, given=("validate_every",))
    assert fitted == recipe and not told


def test_steps_follow_from_rows_up_to_those_of_the_recipe() -> None:
    recipe = task_recipe_named("vqa-vilbert-small")
    steps = {}
    for rows in (60, 400, 100_000):
        fit = Fit(rows=rows, inputs=("regions",), has_gpu=False)
        fitted, _ = fit_recipe(recipe, fit, given=())
        steps[rows] = fitted.stages[0].length(rows)
    assert recipe.stages[0].batch_size == 64 and recipe.stages[0].epoch_steps == "ceil"
    assert steps == {60: FEWEST_STEPS, 400: 20 * 7, 100_000: 600}


def test_few_questions_need_few_of_each_answer() -> None:
    recipe = task_recipe_named("vqa-vilbert-small")
    fitted, _ = fit_recipe(recipe, SMALL, given=())
    assert fitted.settings.min_questions == 1
    listed = Fit(rows=60, inputs=("regions", "labels"), has_gpu=False)
    assert fit_recipe(recipe, listed, given=())[0].settings == recipe.settings


def test_nearest_images_are_read_where_they_are_given() -> None:
    recipe = task_recipe_named("retrieval-vilbert")
    fits = [
        Fit(rows=29_000, inputs=inputs, has_gpu=True)
        for inputs in (("regions",), ("regions", "negatives"))
    ]
    assert [fit_recipe(recipe, fit, ())[0].settings.nearest for fit in fits] == [False, True]


def test_the_table_names_the_task(tables: Tables, tmp_path: Path) -> None:
    tables.write(5)
    assert find_task(tables.pairs) == "retrieval" and count_examples(tables.pairs, "pairs") == 5
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="expected a table that `manifest` wrote"):
        find_task(str(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("columns", "task"),
    [({}, "nlvr2"), ({"image_ids": ["a"]}, "entailment"), ({"image_ids": []}, "glue")],
)
def test_the_images_of_a_statement_name_the_task(
    columns: dict[str, object], task: str, tmp_path: Path
) -> None:
    assert find_task(write_statements(tmp_path, [statement(0, **columns)])) == task


def test_statements_about_three_images_need_the_task(tmp_path: Path) -> None:
    examples = write_statements(tmp_path, [statement(0, image_ids=["a", "b", "c"])])
    with pytest.raises(InputError, match="holds statements, which entailment and glue and nlvr2"):
        find_task(examples)
