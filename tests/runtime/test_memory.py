"""Memory that was freed is used again, not asked of the system anew."""

import os
import subprocess
import sys

import pytest

from vlmill.runtime.memory import SET_BY_USER

# 6 times 40 blocks of 8 MiB, of which each page is written to.
PROGRAM = """
import ctypes
import resource
import sys

from vlmill.runtime.memory import keep_freed_memory

said = keep_freed_memory() if sys.argv[1] == "keep" else None
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
size = 8 << 20
for _ in range(6):
    blocks = [ctypes.c_void_p(library.malloc(ctypes.c_size_t(size))) for _ in range(40)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in blocks:
        library.free(block)
print(said, resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""
PAGES_OF_A_ROUND = 40 * (8 << 20) // 4096


def faults(word: str, program: str = PROGRAM, **variables: str) -> tuple[str, int]:
    kept = {name: value for name, value in os.environ.items() if name not in SET_BY_USER}
    done = subprocess.run(
        [sys.executable, "-c", program, word],
        env=kept | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    said, count = done.stdout.split()
    return said, int(count)


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_freed_memory_is_used_again() -> None:
    said, kept = faults("keep")
    if said == "False":
        pytest.skip("this C library has no mallopt")
    _, returned = faults("leave")
    assert returned - kept > 4 * PAGES_OF_A_ROUND


@pytest.mark.parametrize("name", SET_BY_USER)
def test_what_a_user_has_set_stays(name: str) -> None:
    value = "glibc.malloc.trim_threshold=131072" if name == "GLIBC_TUNABLES" else "131072"
    assert faults("keep", **{name: value})[0] == "False"


# Frees a block of 31 MiB, asks for one of 8 MiB, and says whether that is mapped by itself.
MAPPED = """
import ctypes
import sys

from vlmill.runtime.memory import return_large_blocks

said = return_large_blocks() if sys.argv[1] == "return" else None
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.free(ctypes.c_void_p(library.malloc(ctypes.c_size_t(31 << 20))))

class Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]

library.mallinfo2.restype = Counts
before = library.mallinfo2().d  # hblks
library.malloc(ctypes.c_size_t(8 << 20))
print(said, library.mallinfo2().d - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_large_blocks_are_returned() -> None:
    """Without it, the heap has them once one of their size was freed."""
    said, num_mapped = faults("return", MAPPED)
    if said == "False":
        pytest.skip("this C library has no mallopt")
    assert num_mapped == 1 and faults("leave", MAPPED)[1] == 0
