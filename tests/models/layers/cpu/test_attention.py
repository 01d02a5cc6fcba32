"""Attention for training on a CPU equals the formula, in outputs and gradients."""

import pytest
import torch
from torch import Tensor

from vlmill.models.layers.attention import by_heads
from vlmill.models.layers.cpu.attention import (
    cpu_attention,
    cpu_dropout,
    draw_factors,
    drops_faster,
)
from vlmill.models.layers.operators import Dropout, attention


def inputs(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Queries, keys, values and a bias: two sequences of 5 queries and 7 keys, 3 heads."""
    torch.manual_seed(0)
    shapes = ((2, 5, 3, 4), (2, 7, 3, 4), (2, 7, 3, 4), (3, 5, 7))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


MASK = torch.tensor([[True] * 7, [True] * 3 + [False] * 4])


def formula(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, rate: float, bias: Tensor | None
) -> Tensor:
    q, k, v = (rows.transpose(1, 2) for rows in (q, k, v))
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None], float("-inf"))
    weights = scores.softmax(-1)
    factors = draw_factors(weights, rate)
    mixed: Tensor = (weights if factors is None else weights * factors) @ v
    return mixed.transpose(1, 2)


@pytest.mark.parametrize("mask", [None, MASK])
@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("threads", [0, 1, 2, 8])
def test_it_equals_the_formula(
    mask: Tensor | None, rate: float, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a bias, as heads are shared out among that many threads, and without (0 threads)."""
    results = []
    for attend in (cpu_attention, formula):
        q, k, v, bias = inputs()
        leaves = [q, k, v, bias][: 4 if threads else 3]
        with monkeypatch.context() as patch:
            patch.setattr(torch, "get_num_threads", lambda: threads)
            torch.manual_seed(1)
            out = attend(q, k, v, mask, rate, bias if threads else None)
            direction = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
            results.append([out, *torch.autograd.grad(out, leaves, direction)])
    torch.testing.assert_close(*results)


def test_heads_of_one_product_are_taken_as_they_lie() -> None:
    results = []
    for attend in (cpu_attention, formula):
        torch.manual_seed(0)
        projected = torch.randn(2, 7, 36, requires_grad=True)
        bias = torch.randn(3, 7, 7, requires_grad=True)
        q, k, v = by_heads(projected, 3)
        out = attend(q, k, v, MASK, 0.0, bias)
        results.append([out, *torch.autograd.grad(out.square().sum(), (projected, bias))])
    torch.testing.assert_close(*results)


def nodes(out: Tensor) -> list[str]:
    """The backward pass's steps from ``out`` on, always the first way."""
    names, node = [], out.grad_fn
    while node is not None:
        names.append(type(node).__name__)
        node = node.next_functions[0][0] if node.next_functions else None
    return names


@pytest.mark.parametrize(
    ("rate", "learned", "dtype", "expected"),
    [
        (0.0, True, torch.float32, True),
        (0.5, False, torch.float32, True),
        (0.0, False, torch.float32, False),
        (0.5, True, torch.float64, False),
    ],
)
def test_attention_uses_it_with_dropout_or_a_learned_bias(
    rate: float, learned: bool, dtype: torch.dtype, expected: bool
) -> None:
    q, k, v, bias = inputs(dtype)
    out = attention(q, k, v, MASK, rate, bias if learned else bias.detach())
    assert ("_CpuAttentionBackward" in nodes(out)) is expected
    assert out.shape == (2, 5, 3, 4)
    if rate == 0:
        with torch.no_grad():
            torch.testing.assert_close(out, attention(q, k, v, MASK, rate, bias))


def test_under_autocast_it_computes_in_float32() -> None:
    results = []
    for enabled in (False, True):
        q, k, v, bias = inputs(torch.float32)
        half = [rows.bfloat16() for rows in (q, k, v)]
        q16, k16, v16 = half if enabled else [rows.float() for rows in half]
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            torch.manual_seed(1)
            out = attention(q16, k16, v16, MASK, 0.4, bias)
            assert "_CpuAttentionBackward" in nodes(out)
            assert out.dtype == (torch.bfloat16 if enabled else torch.float32)
            gradients = torch.autograd.grad(out.float().square().sum(), [q, k, v, bias])
        results.append([out.float(), *gradients])
    torch.testing.assert_close(*results, atol=0.05, rtol=0.05)


def test_only_what_needs_a_gradient_gets_one() -> None:
    q, k, v, bias = inputs(torch.float32)
    out = cpu_attention(q, k.detach(), v.detach(), None, 0.0, bias.detach())
    (of_q,) = torch.autograd.grad(out.sum(), [q])
    assert of_q.shape == q.shape and of_q.any()


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.9])
def test_shares_and_means(rate: float) -> None:
    torch.manual_seed(0)
    out = cpu_dropout(torch.ones(400, 1003), rate)
    dropped = (out == 0).float()
    assert dropped.mean().item() == pytest.approx(rate, abs=0.005)
    assert out.mean().item() == pytest.approx(1, abs=0.02)
    scale = 1 / (1 - round(rate * 65536) / 65536)
    assert sorted(set(out.flatten().tolist())) == pytest.approx([0.0, scale])
    # No place in a draw of four is dropped more often than another.
    of_places = dropped.flatten()[: 400 * 1000].view(-1, 4).mean(0)
    assert of_places.tolist() == pytest.approx([rate] * 4, abs=0.01)


def test_gradients_pass_where_numbers_did() -> None:
    hidden = torch.randn(5, 7, requires_grad=True)
    out = cpu_dropout(hidden, 0.5)
    out.sum().backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None
    assert torch.equal(hidden.grad != 0, out != 0)


def test_the_same_seed_gives_the_same() -> None:
    hidden, results = torch.randn(3, 5), []
    for _ in range(2):
        torch.manual_seed(4)
        results.append([cpu_dropout(hidden, 0.3), cpu_dropout(hidden, 0.3)])
    assert torch.equal(results[0][0], results[1][0])
    assert not torch.equal(results[0][0], results[0][1])


def test_nothing_changes_in_evaluation_and_at_rate_0() -> None:
    hidden = torch.randn(3)
    assert Dropout(0.5).eval()(hidden) is hidden
    assert Dropout(0.0).train()(hidden) is hidden
    assert cpu_dropout(torch.empty(0, 3), 0.5).shape == (0, 3)


def test_a_rate_that_is_no_share_is_refused() -> None:
    with pytest.raises(ValueError, match=r"dropout rate 1\.0: expected a share"):
        Dropout(1.0)


def test_other_kinds_of_numbers_are_left_to_pytorch() -> None:
    hidden = torch.ones(64, 64)
    assert drops_faster(hidden)
    assert not drops_faster(hidden.double()) and not drops_faster(hidden.to("meta"))
    torch.manual_seed(0)
    assert set(Dropout(0.5).train()(hidden.double()).flatten().tolist()) == {0.0, 2.0}
