"""How functions of this job are compiled: by numba, once for all runs."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compiles at the first call, and keeps that on the disk; other threads go on meanwhile."""
    jitted: Any = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return cast(Function, jitted)
