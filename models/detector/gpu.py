"""Decides where vlmill's GPU kernels (vlmill.models.detector.gpu_kernels) are used."""

import torch
from torch import Tensor

from vlmill.models.gpu_compiler import can_compile


def has_kernels(tensor: Tensor) -> bool:
    """Returns whether the kernels accept a tensor: on a GPU, without gradients.

    A caller that gets True imports them. They need Triton, which PyTorch installs for GPUs.
    """
    on_gpu = tensor.device.type == "cuda" and not torch.is_grad_enabled()
    return on_gpu and can_compile("pooling and suppression")
