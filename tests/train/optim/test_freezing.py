"""Parts of a model are frozen by their names and by numbers of layers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from vlmill.schemas.errors import InputError
from vlmill.train.checkpoints.files import load_checkpoint
from vlmill.train.optim.groups import is_frozen, require_parts
from vlmill.train.recipes import Recipe, change_recipe
from vlmill.train.run.job import pretrain

if TYPE_CHECKING:
    from tests.factories import Tables

NAMES = ("text_embedding.word.weight", *(f"encoder.layers.{n}.norm.bias" for n in range(12)))


@pytest.mark.parametrize(
    ("part", "frozen"),
    [
        ("text_embedding", [0]),
        ("layers.0-5", [1, 2, 3, 4, 5, 6]),
        ("encoder.layers.10-11", [11, 12]),
        ("layers.1", [2]),
        ("layers.1-1.norm", [2]),
        ("text", []),
        ("layers.0-5.weight", []),
    ],
)
def test_a_part_is_a_whole_name(part: str, frozen: list[int]) -> None:
    assert [number for number, name in enumerate(NAMES) if is_frozen(name, [part])] == frozen


def test_a_part_of_nothing_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        InputError, match=r"text is not a part.*text_embedding.word, encoder.layers.0-"
    ):
        require_parts(NAMES, ["layers.0-5", "text"])
    with pytest.raises(InputError, match="leaves nothing to train"):
        require_parts(NAMES, ["encoder", "text_embedding"])
    require_parts(NAMES, ["encoder"])


def test_frozen_parts_keep_their_weights(tables: Tables, recipe: Recipe, tmp_path: Path) -> None:
    inputs = tables.write()
    recipe = change_recipe(recipe, ["steps=2", "optimizer.warmup=0"])
    pretrain(change_recipe(recipe, ["steps=0"]), inputs, tmp_path / "start")
    frozen = change_recipe(recipe, ["freeze=[text_embedding,layers.0]"])
    pretrain(frozen, inputs, tmp_path / "out")
    before, after = (
        load_checkpoint(tmp_path / name).model.state_dict() for name in ("start", "out")
    )
    kept = {name for name in before if torch.equal(before[name], after[name])}
    assert {n for n in before if n.startswith("text_embedding.") or ".0." in n or "layers.0" in n}
    assert {name for name in before if is_frozen(name, ["text_embedding", "layers.0"])} <= kept
    assert not {name for name in kept if "layers.1." in name and name.endswith("weight")}
