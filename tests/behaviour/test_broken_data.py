"""Data that break while training reads them: one line that names the picture and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.train.recipes.test_feeding import write_images

from vlmill.schemas.files.shards import write_shard
from vlmill.schemas.readers.images import ImageReader
from vlmill.schemas.readers.regions import RegionReader
from vlmill.schemas.tables import IMAGES
from vlmill.train.cli import main
from vlmill.train.recipes import Recipe, change_recipe, recipe_named
from vlmill.train.recipes.plain import to_yaml

if TYPE_CHECKING:
    from tests.factories import Tables


def run(recipe: Recipe, tables: Tables, *more: str) -> int:
    config = tables.folder / "recipe.yaml"
    config.write_text(to_yaml(recipe))
    where = ["--pairs", tables.pairs, "--output", str(tables.folder / "run")]
    return main(["pretrain", "--config", str(config), *where, *more])


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said.strip().splitlines()[-1]


@pytest.mark.parametrize("workers", [0, 1])
def test_features_that_are_not_finite_stop_before_an_update(
    tables: Tables, recipe: Recipe, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    tables.write(8)
    path = next(Path(tables.regions).glob("*.parquet"))
    _, offset, _ = RegionReader(tables.regions).place("features", 3) or (0, 0, 0)
    data = bytearray(path.read_bytes())
    data[offset : offset + 2] = b"\x00\x7e"  # NaN
    path.write_bytes(data)
    changed = change_recipe(recipe, ["stages.0.negative_share=0", f"workers={workers}"])
    assert run(changed, tables, "--regions", tables.regions) == 2
    line = last_line(capsys)
    assert "picture-3: features or boxes are not finite; extract these regions again" in line


@pytest.mark.parametrize("workers", [0, 1])
def test_a_picture_that_cannot_be_decoded_stops(
    tables: Tables, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    tables.write(12)
    write_images(tables.folder / "whole")
    whole = ImageReader(tables.folder / "whole")
    rows = []
    for at in range(12):
        data = whole.bytes_of(at) or b""
        empty = dict.fromkeys(IMAGES.schema.names)
        rows.append({**empty, "image_id": f"picture-{at}", "bytes": data[:60] if at == 5 else data})
    write_shard(tables.folder / "images", IMAGES, rows)
    small = ["model.width=16", "model.num_heads=2", "model.intermediate_width=16"]
    small += ["model.num_layers=2", "model.first_vl_layer=1", "vocabulary_size=90"]
    small += ["steps=6", "batch_size=4", f"workers={workers}", "precision=no"]
    changed = change_recipe(recipe_named("vlmo-small"), small)
    assert run(changed, tables, "--images", str(tables.folder / "images")) == 2
    line = last_line(capsys)
    assert "--images: picture-5 cannot be decoded" in line and "leave its pairs out" in line
