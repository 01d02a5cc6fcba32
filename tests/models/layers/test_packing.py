"""Packed rows give the grid's numbers, and parts of a sequence are brought together."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from vlmill.models.layers.blocks import CoAttentionBlock, PostNormBlock
from vlmill.models.layers.experts import PreNormBlock
from vlmill.models.layers.packing import Layout, compact, make_joint_layout, make_layout


def masks(lengths: list[int], width: int) -> Tensor:
    return torch.arange(width)[None] < torch.tensor(lengths)[:, None]


def randomised(block: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.3)
    return block


def gradients(block: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(block.parameters())))


def test_without_padding_there_is_no_mask() -> None:
    layout = make_layout(torch.ones(3, 4, dtype=torch.bool))
    assert layout == Layout((3, 4))


def test_little_padding_stays_in_the_grid() -> None:
    mask = torch.ones(10, 10, dtype=torch.bool)
    mask[3, 9] = False
    layout = make_layout(mask)
    assert layout.real is None and layout.key_mask is mask


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
@settings(max_examples=30, deadline=None)
def test_unpacking_what_was_packed_changes_real_rows_in_nothing(lengths: list[int]) -> None:
    mask = masks(lengths, 6)
    layout = make_layout(mask)
    hidden = torch.randn(len(lengths), 6, 3)
    returned = layout.unpack(layout.pack(hidden))
    assert torch.equal(returned[mask], hidden[mask])
    assert not returned[~mask].any()


def test_joined_rows_part_by_modality_and_know_their_sequence() -> None:
    layout, rows = make_joint_layout(masks([2, 4, 1], 4), masks([3, 1, 0], 3))
    hidden = torch.arange(21.0).reshape(3, 7, 1)
    packed = layout.pack(hidden)
    text, regions = packed[: rows[0]], packed[rows[0] :]
    assert text.flatten().tolist() == [0, 1, 7, 8, 9, 10, 14]
    assert regions.flatten().tolist() == [4, 5, 6, 11]
    owners = layout.sequence_of_rows()
    assert owners is not None
    assert owners.tolist() == [0, 0, 1, 1, 1, 1, 2, 0, 0, 0, 1]


def test_packed_post_norm_block_equals_the_grid() -> None:
    block = randomised(PostNormBlock(24, 4, 48, 0.0, 0.0))
    mask, hidden = masks([7, 2, 5], 7), torch.randn(3, 7, 24)
    direction = torch.randn(3, 7, 24) * mask[..., None]
    results = []
    for pack in (False, True):
        layout = make_layout(mask, pack=pack)
        out = layout.unpack(block(layout.pack(hidden), layout))
        results.append([out[mask], *gradients(block, (out * direction).sum())])
    torch.testing.assert_close(results[0], results[1], atol=2e-4, rtol=1e-5)


def test_packed_experts_equal_the_grid_and_share_attention() -> None:
    block = randomised(
        PreNormBlock(24, 4, 48, experts=("text", "image"), layer_scale=0.1, key_bias=False)
    )
    text, image = masks([4, 2, 3], 4), masks([5, 5, 2], 5)
    hidden, bias = torch.randn(3, 9, 24), torch.randn(4, 9, 9)
    mask = torch.cat([text, image], dim=1)
    direction = torch.randn(3, 9, 24) * mask[..., None]
    results = []
    for pack in (False, True):
        layout, rows = make_joint_layout(text, image, pack=pack)
        route = (("text", rows[0]), ("image", rows[1]))
        out = layout.unpack(block(layout.pack(hidden), layout, route, bias))
        results.append([out[mask], *gradients(block, (out * direction).sum())])
    torch.testing.assert_close(results[0], results[1], atol=2e-4, rtol=1e-5)


def test_packed_co_attention_equals_the_grid() -> None:
    block = randomised(CoAttentionBlock((16, 24), 20, 4, (32, 48), (0.0, 0.0), (0.0, 0.0)))
    first_mask, second_mask = masks([6, 3], 6), masks([1, 4], 4)
    first, second = torch.randn(2, 6, 16), torch.randn(2, 4, 24)
    results = []
    for pack in (False, True):
        one, two = make_layout(first_mask, pack=pack), make_layout(second_mask, pack=pack)
        a, b = block(one.pack(first), one, two.pack(second), two)
        a, b = one.unpack(a)[first_mask], two.unpack(b)[second_mask]
        results.append([a, b, *gradients(block, a.square().sum() + b.square().sum())])
    torch.testing.assert_close(results[0], results[1], atol=1e-3, rtol=1e-4)


def test_drop_path_leaves_branches_out_for_whole_sequences() -> None:
    block = PreNormBlock(8, 2, 16, experts=("only",), layer_scale=None, drop_path=0.5)
    randomised(block)
    torch.manual_seed(3)
    mask = masks([6, 1, 4, 5, 6, 2, 3, 6], 6)
    layout = make_layout(mask)
    hidden = torch.randn(8, 6, 8)
    rows = layout.pack(hidden)
    block.train()
    moved = (block(rows, layout, (("only", len(rows)),)) - rows).abs().sum(-1) > 0
    owners = layout.sequence_of_rows()
    assert owners is not None
    by_sequence = [set(moved[owners == b].tolist()) for b in range(8)]
    assert all(len(answers) == 1 for answers in by_sequence)
    assert {answer for answers in by_sequence for answer in answers} == {True, False}


def test_an_unknown_activation_is_named() -> None:
    with pytest.raises(ValueError, match="no activation 'sine'; there are gelu, relu, swish"):
        PostNormBlock(8, 2, 16, 0.0, 0.0, act="sine")


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
    st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=4), st.booleans()
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


def test_only_kernels_of_other_devices_are_told_where_sequences_start() -> None:
    mask, places = torch.tensor([[True, False], [True, True]]), torch.tensor([0, 2, 3])
    on_cpu, elsewhere = make_layout(mask, places), make_layout(mask.to("meta"), places.to("meta"))
    assert on_cpu.real is not None and on_cpu.starts is None
    assert elsewhere.starts is not None and elsewhere.starts.shape == (3,)
