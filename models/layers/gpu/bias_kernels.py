"""Kernels (Triton) of attention with a bias that all sequences share, forward and backward.

Softmax is computed block by block with a running maximum (FlashAttention-2, arXiv:2307.08691,
algorithms 1 and 2), so no [B, h, N, N] tensor is ever in memory: neither the scores, nor the bias
expanded over the batch. The bias' gradient is summed over the batch in float32 and in a fixed
order: each program sums one block of it over a part of the batch, and the parts are added after
that. There are no atomic additions, so the same inputs give the same bits.

B sequences of N cells, h heads, d width of a head; R and K rows of queries and keys in memory; P
the padded side of a bias. A table of rows has for each cell the row that holds it, or -1 if there
is none. Exponentials are powers of two: the scale and the padded bias contain log2(e).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int32
from torch import Tensor

LOG2_E = math.log2(math.e)
PAD_ROWS, PAD_COLUMNS = 32, 128  # of a block that is padded
# Number of programs of the bias' gradient that share the batch: 8 for each processor of an H100. It
# is constant, because the order of a sum depends on it.
BIAS_PROGRAMS = 1056


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Specifies how a kernel is divided: the cells of a block, and a program's compile options."""

    queries: int
    keys: int
    warps: int = 4
    stages: int = 2


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Holds the block sizes of the four kernels.

    forward: of the mixed values; query, key, bias: of the gradients of queries, of keys with
    values, and of the bias.
    """

    forward: Blocks
    query: Blocks
    key: Blocks
    bias: Blocks


# The best of 17 that were measured on an H200 (benchmarks/RESULTS.md).
HALF_TUNING = Tuning(
    forward=Blocks(queries=128, keys=64, warps=8, stages=3),
    query=Blocks(queries=64, keys=32, stages=3),
    key=Blocks(queries=64, keys=64),
    bias=Blocks(queries=64, keys=64),
)
_SMALL = Blocks(queries=32, keys=32)
FLOAT_TUNING = Tuning(forward=_SMALL, query=_SMALL, key=_SMALL, bias=_SMALL)


def find_tuning(dtype: torch.dtype) -> Tuning:
    """Returns the blocks for queries, keys and values of this dtype."""
    return FLOAT_TUNING if dtype == torch.float32 else HALF_TUNING


class Cells(NamedTuple):
    """Specifies which rows hold the queries' and the keys' cells, and which keys are real.

    A table is None if the rows are the cells in order. mask: None if every key with a row is real.
    """

    query_rows: Int32[Tensor, "B N"] | None
    key_rows: Int32[Tensor, "B N"] | None
    mask: Bool[Tensor, "B N"] | None


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Holds the inputs of attention: rows of queries, keys and values by head, the padded bias, and
    the numbers of sequences and of cells per sequence.

    ``k`` and ``v`` have the same strides. The numbers of a row and head are contiguous, heads come
    directly after each other.
    """

    q: Float[Tensor, "R h d"]
    k: Float[Tensor, "K h d"]
    v: Float[Tensor, "K h d"]
    padded: Float[Tensor, "2 h P P"]
    cells: Cells
    sequences: int
    length: int

    @cached_property
    def pointers(self) -> tuple[Tensor | None, ...]:
        """Returns the first arguments of every kernel."""
        query_rows, key_rows, mask = self.cells
        if mask is not None:
            mask = mask.contiguous().view(torch.uint8)
        return (self.q, self.k, self.v, self.padded, query_rows, key_rows, mask)

    @cached_property
    def sizes(self) -> tuple[int | float, ...]:
        """Returns the last numeric arguments of every kernel."""
        rows, heads, width = self.q.shape
        scale = width**-0.5 * LOG2_E
        strides = (self.q.stride(0), self.k.stride(0), self.padded.shape[-1])
        return (*strides, rows, self.length, heads, scale)

    def constants(self, blocks: Blocks) -> dict[str, object]:
        """Returns the compile-time constants of a kernel."""
        query_rows, key_rows, mask = self.cells
        assert self.padded.shape[-1] % max(blocks.queries, blocks.keys) == 0
        return {
            "HEAD": self.q.shape[2],
            "QUERIES": blocks.queries,
            "KEYS": blocks.keys,
            "HAS_QUERY_ROWS": query_rows is not None,
            "HAS_KEY_ROWS": key_rows is not None,
            "HAS_MASK": mask is not None,
            "num_warps": blocks.warps,
            "num_stages": blocks.stages,
            "enable_fp_fusion": True,
        }

    def grid(self, block: int) -> tuple[int, int]:
        """Returns the programs for blocks of ``block`` cells of every sequence and head."""
        return _count_blocks(self.length, block), self.sequences * self.q.shape[1]


def _count_blocks(length: int, block: int) -> int:
    return -(-length // block)


def pad_bias(
    bias: Float[Tensor, "h N N"], dtype: torch.dtype, side: int
) -> Float[Tensor, "2 h P P"]:
    """Returns the bias times log2(e), padded by zeros, unchanged and transposed.

    With a ``side`` of whole blocks rows are aligned in memory, regardless of the length.
    """
    heads, length, _ = bias.shape
    padded = torch.empty((2, heads, side, side), dtype=dtype, device=bias.device)
    if padded.numel():
        assert side % PAD_COLUMNS == 0
        _pad[(heads * side // PAD_ROWS, side // PAD_COLUMNS)](
            bias, padded, *bias.stride(), length, side, heads, LOG2_E, PAD_ROWS, PAD_COLUMNS
        )
    return padded


Rows = Sequence[Float[Tensor, "_ h d"]]  # queries, keys, values


def make_problem(
    rows: Rows, padded: Float[Tensor, "2 h P P"], length: int, cells: Cells
) -> Problem:
    """Returns the kernels' arguments; ``padded`` is the bias of ``length`` cells.

    Raises ValueError if the grids have a different number of cells.
    """
    q, k, v = rows
    tables = [table for table in cells if table is not None]
    sequences = len(tables[0]) if tables else len(q) // max(length, 1)
    fits = all(table.shape == (sequences, length) for table in tables)
    in_order = [
        len(held) for held, table in ((q, cells.query_rows), (k, cells.key_rows)) if table is None
    ]
    if not fits or any(count != sequences * length for count in in_order):
        raise ValueError(
            f"a bias of {length} cells does not fit {len(q)} queries and {len(k)} keys of "
            f"{sequences} sequences; give the bias of the layout's columns"
        )
    return Problem(q=q, k=k, v=v, padded=padded, cells=cells, sequences=sequences, length=length)


def mix(
    problem: Problem, tuning: Tuning | None = None
) -> tuple[Float[Tensor, "R h d"], Float[Tensor, "h R"]]:
    """Returns softmax(q k^T / sqrt(d) + bias) v, and the base-2 logarithm of each softmax
    denominator, float32.
    """
    q = problem.q
    blocks = (tuning or find_tuning(q.dtype)).forward
    mixed = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    normalizers = torch.empty((q.shape[1], len(q)), dtype=torch.float32, device=q.device)
    if len(q):
        _mix[problem.grid(blocks.queries)](
            *problem.pointers, mixed, normalizers, *problem.sizes, **problem.constants(blocks)
        )
    return mixed, normalizers


class Forward(NamedTuple):
    """Holds the results of `mix`, and the gradient of the mixed values, which is contiguous."""

    mixed: Float[Tensor, "R h d"]
    normalizers: Float[Tensor, "h R"]
    gradient: Float[Tensor, "R h d"]


def write_gradients(
    problem: Problem, forward: Forward, gradients: Rows, tuning: Tuning | None = None
) -> Float[Tensor, "h N N"]:
    """Writes the gradients of queries, keys and values, with the same strides; returns the gradient
    of the bias, float32.
    """
    tuning = tuning or find_tuning(problem.q.dtype)
    products = write_query_gradient(problem, forward, gradients[0], tuning.query)
    write_key_gradients(problem, forward, products, gradients[1:], tuning.key)
    return sum_bias_gradient(problem, forward, products, tuning.bias)


def write_query_gradient(
    problem: Problem, forward: Forward, gradient: Float[Tensor, "R h d"], blocks: Blocks
) -> Float[Tensor, "h R"]:
    """Writes the queries' gradient; returns the products of mixed values with their gradient."""
    products = torch.empty_like(forward.normalizers)
    if len(problem.q):
        _query_gradient[problem.grid(blocks.queries)](
            *problem.pointers,
            forward.mixed,
            forward.gradient,
            forward.normalizers,
            products,
            gradient,
            gradient.stride(0),
            *problem.sizes,
            **problem.constants(blocks),
        )
    return products


def write_key_gradients(
    problem: Problem,
    forward: Forward,
    products: Float[Tensor, "h R"],
    gradients: Rows,
    blocks: Blocks,
) -> None:
    """Writes the gradients of keys and values."""
    k_gradient, v_gradient = gradients
    if len(problem.k):
        _key_gradients[problem.grid(blocks.keys)](
            *problem.pointers,
            forward.gradient,
            forward.normalizers,
            products,
            k_gradient,
            v_gradient,
            k_gradient.stride(0),
            *problem.sizes,
            **problem.constants(blocks),
        )


def sum_bias_gradient(
    problem: Problem, forward: Forward, products: Float[Tensor, "h R"], blocks: Blocks
) -> Float[Tensor, "h N N"]:
    """Returns the bias' gradient, summed over the batch in a fixed order."""
    sequences, length, heads = problem.sequences, problem.length, problem.q.shape[1]
    tiles = _count_blocks(length, blocks.queries) * _count_blocks(length, blocks.keys)
    parts = min(sequences, _count_blocks(BIAS_PROGRAMS, max(1, tiles * heads)))
    shape = (parts, heads, length, length)
    sums = torch.empty(shape, dtype=torch.float32, device=problem.q.device)
    if parts and tiles:
        _bias_gradient[(tiles, heads, parts)](
            *problem.pointers,
            forward.gradient,
            forward.normalizers,
            products,
            sums,
            sequences,
            _count_blocks(sequences, parts),
            *problem.sizes,
            **problem.constants(blocks),
        )
    return sums[0] if parts == 1 else sums.sum(0)


# Triton reads the kernels' source, so their types are not checked. It would compile a kernel again
# for lengths that are multiples of 16 and for a length of 1.
VARYING = ("num_rows", "length")


@triton.jit(do_not_specialize=("head_stride", "row_stride", "length"))
@no_type_check
def _pad(
    bias,
    padded,
    head_stride,
    row_stride,
    column_stride,
    length,
    side,
    heads,
    factor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Pads a block of a head per program, and writes it a second time transposed."""
    first = tl.program_id(0) * ROWS
    head = first // side
    rows = first % side + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    offsets = rows[:, None] * row_stride + columns[None, :] * column_stride
    exists = (rows < length)[:, None] & (columns < length)[None, :]
    value = tl.load(bias + head * head_stride + offsets, mask=exists, other=0.0).to(tl.float32)
    value = (value * factor).to(padded.dtype.element_ty)
    to = padded + head * side * side
    tl.store(to + rows[:, None] * side + columns[None, :], value)
    to += heads * side * side
    tl.store(to + columns[None, :] * side + rows[:, None], value)


@triton.jit
@no_type_check
def _rows(table, sequence, cells, count, HAS_ROWS: tl.constexpr):
    """Returns the rows of a sequence's cells as a first row and offsets, and whether each exists.

    If rows are the cells in order, only the first is a 64-bit number, which uses fewer registers.
    """
    exists = cells < count
    if HAS_ROWS:
        row = tl.load(table + sequence * count + cells, mask=exists, other=-1)
        exists = row >= 0
        row = row.to(tl.int64)
        first = tl.full((), 0, tl.int64)
    else:
        row = cells
        first = tl.full((), 0, tl.int64) + sequence * count
    return first, row, exists


@triton.jit
@no_type_check
def _keys(table, mask, sequence, cells, count, HAS_ROWS: tl.constexpr, HAS_MASK: tl.constexpr):
    """Returns the rows of keys as `_rows` does, and whether each is attended to."""
    first, row, exists = _rows(table, sequence, cells, count, HAS_ROWS)
    real = exists
    if HAS_MASK:
        marks = tl.load(mask + sequence * count + cells, mask=cells < count, other=0)
        real = exists & (marks != 0)
    return first, row, exists, real


@triton.jit
@no_type_check
def _load(tensor, first, row, exists, stride, head, HEAD: tl.constexpr):
    """Returns rows of one head, zeros for missing rows."""
    offsets = row[:, None] * stride + tl.arange(0, HEAD)[None, :]
    return tl.load(tensor + first * stride + head * HEAD + offsets, exists[:, None], other=0.0)


@triton.jit
@no_type_check
def _store(tensor, values, first, row, exists, stride, head, HEAD: tl.constexpr):
    """Stores rows of one head, if the rows exist."""
    offsets = row[:, None] * stride + tl.arange(0, HEAD)[None, :]
    to = tensor + first * stride + head * HEAD + offsets
    tl.store(to, values.to(tensor.dtype.element_ty), exists[:, None])


@triton.jit
@no_type_check
def _bias_tile(bias, head, row_cells, column_cells, side):
    """Returns a block of the padded bias of a head, float32."""
    offsets = (head * side + row_cells[:, None]) * side + column_cells[None, :]
    return tl.load(bias + offsets).to(tl.float32)


@triton.jit(do_not_specialize=VARYING)
@no_type_check
def _mix(
    q,
    k,
    v,
    bias,
    query_rows,
    key_rows,
    key_mask,
    mixed,
    normalizers,
    query_stride,
    key_stride,
    bias_side,
    num_rows,
    length,
    heads,
    scale,
    HEAD: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    HAS_QUERY_ROWS: tl.constexpr,
    HAS_KEY_ROWS: tl.constexpr,
    HAS_MASK: tl.constexpr,
):
    """Mixes values for a block of one sequence's queries and one head per program."""
    sequence, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    cells = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    first, row, exists = _rows(query_rows, sequence, cells, length, HAS_QUERY_ROWS)
    query = _load(q, first, row, exists, query_stride, head, HEAD)
    best = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    sums = tl.zeros((QUERIES, HEAD), tl.float32)
    end = length
    if HAS_QUERY_ROWS:  # a block without any query has nothing to compute
        end = tl.where(tl.max(exists.to(tl.int32), axis=0) > 0, length, 0)
    for start in range(0, end, KEYS):
        key_cells = start + tl.arange(0, KEYS)
        key_first, key_row, key_exists, real = _keys(
            key_rows, key_mask, sequence, key_cells, length, HAS_KEY_ROWS, HAS_MASK
        )
        key = _load(k, key_first, key_row, key_exists, key_stride, head, HEAD)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores += _bias_tile(bias, head, cells, key_cells, bias_side)
        scores = tl.where(real[None, :], scores, float("-inf"))
        larger = tl.maximum(best, tl.max(scores, axis=1))
        # Before the first real key the maximum is -inf, and -inf - -inf is not a number.
        safe = tl.where(larger == float("-inf"), 0.0, larger)
        weights = tl.exp2(scores - safe[:, None])
        shrink = tl.exp2(best - safe)
        total = total * shrink + tl.sum(weights, axis=1)
        value = _load(v, key_first, key_row, key_exists, key_stride, head, HEAD)
        sums = sums * shrink[:, None]
        sums = tl.dot(weights.to(value.dtype), value, sums, input_precision="ieee")
        best = larger
    nonzero = total > 0
    sums = sums / tl.where(nonzero, total, 1.0)[:, None]
    _store(mixed, sums, first, row, exists, heads * HEAD, head, HEAD)
    # Without any key infinity makes the weights 0 in the backward pass.
    normalizer = tl.where(nonzero, best + tl.log2(tl.where(nonzero, total, 1.0)), float("inf"))
    tl.store(normalizers + head * num_rows + first + row, normalizer, mask=exists)


@triton.jit(do_not_specialize=VARYING)
@no_type_check
def _query_gradient(
    q,
    k,
    v,
    bias,
    query_rows,
    key_rows,
    key_mask,
    mixed,
    mixed_gradient,
    normalizers,
    products,
    q_gradient,
    gradient_stride,
    query_stride,
    key_stride,
    bias_side,
    num_rows,
    length,
    heads,
    scale,
    HEAD: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    HAS_QUERY_ROWS: tl.constexpr,
    HAS_KEY_ROWS: tl.constexpr,
    HAS_MASK: tl.constexpr,
):
    """Computes the gradient of a block of one sequence's queries and one head per program.

    Also writes the ``products`` of each row's mixed values with their gradient, which the following
    kernels read.
    """
    sequence, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    cells = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    first, row, exists = _rows(query_rows, sequence, cells, length, HAS_QUERY_ROWS)
    query = _load(q, first, row, exists, query_stride, head, HEAD)
    upstream = _load(mixed_gradient, first, row, exists, heads * HEAD, head, HEAD)
    own = _load(mixed, first, row, exists, heads * HEAD, head, HEAD)
    product = tl.sum(own.to(tl.float32) * upstream.to(tl.float32), axis=1)
    by_row = head * num_rows + first + row
    tl.store(products + by_row, product, mask=exists)
    normalizer = tl.load(normalizers + by_row, mask=exists, other=float("inf"))
    sums = tl.zeros((QUERIES, HEAD), tl.float32)
    end = length
    if HAS_QUERY_ROWS:
        end = tl.where(tl.max(exists.to(tl.int32), axis=0) > 0, length, 0)
    for start in range(0, end, KEYS):
        key_cells = start + tl.arange(0, KEYS)
        key_first, key_row, key_exists, real = _keys(
            key_rows, key_mask, sequence, key_cells, length, HAS_KEY_ROWS, HAS_MASK
        )
        key = _load(k, key_first, key_row, key_exists, key_stride, head, HEAD)
        value = _load(v, key_first, key_row, key_exists, key_stride, head, HEAD)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores += _bias_tile(bias, head, cells, key_cells, bias_side)
        weights = tl.exp2(tl.where(real[None, :], scores, float("-inf")) - normalizer[:, None])
        weight_gradient = tl.dot(upstream, tl.trans(value), input_precision="ieee")
        score_gradient = (weights * (weight_gradient - product[:, None])).to(key.dtype)
        sums = tl.dot(score_gradient, key, sums, input_precision="ieee")
    sums = sums * (scale / 1.4426950408889634)
    _store(q_gradient, sums, first, row, exists, gradient_stride, head, HEAD)


@triton.jit(do_not_specialize=VARYING)
@no_type_check
def _key_gradients(
    q,
    k,
    v,
    bias,
    query_rows,
    key_rows,
    key_mask,
    mixed_gradient,
    normalizers,
    products,
    k_gradient,
    v_gradient,
    gradient_stride,
    query_stride,
    key_stride,
    bias_side,
    num_rows,
    length,
    heads,
    scale,
    HEAD: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    HAS_QUERY_ROWS: tl.constexpr,
    HAS_KEY_ROWS: tl.constexpr,
    HAS_MASK: tl.constexpr,
):
    """Computes the gradients of a block of one sequence's keys and values and one head."""
    sequence, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    key_cells = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    key_first, key_row, key_exists, real = _keys(
        key_rows, key_mask, sequence, key_cells, length, HAS_KEY_ROWS, HAS_MASK
    )
    key = _load(k, key_first, key_row, key_exists, key_stride, head, HEAD)
    value = _load(v, key_first, key_row, key_exists, key_stride, head, HEAD)
    key_sums = tl.zeros((KEYS, HEAD), tl.float32)
    value_sums = tl.zeros((KEYS, HEAD), tl.float32)
    for start in range(0, length, QUERIES):
        cells = start + tl.arange(0, QUERIES)
        first, row, exists = _rows(query_rows, sequence, cells, length, HAS_QUERY_ROWS)
        query = _load(q, first, row, exists, query_stride, head, HEAD)
        upstream = _load(mixed_gradient, first, row, exists, heads * HEAD, head, HEAD)
        by_row = head * num_rows + first + row
        normalizer = tl.load(normalizers + by_row, mask=exists, other=float("inf"))
        product = tl.load(products + by_row, mask=exists, other=0.0)
        # Transposed, so that the weights are the left factor of the sums' products.
        scores = tl.dot(key, tl.trans(query), input_precision="ieee") * scale
        scores += _bias_tile(bias, heads + head, key_cells, cells, bias_side)
        weights = tl.exp2(tl.where(real[:, None], scores, float("-inf")) - normalizer[None, :])
        value_sums = tl.dot(
            weights.to(upstream.dtype), upstream, value_sums, input_precision="ieee"
        )
        weight_gradient = tl.dot(value, tl.trans(upstream), input_precision="ieee")
        score_gradient = (weights * (weight_gradient - product[None, :])).to(query.dtype)
        key_sums = tl.dot(score_gradient, query, key_sums, input_precision="ieee")
    key_sums = key_sums * (scale / 1.4426950408889634)
    _store(k_gradient, key_sums, key_first, key_row, key_exists, gradient_stride, head, HEAD)
    _store(v_gradient, value_sums, key_first, key_row, key_exists, gradient_stride, head, HEAD)


@triton.jit(do_not_specialize=(*VARYING, "sequences", "part_length"))
@no_type_check
def _bias_gradient(
    q,
    k,
    v,
    bias,
    query_rows,
    key_rows,
    key_mask,
    mixed_gradient,
    normalizers,
    products,
    sums,
    sequences,
    part_length,
    query_stride,
    key_stride,
    bias_side,
    num_rows,
    length,
    heads,
    scale,
    HEAD: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    HAS_QUERY_ROWS: tl.constexpr,
    HAS_KEY_ROWS: tl.constexpr,
    HAS_MASK: tl.constexpr,
):
    """Sums a block of one head's bias' gradient over a part of the batch per program."""
    key_blocks = tl.cdiv(length, KEYS)
    cells = tl.program_id(0) // key_blocks * QUERIES + tl.arange(0, QUERIES)
    key_cells = tl.program_id(0) % key_blocks * KEYS + tl.arange(0, KEYS)
    head, part = tl.program_id(1), tl.program_id(2)
    tile = _bias_tile(bias, head, cells, key_cells, bias_side)
    total = tl.zeros((QUERIES, KEYS), tl.float32)
    end = tl.minimum((part + 1) * part_length, sequences)
    for sequence in range(part * part_length, end):
        first, row, exists = _rows(query_rows, sequence, cells, length, HAS_QUERY_ROWS)
        key_first, key_row, key_exists, real = _keys(
            key_rows, key_mask, sequence, key_cells, length, HAS_KEY_ROWS, HAS_MASK
        )
        query = _load(q, first, row, exists, query_stride, head, HEAD)
        upstream = _load(mixed_gradient, first, row, exists, heads * HEAD, head, HEAD)
        key = _load(k, key_first, key_row, key_exists, key_stride, head, HEAD)
        value = _load(v, key_first, key_row, key_exists, key_stride, head, HEAD)
        by_row = head * num_rows + first + row
        normalizer = tl.load(normalizers + by_row, mask=exists, other=float("inf"))
        product = tl.load(products + by_row, mask=exists, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale + tile
        weights = tl.exp2(tl.where(real[None, :], scores, float("-inf")) - normalizer[:, None])
        weight_gradient = tl.dot(upstream, tl.trans(value), input_precision="ieee")
        total += weights * (weight_gradient - product[:, None])
    offsets = ((part * heads + head).to(tl.int64) * length + cells[:, None]) * length
    offsets = offsets + key_cells[None, :]
    exists = (cells < length)[:, None] & (key_cells < length)[None, :]
    tl.store(sums + offsets, total, mask=exists)
