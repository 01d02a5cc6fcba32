"""Sequences without gaps: what lies where, and back."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmill.models.compaction import compact


def test_by_hand() -> None:
    real = torch.tensor([[True, False, True, True], [False, False, False, True]])
    hidden = torch.arange(8.0).view(2, 4, 1)
    compaction = compact(real, pack=False)
    assert compaction.layout.shape == (2, 3)
    assert compaction.layout.key_mask is not None
    assert compaction.layout.key_mask.tolist() == [[True, True, True], [True, False, False]]
    grid = compaction.take(hidden)[..., 0]
    assert grid[0].tolist() == [0, 2, 3] and grid[1, 0] == 7
    packed = compact(real)
    assert packed.take(hidden)[:, 0].tolist() == [0, 2, 3, 7]
    back = packed.put_back(packed.layout.unpack(packed.take(hidden)))
    assert back[..., 0].tolist() == [[0, 0, 2, 3], [0, 0, 0, 7]]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=4),
    st.booleans(),
)
def test_there_and_back_keeps_what_is_real(rows: list[list[bool]], pack: bool) -> None:
    real = torch.tensor([[*row, True] for row in rows])
    hidden = torch.randn(*real.shape, 3)
    compaction = compact(real, pack=pack)
    grid = compaction.layout.unpack(compaction.take(hidden))
    assert grid.shape[1] == real.sum(1).max()
    assert torch.equal(compaction.put_back(grid), hidden * real[..., None])


def test_no_sequence_at_all() -> None:
    compaction = compact(torch.ones(0, 4, dtype=torch.bool))
    assert compaction.take(torch.zeros(0, 4, 2)).shape == (0, 4, 2)
