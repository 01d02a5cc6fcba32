"""Checks by one call whether a private function of a library works.

Such functions are faster than the public ones, but the next version of their library may remove or
change them. Callers use the public functions if the probe fails, or if Triton cannot compile.
"""

import functools
import warnings
from collections.abc import Callable
from importlib.util import find_spec

import torch

# Raised by a function that is missing or takes other arguments.
REFUSALS = (AttributeError, ImportError, NotImplementedError, RuntimeError, TypeError, ValueError)


def works(call: Callable[[], object]) -> bool:
    """Returns whether ``call`` returns a true value and does not raise one of ``REFUSALS``."""
    try:
        return bool(call())
    except REFUSALS:
        return False


@functools.cache
def can_compile(work: str) -> bool:
    """Returns whether Triton is installed and can compile a kernel.

    Otherwise warns that the ``work`` (a plural noun) will be slower. Only NVIDIA GPUs are
    supported: the kernels are not tested on others.
    """
    if find_spec("triton") is None or torch.version.cuda is None:
        return False
    try:
        from triton.runtime import driver

        driver.active.get_current_target()  # compiles the launcher of all kernels
    except Exception as error:  # of any type: no compiler, no header, no writable folder
        why = (str(error).splitlines() or [type(error).__name__])[0]
        warnings.warn(
            f"Triton cannot compile here ({why}): {work} will be slower; install gcc and Python's "
            "headers, and set TRITON_CACHE_DIR to a writable folder",
            stacklevel=2,
        )
        return False
    return True
