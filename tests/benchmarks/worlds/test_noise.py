"""Captions that are moved to other images, and nothing else."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import NOISY, World, write_noisy_pairs, write_world
from worlds.noise import with_moved_captions
from worlds.writing import SOURCE

from vlmill.runtime.files.manifest import verify_folder
from vlmill.runtime.files.outputs import State
from vlmill.runtime.files.reading import read_table
from vlmill.schemas.ids import compute_pair_id
from vlmill.schemas.tables import PAIRS

pytestmark = pytest.mark.nightly


@given(count=st.integers(0, 40), share=st.sampled_from([0.0, 0.3, 1.0]), seed=st.integers(0, 9))
def test_captions_are_moved_and_none_is_lost(count: int, share: float, seed: int) -> None:
    rows = [{"pair_id": f"p{i}", "image_id": f"i{i}", "text": f"t{i}"} for i in range(count)]
    moved = with_moved_captions(rows, share, seed)
    assert [row["image_id"] for row in moved] == [row["image_id"] for row in rows]
    assert sorted(row["text"] for row in moved) == sorted(row["text"] for row in rows)
    changed = [m for m, row in zip(moved, rows, strict=True) if m["text"] != row["text"]]
    wanted = round(share * count)
    assert len(changed) == (wanted if wanted > 1 else 0)
    assert all(row["pair_id"] == compute_pair_id(row["image_id"], row["text"]) for row in changed)
    assert with_moved_captions(rows, share, seed) == moved


def test_held_out_pairs_and_the_first_ones_stay(tmp_path: Path) -> None:
    write_world(tmp_path / "world", World(), pairs=12, held_out=3)
    before = read_table(tmp_path / "world", PAIRS).to_pylist()
    assert write_noisy_pairs(tmp_path / "noisy", tmp_path / "world", first=4, share=1.0) is (
        State.NEW
    )
    after = read_table(tmp_path / "noisy", PAIRS).to_pylist()
    assert verify_folder(tmp_path / "noisy") == []
    assert after[:4] == before[:4] and after[12:] == before[12:]
    assert [row["source"] for row in after] == [SOURCE] * 4 + [NOISY] * 8 + [SOURCE] * 3
    assert all(a["text"] != b["text"] for a, b in zip(after[4:12], before[4:12], strict=True))
    again = write_noisy_pairs(tmp_path / "noisy", tmp_path / "world", first=4, share=1.0)
    assert again is State.FINISHED
