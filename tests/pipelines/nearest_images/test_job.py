"""The nearest_images job: rows, splits, rejects, resume, and a user's mistakes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.factories import Tables, write_images
from tests.pipelines.nearest_images.conftest import write_features

from vlmill.pipelines.nearest_images import job, means
from vlmill.pipelines.nearest_images.__main__ import main
from vlmill.runtime.files.contents import content_problems
from vlmill.runtime.files.manifest import MANIFEST, read_manifest, verify_folder
from vlmill.runtime.files.outputs import WORK
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.tables import NEIGHBOURS, REJECTS


def rows_of(folder: Path) -> dict[str, tuple[list[str], list[float]]]:
    rows = read_table(folder, NEIGHBOURS).to_pylist()
    return {row["image_id"]: (row["neighbour_ids"], row["distances"]) for row in rows}


def rejects_of(folder: Path) -> dict[str, str]:
    return {row["key"]: row["reason"] for row in read_table(folder, REJECTS).to_pylist()}


def run(regions: str, output: Path, *flags: str) -> int:
    return main(["--regions", regions, "--output", str(output), "--threads", "1", *flags])


def on_a_line(*places: Sequence[float]) -> list[np.ndarray]:
    """Images of two features, of which the first is not 0."""
    return [np.array([[x, 0.0] for x in image], np.float32).reshape(-1, 2) for image in places]


def named(arrays: list[np.ndarray], names: str = "abcdefgh") -> dict[str, np.ndarray]:
    return dict(zip(names, arrays, strict=False))


def test_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Means at 1, 2, 4 and 2 again: b and d are the same, and tie for a and c."""
    regions = write_features(tmp_path / "r", named(on_a_line([0, 2], [2], [3, 4, 5], [1, 3])))
    assert run(regions, tmp_path / "out", "--top", "2") == 0
    assert rows_of(tmp_path / "out") == {
        "a": (["b", "d"], [1.0, 1.0]),
        "b": (["d", "a"], [0.0, 1.0]),
        "c": (["b", "d"], [2.0, 2.0]),
        "d": (["b", "a"], [0.0, 1.0]),
    }
    said = capsys.readouterr().out
    assert said == f"done: neighbours of 4 images, 0 rejects: {tmp_path / 'out'}\n"
    assert verify_folder(tmp_path / "out") == content_problems(tmp_path / "out") == []
    assert not (tmp_path / "out" / WORK).exists()


def test_ties_are_by_id_whatever_the_order_of_the_table(tmp_path: Path) -> None:
    regions = write_features(tmp_path / "r", named(on_a_line([0], [1], [-1], [1]), "zcba"))
    assert run(regions, tmp_path / "out", "--top", "3") == 0
    assert list(rows_of(tmp_path / "out")) == ["a", "b", "c", "z"]
    assert rows_of(tmp_path / "out")["z"] == (["a", "b", "c"], [1.0, 1.0, 1.0])


def test_only_images_of_the_same_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = Tables(tmp_path)
    write_features(tmp_path / "regions", named(on_a_line([0], [1], [2], [3], [4], [5], [6])))
    ids, splits = [*"aabcdefg", "elsewhere"], [None, "train", "TEST", "train", "test", "Train"]
    splits += ["train", "test", "test"]
    ids[6], ids[7] = "f", "f"  # of two splits; nobody names g
    tables.write_pairs(
        [(i, f"text {n}") for n, i in enumerate(ids)], {"split": [s for s in splits]}
    )
    assert run(tables.regions, tmp_path / "out", "--pairs", tables.pairs) == 0
    lists = {image_id: ids for image_id, (ids, _) in rows_of(tmp_path / "out").items()}
    assert lists == {"b": ["d"], "d": ["b"], "a": ["c", "e"], "c": ["a", "e"], "e": ["c", "a"]}
    assert rejects_of(tmp_path / "out") == {"f": "id_conflict", "g": "no_text"}
    assert "5 images, 5 with fewer than 100, 2 rejects" in capsys.readouterr().out
    names = sorted(p.name for p in (tmp_path / "out").glob("neighbours-*"))
    assert len(names) == 2  # no shard has two splits


def test_pairs_of_other_images_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = Tables(tmp_path)
    write_features(tmp_path / "regions", named(on_a_line([0], [1])))
    tables.write_pairs([("elsewhere", "text")])
    assert run(tables.regions, tmp_path / "out", "--pairs", tables.pairs) == 2
    assert "no pair is of an image of --regions" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_has_no_vector_is_rejected(tmp_path: Path) -> None:
    arrays = on_a_line([0], [], [np.nan, 1], [np.inf], [1e18], [1])
    regions = write_features(tmp_path / "r", named(arrays), marked=False)
    assert run(regions, tmp_path / "out") == 0
    assert rows_of(tmp_path / "out") == {"a": (["f"], [1.0]), "f": (["a"], [1.0])}
    reasons = {"b": "no_boxes", **dict.fromkeys("cde", "not_finite")}
    assert rejects_of(tmp_path / "out") == reasons


def test_nothing_but_rejects_is_a_failure(tmp_path: Path) -> None:
    regions = write_features(tmp_path / "r", named(on_a_line([np.nan], [])), marked=False)
    assert run(regions, tmp_path / "out") == 1
    assert rejects_of(tmp_path / "out") == {"a": "not_finite", "b": "no_boxes"}
    assert run(regions, tmp_path / "out") == 1


def test_a_full_images_row_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where every image begins with it; an image with no other box is rejected."""
    arrays = named(on_a_line([90, 0], [70, 1, 3], [5]))
    regions = write_features(tmp_path / "r", arrays, whole=True)
    assert run(regions, tmp_path / "out") == 0
    assert "row 0 of every image is the full image" in capsys.readouterr().err
    assert rows_of(tmp_path / "out") == {"a": (["b"], [2.0]), "b": (["a"], [2.0])}
    assert rejects_of(tmp_path / "out") == {"c": "no_boxes"}
    assert run(regions, tmp_path / "all", "--full-image", "none") == 0
    assert rows_of(tmp_path / "all")["c"] == (["b", "a"], [np.float32(74 / 3 - 5), 40.0])
    plain = write_features(tmp_path / "plain", arrays)
    assert run(plain, tmp_path / "first", "--full-image", "first") == 0
    assert rows_of(tmp_path / "first") == rows_of(tmp_path / "out")


@pytest.mark.parametrize(
    ("boxes", "marked"),
    [
        ([(0, 0, 200, 100), (1, 2, 3, 4)], True),
        ([(0, 0, 199, 99), (1, 2, 3, 4)], True),  # to the last pixel
        ([(0, 0, 200, 100)], False),  # a table of full images
        ([(1, 2, 3, 4), (0, 0, 200, 100)], False),
        ([(0, 0, 197, 100), (1, 2, 3, 4)], False),
        ([(np.nan, 0, 200, 100), (1, 2, 3, 4)], False),
    ],
)
def test_which_row_0_is_a_full_image(
    boxes: list[tuple[float, ...]], marked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = {"a": np.ones((2, 2)), "empty": np.ones((0, 2)), "b": np.ones((len(boxes), 2))}
    regions = RegionReader(write_features(tmp_path, features, whole=True))
    assert means.marks_full_images(regions)
    if len(boxes) == 1:
        features = {"b": np.ones((1, 2))}
        shutil.rmtree(tmp_path)
        regions = RegionReader(write_features(tmp_path, features, whole=True))
    group, within = regions.locate_row(len(regions) - 1)
    actual = type(group).boxes

    def changed(self: object, number: int) -> np.ndarray:
        if number == within:
            return np.array(boxes, np.float32)
        return actual(group, number)

    monkeypatch.setattr(type(group), "boxes", changed)
    assert means.marks_full_images(regions) is marked


def many(folder: Path, count: int = 40) -> str:
    random = np.random.default_rng(0)
    names = [f"image-{i}" for i in random.permutation(count)]
    return write_features(folder, {name: random.random((3, 8)) for name in names})


def test_a_killed_run_continues_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed in the middle of the vectors, and again in the middle of a shard."""
    monkeypatch.setattr(means, "IMAGES_PER_PART", 16)
    flags = ["--images-per-shard", "15", "--top", "7"]
    regions, whole, out = many(tmp_path / "r"), tmp_path / "whole", tmp_path / "out"
    assert run(regions, whole, *flags) == 0
    averaged: list[int] = []
    original = means.image_mean

    def dies(reader: RegionReader, number: int, first: int) -> np.ndarray | None:
        if number == 20 and not averaged.count(20):
            averaged.append(20)
            raise RuntimeError
        averaged.append(number)
        return original(reader, number, first)

    monkeypatch.setattr(means, "image_mean", dies)
    with pytest.raises(RuntimeError):
        run(regions, out, *flags)
    with monkeypatch.context() as patched:
        patched.setattr(job, "write_report", dies)  # another signature: fails when all is found
        with pytest.raises(TypeError):
            run(regions, out, *flags)
    assert averaged.count(3) == 1 and averaged.count(39) == 1  # no part is averaged twice
    first, second, _ = sorted(out.glob("neighbours-*"))
    first.unlink()
    kept = second.stat().st_mtime_ns
    (out / ".tmp-1-neighbours").write_bytes(b"half a shard")
    (out / WORK / ".tmp-1-means").write_bytes(b"half a part")
    capsys.readouterr()
    assert run(regions, out, *flags) == 0
    assert "continuing: nearest, 2 of 3 units finished before" in capsys.readouterr().err
    assert second.stat().st_mtime_ns == kept
    expected = {p.name: p.read_bytes() for p in whole.iterdir()}
    assert {p.name: p.read_bytes() for p in out.iterdir()} == expected


def test_a_finished_run_says_so_and_other_settings_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    regions, out = many(tmp_path / "r"), tmp_path / "out"
    assert run(regions, out, "--top", "3") == 0
    assert run(regions, out, "--top", "3") == 0
    assert "finished before: neighbours of 40 images" in capsys.readouterr().out
    assert run(regions, out, "--top", "4") == 2
    assert "top was 3 and is 4" in capsys.readouterr().err
    (out / MANIFEST).unlink()
    (out / WORK).mkdir()
    assert run(regions, out, "--top", "4", "--fresh") == 0
    assert {len(ids) for ids, _ in rows_of(out).values()} == {4}


def test_the_table_says_what_it_was_made_of(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.write()
    flags = ["--pairs", tables.pairs, "--images", write_images(tmp_path / "images", 12)]
    assert run(tables.regions, tmp_path / "out", *flags) == 0
    inputs = read_manifest(tmp_path / "out")["inputs"]
    assert [(i.flag, i.table, i.rows) for i in inputs] == [
        ("--regions", "regions", 12),
        ("--pairs", "pairs", 12),
        ("--images", "images", 12),
    ]


def test_the_report_shows_images_with_their_nearest(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.write()
    images = write_images(tmp_path / "images", 12)
    assert run(tables.regions, tmp_path / "out", "--images", images) == 0
    report = (tmp_path / "out" / "report.html").read_text()
    assert report.count("data:image/jpeg") == 12 * 6
    nearest, distances = rows_of(tmp_path / "out")["image-3"]
    assert re.search(rf"<p>{nearest[0]}</p><small>{distances[0]:.4g}</small>", report)


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(many(tmp_path / "r"), tmp_path / "out", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "40 images, vectors of 8" in said and "images/s" in said
    assert not (tmp_path / "out").exists()


def test_a_row_with_boxes_and_without_features_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    regions = many(tmp_path / "r", 3)
    row = RegionReader(regions).locate_row(0)[0]
    monkeypatch.setattr(type(row), "stored_bytes", lambda *_: None)
    assert run(regions, tmp_path / "out") == 2
    assert "has boxes and no features" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--regions", "r", "--id-prefix", "a"], "--id-prefix goes with --import"),
        (["--import", "x", "--pairs", "p"], "--pairs goes with --regions"),
        (["--import", "x", "--dry-run"], "--dry-run goes with --regions"),
        (["--regions", "none"], "no table of regions there"),
    ],
)
def test_mistakes_are_one_line(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*flags, "--output", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and said in line
    assert not (tmp_path / "out").exists()


def test_a_table_without_boxes_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(write_features(tmp_path / "r", named(on_a_line([], []))), tmp_path / "out") == 2
    assert "no image has a box" in capsys.readouterr().err
