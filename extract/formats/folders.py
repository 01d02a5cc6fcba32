"""Reads and names files in folders with one file per image.

An id becomes a path. If the format has nested folders, its parts between slashes are folders.
Characters that a file name cannot hold are percent-quoted: ``a%2Fb.npz`` is the image ``a/b``.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

from vlmill.runtime.files.atomic import TEMPORARY_PREFIX
from vlmill.schemas.errors import InputError

SAFE = " @+=,"
MAX_NAME_BYTES = 250
FIRST_FILES = 20  # of a folder, that show its layout: one may be of another program


def walk_files(path: Path, ending: str, but: str | None = None) -> Iterator[Path]:
    """Yields the files below a folder whose names have an ending, and not that of ``but``, sorted
    in each folder.

    Hidden and temporary files and links to folders are skipped. A file yields itself.
    """
    if path.is_file():
        yield path
        return
    for base, names in walk_names(path, ending, but):
        folder = Path(base)
        for name in names:
            yield folder / name


def walk_names(path: Path, ending: str, but: str | None = None) -> Iterator[tuple[str, list[str]]]:
    """Yields each folder with the names of its files that :func:`walk_files` yields."""
    for base, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield (
            base,
            [
                name
                for name in sorted(names)
                if name.lower().endswith(ending)
                and not name.startswith((".", TEMPORARY_PREFIX))
                and not (but and name.endswith(but))
            ],
        )


def count_files(path: Path, ending: str, but: str | None = None) -> int:
    """Counts the files that :func:`walk_files` yields, at least 1."""
    return max(1, sum(len(names) for _, names in walk_names(path, ending, but)))


def file_name(image_id: str, ending: str, *, name: str) -> str:
    """Returns the file name of an image. Raises InputError for an id that cannot be a file name."""
    stem = quote(image_id, safe=SAFE)
    if len(stem) + len(ending) > MAX_NAME_BYTES or stem.startswith(".") or not stem:
        raise InputError(
            f"image_id {image_id!r} cannot be the name of a file, which --format {name} needs; "
            "give --format hdf5 or lmdb"
        )
    return f"{stem}{ending}"


def is_utf8(text: str) -> bool:
    """Returns whether a text can be stored in UTF-8. File names of other encodings cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def id_of_file(file: Path, ending: str) -> str:
    """Returns the id of a file name: without the ending, and unquoted if an export may have written
    it.
    """
    stem = file.name[: -len(ending)]
    if "%" not in stem or not is_utf8(stem):
        return stem
    return unquoted if quote(unquoted := unquote(stem), safe=SAFE) == stem else stem
