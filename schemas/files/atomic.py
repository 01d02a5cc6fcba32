"""Files that appear whole or not at all: written under a temporary name, fsynced, renamed."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

TEMPORARY_PREFIX = ".tmp-"


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``; on success it becomes ``path``, on an error it goes.

    The file's bytes and the folder's entry are on the disk when the block has been left. Two
    processes may write the same path: the last rename wins, and both files were whole.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{path.name}")
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    except BaseException:
        with suppress(FileNotFoundError):  # the block may have failed before it wrote anything
            temporary.unlink()
        raise


@contextmanager
def atomic_folder(path: str | Path, *, replace: bool = False) -> Iterator[Path]:
    """Makes a folder that appears with all of its files, or not at all.

    ``replace``: a folder that is there goes just before. Without it OSError is raised unless it is
    empty.
    """
    path = Path(path)
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{path.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
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
    """Write ``content`` atomically as UTF-8; lone surrogates become U+FFFD."""
    write_bytes(
        path, content.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
    )


def write_json(path: str | Path, value: Any) -> None:
    """Writes ``value`` atomically as indented JSON. Raises ValueError for NaN and infinities."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def remove_leftovers(folder: str | Path) -> list[Path]:
    """Deletes the files and folders that killed writers left in ``folder``; returns their paths."""
    leftovers = sorted(Path(folder).glob(f"{TEMPORARY_PREFIX}*"))
    for path in leftovers:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    return leftovers
