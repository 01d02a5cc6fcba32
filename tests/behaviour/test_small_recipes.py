"""Every published recipe, made small, trains two steps on pairs of its own sources.

Recipes that are the same when they are small, as base and large, are tried once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.factories import SMALL, write_dvae, write_images

from vlmill.runtime.console.log import read_log
from vlmill.runtime.settings.plain_fields import to_plain, to_yaml
from vlmill.train.checkpoints.files import load_checkpoint
from vlmill.train.cli import main
from vlmill.train.recipes import RECIPES, change_recipe, recipe_named

if TYPE_CHECKING:
    from tests.factories import Tables

SOURCES = ("lait", "cc", "sbu", "coco", "vg", "tao")
TEXTS = ("books", "wikipedia")
IMAGES = 12
BERT = ("width=16", "num_heads=2", "intermediate_width=16")
VISUAL = ("visual_num_heads=2", "visual_intermediate_width=16")
CO_ATTENTION = (
    *("num_layers=2", "visual_num_layers=2", "text_co_layers=[0,1]", "visual_co_layers=[0,1]"),
    *(*VISUAL, "visual_width=16", "co_width=16", "co_num_heads=2"),
)
THREE_PARTS = (
    *("num_interaction_layers=1", "num_text_layers=1", "num_visual_layers=1"),
    *(*VISUAL, "pooled_width=16"),
)
REGION_NETWORK = (
    *("cnn.blocks=[1,1,1,1]", "cnn.widths=[1,2,3,4]", "cnn.stem_channels=4", "cnn.pool_size=2"),
    *(f"model.{field}" for field in (*BERT, "num_layers=1", "num_wavelengths=2")),
    "model.region_width=16",
    "cnn.frozen_stages=0",  # without --init they would be random (test_end_to_end.py has one)
)
MODELS = {
    "beit": (*BERT, "num_layers=1", "image_size=32"),
    "bert": (*BERT, "num_layers=1"),
    "imagebert": (*BERT, "num_layers=1"),
    "interbert": (*BERT, *THREE_PARTS),
    "vilbert": (*BERT, *CO_ATTENTION),
    "vilbert-single-stream": (*BERT, "num_layers=1"),
    "vl-bert": (*BERT, "num_layers=1", "num_wavelengths=2"),
    "vl-bert-end-to-end": REGION_NETWORK,
    "vlmo": (*BERT, "num_layers=2", "first_vl_layer=1", "image_size=32"),
}
RUN = ("precision=no", "workers=0", "log_every=1", "vocabulary_size=90")


def shrunk(name: str) -> list[str]:
    """The changes that make the recipe small: sizes alone, nothing of what it does."""
    recipe = recipe_named(name)
    changes = [*RUN, *(f"model.{field}" for field in MODELS[recipe.variant])]
    model = to_plain(recipe.model)
    if recipe.variant == "vlmo" and model["first_vl_layer"] == model["num_layers"]:
        changes.append("model.first_vl_layer=2")  # no expert for both, then as here
    if recipe.variant == "interbert" and not model["num_text_layers"]:
        changes += ["model.num_text_layers=0", "model.num_visual_layers=0"]
    if getattr(recipe.model, "global_widths", ()):
        changes.append("model.global_widths=[4,8,4]")
    for number, stage in enumerate(recipe.stages):
        fields: dict[str, Any] = {"steps": 2, "batch_size": 4, "optimizer.warmup_steps": 1}
        fields |= {"masking.words": 0.6, "masking.regions": 0.6}
        feeding = {"short_side": 32, "long_side": 48, "image_size": 32}
        feeding["text_rows"] = 4 if stage.feeding.text_rows else 0
        if stage.feeding.token_size is not None:
            feeding["token_size"] = 16
        fields |= {f"feeding.{field}": value for field, value in feeding.items()}
        changes += [f"stages.{number}.{field}={value}" for field, value in fields.items()]
    return changes


@cache
def forms() -> list[str]:
    """The published recipes, but for those that are another one's when they are small."""
    names: dict[str, str] = {}
    for name in RECIPES:
        if name not in SMALL:
            recipe = change_recipe(recipe_named(name), shrunk(name))
            stages = tuple(
                replace(stage, optimizer=replace(stage.optimizer, lr=1.0))
                for stage in recipe.stages
            )
            same = replace(recipe, name="", about="", needs="", seed=0, save_every=1, stages=stages)
            names.setdefault(to_yaml(same), name)
    return list(names.values())


def write_tables(tables: Tables) -> list[str]:
    """Pairs of every source and texts alone, regions and images; the flags that name them."""
    rows: list[tuple[str | None, str]] = []
    sources = []
    for source in SOURCES:
        rows += [(f"image-{i}", f"{i} cats of {source}") for i in range(IMAGES)]
        sources += [source] * IMAGES
    rows += [(None, f"text {i} of {source} on cats") for source in TEXTS for i in range(5)]
    sources += [source for source in TEXTS for _ in range(5)]
    ids = tables.write_pairs(rows, {"source": sources})  # type: ignore[arg-type]
    image_ids = [f"image-{i}" for i in range(IMAGES)]
    tables.write_regions(image_ids, whole=tuple(image_ids))
    tables.write_negatives({ids[0]: [ids[1]]})
    images = write_images(tables.folder / "images", IMAGES)
    flags = ["--pairs", tables.pairs, "--regions", tables.regions, "--images", images]
    return [*flags, "--negatives", tables.negatives]


def tried() -> list[Any]:
    """The recipes with the first of each variant in front; what follows it is marked long."""
    first = {recipe_named(name).variant: name for name in reversed(forms())}.values()
    rest = (name for name in forms() if name not in first)
    return [*first, *(pytest.param(name, marks=pytest.mark.long) for name in rest)]


@pytest.mark.slow
@pytest.mark.parametrize("name", tried())
def test_a_published_recipe_trains(name: str, tables: Tables, tmp_path: Path) -> None:
    output, recipe = tmp_path / "out", recipe_named(name)
    changes = shrunk(name)
    if "picture_tokenizer" in recipe.needs:
        changes.append(f"picture_tokenizer={write_dvae(tmp_path)}")
    flags = write_tables(tables)
    if recipe.variant == "beit":  # images alone
        flags = flags[(at := flags.index("--images")) : at + 2]
    assert main(["pretrain", name, *flags, "--output", str(output), *changes]) == 0
    lines = read_log(output / "log.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 2 * len(recipe.stages) + 1))
    wanted = vars(recipe.stages[-1].objectives)
    names = {f"loss/{objective}" for objective, weight in wanted.items() if weight}
    for line in lines:
        assert names <= set(line) and all(np.isfinite(line[name]) for name in names | {"loss"})
    # A step may happen to mask no word, or ask for no region; both for more than one loss, hardly.
    met = [name for name in names if any(line[name] > 0 for line in lines)]
    assert lines[-1]["loss"] > 0 and len(met) > len(names) / 2
    assert load_checkpoint(output).training.step == 2 * len(recipe.stages)
