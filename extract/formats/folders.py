"""Folders of other projects' files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vlmill.schemas.errors import InputError
from vlmill.schemas.files.atomic import atomic_folder


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """:func:`~vlmill.schemas.files.atomic.atomic_folder` for a folder that must not be there.

    Raises InputError if ``path`` is there and not an empty folder.
    """
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise InputError(f"--output {path} is there already; give a new folder")
    with atomic_folder(path) as temporary:
        yield temporary
