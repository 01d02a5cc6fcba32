"""Defines attention with a learned bias as two torch operators that torch.compile does not trace
into.

`biased_attention` takes queries, keys and values of the same rows, concatenated as one product
returns them, and `biased_attention_from` takes queries of other rows. The first call imports their
kernels (`bias_kernels`), because Triton is not installed everywhere.

B sequences, N cells of a grid, h heads, d width of a head; R rows of keys, K of queries. A table of
rows [B, N], int32, has the row of each cell, -1 for a cell without one, and contains every row
once. Without a table the rows are the cells in order. A ``key_mask`` [B, N] is True for real keys.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int32
from torch import Tensor

PADDED_TO = 128  # rows and columns of the padded bias: the largest block of the kernels
HEAD_WIDTHS = (16, 32, 64, 128)  # the sides of blocks in the kernels' products are powers of two
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def reads_bias_once(rows: Float[Tensor, "*rows h d"], dropout: float) -> bool:
    """Returns whether the kernels support these rows: on CUDA, in these dtypes, without dropout."""
    return (
        rows.device.type == "cuda"
        and rows.dtype in DTYPES
        and rows.shape[-1] in HEAD_WIDTHS
        and dropout == 0
    )


def padded_side(length: int) -> int:
    """Returns the number of rows and columns of a padded bias of ``length`` cells."""
    return (length + PADDED_TO - 1) // PADDED_TO * PADDED_TO


def biased_attention(
    projected: Float[Tensor, "*rows 3 h d"],
    bias: Float[Tensor, "h N N"],
    rows: Int32[Tensor, "B N"] | None,
    key_mask: Bool[Tensor, "B N"] | None,
) -> Float[Tensor, "*rows h d"]:
    """Computes softmax(q k^T / sqrt(d) + bias) v over the real keys of each query's sequence.

    ``projected`` has concatenated queries, keys and values. Without a table of rows the queries of
    padding are also computed.
    """
    flat = projected.flatten(0, -4)
    mixed: Tensor = torch.ops.vlmill.biased_attention(flat, bias, rows, key_mask)[0]
    return mixed.view(*projected.shape[:-3], *mixed.shape[1:])


def biased_attention_from(
    queries: Float[Tensor, "K h d"],
    keys_values: Float[Tensor, "*rows 2 h d"],
    bias: Float[Tensor, "h N N"],
    query_rows: Int32[Tensor, "B N"],
    key_rows: Int32[Tensor, "B N"] | None,
    key_mask: Bool[Tensor, "B N"] | None,
) -> Float[Tensor, "K h d"]:
    """Computes `biased_attention` for ``queries`` of some cells, with the keys and values of
    all.
    """
    flat = keys_values.flatten(0, -4)
    mixed: Tensor = torch.ops.vlmill.biased_attention_from(
        queries, flat, bias, query_rows, key_rows, key_mask
    )[0]
    return mixed


@torch.library.custom_op("vlmill::biased_attention", mutates_args=())
def _attention(
    qkv: Tensor, bias: Tensor, rows: Tensor | None, key_mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns mixed values [R, h, d] of qkv [R, 3, h, d], the softmax' normalizers [h, R] and the
    padded bias.
    """
    from vlmill.models.layers.gpu import bias_kernels as kernels

    padded = kernels.pad_bias(bias, qkv.dtype, padded_side(bias.shape[1]))
    cells = kernels.Cells(rows, rows, key_mask)
    projected = qkv.contiguous().unbind(1)
    return *kernels.mix(kernels.make_problem(projected, padded, len(bias[0]), cells)), padded


@torch.library.custom_op("vlmill::biased_attention_backward", mutates_args=())
def _attention_backward(
    gradient: Tensor,
    qkv: Tensor,
    bias: Tensor,
    rows: Tensor | None,
    key_mask: Tensor | None,
    mixed: Tensor,
    normalizers: Tensor,
    padded: Tensor,
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of qkv and, in float32, of the bias."""
    from vlmill.models.layers.gpu import bias_kernels as kernels

    qkv = qkv.contiguous()
    cells = kernels.Cells(rows, rows, key_mask)
    problem = kernels.make_problem(qkv.unbind(1), padded, len(bias[0]), cells)
    of_rows = torch.empty_like(qkv)
    forward = kernels.Forward(mixed, normalizers, gradient.contiguous())
    return of_rows, kernels.write_gradients(problem, forward, of_rows.unbind(1))


@torch.library.custom_op("vlmill::biased_attention_from", mutates_args=())
def _attention_from(
    queries: Tensor,
    keys_values: Tensor,
    bias: Tensor,
    query_rows: Tensor,
    key_rows: Tensor | None,
    key_mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns mixed values [K, h, d] from keys_values [R, 2, h, d], normalizers [h, K] and the
    padded bias.
    """
    from vlmill.models.layers.gpu import bias_kernels as kernels

    padded = kernels.pad_bias(bias, queries.dtype, padded_side(bias.shape[1]))
    cells = kernels.Cells(query_rows, key_rows, key_mask)
    projected = (queries.contiguous(), *keys_values.contiguous().unbind(1))
    return *kernels.mix(kernels.make_problem(projected, padded, len(bias[0]), cells)), padded


@torch.library.custom_op("vlmill::biased_attention_from_backward", mutates_args=())
def _attention_from_backward(
    gradient: Tensor,
    queries: Tensor,
    keys_values: Tensor,
    bias: Tensor,
    query_rows: Tensor,
    key_rows: Tensor | None,
    key_mask: Tensor | None,
    mixed: Tensor,
    normalizers: Tensor,
    padded: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of queries, of keys_values and, in float32, of the bias."""
    from vlmill.models.layers.gpu import bias_kernels as kernels

    queries, keys_values = queries.contiguous(), keys_values.contiguous()
    projected = (queries, *keys_values.unbind(1))
    cells = kernels.Cells(query_rows, key_rows, key_mask)
    problem = kernels.make_problem(projected, padded, len(bias[0]), cells)
    of_queries, of_keys = torch.empty_like(queries), torch.empty_like(keys_values)
    forward = kernels.Forward(mixed, normalizers, gradient.contiguous())
    of_bias = kernels.write_gradients(problem, forward, (of_queries, *of_keys.unbind(1)))
    return of_queries, of_keys, of_bias


# Shapes and dtypes of the results for the compiler.


def _mixed_like(queries: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    num_rows, heads, _ = queries.shape
    normalizers = queries.new_empty((heads, num_rows), dtype=torch.float32)
    side = padded_side(bias.shape[1])
    padded = queries.new_empty((2, heads, side, side))
    return queries.new_empty(queries.shape), normalizers, padded


def _new_like(rows: Tensor) -> Tensor:
    return rows.new_empty(rows.shape)


def _bias_gradient_like(bias: Tensor) -> Tensor:
    return bias.new_empty(bias.shape, dtype=torch.float32)


@_attention.register_fake
def _(qkv: Tensor, bias: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _mixed_like(qkv[:, 0], bias)


@_attention_backward.register_fake
def _(gradient: Tensor, qkv: Tensor, bias: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _new_like(qkv), _bias_gradient_like(bias)


@_attention_from.register_fake
def _(queries: Tensor, keys_values: Tensor, bias: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _mixed_like(queries, bias)


@_attention_from_backward.register_fake
def _(
    gradient: Tensor, queries: Tensor, keys_values: Tensor, bias: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return _new_like(queries), _new_like(keys_values), _bias_gradient_like(bias)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Saves the arguments that the backward operator takes after the gradient."""
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs, *output)


def _differentiate(ctx: Any, gradient: Tensor, *_: object) -> tuple[Tensor | None, ...]:
    bias = ctx.saved_tensors[1]
    of_rows, of_bias = torch.ops.vlmill.biased_attention_backward(gradient, *ctx.saved_tensors)
    return of_rows, of_bias.to(bias.dtype), None, None


def _differentiate_from(ctx: Any, gradient: Tensor, *_: object) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    backward = torch.ops.vlmill.biased_attention_from_backward
    of_queries, of_keys, of_bias = backward(gradient, *saved)
    return of_queries, of_keys, of_bias.to(saved[2].dtype), None, None, None


_attention.register_autograd(_differentiate, setup_context=_keep)
_attention_from.register_autograd(_differentiate_from, setup_context=_keep)
