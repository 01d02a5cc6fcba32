"""The files that LmdbFile writes, as LMDB's library and our reader see them."""

import os
import random
from pathlib import Path

import lmdb
import pytest
from tests.extract.formats.test_import_export import make_row, write_regions

from vlmill.extract.formats import lmdb as lmdb_folder
from vlmill.extract.formats.context import Context
from vlmill.extract.formats.export_file import export_file
from vlmill.extract.formats.lmdb_file import LmdbFile
from vlmill.extract.formats.lmdb_pages import Pages
from vlmill.extract.formats.records import InvalidRecord

SIZES = (0, 1, 100, 4080, 4081, 9000)  # of values: 4,080 bytes fill a page


def write_file(folder: Path, values: dict[bytes, bytes]) -> None:
    """Writes half of the values, and the others as an export that continues."""
    folder.mkdir()
    keys = list(values)
    middle = len(keys) // 2
    with (folder / "data.mdb").open("wb", buffering=0) as file:
        writer = LmdbFile(file, keys)
        for key in keys[:middle]:
            writer.add([values[key][:50], values[key][50:]])
            writer.flush()
    with (folder / "data.mdb").open("r+b", buffering=0) as file:
        file.seek(0, os.SEEK_END)
        writer = LmdbFile(file, keys, middle)
        for key in keys[middle:]:
            writer.add([values[key]])
        writer.finish()


@pytest.mark.parametrize(("count", "key_bytes"), [(1, 5), (7, 511), (8, 511), (57, 511), (900, 99)])
def test_the_library_reads_and_changes_a_file(tmp_path: Path, count: int, key_bytes: int) -> None:
    random_ = random.Random(count)
    keys = [b"%d" % (n * 7919 % 10_007) + bytes(key_bytes - 5) for n in range(count)]
    values = {key: random_.randbytes(random_.choice(SIZES)) for key in keys}
    write_file(tmp_path / "db", values)
    handle = os.open(tmp_path / "db" / "data.mdb", os.O_RDONLY)
    pages = Pages(handle, tmp_path)
    assert list(pages.records()) == sorted(values.items()) and pages.damage is None
    os.close(handle)
    with lmdb.open(str(tmp_path / "db"), map_size=2**26) as opened:
        with opened.begin() as transaction:
            assert list(transaction.cursor()) == sorted(values.items())
            assert all(transaction.get(key) == value for key, value in values.items())
            assert transaction.stat()["entries"] == count
        with opened.begin(write=True) as transaction:
            for key in random_.sample(keys, count // 2):
                assert transaction.delete(key)
                del values[key]
            for number in range(100):
                values[b"new%d" % number] = random_.randbytes(random_.choice(SIZES))
                transaction.put(b"new%d" % number, values[b"new%d" % number])
        with opened.begin() as transaction:
            assert list(transaction.cursor()) == sorted(values.items())


def test_a_cut_export_names_the_lost_images(tmp_path: Path) -> None:
    rows = [make_row(f"{number:03}", 9) for number in range(20)]
    export_file(write_regions(tmp_path / "source", rows), tmp_path / "db", "lmdb")
    file = tmp_path / "db" / "data.mdb"
    os.truncate(file, file.stat().st_size // 2)
    items = [item() for item in lmdb_folder.read(tmp_path / "db", Context())]
    lost = {bad.key for bad in items if isinstance(bad, InvalidRecord)} - {"keys"}
    found = {row.image_id for row in items if not isinstance(row, InvalidRecord)}
    assert found and lost and found | lost == {row.image_id for row in rows}
