"""Says where the kernels of our own compute (vlmill.models.detector.gpu_kernels)."""

import functools
import warnings
from importlib.util import find_spec

import torch
from torch import Tensor


def has_kernels(tensor: Tensor) -> bool:
    """Says whether they take a tensor: on a GPU, where nobody wants a gradient.

    Whoever is told so imports them there: that takes Triton, which PyTorch brings along for GPUs.
    """
    return tensor.device.type == "cuda" and not torch.is_grad_enabled() and _can_compile()


@functools.cache
def _can_compile() -> bool:
    """Says whether Triton is there and finds what it needs; warns where it does not.

    On NVIDIA's GPUs alone: on others the kernels were never tried.
    """
    if find_spec("triton") is None or torch.version.cuda is None:
        return False
    try:
        from triton.runtime import driver

        driver.active.get_current_target()  # compiles what every kernel is started by
    except Exception as error:  # of any kind: no compiler, no header, no folder to write in
        why = (str(error).splitlines() or [type(error).__name__])[0]
        warnings.warn(
            f"Triton cannot compile here ({why}): pooling and suppression will be slower; install "
            "gcc and Python's headers, and let TRITON_CACHE_DIR name a folder that can be written",
            stacklevel=2,
        )
        return False
    return True
