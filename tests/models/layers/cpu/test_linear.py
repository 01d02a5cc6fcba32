"""Our linear layer equals PyTorch's, in outputs and gradients, whatever computes it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vlmill.models.layers.cpu import linear as linear_module
from vlmill.models.layers.operators import Linear, gelu_linear, linear, unchanging_weights

needs_onednn = pytest.mark.skipif(
    not linear_module.has_onednn_linear(),
    reason="this PyTorch has no oneDNN, or no linear layer of it",
)


@pytest.fixture(
    params=["PyTorch", *(pytest.param(f"oneDNN{a}", marks=needs_onednn) for a in ("", " forward"))]
)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which library multiplies: whatever would be faster on this processor, both must be right."""
    name: str = request.param
    monkeypatch.setattr(linear_module, "has_onednn_linear", lambda: name != "PyTorch")
    monkeypatch.setattr(linear_module, "mkl_is_fast", lambda: name == "oneDNN forward")
    return name


def both(shape: tuple[int, ...], *, bias: bool = True) -> tuple[Linear, nn.Linear, Tensor, Tensor]:
    torch.manual_seed(0)
    ours, theirs = Linear(24, 40, bias=bias), nn.Linear(24, 40, bias=bias)
    theirs.load_state_dict(ours.state_dict())
    hidden = torch.randn(*shape, 24)
    return ours, theirs, hidden.clone().requires_grad_(), hidden.clone().requires_grad_()


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("shape", [(7,), (2, 3), (2, 3, 4), (1,), (0,), (2, 0)])
@pytest.mark.parametrize("bias", [True, False])
def test_outputs_and_gradients_equal_pytorchs(shape: tuple[int, ...], bias: bool) -> None:
    ours, theirs, mine, other = both(shape, bias=bias)
    out, expected = ours(mine), theirs(other)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    direction = torch.randn_like(out)
    (out * direction).sum().backward()
    (expected * direction).sum().backward()
    torch.testing.assert_close(mine.grad, other.grad, atol=1e-5, rtol=1e-5)
    for one, like in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, like.grad, atol=1e-4, rtol=1e-5)


@pytest.mark.usefixtures("library")
def test_parts_of_tensors_are_taken_as_they_lie() -> None:
    ours, theirs, mine, _ = both((6, 5))
    view = mine.transpose(0, 1)[:, 1:]
    torch.testing.assert_close(ours(view), theirs(view), atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("library")
def test_frozen_weights_get_no_gradient() -> None:
    ours, _, mine, _ = both((4,))
    ours.weight.requires_grad_(False)
    ours(mine).sum().backward()
    assert ours.weight.grad is None and ours.bias.grad is not None and mine.grad is not None


@pytest.mark.usefixtures("library")
def test_without_gradients_nothing_is_kept() -> None:
    ours, theirs, mine, _ = both((4,))
    with torch.no_grad():
        out = ours(mine)
        torch.testing.assert_close(out, theirs(mine), atol=1e-5, rtol=1e-5)
    assert out.grad_fn is None


@pytest.mark.usefixtures("library")
def test_autocast_and_other_dtypes_are_pytorchs() -> None:
    ours, _, mine, _ = both((4,))
    with torch.autocast("cpu", torch.bfloat16):
        assert ours(mine).dtype == torch.bfloat16
    double = linear(mine.double(), ours.weight.double(), ours.bias.double())
    assert double.dtype == torch.float64


def test_only_onednn_has_a_node_of_ours(library: str) -> None:
    ours, _, mine, _ = both((4,))
    made_by = type(ours(mine).grad_fn).__name__
    assert (made_by == "ViewBackward0") == (library != "PyTorch")


@needs_onednn
@pytest.mark.parametrize(("of_intel", "few"), [(True, True), (True, False), (False, False)])
def test_where_mkl_is_fast_only_few_rows_are_onednns(
    of_intel: bool, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_module, "mkl_is_fast", lambda: of_intel)
    ours, _, mine, _ = both((linear_module.FEW_ROWS + (not few),))
    made_by = type(ours(mine).grad_fn).__name__
    assert (made_by == "ViewBackward0") == (few or not of_intel)


@needs_onednn
def test_weights_that_stay_are_laid_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_module, "mkl_is_fast", lambda: False)
    ours, theirs, mine, _ = both((7,))
    laid_out = list[bool]()

    def product(rows: Tensor, weight: Tensor, *others: Any) -> Tensor:
        laid_out.append(weight.is_mkldnn)
        return plain(rows, weight, *others)

    assert linear_module.packs_weights()  # its probe is a product, too
    plain = linear_module._product
    monkeypatch.setattr(linear_module, "_product", product)
    with torch.no_grad():
        with unchanging_weights(linear_module.WORTH), unchanging_weights(1):
            for _ in range(3):
                torch.testing.assert_close(ours(mine), theirs(mine), atol=1e-5, rtol=1e-5)
            of_some = ours.weight[10:]  # a part lies in another place
            for _ in range(2):
                expected = nn.functional.linear(mine, of_some)
                torch.testing.assert_close(linear(mine, of_some), expected, atol=1e-5, rtol=1e-5)
                linear(mine, torch.ones(40, 24))  # no parameter: its memory is another's soon
        ours.weight.zero_()
        with unchanging_weights(linear_module.WORTH - 1):
            torch.testing.assert_close(ours(mine), ours.bias.expand(7, 40))
        with unchanging_weights(linear_module.WORTH):
            torch.testing.assert_close(ours(mine), ours.bias.expand(7, 40))
    assert laid_out == [True, True, True, True, False, True, False, False, True]


@pytest.mark.usefixtures("library")
def test_gelu_with_its_product_equals_gelu_after_it() -> None:
    ours, theirs, mine, other = both((2, 5))
    expected = nn.functional.gelu(theirs(other))
    trained = gelu_linear(mine, ours.weight, ours.bias)
    torch.testing.assert_close(trained, expected, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        at_once = gelu_linear(mine, ours.weight, ours.bias)
    torch.testing.assert_close(at_once, expected, atol=1e-5, rtol=1e-5)
    assert trained.requires_grad


@pytest.mark.parametrize(
    ("maker", "has_mkl", "expected"),
    [("GenuineIntel", True, True), ("GenuineIntel", False, False), ("AuthenticAMD", True, False)],
)
def test_mkl_is_fast_on_intels_processors(
    maker: str, has_mkl: bool, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processors = tmp_path / "cpuinfo"
    processors.write_text(f"vendor_id\t: {maker}\n")
    monkeypatch.setattr(linear_module, "PROCESSORS", processors)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: has_mkl)
    assert linear_module.mkl_is_fast.__wrapped__() is expected


GROWTH = """
import torch
from vlmill.models.layers.cpu import linear as module
from vlmill.models.layers.operators import linear

module.mkl_is_fast = lambda: False

def held():
    line = next(x for x in open("/proc/self/status") if x.startswith("RssAnon"))
    return int(line.split()[1]) // 1024

torch.set_num_threads(1)
weight, before = torch.randn(768, 192), held()
with torch.no_grad():
    for rows in range(500, 2000, 5):
        linear(torch.randn(rows, 192), weight)
print(held() - before)
"""


@needs_onednn
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
@pytest.mark.long
def test_batches_of_ever_other_lengths_leave_no_memory_behind() -> None:
    clean = {k: v for k, v in os.environ.items() if k not in linear_module.CACHES}
    done = subprocess.run(
        [sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True, env=clean
    )
    # 250 MiB, if everything is kept.
    assert int(done.stdout) < 100
