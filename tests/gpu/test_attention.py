"""Attention on the device in bfloat16, as recipes have it, against float64 on the CPU."""

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from tests.gpu.device import DEVICE, assert_near, there
from torch import Tensor, nn

from vlmill.models.layers.attention import CoAttention, SelfAttention, reads_packed
from vlmill.models.layers.gpu.biased_attention import reads_bias_once
from vlmill.models.layers.operators import adds_bias
from vlmill.models.layers.packing import Layout, make_layout
from vlmill.models.positions import find_positions

pytestmark = pytest.mark.gpu
TOLERANCE = 0.03  # of the largest value; bfloat16 has 8 bits, and 0.01 is seen on a CPU
WIDTH, HEADS = 128, 2  # heads 64 wide, as everywhere
Results = list[Tensor]


def masks(lengths: Sequence[int], columns: int) -> Tensor:
    return torch.arange(columns) < torch.tensor(lengths)[:, None]


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def results(
    module: nn.Module, leaves: Sequence[Tensor], run: Callable[..., Sequence[Tensor]]
) -> Results:
    """What ``run`` gives of copies of the leaves, and the gradients of all of it."""
    inputs = [leaf.clone().requires_grad_() for leaf in leaves]
    outputs = run(module, *inputs)
    torch.stack([out.double().sin().sum() for out in outputs]).sum().backward()  # type: ignore[no-untyped-call]
    learned = [p.grad for p in module.parameters() if p.grad is not None]
    return [*outputs, *(x.grad for x in inputs if x.grad is not None), *learned]


def on_device(
    module: nn.Module, leaves: Sequence[Tensor], run: Callable[..., Sequence[Tensor]]
) -> Results:
    with torch.autocast(DEVICE.type, torch.bfloat16):
        return results(copy.deepcopy(module).to(DEVICE), [there(leaf) for leaf in leaves], run)


def in_double(
    module: nn.Module, leaves: Sequence[Tensor], run: Callable[..., Sequence[Tensor]]
) -> Results:
    return results(copy.deepcopy(module).double(), [leaf.double() for leaf in leaves], run)


def assert_same(found: Results, expected: Results) -> None:
    assert len(found) == len(expected)
    for number, (one, exact) in enumerate(zip(found, expected, strict=True)):
        assert_near(one, exact, TOLERANCE, f"tensor {number}")


def packed_layout(mask: Tensor) -> Layout:
    """With the places that the host knows, on the device."""
    layout = make_layout(there(mask), there(find_positions(mask)))
    assert layout.real is not None
    if DEVICE.type == "cuda":
        rows = torch.empty(len(layout.real), HEADS, WIDTH // HEADS, device=DEVICE)
        assert reads_packed(rows.bfloat16(), layout, layout)
    return layout


@pytest.mark.parametrize("columns", [37, 137])
def test_of_packed_rows_to_themselves(columns: int) -> None:
    mask = masks([columns, 5, 24, 1], columns)
    read = torch.tensor([0, 3, columns, 3 * columns])
    module, hidden = SelfAttention(WIDTH, HEADS), drawn(4, columns, WIDTH)

    def packed(attention: SelfAttention, grid: Tensor) -> list[Tensor]:
        layout = packed_layout(mask)
        rows, part = layout.pack(grid), layout._replace(read=there(read)).read_rows()
        return [attention(rows, layout), attention(rows, layout, read=part)]

    def padded(attention: SelfAttention, grid: Tensor) -> list[Tensor]:
        out = attention(grid, Layout((4, columns), mask)).flatten(0, 1)
        return [out[find_positions(mask)], out[read]]

    assert_same(on_device(module, [hidden], packed), in_double(module, [hidden], padded))


@pytest.mark.parametrize("full", [False, True])
def test_of_packed_rows_to_another_stream(full: bool) -> None:
    """Also to a stream without padding, which stays in the grid."""
    first, second = masks([9, 4, 30], 30), masks([37, 37, 37] if full else [37, 12, 1], 37)
    module = CoAttention(WIDTH, 96, WIDTH, HEADS, (0.0, 0.0))
    leaves = [drawn(3, 30, WIDTH), drawn(3, 37, 96)]

    def packed(attention: CoAttention, one: Tensor, two: Tensor) -> list[Tensor]:
        layouts = make_layout(there(first), there(find_positions(first))), Layout((3, 37))
        if not full:
            layouts = layouts[0], packed_layout(second)
        outputs = attention(layouts[0].pack(one), layouts[0], layouts[1].pack(two), layouts[1])
        return [outputs[0], outputs[1].reshape(-1, WIDTH)]

    def padded(attention: CoAttention, one: Tensor, two: Tensor) -> list[Tensor]:
        outputs = attention(one, Layout((3, 30), first), two, Layout((3, 37), second))
        return [outputs[0][first], outputs[1][second]]

    assert_same(on_device(module, leaves, packed), in_double(module, leaves, padded))


@pytest.mark.parametrize("columns", [11, 77, 237])
def test_with_a_learned_bias(columns: int) -> None:
    """Of several lengths one after the other, as batches come."""
    mask = masks([columns, 9], columns)
    module = SelfAttention(WIDTH, HEADS)
    leaves = [drawn(2, columns, WIDTH), drawn(HEADS, columns, columns)]
    if DEVICE.type == "cuda":
        assert adds_bias(torch.empty(0, device=DEVICE, dtype=torch.bfloat16))

    def run(attention: SelfAttention, grid: Tensor, bias: Tensor) -> list[Tensor]:
        own = mask.to(grid.device)
        return [attention(grid, Layout((2, columns), own), bias)[own]]

    assert_same(on_device(module, leaves, run), in_double(module, leaves, run))


def test_dropout_leaves_out_what_it_says() -> None:
    """The kernel's own random numbers: the mean over many queries is what it is without."""
    mask = masks([64, 40], 64)
    module = SelfAttention(WIDTH, HEADS, 0.5).to(DEVICE)
    with torch.no_grad(), torch.autocast(DEVICE.type, torch.bfloat16):
        layout = packed_layout(mask)
        rows = layout.pack(there(drawn(2, 64, WIDTH)))
        plain = module.eval()(rows, layout).float()
        draws = torch.stack([module.train()(rows, layout).float() for _ in range(200)])
    assert not torch.equal(draws[0], draws[1])
    assert_near(draws.mean(0), plain, 0.2)


@pytest.mark.parametrize("columns", [11, 77, 237])
def test_with_a_bias_that_our_kernels_read(columns: int) -> None:
    """In the grid and packed, and of few queries; elsewhere than on CUDA, the plain way."""
    mask = masks([columns, 9, columns - 1], columns)
    read = torch.tensor([0, 3, columns, 2 * columns + 1])
    module = SelfAttention(WIDTH, HEADS)
    module.bias_kernel = True
    leaves = [drawn(3, columns, WIDTH), drawn(HEADS, columns, columns)]
    if DEVICE.type == "cuda":
        assert reads_bias_once(torch.empty(1, HEADS, WIDTH // HEADS, device=DEVICE), 0.0)

    def run(attention: SelfAttention, grid: Tensor, bias: Tensor) -> list[Tensor]:
        own = mask.to(grid.device)
        layouts = [Layout((3, columns), own), make_layout(own, find_positions(own))]
        outputs = []
        for layout in layouts:
            part = layout._replace(read=read.to(grid.device)).read_rows()
            rows = layout.pack(grid)
            mixed = attention(rows, layout, bias)
            outputs.append(mixed if layout.real is not None else mixed[own])
            outputs.append(attention(rows, layout, bias, part))
        return outputs

    assert_same(on_device(module, leaves, run), in_double(module, leaves, run))
