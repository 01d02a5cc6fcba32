"""A GPU, or a reason for none; and float32 as on a CPU: without TensorFloat-32."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def gpu(pytestconfig: pytest.Config) -> None:
    """Without one there is nothing to compare with the CPU; ``make test-nightly`` compares it with
    itself, so that the tests are tried.
    """
    if not torch.cuda.is_available() and not pytestconfig.getoption("--nightly"):
        pytest.skip("this machine has no GPU to compare with the CPU")


@pytest.fixture(autouse=True)
def no_tensor_float_32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
