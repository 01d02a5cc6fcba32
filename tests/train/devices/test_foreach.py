"""Many tensors by one call of PyTorch's private functions, or one by one."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from vlmill.train.devices import foreach

NAMES = ("_foreach_norm", "_foreach_mul_", "_foreach_add_", "_foreach_lerp_", "_foreach_copy_")


@pytest.fixture(autouse=True)
def probed_anew() -> Iterator[None]:
    foreach.has_foreach.cache_clear()
    yield
    foreach.has_foreach.cache_clear()


def numbers() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator) for size in (3, 1, 7)]


def computed() -> list[list[Tensor]]:
    """What each function leaves."""
    tensors, halves = numbers(), [tensor.bfloat16() for tensor in numbers()]
    norms = foreach.compute_norms(tensors)
    foreach.scale_(tensors, [0.5, 2.0, -1.0])
    foreach.add_(tensors, 3)
    foreach.lerp_(tensors, numbers(), 0.25)
    foreach.copy_(halves, tensors)
    return [norms, tensors, halves]


@pytest.mark.parametrize("name", NAMES)
def test_without_one_of_them_a_loop_gives_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert foreach.has_foreach()
    expected = computed()
    foreach.has_foreach.cache_clear()

    def gone(*_: object, **__: object) -> None:
        raise TypeError("takes other arguments")

    monkeypatch.setattr(torch, name, gone)
    assert not foreach.has_foreach()
    torch.testing.assert_close(computed(), expected)
