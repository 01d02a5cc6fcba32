"""``extract-rois export``: regions to a feature file of another project."""

from collections.abc import Iterator
from pathlib import Path

from vlmill.extract.formats import hdf5, npz, tsv
from vlmill.extract.formats import lmdb as lmdb_folder
from vlmill.extract.formats.names import FORMATS
from vlmill.schemas.console.progress import Progress
from vlmill.schemas.errors import InputError
from vlmill.schemas.readers.regions import RegionReader, RegionRow


def export_file(regions: str | Path, path: Path, name: str) -> int:
    """Writes all rows to ``path`` (lmdb, npz: a folder) in one of FORMATS; returns how many.

    Memory is bounded by a few row groups and the index of ids. Raises InputError where the rows
    lack what the format needs, and then leaves no file.
    """
    assert name in FORMATS
    reader = RegionReader(regions, flag="REGIONS")
    if not len(reader):
        raise InputError(f"REGIONS {regions} has no rows; there is nothing to export")
    if path.is_dir() and name in (*tsv.FIELDS, "hdf5"):
        raise InputError(f"--output {path} is a folder; give the name of a file")
    with Progress(total=len(reader), unit="picture", label="export") as progress:
        rows = counted(iter(reader), progress)
        if name in tsv.FIELDS:
            return tsv.write(rows, path, name)
        writers = {"lmdb": lmdb_folder.write, "npz": npz.write, "hdf5": hdf5.write}
        return writers[name](rows, path)


def counted(rows: Iterator[RegionRow], progress: Progress) -> Iterator[RegionRow]:
    """The rows, and their progress."""
    for row in rows:
        yield row
        progress.advance()
