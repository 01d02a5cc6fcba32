"""Writes regions to a feature file of another project."""

from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from vlmill.extract.formats import hdf5, npz, tsv
from vlmill.extract.formats import lmdb as lmdb_folder
from vlmill.extract.formats.classes import KNOWN_COLUMNS
from vlmill.extract.formats.names import FORMATS, IMPORT_JOB
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.readers.regions import RegionReader, RegionRow
from vlmill.schemas.errors import InputError

# What a folder of these formats holds: patterns of names.
FOLDERS = {"lmdb": ("data.mdb", "lock.mdb"), "npz": ("*.npz",)}


def export_file(regions: str | Path, path: Path, name: str, *, fresh: bool = False) -> int:
    """Writes all rows to ``path`` (lmdb, npz: a folder) in one of FORMATS; returns how many.

    What an earlier export left at ``path`` is replaced with ``fresh`` only. Memory is bounded by a
    few row groups and the index of ids. Raises InputError where the rows lack what the format
    needs, and then leaves everything as it was.
    """
    assert name in FORMATS
    require_free(path, name, fresh=fresh)
    reader = RegionReader(regions, flag="REGIONS")
    if not len(reader):
        raise InputError(f"REGIONS {regions} has no rows; there is nothing to export")
    background = get_background(reader)
    if name == "tsv7" and background == "none":
        raise InputError(
            f"REGIONS {regions} has class distributions without background, which --format tsv7 "
            "has first; give --format lmdb, npz or hdf5"
        )
    with Progress(total=len(reader), unit="image", label="export") as progress:
        rows = track_progress(iter(reader), progress)
        if name in tsv.FIELDS:
            return tsv.write(rows, path, name)
        writers = {"lmdb": lmdb_folder.write, "npz": npz.write, "hdf5": hdf5.write}
        stated = {"classes_from": 0} | ({"background": background} if background else {})
        return writers[name](rows, path, stated)


def get_background(reader: RegionReader) -> str | None:
    """Returns where the distributions have the background: "first" or "none".

    None without distributions, and for a table of an import that has not stated it.
    """
    about = reader.arrays.get("class_probs")
    if about is None:
        return None
    imported = reader.producer.get("job") == IMPORT_JOB
    background: str | None = about.get("background", None if imported else "first")
    return background or KNOWN_COLUMNS.get(about["dim"])


def require_free(path: Path, name: str, *, fresh: bool) -> None:
    """Raises InputError for an export that would replace something.

    With ``fresh`` a file may go, and a folder that holds nothing but an export in this format.
    """
    if not path.exists():
        return
    if path.is_dir() != (name in FOLDERS):
        current, expected = ("folder", "file") if path.is_dir() else ("file", "folder")
        raise InputError(f"--output {path} is a {current}; give the name of a {expected}")
    names = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else [path.name]
    if not names:
        return
    if not fresh:
        raise InputError(
            f"--output {path} is there already; give another, or --fresh to replace it"
        )
    patterns = FOLDERS.get(name, ("*",))
    if other := [n for n in names if not any(fnmatch(n, pattern) for pattern in patterns)]:
        raise InputError(f"--output {path} holds {other[0]}, which is no export; give a new folder")


def track_progress(rows: Iterator[RegionRow], progress: Progress) -> Iterator[RegionRow]:
    """Yields the rows, and counts each as progress."""
    for row in rows:
        yield row
        progress.advance()
