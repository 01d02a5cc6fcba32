"""Operations are counted exactly; the device's rate is a rate."""

from typing import Any

import torch
from torch import nn

from vlmill.train.devices.throughput import count_operations, product_rate, without_values


def test_a_linear_layer_forward_and_backward() -> None:
    layer, rows = nn.Linear(8, 16), torch.randn(4, 8, requires_grad=True)

    def step() -> None:
        layer(rows).sum().backward()

    assert count_operations(step) == 3 * 2 * 4 * 8 * 16


def test_the_rate_is_positive_and_below_what_any_cpu_has() -> None:
    assert 1e6 < product_rate(torch.device("cpu"), torch.float32) < 1e16


def test_a_copy_without_values_has_no_memory_and_keeps_what_is_shared_and_frozen() -> None:
    module: Any = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.BatchNorm1d(8))
    module[1].weight = module[0].weight
    module[0].bias.requires_grad_(False)
    copied: Any = without_values(module)
    assert all(value.is_meta for value in (*copied.parameters(), *copied.buffers()))
    assert copied[1].weight is copied[0].weight and not copied[0].bias.requires_grad
    assert copied(torch.zeros(4, 8, device="meta")).shape == (4, 8)
    assert module[0].weight.device.type == "cpu"
