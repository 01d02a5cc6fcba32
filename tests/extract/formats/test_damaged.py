"""Damaged LMDB and HDF5 files: rows that can be read are kept, the others are counted or named."""

import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import h5py
import lmdb
import numpy as np
import pytest
from tests.extract.formats.test_import_export import make_row, write_regions

from vlmill.extract.cli import command
from vlmill.extract.formats import lmdb as lmdb_folder
from vlmill.extract.formats.context import Context
from vlmill.extract.formats.export_file import export_file
from vlmill.extract.formats.import_file import Import, import_file
from vlmill.extract.formats.lmdb_pages import BRANCH, LEAF, LostValue, Pages
from vlmill.extract.formats.records import InvalidRecord
from vlmill.extract.verify import verify
from vlmill.runtime.console.command import run_command
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.readers.regions import RegionReader, RegionRow
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import REJECTS

PAGE = 4096
NUM_ROWS = 40
META_BYTES = 152  # of pages 0 and 1


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An LMDB of four transactions: small values in leaves, larger ones in pages of their own."""
    folder = tmp_path_factory.mktemp("good")
    rows = make_rows()
    with lmdb.open(str(folder), map_size=2**26) as opened:
        for first in range(0, NUM_ROWS, 10):
            with opened.begin(write=True) as transaction:
                for row in rows[first : first + 10]:
                    item = lmdb_folder.make_texts(row, ["cls_prob"]) | {"background": "first"}
                    transaction.put(row.image_id.encode(), pickle.dumps(item))
        with opened.begin(write=True) as transaction:
            transaction.put(b"keys", pickle.dumps([row.image_id.encode() for row in rows]))
    return (folder / "data.mdb").read_bytes()


def make_rows() -> list[RegionRow]:
    return [make_row(f"{number:03}", 2 if number % 3 else 9) for number in range(NUM_ROWS)]


def folder_with(path: Path, content: bytes) -> Path:
    path.mkdir(exist_ok=True)
    (path / "data.mdb").write_bytes(content)
    return path


def records(path: Path) -> list[tuple[bytes, bytes | memoryview | LostValue]]:
    handle = os.open(path / "data.mdb", os.O_RDONLY)
    try:
        return list(Pages(handle, path).records())
    finally:
        os.close(handle)


# --- Undamaged ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 700])
def test_pages_hold_what_the_library_reads(tmp_path: Path, count: int) -> None:
    sizes = random.Random(count)
    with lmdb.open(str(tmp_path / "db"), map_size=2**26) as opened:
        for part in range(0, count, 100):
            with opened.begin(write=True) as transaction:
                for number in range(part, min(count, part + 100)):
                    value = sizes.randbytes(sizes.choice((0, 1, 60, 1500, 2100, 9000)))
                    transaction.put(str(number * 7919 % 10_007).encode(), value)
        with opened.begin(write=True) as transaction:
            for number in range(0, count, 9):
                transaction.delete(str(number * 7919 % 10_007).encode())
        with opened.begin() as transaction:
            expected = list(transaction.cursor())
    assert records(tmp_path / "db") == expected


def test_databases_inside_are_rejects(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "db"), max_dbs=1) as opened:
        inner = opened.open_db(b"inner")
        with opened.begin(write=True) as transaction:
            transaction.put(b"a", b"1", db=inner)
    ((key, value),) = records(tmp_path / "db")
    assert key == b"inner" and isinstance(value, LostValue) and value.reason == "bad_record"


# --- Damaged --------------------------------------------------------------------------------------


def run_import(path: Path, output: Path) -> int:
    return run_command(command, ["import", str(path), "--output", str(output)])


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def zero(data: bytes) -> bytes:
    return cut(data).ljust(len(data), b"\0")


@pytest.mark.parametrize(
    ("damage", "reason"), [(cut, "bytes; "), (zero, "is all zeros")], ids=["cut", "zeros"]
)
def test_rows_before_the_damage_are_kept(
    tmp_path: Path,
    good: bytes,
    damage: Callable[[bytes], bytes],
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = folder_with(tmp_path / "db", damage(good))
    assert run_import(path, tmp_path / "out") == 1
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error:")]
    assert f"FILE {path} is damaged: " in line and reason in line
    kept = RegionReader(tmp_path / "out")
    assert 0 < len(kept) < NUM_ROWS
    np.testing.assert_array_equal(kept["001"].features, make_row("001", 2).features)
    assert verify(tmp_path / "out") == []
    rejects = read_table(tmp_path / "out", REJECTS).to_pylist()
    summaries = [row["detail"] for row in rejects if row["key"] == "data.mdb"]
    # Without a list of keys, which is a record too, the lost ones are a number.
    stated = sum(int(text.split("; ")[1].split(" records are lost")[0]) - 1 for text in summaries)
    assert len(kept) + len(rejects) - len(summaries) + stated == NUM_ROWS
    assert {row["reason"] for row in rejects} >= {"broken_archive"}
    assert run_import(path, tmp_path / "out") == 1  # finished, and still of a damaged file


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (bytes(5 * PAGE), "begins with 4,096 zeros"),
        (b"<!DOCTYPE html><html>Quota exceeded</html>", "it is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "none of its pages is an LMDB's"),
    ],
)
def test_a_file_that_is_no_lmdb_is_named(
    tmp_path: Path, content: bytes, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder_with(tmp_path / "db", content)
    for argument in (path, path / "data.mdb"):
        assert run_import(argument, tmp_path / "out") == 2
        lines = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error:")]
        assert len(lines) == 1 and f"FILE {argument} is not an LMDB: " in lines[0]
        assert reason in lines[0]


def test_a_folder_without_an_lmdb_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "db").mkdir()
    for name, message in (("db", " has no data.mdb"), ("nowhere", ": no such file")):
        path = tmp_path / name
        arguments = ["import", str(path), "--format", "lmdb", "--output", str(tmp_path / "out")]
        assert run_command(command, arguments) == 2
        assert f"FILE {path}{message}" in capsys.readouterr().err


def test_lost_keys_are_named_where_the_list_of_keys_is_left(tmp_path: Path) -> None:
    keys = [f"z{number:03}".encode() for number in range(400)]  # a list beyond its page
    with lmdb.open(str(tmp_path / "db"), map_size=2**26) as opened, opened.begin(write=True) as put:
        for key in keys:
            put.put(key, bytes(900))
        put.put(b"keys", pickle.dumps(keys))
    content = bytearray((tmp_path / "db" / "data.mdb").read_bytes())
    pages = [content[first : first + PAGE] for first in range(0, len(content), PAGE)]
    leaf = next(n for n, page in enumerate(pages) if page[10] == LEAF and b"z100" in page)
    content[leaf * PAGE : leaf * PAGE + PAGE] = bytes(PAGE)
    found = [
        item() for item in lmdb_folder.read(folder_with(tmp_path / "db", bytes(content)), Context())
    ]
    lost = [
        bad.key
        for bad in found
        if isinstance(bad, InvalidRecord) and bad.reason == "broken_archive"
    ]
    assert "z100" in lost and "data.mdb" not in lost
    assert len(found) == len(keys)


@pytest.mark.parametrize("pages", [(0,), (1,), (0, 1)])
def test_damaged_descriptions_cost_no_row(
    tmp_path: Path, good: bytes, pages: tuple[int, ...]
) -> None:
    content = bytearray(good)
    for page in pages:
        content[page * PAGE : page * PAGE + META_BYTES] = bytes(META_BYTES)
    path = folder_with(tmp_path / "db", bytes(content))
    found = [item() for item in lmdb_folder.read(path, Context())]
    assert len([row for row in found if not isinstance(row, InvalidRecord)]) == NUM_ROWS
    assert [bad.key for bad in found if isinstance(bad, InvalidRecord)][-1] == "data.mdb"


def test_deleted_rows_stay_deleted_in_a_damaged_file(tmp_path: Path, good: bytes) -> None:
    path = folder_with(tmp_path / "db", good)
    with lmdb.open(str(path), map_size=2**26) as opened:
        for _ in range(3):  # the pages that a transaction frees have their records still
            with opened.begin(write=True) as transaction:
                transaction.delete(b"001")
                transaction.put(b"last", b"x")
        with opened.begin() as transaction:
            expected = {key for key, _ in transaction.cursor()}
    content = bytearray((path / "data.mdb").read_bytes())
    branches = [n for n in range(2, len(content) // PAGE) if content[n * PAGE + 10] == BRANCH]
    for page in branches:
        content[page * PAGE : page * PAGE + PAGE] = bytes(PAGE)
    assert {key for key, _ in records(folder_with(path, bytes(content)))} == expected


def mutate(data: bytes, random_: random.Random) -> bytes:
    """Cuts, zeroes or changes bytes anywhere, or in the first bytes of pages."""
    content = bytearray(data)
    kind = random_.choice(("cut", "zero", "page", "bytes", "heads", "metas"))
    at = random_.randrange(len(content))
    if kind == "cut":
        del content[at:]
    elif kind == "zero":
        content[at:] = bytes(len(content) - at)
    elif kind == "page":
        first = at // PAGE * PAGE
        content[first : first + PAGE] = random_.choice((bytes(PAGE), random_.randbytes(PAGE)))
    for _ in range(random_.randint(1, 20)):
        spots = {
            "bytes": random_.randrange(len(content) or 1),
            "heads": random_.randrange(len(content) // PAGE or 1) * PAGE + random_.randrange(40),
            "metas": random_.choice((0, PAGE)) + random_.randrange(META_BYTES),
        }
        if kind in spots and spots[kind] < len(content):
            content[spots[kind]] = random_.choice((0, 255, random_.randrange(256)))
    return bytes(content)


@pytest.mark.parametrize("seed", range(3))
def test_any_damage_is_counted(tmp_path: Path, good: bytes, seed: int) -> None:
    random_ = random.Random(seed)
    for _ in range(100):
        path = folder_with(tmp_path / "db", mutate(good, random_))
        handle = os.open(path / "data.mdb", os.O_RDONLY)
        try:
            pages = Pages(handle, path)
            found = dict(pages.records())
        except InputError:
            continue
        finally:
            os.close(handle)
        assert len(found) == NUM_ROWS + 1 or pages.damage


# --- HDF5 -----------------------------------------------------------------------------------------


@pytest.fixture
def hdf5(tmp_path: Path) -> Path:
    rows = [make_row(f"{number:03}", 8) for number in range(NUM_ROWS)]
    export_file(write_regions(tmp_path / "source", rows), tmp_path / "file.hdf5", "hdf5-adaptive")
    return tmp_path / "file.hdf5"


def test_a_cut_hdf5_is_one_line(
    tmp_path: Path, hdf5: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = hdf5.read_bytes()
    for size in (len(content) - 1, len(content) // 2, 600):
        hdf5.write_bytes(content[:size])
        output = tmp_path / f"out-{size}"
        assert run_import(hdf5, output) == 1
        (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error:")]
        assert f"FILE {hdf5} is damaged: it cannot be opened" in line and "truncated" in line
        (reject,) = read_table(output, REJECTS).to_pylist()
        assert (reject["key"], reject["reason"]) == ("file.hdf5", "broken_archive")


def test_a_damaged_part_of_an_hdf5_costs_its_images_alone(tmp_path: Path, hdf5: Path) -> None:
    with h5py.File(hdf5, "r+") as file:
        features = file["image_features"][:]
        del file["image_features"]
        data = file.create_dataset(
            "image_features", data=features, chunks=(64, features.shape[1]), fletcher32=True
        )
        chunk = data.id.get_chunk_info(1)  # boxes 64 to 127: images 8 to 15
    content = bytearray(hdf5.read_bytes())
    content[chunk.byte_offset] ^= 1
    hdf5.write_bytes(content)
    assert import_file(Import(files=[hdf5], output=tmp_path / "out")) == (NUM_ROWS - 8, 8)
    rejects = read_table(tmp_path / "out", REJECTS).to_pylist()
    assert [row["key"] for row in rejects] == [f"{number:03}" for number in range(8, 16)]
    assert {row["reason"] for row in rejects} == {"broken_archive"}
    assert run_import(hdf5, tmp_path / "out") == 1
