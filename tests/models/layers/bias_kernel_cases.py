"""Checks of attention's kernels for GPUs that need none, for processes of their own
(test_biased_attention.py).

    TRITON_INTERPRET=1 python -m tests.models.layers.bias_kernel_cases interpret
    python -m tests.models.layers.bias_kernel_cases compile

Triton's interpreter runs the programs one after the other, by NumPy. Its compiler then says whether
they are what a GPU takes.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.fx.experimental import _config as fx_config
from torch.library import opcheck
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import interpreter

from vlmill.models import PixelInputs
from vlmill.models.layers import attention, experts, packing
from vlmill.models.layers.attention import SelfAttention
from vlmill.models.layers.experts import PreNormBlock, _add_scaled
from vlmill.models.layers.gpu import bias_kernels as kernels
from vlmill.models.layers.gpu import residual_kernel
from vlmill.models.layers.gpu.biased_attention import biased_attention, biased_attention_from
from vlmill.models.layers.gpu.residual import add_scaled
from vlmill.models.layers.packing import Layout, make_joint_layout, make_layout
from vlmill.models.positions import Cells
from vlmill.models.vlmo.config import vlmo_small
from vlmill.models.vlmo.model import Vlmo
from vlmill.train.objectives.contrast import contrast_and_matching

H100 = GPUTarget("cuda", 90, 32)
HEADS = 2
EXACT = 1e-5
# Of float16, whose steps are 2^-11, and bfloat16, 2^-8, after sums of some hundred products.
HALF = {torch.float16: 6e-3, torch.bfloat16: 5e-2}


def numbers() -> None:
    """Compares the kernels' results and gradients with those of float64."""
    make_interpreter_exact()
    values()
    residuals()


def interpret() -> None:
    """Runs every case that the interpreter can run."""
    numbers()
    operators()
    models()
    traced()


def make_interpreter_exact() -> None:
    """Multiplies bfloat16 as what it is: the interpreter would multiply the numbers' bits.

    Blocks are large, as the interpreter's time goes by programs and not by their size.
    """
    assert triton.knobs.runtime.interpret
    plain = interpreter.InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, *others: Any) -> Any:
        return plain(self, _widened(a), _widened(b), *others)

    interpreter.InterpreterBuilder.create_dot = create_dot
    kernels.FLOAT_TUNING = kernels.HALF_TUNING


def _widened(handle: Any) -> Any:
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    bits = handle.data.astype(np.uint32) << 16
    return interpreter.TensorHandle(bits.view(np.float32), tl.float32)


def reference(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, key_mask: Tensor | None = None
) -> Tensor:
    """Attention of [B, N, h, d] with everything written out."""
    scores = torch.einsum("bnhd,bmhd->bhnm", q, k) / q.shape[-1] ** 0.5 + bias
    if key_mask is not None:
        scores = scores.masked_fill(~key_mask[:, None, None], -torch.inf)
    return torch.einsum("bhnm,bmhd->bnhd", scores.softmax(-1), v)


def assert_near(found: object, expected: object, tolerance: float) -> None:
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


def by_head(rows: Tensor, width: int) -> tuple[Tensor, ...]:
    """Queries, keys and values, or some of these, of rows [..., parts * heads * width]."""
    return rows.view(*rows.shape[:-1], -1, HEADS, width).unbind(-3)


def with_gradients(
    function: Callable[..., Tensor], gradient: Tensor, *inputs: Tensor
) -> tuple[Tensor, ...]:
    """The result and the gradients of all inputs, in float64."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    result = function(*leaves)
    gradients = torch.autograd.grad(result, leaves, gradient.to(result.dtype))
    return (result.detach().double(), *(g.double() for g in gradients))


def compare(
    ours: Callable[..., Tensor],
    theirs: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    tolerance: float,
) -> None:
    """Compares results and gradients with those of float64 on the same numbers."""
    gradient = torch.randn(ours(*inputs).shape)
    computed = with_gradients(ours, gradient, *inputs)
    expected = with_gradients(theirs, gradient, *(x.double() for x in inputs))
    for first, second in zip(computed, expected, strict=True):
        assert_near(first, second, tolerance)


def random_mask(sequences: int, length: int) -> Tensor:
    mask = torch.rand(sequences, length) < 0.6
    mask[:, length // 2] = True
    return mask


def check_grid(
    sequences: int, length: int, width: int, dtype: torch.dtype, *, masked: bool
) -> None:
    torch.manual_seed(length)
    qkv = torch.randn(sequences, length, 3, HEADS, width).to(dtype)
    bias = torch.randn(HEADS, length, length)
    mask = random_mask(sequences, length) if masked else None

    def ours(qkv: Tensor, bias: Tensor) -> Tensor:
        return biased_attention(qkv, bias, None, mask)

    def theirs(qkv: Tensor, bias: Tensor) -> Tensor:
        q, k, v = qkv.unbind(2)
        return reference(q, k, v, bias, mask)

    compare(ours, theirs, (qkv, bias), HALF.get(dtype, EXACT))


def check_packed() -> None:
    """Rows in any order, a view of a larger bias, and queries of few cells, in one block of two."""
    torch.manual_seed(0)
    mask, length = random_mask(3, 140), 140
    mask[1, 70:] = False  # a block without any row
    cells = mask.flatten().nonzero().flatten()
    cells = cells[torch.randperm(len(cells))]
    layout = Layout((3, length), mask, cells)
    qkv = torch.randn(len(cells), 3, HEADS, 16)
    bias = torch.randn(HEADS, length + 9, length + 9)
    rows = layout.rows_of_cells()
    assert rows is not None and rows.dtype == torch.int32

    def ours(qkv: Tensor, bias: Tensor) -> Tensor:
        return biased_attention(qkv, bias[:, 9:, 9:], rows, None)

    def theirs(qkv: Tensor, bias: Tensor) -> Tensor:
        q, k, v = by_head(layout.unpack(qkv.flatten(1)), 16)
        return layout.pack(reference(q, k, v, bias[:, 9:, 9:], mask).flatten(2)).view(-1, HEADS, 16)

    compare(ours, theirs, (qkv, bias), EXACT)
    read = layout._replace(read=torch.tensor([0, 3, 141, 280]))
    few, keys_values = torch.randn(4, HEADS, 16), qkv[:, 1:]
    queries = Layout((3, length), None, read.read)
    query_rows = queries.rows_of_cells()
    assert query_rows is not None

    def ours_few(few: Tensor, keys_values: Tensor, bias: Tensor) -> Tensor:
        return biased_attention_from(few, keys_values, bias[:, 9:, 9:], query_rows, rows, None)

    def theirs_few(few: Tensor, keys_values: Tensor, bias: Tensor) -> Tensor:
        (q,) = by_head(queries.unpack(few.flatten(1)), 16)
        k, v = by_head(layout.unpack(keys_values.flatten(1)), 16)
        mixed = reference(q, k, v, bias[:, 9:, 9:], mask)
        return queries.pack(mixed.flatten(2)).view(-1, HEADS, 16)

    compare(ours_few, theirs_few, (few, keys_values, bias), EXACT)


def check_edges() -> None:
    """Large biases, a sequence without keys, no sequences, and a bias of other cells."""
    qkv = torch.randn(2, 5, 3, HEADS, 16)
    bias = torch.zeros(HEADS, 5, 5)
    bias[:, :, 1] = 300.0  # times log2(e) beyond what 2^x has in float32
    mask = torch.tensor([[True] * 5, [False] * 5])
    mixed, gradient, of_bias = with_gradients(
        lambda qkv, bias: biased_attention(qkv, bias, None, mask),
        torch.ones(2, 5, HEADS, 16),
        qkv,
        bias,
    )
    assert mixed.isfinite().all() and gradient.isfinite().all() and of_bias.isfinite().all()
    torch.testing.assert_close(mixed[0], qkv[0, 1:2, 2].expand(5, -1, -1).double())
    assert not mixed[1].any() and not gradient[1].any()
    nothing = biased_attention(qkv[:0], bias, None, mask[:0])
    assert nothing.shape == (0, 5, HEADS, 16)
    try:
        biased_attention(qkv, bias[:, :4, :4], None, None)
    except ValueError as error:
        assert "a bias of 4 cells does not fit 10 queries and 10 keys" in str(error)
    else:
        raise AssertionError("a bias of other cells was taken")


def check_order_of_sums() -> None:
    """The same inputs give the same bits, divided into however many parts."""
    torch.manual_seed(0)
    qkv, bias = torch.randn(5, 20, 3, HEADS, 16), torch.randn(HEADS, 20, 20)
    gradient = torch.randn(5, 20, HEADS, 16)
    sums = []

    def mixed(qkv: Tensor, bias: Tensor) -> Tensor:
        return biased_attention(qkv, bias, None, None)

    for programs in (1, 4, 4, 1056):  # 1, 2, 2 and 5 parts
        kernels.BIAS_PROGRAMS = programs
        sums.append(with_gradients(mixed, gradient, qkv, bias)[2])
    assert torch.equal(sums[1], sums[2])
    assert_near(sums[0], sums[1], EXACT)
    assert_near(sums[0], sums[3], EXACT)


def values() -> None:
    """Results and gradients beside float64."""
    for sequences, length in ((3, 1), (2, 17), (1, 197), (2, 237)):
        check_grid(sequences, length, 64, torch.float32, masked=length > 1)
    check_grid(3, 17, 64, torch.float32, masked=False)
    check_grid(2, 70, 64, torch.float16, masked=True)
    check_grid(2, 70, 64, torch.bfloat16, masked=True)
    check_grid(1, 20, 128, torch.float32, masked=True)
    check_packed()
    check_edges()
    check_order_of_sums()


def check_residuals(*shape: int, dtype: torch.dtype, drop: Tensor | None) -> None:
    """The kernel's gradients beside those of PyTorch's operators, from a view of a larger one."""
    leaves = [torch.randn(shape), torch.randn(shape).to(dtype), torch.randn(shape[-1])]
    gradient = torch.randn(*shape[:-2], shape[-2] + 4, shape[-1])[..., 2:-2, :]
    results = []
    for function in (add_scaled, _add_scaled):
        hidden, branch, scale = inputs = [leaf.clone().requires_grad_() for leaf in leaves]
        total = function(hidden, branch, scale, drop)
        results.append([total, *torch.autograd.grad(total, inputs, gradient)])
    assert_near(results[0], results[1], HALF.get(dtype, EXACT))


def residuals() -> None:
    """In the grid and packed, with and without drop path, with lengths of no whole blocks."""
    torch.manual_seed(0)
    by_sequence = torch.tensor([1.25, 0.0, 1.25])[:, None, None]
    by_row = torch.randint(2, (21, 1)).float() * 1.25
    for dtype in (torch.float32, torch.float16):
        check_residuals(3, 7, 48, dtype=dtype, drop=by_sequence)
        check_residuals(21, 48, dtype=dtype, drop=by_row)
    check_residuals(3, 7, 48, dtype=torch.float32, drop=None)
    check_residuals(0, 48, dtype=torch.float32, drop=None)
    residual_kernel.PROGRAMS = 2  # each reads several blocks
    check_residuals(3, 17, 48, dtype=torch.float32, drop=by_sequence)


def operators() -> None:
    """What torch asks of a custom operator: schema, shapes without values, gradients, tracing."""
    torch.manual_seed(0)
    qkv = torch.randn(12, 3, HEADS, 16, requires_grad=True)
    bias = torch.randn(HEADS, 6, 6, requires_grad=True)
    mask = random_mask(2, 6)
    opcheck(torch.ops.vlmill.biased_attention, (qkv, bias, None, mask))
    rows = torch.arange(12, dtype=torch.int32).flip(0).view(2, 6)
    opcheck(torch.ops.vlmill.biased_attention, (qkv, bias, rows, None))
    few = torch.randn(3, HEADS, 16, requires_grad=True)
    query_rows = torch.full((2, 6), -1, dtype=torch.int32)
    query_rows[0, 1], query_rows[1, 5], query_rows[1, 0] = 0, 1, 2
    keys_values = qkv.detach()[:, 1:].contiguous().requires_grad_()
    opcheck(
        torch.ops.vlmill.biased_attention_from, (few, keys_values, bias, query_rows, rows, None)
    )


def look_at_no_value() -> None:
    """Layouts are made as on a GPU."""
    setattr(packing, "readable", lambda tensor: False)  # noqa: B010


def use_kernels(module: nn.Module, *, on: bool) -> None:
    """Lets attention take the kernels here, where there is no GPU."""
    setattr(attention, "reads_bias_once", lambda rows, dropout: dropout == 0)  # noqa: B010
    setattr(experts, "sums_by_kernel", lambda branch: not torch.compiler.is_compiling())  # noqa: B010
    for part in module.modules():
        if isinstance(part, SelfAttention):
            part.bias_kernel = on
        if isinstance(part, PreNormBlock):
            part.residual_kernel = on


def gradients_of(loss: Tensor, module: nn.Module) -> list[Tensor]:
    module.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return [loss.detach(), *(p.grad for p in module.parameters() if p.grad is not None)]


def check_layers(module: SelfAttention, layout: Layout, hidden: Tensor, bias: nn.Parameter) -> None:
    module.register_parameter("table", bias)
    read = layout._replace(read=torch.tensor([0, 2, 9, 20])).read_rows()
    for rows in (None, read):
        results = []
        for on in (True, False):
            use_kernels(module, on=on)
            mixed = module(hidden, layout, bias, rows)
            if layout.real is None and layout.key_mask is not None and rows is None:
                mixed = mixed * layout.key_mask[..., None]
            results.append(gradients_of(mixed.sin().sum(), module))
        assert_near(results[0], results[1], EXACT)


def model_inputs(config: Any, longest: int = 7) -> PixelInputs:
    mask = torch.arange(longest) < torch.tensor([longest, 4, 5])[:, None]
    tokens = torch.randint(1, config.vocab_size, (3, longest)) * mask
    pixels = torch.randn(3, 3, config.image_size, config.image_size)
    return PixelInputs(tokens=tokens, token_mask=mask, pixels=pixels).to("cpu")


def models() -> None:
    """Layers in every layout, and the whole of VLMo: the same with and without."""
    look_at_no_value()
    torch.manual_seed(0)
    mask = torch.tensor([[True] * 8, [True] * 5 + [False] * 3, [True, False] * 2 + [True] * 4])
    real = mask.flatten().nonzero().flatten()
    layouts = [Layout((3, 8)), make_layout(mask, pack=False), make_layout(mask, real)]
    layouts.append(
        make_joint_layout(
            mask[:, :6], mask[:, 6:], Cells(positions(mask[:, :6]), positions(mask[:, 6:]))
        )[0]
    )
    for layout in layouts:
        hidden = layout.pack(torch.randn(3, 8, 32))
        bias = nn.Parameter(torch.randn(2, 8, 8))
        check_layers(SelfAttention(32, 2), layout, hidden, bias)
    config = vlmo_small(vocab_size=50, image_size=32, num_layers=2, first_vl_layer=1, width=64)
    model = Vlmo(replace(config, init_std=0.2, layer_scale=0.5, drop_path=0.3)).train()
    assert model.encoder.relative is not None
    nn.init.normal_(model.encoder.relative.table)
    inputs, results, mix = model_inputs(config), [], Mock(wraps=kernels.mix)
    kernels.mix = mix
    for on in (True, False):
        use_kernels(model, on=on)
        torch.manual_seed(0)  # of drop path
        step = contrast_and_matching(model, inputs, inputs.tokens, lambda *_: drawn())
        words = step.masked_text[inputs.token_mask]
        loss = step.contrast.loss + step.match_logits.sin().sum() + words.sin().sum()
        results.append(gradients_of(loss, model))
    assert_near(results[0], results[1], 1e-4)
    # Two layers of pairs; of texts and images one, and the last one by either of two experts.
    assert mix.call_count == 8


def positions(mask: Tensor) -> Tensor:
    return mask.flatten().nonzero().flatten()


def drawn() -> tuple[Tensor, Tensor]:
    return torch.tensor([1, 2, 0]), torch.tensor([2, 0, 1])


def traced() -> None:
    """A compiled block is one graph for all lengths, in the grid and packed."""
    look_at_no_value()
    fx_config.use_duck_shape = False
    for packed in (False, True):
        torch._dynamo.reset()
        check_traced(packed=packed)


def check_traced(*, packed: bool) -> None:
    block = PreNormBlock(64, 4, 128, experts=("vl",), layer_scale=0.1).train()
    use_kernels(block, on=True)
    compiled = torch.compile(block, dynamic=True, fullgraph=True, backend="aot_eager")
    table = torch.randn(4, 30, 30, requires_grad=True)
    for sequences, length in ((3, 8), (2, 11), (4, 13)):
        mask = random_mask(sequences, length)
        layout = make_layout(mask, positions(mask), pack=packed)
        hidden = layout.pack(torch.randn(sequences, length, 64))
        route = (("vl", hidden.shape[-2]),)
        found, expected = (
            gradients_of(one(hidden, layout, route, table[:, :length, :length]).sin().sum(), block)
            for one in (compiled, block)
        )
        assert_near(found, expected, EXACT)
        torch.compiler.set_stance("fail_on_recompile")
    torch.compiler.set_stance("default")


CONSTANTS = (
    "HEAD",
    "QUERIES",
    "KEYS",
    "HAS_QUERY_ROWS",
    "HAS_KEY_ROWS",
    "HAS_MASK",
    "ROWS",
    "COLUMNS",
)
FLOATS = ("normalizers", "products", "sums")
TABLES = {"query_rows": "*i32", "key_rows": "*i32", "key_mask": "*u8"}


def compiled(kernel: Any, blocks: kernels.Blocks, dtype: str, *, packed: bool) -> str:
    """The kernel's assembly for an H100, without one; rows by a table or in a masked grid."""
    constants: dict[str, Any] = {"HEAD": 64, "QUERIES": blocks.queries, "KEYS": blocks.keys}
    constants |= {"HAS_QUERY_ROWS": packed, "HAS_KEY_ROWS": packed, "HAS_MASK": not packed}
    constants |= {"ROWS": kernels.PAD_ROWS, "COLUMNS": kernels.PAD_COLUMNS}
    constants |= dict.fromkeys(("key_mask",) if packed else ("query_rows", "key_rows"), None)
    signature, aligned = {}, {}
    for number, name in enumerate(kernel.arg_names):
        numeric = "fp32" if name in ("scale", "factor") else "i32"
        pointer = "*fp32" if name in FLOATS else TABLES.get(name, f"*{dtype}")
        is_number = name in NUMBERS or name.endswith("stride")
        signature[name] = numeric if is_number else pointer
        if name in constants:
            signature[name] = "constexpr"
        elif not is_number or name.endswith(("stride", "side")):
            aligned[(number,)] = [["tt.divisibility", 16]]
    constants = {name: constants[name] for name in kernel.arg_names if name in constants}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    options = {"num_warps": blocks.warps, "num_stages": blocks.stages, "enable_fp_fusion": True}
    assembly: str = triton.compile(source, target=H100, options=options).asm["ptx"]
    return assembly


NUMBERS = (
    *("num_rows", "length", "heads", "scale", "sequences", "part_length", "bias_side", "side"),
    "factor",
)


def compile_all() -> None:
    """In half precision products are made by tensor cores from tiles that are copied ahead."""
    tuning, small = kernels.HALF_TUNING, kernels.FLOAT_TUNING
    for packed in (False, True):
        for kernel, blocks in (
            (kernels._mix, tuning.forward),
            (kernels._query_gradient, tuning.query),
            (kernels._key_gradients, tuning.key),
            (kernels._bias_gradient, tuning.bias),
        ):
            assembly = compiled(kernel, blocks, "bf16", packed=packed)
            assert "wgmma.mma_async" in assembly and "cp.async" in assembly
            assert packed or "mma" not in compiled(kernel, small.forward, "fp32", packed=packed)
    assert compiled(kernels._pad, tuning.forward, "bf16", packed=False)


if __name__ == "__main__":
    {"numbers": numbers, "interpret": interpret, "compile": compile_all}[sys.argv[1]]()
