"""How functions of this job are compiled: by numba, once for all runs."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compiles at the first call, and keeps that on the disk; other threads go on meanwhile."""
    jitted: Any = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return cast(Function, jitted)


def compiled_bare(function: Function) -> Function:
    """The same for a function that makes no arrays, nor slices of them: nothing to count.

    Each count of references is a locked addition, and they took a fifth of the search.
    """
    jitted: Any = numba.njit(cache=True, nogil=True, error_model="numpy", _nrt=False)(function)
    return cast(Function, jitted)
