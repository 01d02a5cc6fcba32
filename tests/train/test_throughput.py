"""Operations are counted exactly; the device's rate is a rate."""

import torch
from torch import nn

from vlmill.train.throughput import count_operations, product_rate


def test_a_linear_layer_forward_and_backward() -> None:
    layer, rows = nn.Linear(8, 16), torch.randn(4, 8, requires_grad=True)

    def step() -> None:
        layer(rows).sum().backward()

    assert count_operations(step) == 3 * 2 * 4 * 8 * 16


def test_the_rate_is_positive_and_below_what_any_cpu_has() -> None:
    assert 1e6 < product_rate(torch.device("cpu"), torch.float32) < 1e16
