"""Attention with a learned bias equals the formula, in outputs and gradients."""

import pytest
import torch
from torch import Tensor

from vlmill.models.attention import attend
from vlmill.models.biased_attention import biased_attention
from vlmill.models.layout import layout_of


def inputs(dtype: torch.dtype, heads: int = 3) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    shapes = ((2, heads, 5, 4), (2, heads, 7, 4), (2, heads, 7, 4), (heads, 5, 7))
    q, k, v, bias = (torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)
    return q, k, v, bias


MASK = torch.tensor([[True] * 7, [True] * 3 + [False] * 4])


def formula(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor | None) -> Tensor:
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5 + bias
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None], float("-inf"))
    mixed: Tensor = scores.softmax(-1) @ v
    return mixed


@pytest.mark.parametrize("mask", [None, MASK])
@pytest.mark.parametrize("threads", [1, 2, 8])
def test_it_equals_the_formula(
    mask: Tensor | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    mine, other = inputs(torch.float64), inputs(torch.float64)
    out, expected = biased_attention(*mine, mask), formula(*other, mask)
    torch.testing.assert_close(out, expected)
    direction = torch.randn_like(expected)
    gradients = torch.autograd.grad(out, mine, direction)
    for one, like in zip(gradients, torch.autograd.grad(expected, other, direction), strict=True):
        torch.testing.assert_close(one, like)


def test_heads_of_one_product_are_taken_as_they_lie() -> None:
    torch.manual_seed(0)
    projected = torch.randn(2, 7, 3, 3, 4, requires_grad=True)
    bias = torch.randn(3, 7, 7, requires_grad=True)
    q, k, v = projected.permute(2, 0, 3, 1, 4).unbind(0)
    out, expected = biased_attention(q, k, v, bias, MASK), formula(q, k, v, bias, MASK)
    torch.testing.assert_close(out, expected)
    direction = torch.randn_like(out)
    gradients = [torch.autograd.grad(one, (projected, bias), direction) for one in (out, expected)]
    for mine, like in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, like)


def test_attention_uses_it_where_the_bias_is_learned() -> None:
    q, k, v, bias = inputs(torch.float32)
    layout = layout_of(MASK, pack=False)
    learned = attend(q, k, v, layout, 0.0, bias)
    fixed = attend(q, k, v, layout, 0.0, bias.detach())
    torch.testing.assert_close(learned, fixed)
    names, node = [], learned.grad_fn
    while node is not None:
        names.append(type(node).__name__)
        node = node.next_functions[0][0] if node.next_functions else None
    assert "_BiasedAttentionBackward" in names
    assert attend(q, k, v, layout, 0.5, bias).shape == learned.shape


def test_only_what_needs_a_gradient_gets_one() -> None:
    q, k, v, bias = inputs(torch.float32)
    frozen = bias.detach()
    (of_q,) = torch.autograd.grad(biased_attention(q, k, v, frozen, None).sum(), [q])
    assert of_q.shape == q.shape and of_q.any()
