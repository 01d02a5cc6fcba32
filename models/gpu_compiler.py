"""Says whether Triton can compile kernels of our own here."""

import functools
import warnings
from importlib.util import find_spec

import torch


@functools.cache
def can_compile(work: str) -> bool:
    """Returns whether Triton is installed and finds what it needs.

    Where something is missing, warns that the ``work`` (in the plural) will be slower. On NVIDIA's
    GPUs alone: on others the kernels were never tried.
    """
    if find_spec("triton") is None or torch.version.cuda is None:
        return False
    try:
        from triton.runtime import driver

        driver.active.get_current_target()  # compiles what every kernel is started by
    except Exception as error:  # of any kind: no compiler, no header, no folder to write in
        why = (str(error).splitlines() or [type(error).__name__])[0]
        warnings.warn(
            f"Triton cannot compile here ({why}): {work} will be slower; install gcc and Python's "
            "headers, and let TRITON_CACHE_DIR name a folder that can be written",
            stacklevel=2,
        )
        return False
    return True
