"""A step's update by hand: the whole gradient's norm, and its limit."""

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from vlmill.train.run.updates import clip_whole


@pytest.mark.parametrize(("largest", "left"), [(1.0, 1.0), (5.0, 5.0), (13.0, 13.0), (0.0, 13.0)])
def test_the_whole_gradient_is_clipped_to_its_limit(largest: float, left: float) -> None:
    """Of two tensors together, whose norms are 5 and 12; 0 is no limit."""
    tensors = [
        nn.Parameter(torch.zeros(2)),
        nn.Parameter(torch.zeros(1)),
        nn.Parameter(torch.ones(3)),
    ]
    tensors[0].grad, tensors[1].grad = torch.tensor([3.0, 4.0]), torch.tensor([12.0])
    optimizer = torch.optim.SGD(tensors, lr=1.0)
    norm = clip_whole(optimizer, Accelerator(cpu=True), largest=largest)
    assert norm.tolist() == pytest.approx([13.0])
    gradients = [tensor.grad for tensor in tensors[:2]]
    expected = [torch.tensor([3.0, 4.0]) * left / 13, torch.tensor([12.0]) * left / 13]
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted)
    assert tensors[2].grad is None
