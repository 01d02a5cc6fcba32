"""Says where the kernels of our own compute (vlmill.models.detector.gpu_kernels)."""

import functools
from importlib.util import find_spec

import torch
from torch import Tensor


def has_kernels(tensor: Tensor) -> bool:
    """Says whether they take a tensor: on a GPU, where nobody wants a gradient.

    Whoever is told so imports them there: that takes Triton, which PyTorch brings along for GPUs,
    and a moment.
    """
    return tensor.device.type == "cuda" and not torch.is_grad_enabled() and _has_triton()


@functools.cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
