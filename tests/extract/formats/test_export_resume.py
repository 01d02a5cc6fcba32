"""An export that is killed continues, in every format, to the same files."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.extract.formats.test_import_export import (
    KEPT,
    assert_rows,
    export,
    exported,
    make_row,
    write_regions,
)

from vlmill.extract.formats import lmdb, lmdb_file
from vlmill.extract.formats.import_file import Import, import_file
from vlmill.extract.formats.names import FORMATS
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.errors import InputError

BLOCK = 2
ROWS = [make_row(f"{number:03}", 3) for number in range(7)]


def run_killed(work: Callable[[], Any], patch: Callable[[pytest.MonkeyPatch], None]) -> None:
    """Runs ``work`` in a fork that ``patch`` makes kill itself."""
    process = os.fork()
    if not process:
        try:
            with pytest.MonkeyPatch.context() as monkeypatch:
                patch(monkeypatch)
                work()
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(0)  # the kill must come before
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def die_at_row(number: int) -> Callable[[pytest.MonkeyPatch], None]:
    original = RegionReader.row

    def row(self: RegionReader, asked: int) -> Any:
        if asked == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, asked)

    return lambda monkeypatch: monkeypatch.setattr(RegionReader, "row", row)


def die_at_rename(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    original = os.replace

    def replace(source: Any, target: Any) -> None:
        if Path(target).name == name:
            os.kill(os.getpid(), signal.SIGKILL)
        original(source, target)

    return lambda monkeypatch: monkeypatch.setattr("os.replace", replace)


def contents(folder: Path) -> dict[str, bytes]:
    files = [p for p in folder.rglob("*") if p.is_file() and not p.name.endswith(".txt")]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


@pytest.mark.parametrize("name", FORMATS)
def test_a_killed_export_continues(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_regions(tmp_path / "source", ROWS)
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
    export(source, tmp_path / "whole" / "file", name, block=BLOCK)
    file = tmp_path / "killed" / "file"
    for number in (1, 5, 6):  # before the first record, in the middle, again
        run_killed(lambda: export(source, file, name, block=BLOCK), die_at_row(number))
        assert not file.exists()
    assert export(source, file, name, block=BLOCK) == len(ROWS)
    assert "continuing after 6 images" in capsys.readouterr().err
    assert import_file(Import(files=[exported(file, name)], output=tmp_path / "back"))[1] == 0
    assert_rows(tmp_path / "back", ROWS, KEPT[name])
    whole, killed = contents(tmp_path / "whole"), contents(tmp_path / "killed")
    assert whole.keys() == killed.keys()
    assert [n for n in whole if whole[n] != killed[n]] == []


@pytest.mark.parametrize("name", lmdb.ITEMS)
def test_an_lmdb_that_is_written_in_several_pieces(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, file = write_regions(tmp_path / "source", ROWS), tmp_path / "pieces"
    export(source, tmp_path / "whole", name)
    monkeypatch.setattr(lmdb_file, "WRITE_BYTES", 2 * lmdb_file.PAGE_BYTES)
    run_killed(lambda: export(source, file, name, block=BLOCK), die_at_row(5))
    assert export(source, file, name, block=BLOCK) == len(ROWS)
    assert contents(tmp_path / "whole") == contents(file)


@pytest.mark.parametrize("name", ["tsv", "hdf5", "npz-cocobu"])
def test_a_kill_while_files_are_renamed(tmp_path: Path, name: str) -> None:
    source, file = write_regions(tmp_path / "source", ROWS), tmp_path / "out" / "file"
    file.parent.mkdir()
    second = {"npz-cocobu": "file_box"}.get(name, "file")
    run_killed(lambda: export(source, file, name), die_at_rename(second))
    assert export(source, file, name) == len(ROWS)
    assert not [p for p in file.parent.iterdir() if p.name.startswith(".")]
    assert import_file(Import(files=[exported(file, name)], output=tmp_path / "back"))[1] == 0
    assert_rows(tmp_path / "back", ROWS, KEPT[name])


def test_an_unfinished_export_of_other_regions_is_refused(tmp_path: Path) -> None:
    first = write_regions(tmp_path / "first", ROWS)
    second = write_regions(tmp_path / "second", ROWS[:3])
    file = tmp_path / "file"
    run_killed(lambda: export(first, file, "tsv", block=BLOCK), die_at_row(5))
    for source, name in ((second, "tsv"), (first, "tsv6")):
        with pytest.raises(InputError, match=r"unfinished export .*--fresh"):
            export(source, file, name)
    assert export(second, file, "tsv6", fresh=True) == 3
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith((".", "file"))) == [
        "file",
        "file.json",
    ]
