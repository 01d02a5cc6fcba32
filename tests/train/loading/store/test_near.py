"""Nearest images as training keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.row_index import IdIndex
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import NEIGHBOURS
from vlmill.train.loading.pairing import StagePairs
from vlmill.train.loading.random import Uniforms
from vlmill.train.loading.store.near import NearImages, join_neighbours, keep_neighbours


class Images:
    """A table of regions: rows 0 to 4 are images a to e."""

    index = IdIndex.from_ids([f"set/{name}" for name in "abcde"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Prepared captions: two of a, one of c, three of d."""
    np.array([3, 0, 2, 0, 3, 3], dtype=np.int64).tofile(tmp_path / "image_row")
    return tmp_path


def write(folder: Path, near: dict[str, str], prefix: str = "set/") -> str:
    rows: list[dict[str, Any]] = [
        {
            "image_id": prefix + name,
            "neighbour_ids": [prefix + other for other in others],
            "distances": None,
        }
        for name, others in near.items()
    ]
    write_shard(folder / "neighbours", NEIGHBOURS, rows)
    return str(folder / "neighbours")


def test_neighbours_that_are_trained_on_are_kept_in_their_order(folder: Path) -> None:
    # b and e are not trained on, an image is not near itself, x is of no table.
    table = write(folder, {"d": "dbca", "b": "ac", "a": "xed", "c": "be"})
    joined = join_neighbours(folder, table, Images(), "--regions")
    assert (joined.num_images, joined.num_met, joined.lacking) == (3, 2, ("set/c",))
    near = NearImages(folder)
    assert [near.find_neighbours(row).tolist() for row in range(5)] == [[3], [], [], [2, 0], []]
    assert [near.captions(row).tolist() for row in range(5)] == [[1, 3], [], [2], [0, 4, 5], []]


def test_images_meet_by_name_as_pairs_do(folder: Path) -> None:
    table = write(folder, {"a": "cd", "c": "a", "d": "a"}, prefix="elsewhere/set/")
    keep_neighbours(folder, table, Images(), "--regions")
    assert NearImages(folder).find_neighbours(0).tolist() == [2, 3]


def test_neighbours_of_other_images_are_refused(folder: Path) -> None:
    table = write(folder, {"a": "c", "y": "z"})
    with pytest.raises(InputError, match=r"2 of the 3 images .*\(set/c, set/d\); --negatives has"):
        keep_neighbours(folder, table, Images(), "--regions")


class Captions:
    """A prepared table whose first image has one near."""

    def __init__(self, folder: Path) -> None:
        self.near, self.image_rows = NearImages(folder), np.array([3, 0, 2, 0, 3, 3])

    def matches(self, text_row: int, image_row: int) -> bool:
        return text_row == 5 or self.image_rows[text_row] == self.image_rows[image_row]


def test_captions_of_near_images_are_drawn_from_the_stage(folder: Path) -> None:
    keep_neighbours(folder, write(folder, {"a": "d", "c": "ad", "d": "c"}), Images(), "--regions")
    table: Any = Captions(folder)
    visited = np.array([True, True, True, True, False, True])
    pairs = StagePairs(table=table, visited=visited)
    drawn = {pairs.near_caption(1, Uniforms(seed)) for seed in range(30)}
    assert drawn == {0}  # of d's captions: 4 is not visited, 5 fits a, too
    of_both = {pairs.near_caption(2, Uniforms(seed)) for seed in range(30)}
    assert of_both == {0, 1, 3}
