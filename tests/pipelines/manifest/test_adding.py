"""A data set is one file of its own layout, and one line that names it."""

import importlib.util
import sys
from pathlib import Path

import pytest

from vlmill.pipelines.manifest.__main__ import main
from vlmill.pipelines.manifest.flags import TITLES
from vlmill.pipelines.manifest.sets import SETS
from vlmill.runtime.files.manifest import verify_folder
from vlmill.runtime.files.reading import read_table
from vlmill.schemas.tables import IMAGES, PAIRS

FILE = '''
"""Haiku of images: lines of a file's name, a blank, and the words."""

from vlmill.pipelines.manifest.cleaning import validate_text
from vlmill.runtime.units.funnel import Drop
from vlmill.pipelines.manifest.entries import DataSet, Entry, Expected, ListedImage, Reading
from vlmill.pipelines.manifest.reading.lines import read_lines
from vlmill.schemas.tables import PAIRS


def open_haiku(folder, args):
    source = folder.require("haiku.txt")
    return Reading(
        sources=(source,),
        entries=lambda: (entry(source, number, line) for number, line in read_lines(source)),
        expected={source.name: Expected(rows=3, source="their page")},
        image_folders=("images",),
    )


def entry(source, number, line):
    name, _, words = line.partition(" ")
    text, key = validate_text(words), f"{source.name}:{number}"
    if isinstance(text, Drop):
        return Entry(key=key, group=source.name, rows=text)
    image_id = f"haiku/{name}"
    pair = {"pair_id": f"{image_id}#{number}", "image_id": image_id, "text": text}
    image = ListedImage(image_id=image_id, paths=(f"images/{name}",))
    return Entry(key=key, group=source.name, rows=((PAIRS, pair),), images=(image,))


HAIKU = DataSet(about="Haiku of images.", tables=(PAIRS,), open=open_haiku)
'''


def test_the_help_lists_every_data_set() -> None:
    assert set(TITLES) == {"own", *SETS}


def test_a_file_and_a_line_add_a_data_set(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    image: object,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "haiku.py").write_text(FILE)
    spec = importlib.util.spec_from_file_location("haiku", tmp_path / "haiku.py")
    assert spec is not None and spec.loader is not None
    haiku = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "haiku", haiku)
    spec.loader.exec_module(haiku)
    monkeypatch.setitem(SETS, "haiku", haiku.HAIKU)  # the line
    monkeypatch.setitem(TITLES, "haiku", "Haiku")

    (tmp_path / "in/images").mkdir(parents=True)
    (tmp_path / "in/images/a.jpg").write_bytes(image(9, 9))  # type: ignore[operator]
    (tmp_path / "in/haiku.txt").write_text("a.jpg an old pond\nb.jpg a frog leaps\nc.jpg \n")
    words = ["haiku", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    assert main(words) == 0
    assert verify_folder(tmp_path / "out") == []
    pairs = read_table(tmp_path / "out", PAIRS).column("text").to_pylist()
    assert pairs == ["an old pond", "a frog leaps"]
    assert read_table(tmp_path / "out", IMAGES).num_rows == 1
    assert "2 rejects (1 empty_text, 1 image_missing)" in capsys.readouterr().out.replace(
        "1 image_missing, 1 empty_text", "1 empty_text, 1 image_missing"
    )
    with pytest.raises(SystemExit):
        main(["haiku", "--help"])
    assert "Haiku of images." in capsys.readouterr().out
