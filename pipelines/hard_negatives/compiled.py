"""Compiles functions of this job with numba, once for all runs.

Numba reuses a compiled function until its file changes, even if functions that it calls have
changed. So names include a digest of all files, and a search never runs with an old layout of
another file.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

SOURCES = ("arrays", "compiled", "state", "kernel", "index")
DIGEST = hashlib.sha256(
    b"".join(Path(__file__).with_name(f"{name}.py").read_bytes() for name in SOURCES)
).hexdigest()[:12]


def compiled(function: Function, *, is_inlined: bool = False) -> Function:
    """Compiles at the first call, and caches the result on disk; other threads continue meanwhile.

    The function creates no arrays or slices, so it needs no reference counts. Each would be a
    locked addition, thousands per query (107 us instead of 39). Numba's option for that has no
    public name.
    """
    function.__qualname__ += f"_{DIGEST}"
    njit: Any = numba.njit  # its annotations lack the last two options
    jitted = njit(cache=True, nogil=True, error_model="numpy", forceinline=is_inlined, _nrt=False)
    return cast(Function, jitted(function))


def inlined(function: Function) -> Function:
    """Compiles a function into its callers.

    So named tuples of arrays are not passed as arguments, which would copy them word by word.
    """
    return compiled(function, is_inlined=True)
