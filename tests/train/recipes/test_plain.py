import dataclasses
from pathlib import Path

import pytest
import yaml

from vlmill.models import PRESETS, preset
from vlmill.runtime.settings.plain_fields import (
    SYNONYMS,
    flatten,
    from_plain,
    override,
    read_yaml,
    to_plain,
    to_yaml,
)
from vlmill.schemas.errors import InputError
from vlmill.train.recipes import RECIPES, Recipe, change_recipe, recipe_named
from vlmill.train.tasks.registry import task_recipe_named, task_recipes


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_comes_back_from_its_yaml(name: str, tmp_path: Path) -> None:
    recipe = recipe_named(name)
    (tmp_path / "recipe.yaml").write_text(to_yaml(recipe))
    assert from_plain(Recipe, read_yaml(tmp_path / "recipe.yaml")) == recipe


def test_the_published_recipe_has_the_papers_numbers() -> None:
    recipe = recipe_named("imagebert")
    assert [stage.sources for stage in recipe.stages] == [("lait",), ("cc", "sbu")]
    for stage in recipe.stages:
        assert (stage.batch_size, stage.epochs, stage.optimizer.lr) == (48, 17, 1e-4)
    assert dataclasses.astuple(recipe.model)[1:5] == (768, 12, 12, 3072)


def test_fields_of_the_only_stage_need_no_path() -> None:
    recipe = change_recipe(
        recipe_named("imagebert-small"),
        ["steps=7", "save_every=3", "optimizer.lr=3e-5", "stages.0.objectives.moc=0", "seed=4"],
    )
    stage = recipe.stages[0]
    assert (stage.steps, recipe.save_every, stage.optimizer.lr) == (7, 3, 3e-5)
    assert (stage.objectives.moc, recipe.seed) == (0.0, 4)


def test_a_mixture_comes_from_the_command_line_and_back_from_yaml(tmp_path: Path) -> None:
    mixture = "mixture=[{source: cc, weight: 0.5}, {source: vg, captions_per_picture: 5}]"
    recipe = change_recipe(recipe_named("imagebert-small"), [mixture, "share=0.25"])
    cc, vg = recipe.stages[0].mixture
    assert (cc.source, cc.weight, cc.captions_per_picture) == ("cc", 0.5, None)
    assert (vg.source, vg.weight, vg.captions_per_picture) == ("vg", 1.0, 5)
    (tmp_path / "recipe.yaml").write_text(to_yaml(recipe))
    assert from_plain(Recipe, read_yaml(tmp_path / "recipe.yaml")) == recipe
    assert change_recipe(recipe, ["stages.0.mixture.1.weight=2"]).stages[0].mixture[1].weight == 2


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["mixture=[{source: cc, weight: 0}]"], "weight=0"),
        (["mixture=[{source: cc, weight: 1001}]"], "at most 1000"),
        (["optimizer.lr=2", "optimizer.weight_decay=0.5"], "lr=2 times weight_decay=0.5: expected"),
        (["mixture=[{source: cc, captions_per_picture: 0}]"], "expected at least 1"),
        (["mixture=[{source: cc}, {source: cc}]"], "names cc twice"),
        (["mixture=[{source: vg}]", "sources=[cc]"], "mixture names vg, sources are cc"),
        (["mixture=[{weight: 2}]"], "source is missing"),
        (["share=0"], "share=0"),
        (["max_pairs=0"], "max_pairs=0"),
        (
            ["mixture=[{source: books, captions_per_picture: 2}]", "feeding.kind=text"],
            "texts without images",
        ),
    ],
)
def test_mixtures_and_shares_that_say_nothing_are_refused(
    assignments: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        change_recipe(recipe_named("imagebert-small"), assignments)


def test_members_of_a_list_are_counted_from_0() -> None:
    recipe = change_recipe(recipe_named("imagebert"), ["stages.1.steps=7", "stages.0.sources=[]"])
    assert (recipe.stages[1].steps, recipe.stages[0].sources) == (7, ())


@pytest.mark.parametrize("name", ["imagebert-small", "vilbert-hour"])
def test_epochs_replace_a_recipes_steps(name: str) -> None:
    (stage,) = change_recipe(recipe_named(name), ["epochs=2"]).stages
    assert (stage.steps, stage.epochs) == (None, 2.0)
    assert stage.length(pairs=96) == 2 * 96 // stage.batch_size
    (stage,) = change_recipe(recipe_named(name), ["stages.0.epochs=0"]).stages
    assert stage.length(pairs=96) == 0
    (stage,) = change_recipe(recipe_named(name), ["epochs=null"]).stages
    assert stage.steps == recipe_named(name).stages[0].steps  # nothing was given


def test_epochs_count_in_every_task_recipe() -> None:
    for make in task_recipes().values():
        (stage,) = change_recipe(make(), ["epochs=3", "epochs=2"]).stages
        assert (stage.steps, stage.epochs) == (None, 2.0)


def test_steps_replace_a_recipes_epochs_in_the_stage_that_they_name() -> None:
    first, second = recipe_named("imagebert").stages
    changed = change_recipe(recipe_named("imagebert"), ["stages.1.steps=7"]).stages
    assert (changed[0].steps, changed[0].epochs) == (None, first.epochs)
    assert second.epochs and (changed[1].steps, changed[1].epochs) == (7, None)


def test_a_stage_that_is_given_steps_and_epochs_is_refused_with_both(tmp_path: Path) -> None:
    both = "stage pairs has steps=600 and epochs=2; give one of them"
    with pytest.raises(InputError, match=both):
        change_recipe(recipe_named("imagebert-small"), ["epochs=2", "stages.0.steps=600"])
    plain = to_plain(recipe_named("imagebert-small"))
    plain["stages"][0] |= {"steps": 600, "epochs": 2}
    with pytest.raises(InputError, match=f"stages.0: {both}"):
        from_plain(Recipe, plain)
    recipe = change_recipe(recipe_named("imagebert-small"), ["epochs=2"])
    (tmp_path / "mine.yaml").write_text(to_yaml(recipe))
    again = from_plain(Recipe, read_yaml(tmp_path / "mine.yaml"))
    assert again == recipe
    (stage,) = change_recipe(again, ["steps=5"]).stages
    assert (stage.steps, stage.epochs) == (5, None)


@pytest.mark.parametrize(
    ("name", "assignment", "message"),
    [
        ("imagebert-small", "epochs=-1", "epochs=-1: expected a number from 0"),
        ("imagebert-small", "epochs=two", "stages.0.epochs: expected a number, got 'two'"),
        ("imagebert", "epochs=2", "has 2 stages; name one of them, as in stages.0.epochs=2"),
        ("imagebert-small", "stpes=1", "did you mean stages.0.steps?"),
        ("imagebert-small", "lr=1e-3", "did you mean stages.0.optimizer.lr?"),
        ("imagebert-small", "learning_rate=1", "did you mean stages.0.optimizer.lr?"),
        ("imagebert-small", "optimizer.learning_rate=1", "did you mean stages.0.optimizer.lr?"),
        ("imagebert-small", "model.hidden_size=8", "did you mean model.width?"),
        ("imagebert-small", "num_epochs=8", "did you mean stages.0.epochs?"),
        ("imagebert-small", "model.widht=3", "did you mean model.width?"),
        ("imagebert-small", "steps=many", "stages.0.steps: expected a whole number, got 'many'"),
        ("imagebert-small", "steps=true", "stages.0.steps: expected a whole number"),
        ("imagebert-small", "optimizer.lr=fast", "optimizer.lr: expected a number, got 'fast'"),
        ("imagebert-small", "optimizer.lr=.nan", "expected a number"),
        ("imagebert-small", "precision=fp8", "'fp8' is not one of no, bf16"),
        ("imagebert-small", "masking.words=1.5", "masking.words=1.5: expected a share from 0 to 1"),
        ("imagebert-small", "model.num_heads=5", "not a multiple of num_heads"),
        ("imagebert-small", "steps=-1", "steps=-1: expected a number from 0"),
        ("imagebert-small", "steps=null", "give steps or epochs"),
        ("imagebert-small", "accumulation=5", "not a multiple of accumulation=5"),
        (
            "vlmo-small",
            "batch_size=1",
            "objectives.itc compares a pair with the other pairs of its step",
        ),
        ("imagebert-small", "stages.3.steps=1", "expected a number below 1, got '3'"),
        ("imagebert-small", "stages=[]", "has no stage"),
        ("imagebert-small", "seed.x=1", "seed.x: unknown field"),
        ("imagebert", "steps=5", "has 2 stages; name one of them, as in stages.0.steps=5"),
    ],
)
def test_a_wrong_change_names_the_field(name: str, assignment: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        change_recipe(recipe_named(name), [assignment])
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["vlmo-small", "retrieval-vlmo-small"])
def test_a_compiled_contrast_in_parts_is_refused_with_dropout(name: str) -> None:
    make = recipe_named if name in RECIPES else task_recipe_named
    both = ["compile=true", "accumulation=2"]
    with pytest.raises(InputError, match=r"compile=true: stages\.0\.accumulation=2 .*drop_path=0"):
        change_recipe(make(name), [*both, "model.drop_path=0.1"])
    assert change_recipe(make(name), [*both, "model.drop_path=0"]).compile
    assert change_recipe(make(name), ["compile=true", "model.drop_path=0.1"]).compile


def test_an_unknown_recipe_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean imagebert-small"):
        recipe_named("imagebert-smal")


def test_numbers_without_a_dot_are_numbers(recipe: Recipe) -> None:
    plain = to_plain(recipe)
    plain["stages"][0]["optimizer"]["lr"] = yaml.safe_load("1e-3")  # YAML 1.1: a string
    assert from_plain(Recipe, plain) == recipe


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "holds no fields"),
        ("a: [", r"recipe.yaml:1: invalid YAML"),
        ("!!python/object/apply:os.getcwd []", "invalid YAML"),
        ("seed: 1\nseed: 2", r"recipe.yaml:2: invalid YAML \(seed comes twice\); fix it"),
        ("\xff".encode("latin-1"), "cannot be read"),
    ],
)
def test_a_file_that_is_no_recipe(text: str | bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=message):
        read_yaml(path)


@pytest.mark.parametrize("synonym", SYNONYMS)
def test_a_synonym_is_no_field_and_names_one(synonym: str) -> None:
    leaves = {path.rsplit(".", 1)[-1] for path in flatten(to_plain(recipe_named("vlmo-base")))}
    assert synonym not in leaves and SYNONYMS[synonym] in leaves


def test_no_is_a_word_where_one_is_wanted(recipe: Recipe) -> None:
    assert override(recipe, ["precision=no"]).precision == "no"


def test_a_missing_field_is_named(recipe: Recipe) -> None:
    plain = to_plain(recipe)
    del plain["stages"][0]["optimizer"]["lr"]
    with pytest.raises(InputError, match=r"stages.0.optimizer.lr is missing"):
        from_plain(Recipe, plain)


def test_flatten_names_every_leaf() -> None:
    assert flatten({"a": {"b": [1, {"c": None}]}, "d": []}) == {
        "a.b.0": 1,
        "a.b.1.c": None,
        "d": [],
    }


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_models_configuration_comes_back_from_plain_values(name: str) -> None:
    config = preset(name)
    assert from_plain(type(config), to_plain(config)) == config
