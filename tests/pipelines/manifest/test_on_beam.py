"""Parts made by Beam's workers: the same bytes as on one machine, whatever the rows depend on."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.pipelines.manifest.layouts import LAYOUTS
from tests.runtime.units.shuffled import run_backwards

from vlmill.pipelines.manifest.__main__ import main
from vlmill.pipelines.manifest.entries import Entry, ListedImage
from vlmill.pipelines.manifest.published import command, parts
from vlmill.runtime.files.manifest import read_manifest, verify_folder

BEAM = "--runner=FnApiRunner"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.parquet"))}


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("coco", ["--require-images"]),  # a row depends on an image that an earlier part names
        ("coco", ["--exclude-hash", "LIST"]),
        ("vg", ["--boxes"]),
    ],
)
def test_workers_of_a_runner_write_the_same_bytes(
    name: str, flags: list[str], tmp_path: Path, image: Callable[..., bytes]
) -> None:
    LAYOUTS[name](tmp_path / "in", image)
    words = [name, "--input", str(tmp_path / "in"), "--rows-per-shard", "2"]
    if "LIST" in flags:
        assert main([*words, "--output", str(tmp_path / "list")]) == 0
        flags = [str(tmp_path / "list") if flag == "LIST" else flag for flag in flags]
    else:
        for path in sorted(tmp_path.glob("in/val2014/*")):
            path.unlink()
    here, there = tmp_path / "here", tmp_path / "there"
    assert main([*words, *flags, "--output", str(here)]) == 0
    assert main([*words, *flags, "--output", str(there), BEAM]) == 0
    assert contents(there) == contents(here) and len(contents(here)) > 6
    assert verify_folder(there) == []
    assert (there / "funnel.json").read_bytes() == (here / "funnel.json").read_bytes()
    (there / "_manifest.json").unlink()
    (there / "rejects-0-00001.parquet").unlink()
    assert main([*words, *flags, "--output", str(there), BEAM]) == 0
    assert contents(there) == contents(here)


def test_own_captions_are_made_by_workers_too(tmp_path: Path, image: Callable[..., bytes]) -> None:
    (tmp_path / "a.jpg").write_bytes(image(20, 20))
    rows = ["file,caption", *(f"a.jpg,a kite {n % 4}" for n in range(6)), "b.jpg,lost", "b.jpg,too"]
    (tmp_path / "own.csv").write_text("\n".join(rows))
    words = ["own", "--input", str(tmp_path / "own.csv"), "--text-column", "caption"]
    words += ["--image-column", "file", "--image-root", str(tmp_path), "--rows-per-shard", "3"]
    assert main([*words, "--output", str(tmp_path / "here")]) == 0
    assert main([*words, "--output", str(tmp_path / "there"), BEAM]) == 0
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_order_of_parts_does_not_matter_and_entries_are_read_once(
    name: str, tmp_path: Path, image: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kind of row goes through a file between two steps."""
    LAYOUTS[name](tmp_path / "in", image)
    words = [name, "--input", str(tmp_path / "in"), "--rows-per-shard", "2"]
    here, there = tmp_path / "here", tmp_path / "there"
    assert main([*words, "--output", str(here)]) == 0
    keys: list[str] = []
    original = parts.FirstImages.select

    def select(self: parts.FirstImages, entry: Entry) -> Sequence[ListedImage]:
        keys.append(entry.key)
        return original(self, entry)

    monkeypatch.setattr(parts.FirstImages, "select", select)
    monkeypatch.setattr(command, "select_runner", lambda *_, **__: run_backwards)
    assert main([*words, "--output", str(there), BEAM]) == 0
    assert contents(there) == contents(here)
    assert (there / "funnel.json").read_bytes() == (here / "funnel.json").read_bytes()
    entries = sum(count[1] for count in read_manifest(here)["counts"] if count[0] != "pictures")
    assert len(keys) >= entries > 0 and sorted(p.name for p in there.iterdir() if p.is_dir()) == []


def test_lists_are_counted_as_on_one_machine(
    tmp_path: Path, image: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image that several parts name is counted once."""
    LAYOUTS["coco"](tmp_path / "in", image)
    words = ["coco", "--input", str(tmp_path / "in"), "--rows-per-shard", "1"]
    assert main([*words, "--output", str(tmp_path / "list")]) == 0
    shutil.copytree(tmp_path / "list", tmp_path / "other")
    lists = ["--exclude", str(tmp_path / "list"), "--compare-hash", str(tmp_path / "other")]
    assert main([*words, *lists, "--output", str(tmp_path / "here")]) == 0
    monkeypatch.setattr(command, "select_runner", lambda *_, **__: run_backwards)
    assert main([*words, *lists, "--output", str(tmp_path / "there"), BEAM]) == 0
    overlaps = [read_manifest(tmp_path / name)["overlaps"] for name in ("here", "there")]
    assert overlaps[0] == overlaps[1] and len(overlaps[0]) > 1
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


@pytest.mark.parametrize("word", ["--runer=Flink", "more"])
def test_words_that_nobody_knows_are_refused(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    words = ["text", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), word]
    assert main(words) == 2
    assert word.partition("=")[0] in capsys.readouterr().err and not (tmp_path / "out").exists()
