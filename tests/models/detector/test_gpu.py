"""Who may take the kernels for GPUs."""

from importlib.util import find_spec

import pytest
import torch
from tests.models.detector.placed import Placed

from vlmill.models.detector import gpu


def test_on_a_gpu_where_nobody_wants_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_can_compile", lambda: True)
    here, there = torch.empty(2), Placed(torch.empty(2))
    with torch.inference_mode():
        assert gpu.has_kernels(there) and not gpu.has_kernels(here)
    assert not gpu.has_kernels(there)


def test_where_triton_cannot_compile_others_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on this machine, without a GPU; and where it is not there at all."""
    can_compile = gpu._can_compile.__wrapped__
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    if not torch.cuda.is_available() and find_spec("triton") is not None:
        with pytest.warns(UserWarning, match=r"Triton cannot compile here .+ install gcc"):
            assert not can_compile()
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    assert not can_compile()
