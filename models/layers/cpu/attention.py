"""Computes attention with dropout or a learned bias fast when training on a CPU.

B sequences, N queries, M keys, h heads, d width of a head.

PyTorch has no fused kernel for these on a CPU, and its separate steps move queries, keys and values
once more than this module (a seventh of attention's time at 122 positions). The scores of long
sequences (64 MB for four images of 577 patches and 12 heads) leave the cache between any two steps,
and products with them run at half of their rate (143 against 302 GFLOP/s). So with a bias, as in
image models, a few heads of one sequence are processed at a time.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from vlmill.models.probes import works

LEVELS = 1 << 16  # the rate is rounded to a multiple of 1 / LEVELS: 0.1 becomes 0.100006
LOWEST = -(LEVELS // 2)


def draw_factors(like: Tensor, rate: float) -> Tensor | None:
    """Returns factors in the shape of ``like``: 0 with probability ``rate``, else 1 / (1 -
    ``rate``).

    Returns None if the rate rounds to 0. For each float32 PyTorch draws 32 bits on a CPU, one after
    the other, which was 3 % of a training step; here four numbers share a draw of 64. Clamping to
    two neighbours makes the factors. PyTorch vectorises it; comparing and choosing, which it does
    not vectorise, has a tenth of the speed.
    """
    dropped = min(round(rate * LEVELS), LEVELS - 1)
    if dropped == 0:
        return None
    draws = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
    first_kept = LOWEST + dropped
    sides = draws.view(torch.int16)[: like.numel()].clamp_(first_kept - 1, first_kept)
    factors = sides.sub_(first_kept - 1).to(like.dtype).mul_(LEVELS / (LEVELS - dropped))
    return factors.view(like.shape)


def drops_faster(hidden: Tensor) -> bool:
    """Returns whether `cpu_dropout` is faster: for float32, not while it is traced."""
    plain = hidden.device.type == "cpu" and hidden.dtype == torch.float32
    return plain and not torch.compiler.is_compiling()


def cpu_dropout(hidden: Tensor, rate: float) -> Tensor:
    """Sets each number to 0 with probability ``rate``, else divides it by 1 - ``rate``."""
    factors = draw_factors(hidden, rate)
    return hidden if factors is None else hidden * factors


CACHE = 2 << 20  # approximate bytes of cache per core


def attends_faster(
    q: Float[Tensor, "B N h d"], dropout: float, bias: Float[Tensor, "h N M"] | None
) -> bool:
    """Returns whether `cpu_attention` is faster: for float32 or under autocast, untraced.

    It is with dropout and with a learned bias: PyTorch has no fused kernel for these on a CPU.
    """
    learned = bias is not None and bias.requires_grad and torch.is_grad_enabled()
    return (
        q.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and (q.dtype == torch.float32 or torch.is_autocast_enabled("cpu"))
        and (dropout > 0 or learned)
    )


def cpu_attention(
    q: Float[Tensor, "B N h d"],
    k: Float[Tensor, "B M h d"],
    v: Float[Tensor, "B M h d"],
    key_mask: Bool[Tensor, "B M"] | None,
    dropout: float = 0.0,
    bias: Float[Tensor, "h N M"] | None = None,
) -> Float[Tensor, "B N h d"]:
    """Computes dropout(softmax(q k^T / sqrt(d) + bias)) v over the keys that are real.

    Keeps the weights [B, h, N, M] for the backward pass, as PyTorch's operators do. Under autocast
    it computes in float32.
    """
    mixed: Float[Tensor, "B N h d"] = _CpuAttention.apply(q, k, v, key_mask, dropout, bias)
    return mixed


def _slices(weights: Float[Tensor, "Bh N M"], heads: int, *, few: bool) -> list[slice]:
    """Returns slices of matrices to process together: all, or as many of one sequence as fit
    caches.
    """
    if not few:
        return [slice(None)]
    fit = CACHE // (weights[0].numel() * weights.element_size())
    step = torch.get_num_threads() * max(1, fit)
    return [
        slice(first, min(first + step, start + heads))
        for start in range(0, len(weights), heads)
        for first in range(start, start + heads, step)
    ]


def _by_head(rows: Float[Tensor, "B N h d"]) -> Float[Tensor, "Bh N d"]:
    return rows.transpose(1, 2).reshape(-1, rows.shape[1], rows.shape[3])


def _by_position(matrices: Float[Tensor, "Bh N d"], heads: int) -> Float[Tensor, "B N h d"]:
    return matrices.view(-1, heads, *matrices.shape[1:]).transpose(1, 2)


def _heads(stretch: slice, heads: int) -> slice:
    """Returns the heads of the matrices in a slice of one sequence."""
    first = stretch.start % heads
    return slice(first, first + stretch.stop - stretch.start)


def _fused_score_gradients(grad_weights: Tensor, softmax: Tensor) -> Tensor:
    return torch._softmax_backward_data(grad_weights, softmax, -1, softmax.dtype)


def _plain_score_gradients(grad_weights: Tensor, softmax: Tensor) -> Tensor:
    products = grad_weights * softmax
    return products.sub_(softmax * products.sum(-1, keepdim=True))


def _probe_score_gradients() -> bool:
    rows = torch.linspace(0.0, 1.0, 6, dtype=torch.float32, device="cpu").view(2, 3)
    fused = _fused_score_gradients(rows, rows.softmax(-1))
    return torch.allclose(fused, _plain_score_gradients(rows, rows.softmax(-1)), atol=1e-6)


# Computes the gradient of scores from the gradient of their softmax, in one pass if PyTorch's
# private function exists.
SCORE_GRADIENTS = (
    _fused_score_gradients if works(_probe_score_gradients) else _plain_score_gradients
)


class _CpuAttention(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        q, k, v, key_mask, rate, bias = arguments
        ctx.heads, ctx.scale = q.shape[2], q.shape[3] ** -0.5
        q, k, v = _by_head(q), _by_head(k), _by_head(v)
        weights = q.new_empty(*q.shape[:2], k.shape[1])
        padding = None if key_mask is None else ~key_mask.repeat_interleave(ctx.heads, 0)[:, None]
        factors = draw_factors(weights, rate)
        dropped = weights if factors is None else torch.empty_like(weights)
        mixed = torch.empty_like(q)
        for stretch in _slices(weights, ctx.heads, few=bias is not None):
            scores = weights[stretch]
            start = scores if bias is None else bias[_heads(stretch, ctx.heads)]
            share = 0 if bias is None else 1
            torch.baddbmm(start, q[stretch], k[stretch].mT, beta=share, alpha=ctx.scale, out=scores)
            if padding is not None:
                scores.masked_fill_(padding[stretch], float("-inf"))
            torch.softmax(scores, dim=-1, out=scores)  # the scores become the weights
            if factors is not None:
                torch.mul(scores, factors[stretch], out=dropped[stretch])
            torch.bmm(dropped[stretch], v[stretch], out=mixed[stretch])
        ctx.save_for_backward(q, k, v, weights, dropped, factors)
        return _by_position(mixed, ctx.heads)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights, dropped, factors = ctx.saved_tensors
        grad = _by_head(grads[0])
        grad_q, grad_k, grad_v = (torch.empty_like(rows) for rows in (q, k, v))
        grad_bias = None
        if ctx.needs_input_grad[5]:
            grad_bias = weights.new_zeros(ctx.heads, *weights.shape[1:])
        for stretch in _slices(weights, ctx.heads, few=grad_bias is not None):
            torch.bmm(dropped[stretch].mT, grad[stretch], out=grad_v[stretch])
            grad_weights = torch.bmm(grad[stretch], v[stretch].mT)
            if factors is not None:
                grad_weights.mul_(factors[stretch])
            grad_scores = SCORE_GRADIENTS(grad_weights, weights[stretch])
            if grad_bias is not None:
                grad_bias[_heads(stretch, ctx.heads)] += grad_scores
            to_q, to_k, options = grad_q[stretch], grad_k[stretch], {"beta": 0, "alpha": ctx.scale}
            torch.baddbmm(to_q, grad_scores, k[stretch], **options, out=to_q)
            torch.baddbmm(to_k, grad_scores.mT, q[stretch], **options, out=to_k)
        back = (_by_position(rows, ctx.heads) for rows in (grad_q, grad_k, grad_v))
        return *back, None, None, grad_bias
