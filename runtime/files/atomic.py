"""Writes files that appear completely or not at all: under a temporary name, fsynced, renamed.

In a store they are written to a temporary file of this machine, and appear by one upload. A folder
appears there with its marker, the last uploaded object (:func:`has_folder`).
"""

import errno
import json
import os
import shutil
import socket
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vlmill.runtime.files.copies import FULL, cache_folder, disk_full_error
from vlmill.runtime.files.paths import remove_tree, to_path
from vlmill.runtime.files.remote import RemotePath
from vlmill.runtime.files.written import note_file

TEMPORARY_PREFIX = ".tmp-"
WHOLE = "_whole"  # marks a complete folder in a store


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yields a temporary path next to ``path``; on success it becomes ``path``, on an error it is
    deleted.

    The bytes of the file and the entry of its folder are on disk after the block. Two processes may
    write the same path: the last rename wins, and both files are complete. For a path in a store
    the temporary file is local and is uploaded.
    """
    path = to_path(path)
    if isinstance(path, RemotePath):
        with temporary_folder() as folder:
            yield folder / path.name
            note_file(path, folder / path.name)
            path.upload(folder / path.name)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        yield temporary
        note_file(path, temporary)
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    except BaseException:
        with suppress(FileNotFoundError):  # the block may have failed before it wrote anything
            temporary.unlink()
        raise


def link_file(source: Path, path: Path) -> None:
    """Creates the hard link ``path`` to ``source``; a copy on file systems without hard links."""
    if path.exists() and path.samefile(source):
        return  # renaming a file to another hard link of it does nothing and keeps both
    with atomic_path(path) as temporary:
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)


def _temporary(path: Path) -> Path:
    """Returns the name under which this process writes ``path``.

    It includes the machine: in a shared folder, processes of two machines may have the same number.
    """
    host = zlib.crc32(socket.gethostname().encode())
    return path.with_name(f"{TEMPORARY_PREFIX}{host:08x}-{os.getpid()}-{path.name}")


@contextmanager
def atomic_folder(
    path: str | Path, *, replace: bool = False, last: str | None = None
) -> Iterator[Path]:
    """Creates a folder that appears with all of its files, or not at all.

    ``replace``: an existing folder is deleted just before. Without it OSError is raised unless that
    folder is empty. ``last`` names the file by which readers recognise a complete folder: in a
    store it is deleted first and uploaded last.
    """
    path = to_path(path)
    if isinstance(path, RemotePath):
        with temporary_folder() as folder:
            yield folder
            _note_files(path, folder)
            _upload_folder(folder, path, replace=replace, last=last)
        return
    temporary = _temporary(path)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        _note_files(path, temporary)
        for file in sorted(temporary.iterdir()):
            sync(file)
        sync(temporary)
        if replace and path.exists():
            shutil.rmtree(path)
        os.replace(temporary, path)
        sync(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _note_files(path: Path, folder: Path) -> None:
    for file in sorted(folder.iterdir()):
        if file.is_file():
            note_file(path / file.name, file)


@contextmanager
def local_folder(path: str | Path) -> Iterator[Path]:
    """Yields a folder for memory-mapped files: ``path``, or a temporary one for a store's."""
    path = to_path(path)
    if not isinstance(path, RemotePath):
        yield path
        return
    with temporary_folder() as folder:
        yield folder


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yields a local folder for files to upload; removes those of killed processes."""
    base, host = cache_folder() / "uploads", socket.gethostname()
    base.mkdir(parents=True, exist_ok=True)
    for name in os.listdir(base):
        owner, _, process = name.rpartition("+")[0].rpartition("+")
        if owner == host and not os.path.exists(f"/proc/{process}"):
            shutil.rmtree(base / name, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{host}+{os.getpid()}+", dir=base))
    try:
        yield folder
    except OSError as error:
        if error.errno in FULL and error.filename is None:
            raise disk_full_error(error) from None
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _upload_folder(folder: Path, path: RemotePath, *, replace: bool, last: str | None) -> None:
    """Uploads the files of a folder without subfolders, its marker last."""
    if replace:
        if last is not None:
            (path / last).unlink(missing_ok=True)
        remove_folder(path)
    elif has_folder(path):
        raise OSError(errno.ENOTEMPTY, "folder is not empty", str(path))
    for file in sorted(folder.iterdir(), key=lambda file: (file.name == last, file.name)):
        (path / file.name).upload(file)
    (folder / WHOLE).touch()
    (path / WHOLE).upload(folder / WHOLE)


def has_folder(path: str | Path) -> bool:
    """Returns whether a folder of :func:`atomic_folder` exists and is complete."""
    path = to_path(path)
    return (path / WHOLE).exists() if isinstance(path, RemotePath) else path.exists()


def remove_folder(path: str | Path) -> None:
    """Deletes a folder of :func:`atomic_folder` if it exists, its marker first."""
    path = to_path(path)
    if isinstance(path, RemotePath):
        (path / WHOLE).unlink(missing_ok=True)
    remove_tree(path)


def sync(path: Path) -> None:
    """Flushes a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: str | Path, content: bytes) -> None:
    """Writes ``content`` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: str | Path, content: str) -> None:
    """Writes ``content`` atomically as UTF-8; lone surrogates become U+FFFD."""
    write_bytes(
        path, content.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
    )


def write_json(path: str | Path, value: Any) -> None:
    """Writes ``value`` atomically as indented JSON. Raises ValueError for NaN and infinities."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def remove_leftovers(folder: str | Path) -> list[Path]:
    """Deletes the files and folders that killed writers left in ``folder``; returns their paths.

    In a store these are parts of unfinished uploads, if the store keeps any.
    """
    folder = to_path(folder)
    if isinstance(folder, RemotePath):
        return folder.abort_uploads()
    leftovers = sorted(folder.glob(f"{TEMPORARY_PREFIX}*"))
    for path in leftovers:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # its writer may be a worker that is just being killed
    return leftovers
