"""Controls how the C library treats freed memory."""

import ctypes
import os
from collections.abc import Mapping

# Parameters of glibc's mallopt (malloc.h), and the variables by which a user sets them.
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
SET_BY_USER = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_MMAP_MAX_",
    "GLIBC_TUNABLES",
)
NEVER = (1 << 31) - 1


def keep_freed_memory() -> bool:
    """Makes this process keep the memory that it frees; returns whether that could be set.

    A training step frees its activations and gradients and allocates as much again. glibc returns
    them to the system in between, which then clears every page again: 230,000 page faults in a step
    of ViLBERT at base size, a seventh of its time. No block gets its own mapping: those of a
    vocabulary's gradient, too large for glibc to keep otherwise, cost VL-BERT a fifteenth. Peak
    memory is the same. Use it in programs only, since it affects the entire process. If a user has
    set one of these limits, or the library is not glibc, nothing is changed.
    """
    return set_malloc({MMAP_MAX: 0, TRIM_THRESHOLD: NEVER})


def keep_some_freed_memory() -> bool:
    """Makes this process keep up to 64 MiB of freed memory; returns whether that could be set.

    A decoder of images, or an import of features, frees for each image what the next one needs: new
    pages take a tenth of a decoder's time, and a third of the time to import transposed features. A
    user's own limits stay, as with :func:`keep_freed_memory`.
    """
    return set_malloc({MMAP_THRESHOLD: 32 << 20, TRIM_THRESHOLD: 64 << 20})


def return_large_blocks() -> bool:
    """Makes this process return freed blocks of 1 MiB and more to the system; returns whether that
    could be set.

    By default, once glibc has freed a large block, it allocates blocks of that size from its heap:
    a service that reads bodies of 31 MiB then copies them as they grow, and keeps the gaps. A
    user's own limits stay, as with :func:`keep_freed_memory`.
    """
    return set_malloc({MMAP_THRESHOLD: 1 << 20})


def set_malloc(parameters: Mapping[int, int]) -> bool:
    """Sets parameters of glibc's mallopt; returns whether they could be set."""
    if any(os.environ.get(name) for name in SET_BY_USER):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is None:
        return False
    return all(mallopt(name, value) for name, value in parameters.items())
