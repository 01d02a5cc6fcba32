"""Says where the kernels of our own compute (vlmill.models.detector.gpu_kernels)."""

import torch
from torch import Tensor

from vlmill.models.gpu_compiler import can_compile


def has_kernels(tensor: Tensor) -> bool:
    """Says whether they take a tensor: on a GPU, where nobody wants a gradient.

    Whoever is told so imports them there: that takes Triton, which PyTorch brings along for GPUs.
    """
    on_gpu = tensor.device.type == "cuda" and not torch.is_grad_enabled()
    return on_gpu and can_compile("pooling and suppression")
