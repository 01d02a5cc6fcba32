"""How functions of this job are compiled: by numba, once for all runs.

Numba keeps what it has compiled until a function's own file changes, and not when what it calls
does. So that no search runs with another file's old layout, names have a digest of all files.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

SOURCES = ("arrays", "compiled", "state", "scores", "kernel", "index")
DIGEST = hashlib.sha256(
    b"".join(Path(__file__).with_name(f"{name}.py").read_bytes() for name in SOURCES)
).hexdigest()[:12]


def compiled(function: Function, *, is_inlined: bool = False) -> Function:
    """Compiles at the first call, and keeps that on the disk; other threads go on meanwhile.

    The function makes no arrays, nor slices of them, so that there is nothing to count: a count of
    references is a locked addition, of which a search would make thousands a query (107 us in place
    of 39). Numba's option for that has no public name.
    """
    function.__qualname__ += f"_{DIGEST}"
    njit: Any = numba.njit  # its annotations lack the last two options
    jitted = njit(cache=True, nogil=True, error_model="numpy", forceinline=is_inlined, _nrt=False)
    return cast(Function, jitted(function))


def inlined(function: Function) -> Function:
    """The same for a function that becomes a part of its callers.

    Named tuples of arrays are then no arguments, which would be copied word by word at each call.
    """
    return compiled(function, is_inlined=True)
