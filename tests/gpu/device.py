"""The device that these tests compare with the CPU: a GPU if there is one."""

from collections.abc import Mapping

import torch
from torch import Tensor

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def there(tensor: Tensor) -> Tensor:
    """A copy on that device."""
    return tensor.to(DEVICE)


def assert_near(found: Tensor, expected: Tensor, tolerance: float, name: str = "") -> None:
    """Differs by at most ``tolerance`` of the largest expected value; on whichever device."""
    found, expected = found.detach().cpu().double(), expected.detach().cpu().double()
    assert found.shape == expected.shape, name
    assert expected.numel() and expected.isfinite().all() and found.isfinite().all(), name
    largest = float(expected.abs().max())
    off = float((found - expected).abs().max())
    assert off <= tolerance * largest, f"{name}: off by {off:.3g} of {largest:.3g}"


def assert_all_near(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float
) -> None:
    """The same of every tensor by its name."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert_near(found[name], tensor, tolerance, name)
