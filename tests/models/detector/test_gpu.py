"""Who may take the kernels for GPUs."""

import pytest
import torch
from tests.models.detector.placed import Placed

from vlmill.models.detector import gpu


def test_on_a_gpu_where_nobody_wants_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "can_compile", lambda work: True)
    here, there = torch.empty(2), Placed(torch.empty(2))
    with torch.inference_mode():
        assert gpu.has_kernels(there) and not gpu.has_kernels(here)
    assert not gpu.has_kernels(there)
