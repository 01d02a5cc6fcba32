"""Measures attention with a shared bias: vlmill's kernels compared with PyTorch's.

First how far both are from float64 on the device, at the shapes of a VLMo base step of 64 pairs;
then milliseconds forward and backward, and those of each kernel with several block sizes.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from benchmarks.gpu_check.measuring import timed
from benchmarks.gpu_check.minutes_steps import Bench
from torch import Tensor

from vlmill.models.layers.gpu.biased_attention import biased_attention, padded_side
from vlmill.models.layers.operators import attention

NAME, FLEX_NAME = "attention kernel", "attention flex"
ROUNDS = 10
TRIALS_S = 25.0  # no further block sizes are tried after so long
# Errors relative to the largest number: rounding of bfloat16 is 2^-9, and the plain way rounds the
# bias and the weights, too.
WORST_RATIO, SMALLEST = 2.0, 1e-3
FLOAT_LIMIT = 2e-5

# Block sizes: queries, keys, warps, stages. Those of a later row are tried after all of a row.
TRIALS: dict[str, tuple[tuple[int, int, int, int], ...]] = {
    "forward": ((128, 64, 8, 2), (64, 64, 4, 3), (128, 64, 8, 3), (64, 64, 4, 2), (128, 128, 8, 2)),
    "query": ((64, 64, 4, 2), (128, 64, 8, 2), (64, 64, 4, 3), (64, 32, 4, 3)),
    "key": ((64, 64, 4, 2), (64, 128, 8, 2), (64, 64, 8, 2), (128, 64, 8, 2)),
    "bias": ((64, 64, 8, 2), (64, 64, 4, 2), (64, 64, 8, 3), (128, 64, 8, 2)),
}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Names sequences and cells of a pass, and how many cells at the front are texts', whose ends
    are padding.
    """

    name: str
    sequences: int
    cells: int
    text: int = 0
    heads: int = 12
    width: int = 64

    def operations(self, products: int) -> int:
        """Returns the operations of products of all queries with all keys."""
        return products * 2 * self.sequences * self.heads * self.width * self.cells**2


SHAPES = (
    Shape(name="joint", sequences=256, cells=237, text=40),
    Shape(name="image", sequences=64, cells=197),
    Shape(name="text", sequences=64, cells=40, text=40),
)
TINY_SHAPES = (Shape(name="joint", sequences=2, cells=20, text=6, heads=2, width=16),)


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """Holds projected rows [B, N, 3, h, d], the bias, the mask of keys and the gradient of mixed
    values.
    """

    qkv: Tensor
    bias: Tensor
    mask: Tensor | None
    gradient: Tensor

    def converted(self, dtype: torch.dtype, sequences: int | None = None) -> "Tensors":
        """Returns rows and gradient of some sequences in another type."""
        return Tensors(
            qkv=self.qkv[:sequences].to(dtype),
            bias=self.bias.to(torch.float64 if dtype == torch.float64 else torch.float32),
            mask=None if self.mask is None else self.mask[:sequences],
            gradient=self.gradient[:sequences].to(dtype),
        )


def make_tensors(shape: Shape, device: torch.device) -> Tensors:
    """Returns random numbers; in the interpreter float16, as it multiplies bfloat16 wrongly."""
    random = torch.Generator(device).manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float16

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=random, device=device)

    mask = None
    if shape.text:
        lengths = torch.randint(
            shape.text // 4, shape.text + 1, (shape.sequences, 1), generator=random, device=device
        )
        cells = torch.arange(shape.cells, device=device)
        mask = (cells < lengths) | (cells >= shape.text)
    size = (shape.sequences, shape.cells, 3, shape.heads, shape.width)
    return Tensors(
        qkv=normal(*size).to(dtype),
        bias=normal(shape.heads, shape.cells, shape.cells),
        mask=mask,
        gradient=normal(*size[:2], *size[3:]).to(dtype),
    )


Attention = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def by_kernels(qkv: Tensor, bias: Tensor, mask: Tensor | None) -> Tensor:
    """Computes attention by the kernels of our own."""
    return biased_attention(qkv, bias, None, mask)


def by_torch(qkv: Tensor, bias: Tensor, mask: Tensor | None) -> Tensor:
    """Computes attention as VLMo does without them, by a kernel that reads an expanded bias."""
    q, k, v = qkv.unbind(2)
    return attention(q, k, v, mask, 0.0, bias)


def written_out(qkv: Tensor, bias: Tensor, mask: Tensor | None) -> Tensor:
    """Computes attention with everything in memory, in the type of the rows."""
    q, k, v = qkv.unbind(2)
    scores = torch.einsum("bnhd,bmhd->bhnm", q, k) / q.shape[-1] ** 0.5 + bias
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
    return torch.einsum("bhnm,bmhd->bnhd", scores.softmax(-1), v)


def with_gradients(function: Attention, tensors: Tensors) -> dict[str, Tensor]:
    """Returns the mixed values and the gradients of queries, keys, values and the bias."""
    qkv, bias = (x.detach().requires_grad_() for x in (tensors.qkv, tensors.bias))
    mixed = function(qkv, bias, tensors.mask)
    of_rows, of_bias = torch.autograd.grad(mixed, (qkv, bias), tensors.gradient)
    q, k, v = of_rows.unbind(2)
    return {"mixed": mixed.detach(), "q": q, "k": k, "v": v, "bias": of_bias}


def errors(found: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """Returns the largest differences, as shares of the largest numbers."""
    return {
        name: float((found[name].double() - exact[name]).abs().max() / exact[name].abs().max())
        for name in exact
    }


def measure_kernels(bench: Bench) -> None:
    """Records the part's lines; raises ArithmeticError where the kernels' numbers are wrong."""
    device, tiny = bench.setting.device, bench.setting.tiny
    if not runs_kernels(device):
        bench.record.write(NAME, skipped="neither a GPU nor Triton's interpreter")
        return
    started = time.perf_counter()
    shapes = TINY_SHAPES if tiny else SHAPES
    wrong = [name for shape in shapes for name in check_shape(shape, bench)]
    for shape in shapes:
        bench.record.write(f"{NAME}/times", shape=shape.name, **compare_times(shape, device))
    try_blocks(shapes[0], bench, until=started + TRIALS_S)
    if wrong:
        raise ArithmeticError(f"too far from float64: {', '.join(wrong)}")


def runs_kernels(device: torch.device) -> bool:
    """Returns whether Triton can run here."""
    if find_spec("triton") is None:
        return False
    import triton

    return device.type == "cuda" or bool(triton.knobs.runtime.interpret)


def check_shape(shape: Shape, bench: Bench) -> list[str]:
    """Records the errors of a shape; returns the names of those that rounding does not explain."""
    tensors = make_tensors(shape, bench.setting.device)
    exact = with_gradients(written_out, tensors.converted(torch.float64))
    found = with_gradients(by_kernels, tensors)
    again = with_gradients(by_kernels, tensors)
    ours, theirs = errors(found, exact), errors(with_gradients(by_torch, tensors), exact)
    in_float = float_errors(tensors) if shape.name == "joint" else {}  # compiled for seconds
    repeated = all(torch.equal(found[name], again[name]) for name in found)
    bench.record.write(
        f"{NAME}/errors",
        shape=shape.name,
        **{f"kernel_{name}": float(f"{value:.2e}") for name, value in ours.items()},
        **{f"torch_{name}": float(f"{value:.2e}") for name, value in theirs.items()},
        **{f"float32_{name}": float(f"{value:.2e}") for name, value in in_float.items()},
        same_bits_again=repeated,
    )
    wrong = [
        f"{shape.name} {name}"
        for name, value in ours.items()
        if not value <= max(WORST_RATIO * theirs[name], SMALLEST)
    ]
    wrong += [f"{shape.name} {name} float32" for name, x in in_float.items() if not x < FLOAT_LIMIT]
    return wrong + ([] if repeated else [f"{shape.name} repeated"])


def float_errors(tensors: Tensors) -> dict[str, float]:
    """Returns the kernels' errors of the first sequences in float32."""
    few = tensors.converted(torch.float32, 8)
    exact = with_gradients(written_out, few.converted(torch.float64))
    return errors(with_gradients(by_kernels, few), exact)


def compare_times(shape: Shape, device: torch.device) -> dict[str, Any]:
    """Returns milliseconds of both ways, forward and with backward, from the projected rows to
    their gradient and the bias'.
    """
    tensors = make_tensors(shape, device)
    fields: dict[str, Any] = {}
    for name, function in (("kernel", by_kernels), ("torch", by_torch)):
        forward = partial(without_gradients, function, tensors)
        both = partial(with_gradients, function, tensors)
        fields[f"{name}_forward_ms"] = milliseconds(forward, device)
        fields[f"{name}_ms"] = milliseconds(both, device)
    operations = shape.operations(2)
    fields["forward_tflops"] = round(operations / fields["kernel_forward_ms"] / 1e9, 1)
    return fields


@torch.no_grad()
def without_gradients(function: Attention, tensors: Tensors) -> Tensor:
    """Computes the mixed values alone."""
    return function(tensors.qkv, tensors.bias, tensors.mask)


def milliseconds(work: Callable[[], object], device: torch.device) -> float:
    """Returns the median time of ``work``."""
    rounds = ROUNDS if device.type == "cuda" else 1
    return round(1e3 * timed(work, device, rounds, warm_up=2 if rounds > 1 else 0), 3)


def try_blocks(shape: Shape, bench: Bench, *, until: float) -> None:
    """Records the milliseconds of each kernel alone with several block sizes, and the best."""
    from vlmill.models.layers.gpu import bias_kernels as kernels

    device = bench.setting.device
    works = kernel_works(make_tensors(shape, device))
    best: dict[str, tuple[float, str]] = {}
    for row in range(max(len(trials) for trials in TRIALS.values())):
        for name, trials in TRIALS.items():
            if row >= len(trials):
                continue
            if time.perf_counter() > until:
                bench.record.write(f"{NAME}/blocks", skipped="no time left", kernel=name, row=row)
                continue
            queries, keys, warps, stages = trials[row]
            label = f"{queries}x{keys} warps={warps} stages={stages}"
            blocks = kernels.Blocks(queries=queries, keys=keys, warps=warps, stages=stages)
            begun = time.perf_counter()
            try:
                ms = milliseconds(partial(works[name], blocks), device)
            except Exception as error:  # of the compiler: this size does not fit the card
                reason = f"{type(error).__name__}: {error}"[:200]
                bench.record.write(f"{NAME}/blocks", kernel=name, blocks=label, failed=reason)
                continue
            took = round(time.perf_counter() - begun, 1)
            bench.record.write(f"{NAME}/blocks", kernel=name, blocks=label, ms=ms, took_s=took)
            best[name] = min(best.get(name, (ms, label)), (ms, label))
    bench.record.write(
        f"{NAME}/best", **{name: {"ms": ms, "blocks": label} for name, (ms, label) in best.items()}
    )


def kernel_works(tensors: Tensors) -> dict[str, Callable[[Any], object]]:
    """Returns what runs each kernel alone, given its blocks."""
    from vlmill.models.layers.gpu import bias_kernels as kernels

    qkv = tensors.qkv.flatten(0, 1)
    padded, cells = (
        kernels.pad_bias(tensors.bias, qkv.dtype, padded_side(len(tensors.bias[0]))),
        kernels.Cells(None, None, tensors.mask),
    )
    problem = kernels.make_problem(qkv.unbind(1), padded, len(tensors.bias[0]), cells)
    forward = kernels.Forward(*kernels.mix(problem), tensors.gradient.flatten(0, 1))
    q, k, v = torch.empty_like(qkv).unbind(1)
    tuning = kernels.find_tuning(qkv.dtype)
    products = kernels.write_query_gradient(problem, forward, q, tuning.query)
    return {
        "forward": lambda blocks: kernels.mix(
            problem, kernels.Tuning(**(vars(tuning) | {"forward": blocks}))
        ),
        "query": lambda blocks: kernels.write_query_gradient(problem, forward, q, blocks),
        "key": lambda blocks: kernels.write_key_gradients(
            problem, forward, products, (k, v), blocks
        ),
        "bias": lambda blocks: kernels.sum_bias_gradient(problem, forward, products, blocks),
    }


def measure_flex(bench: Bench) -> None:
    """Records the milliseconds of PyTorch's FlexAttention with the same bias, and its start."""
    device = bench.setting.device
    if device.type != "cuda":
        bench.record.write(FLEX_NAME, skipped="needs a GPU")
        return
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Any = torch.compile(flex_attention, dynamic=False)

    def by_flex(qkv: Tensor, bias: Tensor, mask: Tensor | None) -> Tensor:
        assert mask is not None

        def add_bias(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return torch.where(mask[b, k], score + bias[h, q, k], -torch.inf)

        rows = (part.transpose(1, 2) for part in qkv.unbind(2))
        mixed: Tensor = compiled(*rows, score_mod=add_bias).transpose(1, 2)
        return mixed

    tensors = make_tensors(SHAPES[0], device)
    begun = time.perf_counter()
    with_gradients(by_flex, tensors)
    torch.cuda.synchronize()
    first_s = round(time.perf_counter() - begun, 1)
    bench.record.write(
        FLEX_NAME,
        shape=SHAPES[0].name,
        first_s=first_s,
        forward_ms=milliseconds(partial(without_gradients, by_flex, tensors), device),
        ms=milliseconds(partial(with_gradients, by_flex, tensors), device),
    )
