"""Indices of relative positions, and their tables at other resolutions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlmill.models.layers.relative_position import (
    RelativeBias,
    image_index,
    joint_index,
    num_image_rows,
    num_text_rows,
    resize_absolute,
    resize_relative,
    side_of_table,
    text_index,
)


def test_the_published_sizes() -> None:
    # 224 pixels: 732 image rows, 1126 in all; 384 and 480 pixels: 2606 and 3878.
    assert num_image_rows(14) == 732
    assert [num_image_rows(n) + num_text_rows(196) for n in (14, 24, 30)] == [1126, 2606, 3878]


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 4))
def test_every_row_of_a_table_is_used_once_for_each_offset(
    side: int, tokens: int, spare: int
) -> None:
    rows, span = num_image_rows(side), tokens + spare
    image, text = image_index(side), text_index(tokens, span, rows)
    joint = joint_index(text, image, rows)
    place = torch.arange(side * side)
    row, column = place // side, place % side
    offsets = torch.stack([row[:, None] - row, column[:, None] - column], dim=-1)
    for index, offset in ((image[1:, 1:], offsets.view(-1, 2)), (text[1:, 1:], None)):
        if offset is None:
            position = torch.arange(tokens - 1)
            offset = (position[:, None] - position).view(-1, 1)
        seen = dict(zip(map(tuple, offset.tolist()), index.flatten().tolist(), strict=True))
        assert len(set(seen.values())) == len(seen)  # one row for each offset
    total = rows + num_text_rows(span)
    assert int(joint.max()) == total - 1  # [CLS] to itself is the last row
    parts = [image[0, 1:], image[1:, 0], image[0, :1], text[0, 1:], text[1:, 0], text[0, :1]]
    firsts = [rows - 3, rows - 2, rows - 1, total - 3, total - 2, total - 1]
    for part, first in zip(parts, firsts, strict=True):
        assert (part == first).all()
    assert (joint[:tokens, tokens:] == rows).all()
    assert (joint[tokens:, :tokens] == rows + 1).all()


def test_the_signs_of_image_and_text_differ() -> None:
    image = image_index(3)[1:, 1:]
    assert image[0, 1] - image[0, 0] == -1  # the key one to the right
    text = text_index(5, 8, num_image_rows(3))[1:, 1:]
    assert text[0, 1] - text[0, 0] == 1  # the key one further on


def test_a_shorter_text_has_the_corner_of_the_longest() -> None:
    longest = text_index(8, 8, 30)
    assert torch.equal(text_index(5, 8, 30), longest[:5, :5])
    with pytest.raises(ValueError, match=r"9 tokens.* 1 to max_tokens=8"):
        text_index(9, 8, 30)


def test_the_bias_of_a_layer_is_its_columns() -> None:
    bias = RelativeBias(rows=7, num_layers=2, num_heads=3)
    assert not bias.table.any()
    torch.nn.init.normal_(bias.table)
    index = torch.tensor([[0, 6], [2, 2], [5, 1]])
    gathered = bias(index)
    assert [of_layer.shape for of_layer in gathered] == [(3, 3, 2)] * 2
    assert torch.equal(gathered[1][2], bias.table[:, 5][index])


def test_resizing_keeps_what_a_grid_shares() -> None:
    # A function of the offsets that is linear in each is linear after interpolation, too; the
    # centre and, as far as the progression fits, the ends stay.
    table = torch.randn(9 * 9, 4)
    resized = resize_relative(table, 7)
    assert resized.shape == (13 * 13, 4)
    old, new = table.view(9, 9, 4), resized.view(13, 13, 4)
    torch.testing.assert_close(new[6, 6], old[4, 4])
    torch.testing.assert_close(new[0, 0], old[0, 0], atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(new[5, 7], old[3, 5])  # next to the centre the steps are 1
    assert resize_relative(table, 5) is table
    constant = torch.full((81, 1), 2.5)
    torch.testing.assert_close(resize_relative(constant, 8), torch.full((15 * 15, 1), 2.5))
    assert resize_relative(table, 4).shape == (49, 4)  # smaller images
    assert resize_relative(table.half(), 7).dtype == torch.float16


def test_tables_that_cannot_be_resized_are_refused() -> None:
    with pytest.raises(ValueError, match="80 rows of relative positions do not fit a square"):
        resize_relative(torch.zeros(80, 1), 7)
    advice = "a spline needs 3 patches a side; give an image_size of 2 times patch_size"
    with pytest.raises(ValueError, match=f"2 patches a side cannot be resized to 3: {advice}"):
        resize_relative(torch.zeros(9, 1), 3)
    with pytest.raises(ValueError, match="0 rows"):
        side_of_table(0)


@pytest.mark.parametrize(("side", "target"), [(4, 6), (4, 14), (3, 30)])
def test_beyond_the_progression_offsets_have_its_last_value(side: int, target: int) -> None:
    """As in the released code of BEiT, whose spline is not continued: 1 + 1.5 + 1.5^2 is 4.75."""
    table = torch.randn((2 * side - 1) ** 2, 2)
    old = table.view(2 * side - 1, 2 * side - 1, 2)
    new = resize_relative(table, target).view(2 * target - 1, 2 * target - 1, 2)
    centre = target - 1
    torch.testing.assert_close(new[centre, centre], old[side - 1, side - 1])
    torch.testing.assert_close(new[centre, centre + 1], old[side - 1, side])
    last = sum(1.5**n for n in range(side - 1))
    for offset in range(int(last) + 1, target):
        torch.testing.assert_close(new[centre, centre + offset], old[side - 1, -1])
        torch.testing.assert_close(new[centre - offset, centre], old[0, side - 1])


def test_absolute_positions_keep_the_class_token() -> None:
    positions = torch.randn(1, 10, 4)
    resized = resize_absolute(positions, 5)
    assert resized.shape == (1, 26, 4)
    assert torch.equal(resized[:, 0], positions[:, 0])
    assert resize_absolute(positions, 3) is positions
    with pytest.raises(ValueError, match="10 positions of patches do not form a square"):
        resize_absolute(torch.zeros(1, 11, 4), 5)
