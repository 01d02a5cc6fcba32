"""Folders that appear whole or not at all, as :func:`~vlmill.schemas.atomic.atomic_path` does for
files.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vlmill.schemas.atomic import TEMPORARY_PREFIX, sync
from vlmill.schemas.commands import InputError


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Gives a temporary folder beside ``path``; on success it becomes ``path``, else it goes.

    Raises InputError if ``path`` is there and not an empty folder.
    """
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise InputError(f"--output {path} is there already; give a new folder")
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{path.name}")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for file in sorted(temporary.iterdir()):
            sync(file)
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
