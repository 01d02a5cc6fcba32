"""Several captions of an image tell the same."""

from pathlib import Path

import numpy as np
import pytest
from worlds import MOST, World, make_scenes, write_world
from worlds.captions import captions, wordings
from worlds.scenes import holds

from vlmill.runtime.files.reading import iter_batches
from vlmill.schemas.tables import IMAGES, PAIRS

pytestmark = pytest.mark.nightly


def test_every_wording_states_as_many_relations_and_all_hold() -> None:
    for scene in make_scenes(World(), "train", 40):
        for statements in wordings(scene.statements):
            assert len(statements) == len(scene.statements)
            for s in statements:
                assert holds(s.relation, scene.places[s.subject], scene.places[s.object])


def test_captions_differ_and_begin_with_the_scenes_own() -> None:
    world = World()
    for scene in make_scenes(world, "train", 40):
        texts = captions(world, scene, MOST, np.random.default_rng(0))
        assert texts[0] == scene.caption and len(set(texts)) == MOST
        assert {word for word in texts[0].split() if word in world.colours} == {
            word for word in texts[-1].split() if word in world.colours
        }
        assert captions(world, scene, 1, np.random.default_rng(0)) == [scene.caption]
    with pytest.raises(ValueError, match=f"captions=9: expected 1 to {MOST}"):
        captions(world, scene, MOST + 1, np.random.default_rng(0))


def test_a_world_with_several_captions_of_a_image(tmp_path: Path) -> None:
    """Of ten pairs to train on by threes there are three images; held-out ones have one."""
    write_world(tmp_path, World(), pairs=10, held_out=2, each=3)
    pairs = [row for b in iter_batches(tmp_path, PAIRS) for row in b.to_pylist()]
    images = [row["image_id"] for b in iter_batches(tmp_path, IMAGES) for row in b.to_pylist()]
    assert len(images) == 5 and len({row["pair_id"] for row in pairs}) == 11
    by_split = {
        split: [row["image_id"] for row in pairs if row["split"] == split]
        for split in ("train", "test")
    }
    assert [by_split["train"].count(name) for name in images[:3]] == [3, 3, 3]
    assert by_split["test"] == images[3:]
