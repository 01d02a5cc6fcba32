"""Locks an output, so that only one run at a time writes it.

A second run is refused, and the message names the first.

The lock is the operating system's (`flock`), so a crash or a kill releases it. It belongs to a run:
the process that starts the run takes it, and workers and the other ranks of its launch do not.
Object stores have no such locks: there it is an object (:mod:`.remote_lock`).
"""

import errno
import fcntl
import json
import os
import re
import socket
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.remote import RemotePath, is_remote
from vlmill.runtime.files.remote_lock import SECONDS, hold_lock_object
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import parse_json

LOCK = ".vlmill-lock"
LOCK_PART = re.compile(r"-\d+-of-\d+$")
# The variables in which launchers (torchrun, and MPI's) pass the rank of a process.
RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
# Errors of file systems without locks, such as some network mounts.
_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
# How often a folder may vanish between its creation and its use, because another run has just
# ended.
_ATTEMPTS = 100
_MOMENTS, _MOMENT_S = 20, 0.05  # to wait for a lock that is held for a moment only


@contextmanager
def lock_output(
    output: str | Path | None,
    *,
    alongside: bool = False,
    flag: str = "--output",
    part: str | None = None,
    seconds: float | None = None,
) -> Iterator[None]:
    """Holds the lock of an output; None is for commands that write nothing.

    The lock is a file in the output's folder, or ``alongside`` an output that is renamed as a
    whole. Folders created for it are deleted again if they stay empty. ``part`` names the part of
    the output that a process makes while others make theirs: each part has its own lock, and a run
    without parts is refused in the meantime. Only the first rank of a launch takes the lock, for
    all ranks. In a store the lock is an object that another run takes over if it was not renewed
    for ``seconds`` (:mod:`.remote_lock`), and there are no parts. Raises InputError if another run
    holds the lock, or if the output cannot be written.
    """
    if output is None or _is_later_rank():
        yield
        return
    if is_remote(output):
        if part is not None:
            raise InputError(f"{flag} {output}: parts need a folder that all of them see; give one")
        lock_path = _get_lock_path(to_path(output), alongside)
        assert isinstance(lock_path, RemotePath)
        with hold_lock_object(
            lock_path, f"{flag} {output}", _self(), SECONDS if seconds is None else seconds
        ):
            yield
        return
    path, display_name = (
        _get_lock_path(Path(os.path.abspath(output)), alongside),
        f"{flag} {output}",
    )
    shared = part is not None
    folders = (path.parent, *path.parent.parents)
    missing = [folder for folder in folders if not os.path.exists(folder)]
    try:
        with ExitStack() as stack:
            stack.enter_context(
                _hold_lock(path, display_name, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            )
            if shared:
                part_path = path.with_name(f"{path.name}-{part}")
                stack.enter_context(
                    _hold_lock(part_path, f"part {part} of {display_name}", fcntl.LOCK_EX)
                )
            yield
    finally:
        for folder in missing:
            with suppress(OSError):  # it is not empty, or another run has removed it
                folder.rmdir()


def parts_at_work(output: str | Path, names: Iterable[str]) -> bool:
    """Returns whether a process holds the lock of one of these parts of an output."""
    for name in names:
        try:
            descriptor = os.open(Path(os.path.abspath(output), f"{LOCK}-{name}"), os.O_RDWR)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            # Without locks of files, the file is deleted with its holder.
            if isinstance(error, BlockingIOError) or error.errno in _UNSUPPORTED:
                return True
            raise
        finally:
            os.close(descriptor)
    return False


@contextmanager
def wait_for_turn(output: str | Path) -> Iterator[None]:
    """Holds the lock that only one part of an output can have at a time, after waiting for it."""
    path = Path(output, f"{LOCK}-alone")
    with _hold_lock(path, f"--output {output}", fcntl.LOCK_EX, wait=True):
        yield


@contextmanager
def _hold_lock(
    path: Path, display_name: str, operation: int, *, wait: bool = False
) -> Iterator[None]:
    """Holds a lock's file, which its last holder deletes."""
    descriptor = _take_lock(path, display_name, operation if wait else operation | fcntl.LOCK_NB)
    try:
        yield
    finally:
        # Removed while it is held: waiting processes see that the file is missing and retry. A
        # shared lock stays for its last holder, which gets it exclusively.
        if _is_last(descriptor):
            with suppress(FileNotFoundError):
                path.unlink()
        os.close(descriptor)


def _is_last(descriptor: int) -> bool:
    """Returns whether no other process holds the lock; True if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    return True


def _get_lock_path(output: Path, alongside: bool) -> Path:
    if alongside and output.name:  # the root has no name
        return output.with_name(f"{LOCK}-{output.name}")
    return output / LOCK


def _is_later_rank() -> bool:
    ranks = (os.environ[name] for name in RANKS if name in os.environ)
    return next(ranks, "0").strip() not in ("", "0", "-1")


def _take_lock(path: Path, display_name: str, operation: int) -> int:
    # A process that shared it may be removing it now; other parts query the lock of a part.
    moments = _MOMENTS if operation & fcntl.LOCK_SH or LOCK_PART.search(path.name) else 0
    while True:
        descriptor = _open_lock_file(path, display_name)
        try:
            fcntl.flock(descriptor, operation)
        except BlockingIOError:
            if moments:
                os.close(descriptor)
                moments -= 1
                time.sleep(_MOMENT_S)
                continue
            holder = _holder(descriptor)
            os.close(descriptor)
            raise InputError(
                f"{display_name} is being written by {holder}; wait until it has ended, or give "
                "another"
            ) from None
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                os.close(descriptor)
                raise
            warnings.warn(
                f"{display_name} is on a file system without file locks; do not start a second run",
                RuntimeWarning,
                stacklevel=4,
            )
        if _is_at(path, descriptor):
            break
        os.close(descriptor)  # its last holder has removed it between the two steps
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(_self()).encode(), 0)
    return descriptor


def _open_lock_file(path: Path, display_name: str) -> int:
    for _ in range(_ATTEMPTS):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except FileNotFoundError:
            continue
        except (FileExistsError, NotADirectoryError):
            raise InputError(
                f"{display_name} cannot be written, as {_find_obstacle(path.parent)} is a file; "
                "give another"
            ) from None
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            raise InputError(
                f"{display_name} cannot be written ({error.strerror}: "
                f"{error.filename}); give a folder that you can write to"
            ) from None
    raise InputError(f"{display_name} cannot be written: no folder can be made there; give another")


def _find_obstacle(folder: Path) -> Path:
    """Returns the obstacle to creating ``folder``: itself, or a parent that is not a folder."""
    return next(p for p in (folder, *folder.parents) if os.path.lexists(p))


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _self() -> dict[str, Any]:
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "command": " ".join(" ".join(words).split())[:200],
        "since": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
    }


def _holder(descriptor: int) -> str:
    try:
        holder = parse_json(os.pread(descriptor, 4096, 0))
        return "process {pid} on {host} since {since} ({command})".format(**holder)
    except (ValueError, KeyError, TypeError):  # the holder has not written its name yet
        return "another run"
