"""A variant without a row of its own is a plain region model; rows name what is there."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from vlmill.models.imagebert.config import ImageBertConfig
from vlmill.models.imagebert.model import ImageBert
from vlmill.models.registry import MODELS, VARIANTS, Variant, find_variant
from vlmill.runtime.console.log import read_log
from vlmill.train.checkpoints.files import load_checkpoint
from vlmill.train.recipes import Recipe
from vlmill.train.recipes.variants import PLAIN, TRAININGS, get_training, import_object
from vlmill.train.run.job import pretrain
from vlmill.train.tasks.retrieval.checks import find_feeding, select_ranking

if TYPE_CHECKING:
    from tests.factories import Tables

CLOCK = {"samples_per_second", "mfu", "data_wait", "process_memory_bytes"}


class NewModel(ImageBert):
    """A paper of tomorrow: other weights than this one's would do as well."""


def test_a_new_region_model_is_trained_and_evaluated_by_its_line_alone(
    tables: Tables, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Variant(config=ImageBertConfig, home=f"{__name__}.NewModel")
    for names in (VARIANTS, MODELS):
        monkeypatch.setitem(names, "new", line)
    inputs = tables.write()
    pretrain(dataclasses.replace(recipe, variant="new"), inputs, tmp_path / "new")
    pretrain(recipe, inputs, tmp_path / "known")
    losses = [
        [{k: v for k, v in step.items() if k not in CLOCK} for step in read_log(folder)]
        for folder in (tmp_path / "new" / "log.jsonl", tmp_path / "known" / "log.jsonl")
    ]
    assert losses[0] == losses[1]
    loaded = load_checkpoint(tmp_path / "new")
    assert type(loaded.model) is NewModel and find_variant(loaded.model) == "new"
    assert select_ranking(loaded) == "matching" and find_feeding(loaded) == recipe.stages[0].feeding


def test_rows_belong_to_variants_and_name_what_is_there() -> None:
    assert TRAININGS.keys() <= MODELS.keys()
    assert get_training("none of them") is get_training(None) is PLAIN
    for row in (PLAIN, *TRAININGS.values()):
        assert all(callable(import_object(path)) for path in (row.losses, row.feeding, row.start))
        assert set(row.starts_from) <= VARIANTS.keys()


def test_a_model_of_no_list_has_no_name() -> None:
    assert find_variant(object()) is None
