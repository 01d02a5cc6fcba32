"""Pooling by the operators of torchvision's library against torchvision's own functions."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torchvision import ops

from vlmill.models.detector import operators

Pool = Callable[[Tensor, Tensor], Tensor]
POOLS: list[tuple[Pool, Pool]] = [
    (lambda f, r: operators.roi_pool(f, r, 3, 0.25), lambda f, r: ops.roi_pool(f, r, 3, 0.25)),
    *(
        (
            lambda f, r, aligned=aligned: operators.roi_align(
                f, r, 3, 0.25, sampling_ratio=2, aligned=aligned
            ),
            lambda f, r, aligned=aligned: ops.roi_align(f, r, 3, 0.25, 2, aligned),
        )
        for aligned in (False, True)
    ),
]
# Pools a map in a new process without and with gradients; prints after each whether torchvision was
# imported, and the sum.
PROGRAM = """
import sys, torch
from vlmill.models.detector import operators
{change}
features, rois = torch.arange(32.0).reshape(1, 2, 4, 4), torch.tensor([[0.0, 1, 2, 9, 11]])
for _ in range(2):
    pooled = operators.roi_pool(features, rois, 3, 0.25)
    aligned = operators.roi_align(features, rois, 3, 0.25, sampling_ratio=2, aligned=True)
    total = pooled.sum() + aligned.sum()
    print("torchvision" in sys.modules, total.item())
    features.requires_grad_()
total.backward()
"""


@pytest.fixture
def inputs() -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    corners = torch.rand(7, 2, generator=generator) * 20
    sizes = torch.rand(7, 2, generator=generator) * 20
    numbers = torch.arange(7).remainder(2).float()[:, None]
    features = torch.randn(2, 4, 9, 11, generator=generator)
    yield features, torch.cat([numbers, corners, corners + sizes], dim=1)


@pytest.mark.parametrize("pools", POOLS, ids=["pool", "align-legacy", "align"])
def test_equal_torchvisions_functions(
    pools: tuple[Pool, Pool], inputs: tuple[Tensor, Tensor]
) -> None:
    ours, theirs = pools
    assert operators.is_plain_forward(*inputs)
    assert torch.equal(ours(*inputs), theirs(*inputs))


@pytest.mark.parametrize("pools", POOLS, ids=["pool", "align-legacy", "align"])
def test_gradients_are_torchvisions(
    pools: tuple[Pool, Pool], inputs: tuple[Tensor, Tensor]
) -> None:
    features, rois = inputs
    gradients = []
    for pool in pools:
        leaf = features.clone().requires_grad_()
        pool(leaf, rois).square().sum().backward()  # type: ignore[no-untyped-call]
        gradients.append(leaf.grad)
    assert isinstance(gradients[1], Tensor) and gradients[1].abs().sum() > 0
    assert isinstance(gradients[0], Tensor) and torch.equal(gradients[0], gradients[1])


def test_autocast_aligns_as_torchvision_does(inputs: tuple[Tensor, Tensor]) -> None:
    features, rois = inputs
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = (align(features.bfloat16(), rois) for align in POOLS[1])
    assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("change", "imported"), [("", "False"), ("operators.LIBRARIES = ('none',)", "True")]
)
def test_a_forward_pass_imports_torchvision_only_without_its_library(
    change: str, imported: str, tmp_path: Path
) -> None:
    program = tmp_path / "pool.py"
    program.write_text(PROGRAM.format(change=change))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, total, second, again = done.stdout.split()
    assert (first, second) == (imported, "True") and float(total) == float(again) > 0


def test_a_library_of_another_torch_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torchvision")
    monkeypatch.setattr(operators, "library_files", lambda: [Path(__file__)])
    assert not operators.has_operators.__wrapped__()


def test_without_torchvision_its_name_is_in_the_error(
    monkeypatch: pytest.MonkeyPatch, inputs: tuple[Tensor, Tensor]
) -> None:
    monkeypatch.setattr(operators, "has_operators", lambda: False)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ModuleNotFoundError) as raised:
        operators.roi_pool(*inputs, 3, 0.25)
    assert raised.value.name == "torchvision"
