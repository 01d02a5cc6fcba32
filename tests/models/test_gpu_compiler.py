"""Where kernels of our own can be compiled."""

from importlib.util import find_spec

import pytest
import torch

from vlmill.models import gpu_compiler


def test_where_triton_cannot_compile_others_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on this machine, without a GPU; and where it is not there at all."""
    can_compile = gpu_compiler.can_compile.__wrapped__
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    if not torch.cuda.is_available() and find_spec("triton") is not None:
        message = r"Triton cannot compile here .+ sums will be slower; install gcc"
        with pytest.warns(UserWarning, match=message):
            assert not can_compile("sums")
    monkeypatch.setattr(gpu_compiler, "find_spec", lambda name: None)
    assert not can_compile("sums")
