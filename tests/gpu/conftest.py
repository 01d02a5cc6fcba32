"""Float32 as it is on a CPU: without TensorFloat-32, and as it was afterwards."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def no_tensor_float_32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
