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

SOURCES = ("arrays", "compiled", "bounds", "scores", "kernel", "index")
DIGEST = hashlib.sha256(
    b"".join(Path(__file__).with_name(f"{name}.py").read_bytes() for name in SOURCES)
).hexdigest()[:12]


def compiled(function: Function, *, counts_references: bool = True) -> Function:
    """Compiles at the first call, and keeps that on the disk; other threads go on meanwhile."""
    function.__qualname__ += f"_{DIGEST}"
    njit: Any = numba.njit  # its annotations lack the last option
    jitted = njit(cache=True, nogil=True, error_model="numpy", _nrt=counts_references)
    return cast(Function, jitted(function))


def compiled_bare(function: Function) -> Function:
    """The same for a function that makes no arrays, nor slices of them: nothing to count.

    A count of references is a locked addition, of which the search made thousands a query.
    """
    return compiled(function, counts_references=False)
