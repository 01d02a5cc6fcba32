"""Regions that a recipe cannot read are refused before anything is trained."""

import dataclasses

import numpy as np
import pytest
from tests.factories import Tables

from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.regions import RegionRow, encode_regions, region_arrays
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import REGIONS
from vlmill.train.recipes import Recipe
from vlmill.train.run.inputs import Inputs, open_sources


def test_distributions_without_background_are_not_read_as_others(
    tables: Tables, recipe: Recipe
) -> None:
    tables.write_pairs([("a", "a dog")])
    row = RegionRow(
        image_id="a",
        width=10,
        height=10,
        boxes=np.array([[0, 0, 5, 5]], np.float32),
        features=np.ones((1, 16), np.float32),
        class_ids=np.array([2], np.int16),
        class_probs=np.array([[0.1, 0.2, 0.7]], np.float32),
    )
    feeding = dataclasses.replace(recipe.stages[0].feeding, region_targets="distribution")
    stage = dataclasses.replace(recipe.stages[0], feeding=feeding)
    distributions = dataclasses.replace(recipe, stages=(stage,))
    inputs = Inputs(pairs=tables.pairs, regions=tables.regions)
    for background in ("first", "none"):  # the second replaces the first
        arrays = region_arrays(
            dtype="float32", feature_dim=16, class_probs_dim=3, background=background
        )
        table = encode_regions([row], dtype="float32")
        write_shard(tables.regions, REGIONS, table, arrays=arrays)
        open_sources(inputs, recipe)  # by class
        if background == "first":
            open_sources(inputs, distributions)
    with pytest.raises(InputError, match=r"no background.*add stages\.0\.feeding\.region_t"):
        open_sources(inputs, distributions)
