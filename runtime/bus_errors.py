"""Reports a shrunken memory-mapped file by name instead of dying of SIGBUS.

Files are mapped by numpy, Arrow, safetensors, FAISS and ``mmap``. If another process cuts such a
file, reading beyond its new end raises SIGBUS inside the reading library, which no ``except`` can
catch. The handler here finds the file of the page in ``/proc/self/maps``, prints one line and ends
the process with status 1. It costs nothing until then. The handler is a ctypes callback, because
handlers of Python's ``signal`` module run only after the faulting instruction has returned, which
it never does. Only on Linux; elsewhere nothing is installed.
"""

import contextlib
import ctypes
import os
import signal
import sys

_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_SA_SIGINFO = 4
_CODE, _ADDRESS = 8, 16  # offsets of si_code and si_addr in siginfo_t of 64-bit Linux
_HARDWARE = (4, 5)  # BUS_MCEERR_AR, BUS_MCEERR_AO
_SHARED_MEMORY = "/dev/shm/"


class _Action(ctypes.Structure):
    """``struct sigaction`` of glibc and musl on 64-bit Linux."""

    _fields_ = (
        ("handler", _Handler),
        ("mask", ctypes.c_char * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def name_shrunken_files() -> None:
    """Installs the handler in this process, for all of its threads."""
    if sys.platform != "linux" or sys.maxsize <= 1 << 32:
        return
    action = _Action(handler=_HANDLER, flags=_SA_SIGINFO)
    ctypes.CDLL(None).sigaction(int(signal.SIGBUS), ctypes.byref(action), None)


def _end(number: int, information: int, _: int) -> None:
    code = ctypes.c_int.from_address(information + _CODE).value
    if code <= 0:  # another process sent it
        signal.signal(signal.SIGBUS, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    try:
        address = ctypes.c_size_t.from_address(information + _ADDRESS).value
        line = f"failed: {describe_fault(code, address)}\n"
        with contextlib.suppress(OSError):
            os.write(2, line.encode("utf-8", "surrogateescape"))
    finally:
        os._exit(1)  # the instruction would be run again, and fail again


_HANDLER = _Handler(_end)


def describe_fault(code: int, address: int) -> str:
    """Returns why memory at an address could not be read, with the mapped file's name."""
    if code in _HARDWARE:
        return "the machine's memory has an error (SIGBUS); run the command on another machine"
    path, offset = find_mapped_file(address)
    if path is None:
        return f"memory at {address:#x} could not be read (SIGBUS)"
    if path.startswith(_SHARED_MEMORY):
        return (
            f"shared memory is full ({path}); make {_SHARED_MEMORY} larger (docker run "
            "--shm-size) or use fewer workers"
        )
    with contextlib.suppress(OSError):
        if os.stat(path).st_size > offset:
            return f"{path} could not be read at byte {offset}: the disk has an error"
    return (
        f"{path} has shrunk while it was read: another process has cut or rewritten it; put the "
        "whole file back and run the command again"
    )


def find_mapped_file(address: int) -> tuple[str | None, int]:
    """Returns the file that is mapped at an address of this process, and the byte there."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            span, _, offset, _, _, *name = line.rstrip("\n").split(maxsplit=5)
            start, end = (int(number, 16) for number in span.split("-"))
            if start <= address < end and name:
                return name[0].removesuffix(" (deleted)"), address - start + int(offset, 16)
    return None, 0
