"""Computes the gradients of a residual sum with layer scale and drop path by a kernel (Triton).

PyTorch's operators compute the gradient of x + branch * scale * drop in five passes over rows of
the layer's width, most of them in float32; the kernel reads the upstream gradient and the branch
once. The scale's gradient is summed in float32 and in a fixed order.

B sequences of N rows each, H width.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

PROGRAMS = 1056  # a constant, because the order of a sum depends on it
ROWS = 8  # rows that a program reads at a time


def scaled_gradients(
    gradient: Float[Tensor, "*rows H"],
    branch: Float[Tensor, "*rows H"],
    scale: Float[Tensor, " H"],
    drop: Float[Tensor, "*factors 1"] | None,
) -> tuple[Float[Tensor, "*rows H"], Float[Tensor, " H"]]:
    """Returns the gradients of a branch and of its layer scale.

    ``drop`` is [B, 1, 1] for rows [B, N, H] and [R, 1] for rows [R, H].
    """
    branch, width = branch.contiguous(), branch.shape[-1]
    if gradient.stride(-1) != 1:
        gradient = gradient.contiguous()
    sequences = len(branch) if branch.dim() == 3 else 1
    length = branch.shape[-2]
    num_rows = sequences * length
    of_branch = torch.empty_like(branch)
    programs = min(PROGRAMS, -(-num_rows // ROWS))
    sums = torch.empty((programs, width), dtype=torch.float32, device=branch.device)
    if num_rows:
        blocks = -(-num_rows // (programs * ROWS))
        _scaled_gradients[(programs,)](
            gradient,
            branch,
            scale,
            None if drop is None else drop.contiguous(),
            of_branch,
            sums,
            gradient.stride(0) if gradient.dim() == 3 else 0,
            gradient.stride(-2),
            length,
            num_rows,
            blocks,
            WIDTH=width,
            PADDED=triton.next_power_of_2(width),
            ROWS=ROWS,
            HAS_DROP=drop is not None,
            BY_ROW=branch.dim() == 2,
            num_warps=8,
            enable_fp_fusion=True,
        )
    return of_branch, sums.sum(0).to(scale.dtype)


@triton.jit(do_not_specialize=("length", "num_rows", "blocks"))
@no_type_check
def _scaled_gradients(
    gradient,
    branch,
    scale,
    drop,
    branch_gradient,
    sums,
    sequence_stride,
    row_stride,
    length,
    num_rows,
    blocks,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_DROP: tl.constexpr,
    BY_ROW: tl.constexpr,
):
    """Computes the branch's gradient for some rows per program and sums the scale's over them.

    Rows that drop path drops are not read.
    """
    column = tl.arange(0, PADDED)
    in_width = column < WIDTH
    factor = tl.load(scale + column, mask=in_width, other=0.0).to(tl.float32)
    total = tl.zeros((PADDED,), tl.float32)
    first = tl.program_id(0) * blocks * ROWS
    for block in range(blocks):
        row = first + block * ROWS + tl.arange(0, ROWS)
        exists = row < num_rows
        sequence = row // length
        kept = tl.full((ROWS,), 1.0, tl.float32)
        if HAS_DROP:
            index = row if BY_ROW else sequence
            kept = tl.load(drop + index, mask=exists, other=0.0).to(tl.float32)
        read = (exists & (kept != 0))[:, None] & in_width[None, :]
        offsets = sequence.to(tl.int64) * sequence_stride + (row % length).to(tl.int64) * row_stride
        up = tl.load(gradient + offsets[:, None] + column[None, :], mask=read, other=0.0)
        up = up.to(tl.float32) * kept[:, None]
        to = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
        value = tl.load(branch + to, mask=read, other=0.0).to(tl.float32)
        total += tl.sum(up * value, axis=0)
        own = (up * factor[None, :]).to(branch_gradient.dtype.element_ty)
        tl.store(branch_gradient + to, own, mask=exists[:, None] & in_width[None, :])
    tl.store(sums + tl.program_id(0) * WIDTH + column, total, mask=in_width)
