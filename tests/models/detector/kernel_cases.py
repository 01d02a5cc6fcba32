"""Checks of the kernels for GPUs that need none, for a process of their own (test_gpu_kernels.py).

    TRITON_INTERPRET=1 python -m tests.models.detector.kernel_cases interpret
    python -m tests.models.detector.kernel_cases compile

Triton's interpreter runs them one program after the other, by NumPy: the numbers are the kernels'.
Its compiler then says whether they are what a GPU takes.
"""

import sys

import torch
import triton
from torch import Tensor
from torchvision.ops import roi_pool
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from vlmill.models.detector import gpu_kernels as kernels
from vlmill.models.detector.boxes import pairwise_iou
from vlmill.models.detector.nms import exclusive_corners, first_survivors, nms_every_class

SCALE = 1 / 16
H100 = GPUTarget("cuda", 90, 32)


def crowd(generator: torch.Generator, *shape: int) -> Tensor:
    """Boxes, many of which overlap."""
    low = torch.rand(*shape, 2, generator=generator) * 60
    return torch.cat((low, low + 8 + torch.rand(*shape, 2, generator=generator) * 50), dim=-1)


def check_pooling(dtype: torch.dtype, size: int, shape: tuple[int, int, int]) -> None:
    """Bit for bit torchvision's, of regions that leave the map or are inverted, too."""
    generator = torch.Generator().manual_seed(size)
    channels, rows, columns = shape
    maps = torch.randn(2, channels, rows, columns, generator=generator).to(dtype)
    raw = torch.randint(-100, 16 * 35, (5, 4), generator=generator).float()
    boxes = torch.cat((raw, (raw / 8).round() * 8))  # corners on halves of cells, too
    rois = torch.cat((torch.arange(10)[:, None] % 2 * 1.0, boxes), dim=1)
    pooled = kernels.pooled_regions(maps, rois, size, SCALE)
    assert pooled.dtype == dtype and pooled.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(pooled.float(), roi_pool(maps.float(), rois, size, SCALE))


def check_best_survivors() -> None:
    """Those that tensor operators take, at two thresholds, equal scores and places without any."""
    generator = torch.Generator().manual_seed(1)
    boxes, scores = crowd(generator, 2, 70), torch.rand(2, 70, generator=generator)
    scores[0, 5], scores[1, 3] = -torch.inf, scores[1, 9]
    thresholds = (0.4, 0.7)
    expected = first_survivors(
        boxes[:, :, None], scores[:, :, None], thresholds, 60, offset=1.0, inclusive=False
    )
    corners = exclusive_corners(boxes, 1.0)
    areas = (corners[..., 2:] - corners[..., :2]).prod(dim=-1)
    limits = torch.tensor(thresholds)
    places, values = kernels.best_survivors(scores, corners, areas, limits, 60)
    there = expected[1] > -torch.inf
    assert 100 < there.sum() < there.numel()
    assert torch.equal(values, expected[1]) and torch.equal(places[there], expected[0][there])


def check_lists() -> None:
    """Those that survive on rows of bits, of classes with equal scores."""
    generator = torch.Generator().manual_seed(2)
    boxes = crowd(generator, 2, 70)
    scores = torch.rand(2, 70, 5, generator=generator).round(decimals=2)
    scores[0, :9] = -1.0  # last in every class
    expected = nms_every_class(boxes, scores, 0.3, offset=1.0, inclusive=True)
    suppresses = pairwise_iou(boxes, boxes, 1.0) >= 0.3
    survives = kernels.survivors_in_lists(scores.transpose(1, 2), suppresses)
    assert 50 < expected.sum() < expected.numel() / 2
    assert torch.equal(survives.transpose(1, 2), expected)


def interpret() -> None:
    """Every kernel, against what the CPU takes in its place."""
    assert triton.knobs.runtime.interpret
    check_pooling(torch.float32, 7, (3, 20, 31))
    check_pooling(torch.bfloat16, 4, (5, 9, 12))
    check_pooling(torch.bfloat16, 1, (1, 1, 1))
    check_best_survivors()
    check_lists()


def compiled(kernel: object, arguments: dict[str, str], constants: dict[str, int]) -> str:
    """The kernel for an H100, without one."""
    signature = {**arguments, **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    options = {"enable_fp_fusion": False}
    assembly: str = triton.compile(source, target=H100, options=options).asm["ptx"]
    return assembly


def compile_all() -> None:
    """Divisions round to nearest, and no product is joined with a sum."""
    for dtype in ("bf16", "fp32"):
        sizes = {"scale": "fp32", "rows": "i32", "columns": "i32", "channels": "i32"}
        pointers = {"cells": f"*{dtype}", "rois": "*fp32", "pooled": f"*{dtype}"}
        pool = compiled(kernels._pool, pointers | sizes, {"SIZE": 14, "BLOCK": 1024})
        assert "div.rn.f32" in pool and "fma" not in pool
    pointers = dict.fromkeys(("scores", "corners", "areas", "limits"), "*fp32")
    pointers |= {"indices": "*i64", "values": "*fp32"}
    sizes = dict.fromkeys(("thresholds", "boxes", "count"), "i32")
    take_best = compiled(kernels._take_best, pointers | sizes, {"BLOCK": 8192})
    assert "div.rn.f32" in take_best and "fma" not in take_best
    pointers = {"scores": "*fp32", "suppresses": "*u8", "survives": "*u8"}
    sizes = {"classes": "i32", "boxes": "i32"}
    assert compiled(kernels._walk_down, pointers | sizes, {"BLOCK": 512})


if __name__ == "__main__":
    {"interpret": interpret, "compile": compile_all}[sys.argv[1]]()
