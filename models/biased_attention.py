"""Attention with a bias that is learned, for training on a CPU.

B sequences, N queries, M keys, d width of a head.

PyTorch has no fused kernel for this. Computed whole, the scores of a batch (64 MB for four pictures
of 577 patches and 12 heads) leave the cache between any two steps, and products with them run at
half of their rate (143 against 302 GFLOP/s). So a few heads of one sequence are taken at a time.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

CACHE = 2 << 20  # bytes that a core has to itself, about


def biased_attention(
    q: Float[Tensor, "B heads N d"],
    k: Float[Tensor, "B heads M d"],
    v: Float[Tensor, "B heads M d"],
    bias: Float[Tensor, "heads N M"],
    key_mask: Bool[Tensor, "B M"] | None,
) -> Float[Tensor, "B heads N d"]:
    """softmax(q k^T / sqrt(d) + bias) v over the keys that ``key_mask`` marks (all for None)."""
    mixed: Float[Tensor, "B heads N d"] = _BiasedAttention.apply(q, k, v, bias, key_mask)
    return mixed


def _stretches(bias: Float[Tensor, "heads N M"]) -> list[slice]:
    """Heads to take at a time: as many for each thread as a core's cache holds, one at least."""
    heads, threads = len(bias), torch.get_num_threads()
    step = threads * max(1, CACHE // (bias[0].numel() * bias.element_size()))
    return [slice(first, min(first + step, heads)) for first in range(0, heads, step)]


class _BiasedAttention(torch.autograd.Function):
    """Keeps the weights [B, heads, N, M] for the backward pass, as PyTorch's own operators do."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Any) -> Tensor:
        ctx.scale = q.shape[-1] ** -0.5
        q, k, v = q * ctx.scale, k.contiguous(), v.contiguous()
        batch, heads, queries, _ = q.shape
        weights = q.new_empty(batch, heads, queries, k.shape[2])
        mixed = q.new_empty(batch, queries, heads, v.shape[-1]).transpose(1, 2)
        for some in _stretches(bias):
            for i in range(batch):
                own = weights[i, some]
                torch.baddbmm(bias[some], q[i, some], k[i, some].transpose(1, 2), out=own)
                if mask is not None:
                    own.masked_fill_(~mask[i], float("-inf"))
                torch.softmax(own, dim=-1, out=own)
                mixed[i, some] = own @ v[i, some]
        ctx.save_for_backward(q, k, v, weights)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights = ctx.saved_tensors
        grad = grads[0].contiguous()
        of_q, of_k, of_v = (one.new_empty(one.transpose(1, 2).shape) for one in (q, k, v))
        of_bias = torch.zeros_like(weights[0]) if ctx.needs_input_grad[3] else None
        for some in _stretches(weights[0]):
            for i in range(len(q)):
                own = weights[i, some]
                of_v[i, :, some] = (own.transpose(1, 2) @ grad[i, some]).transpose(0, 1)
                of_weights = grad[i, some] @ v[i, some].transpose(1, 2)
                of_scores = torch._softmax_backward_data(of_weights, own, -1, own.dtype)
                if of_bias is not None:
                    of_bias[some] += of_scores
                of_q[i, :, some] = (of_scores @ k[i, some]).transpose(0, 1)
                of_k[i, :, some] = (of_scores.transpose(1, 2) @ q[i, some]).transpose(0, 1)
        back = (one.transpose(1, 2) for one in (of_q.mul_(ctx.scale), of_k, of_v))
        return *back, of_bias, None
