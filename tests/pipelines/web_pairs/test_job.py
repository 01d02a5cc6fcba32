import json
import logging
import resource
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from vlmill.pipelines.web_pairs import command as web_pairs
from vlmill.schemas.console.lineage import state_of
from vlmill.schemas.files.manifest import read_manifest, verify_folder
from vlmill.schemas.files.reading import read_table
from vlmill.schemas.ids import image_id_of, pair_id_of
from vlmill.schemas.tables import IMAGES, PAIRS, REJECTS

Make = Callable[..., bytes]
Pack = Callable[[Path, Sequence[tuple[str, bytes, str]]], Path]

SITE = "http://site.example/"
PROSE = (
    "<p>This is a page in plain English with enough words in it for anybody to see that it is, "
    "and it goes on for a while about nothing in particular.</p>"
)


def html_page(name: str, body: str) -> tuple[str, bytes, str]:
    text = f"<html lang=en><head><title>Page {name}</title></head><body><main>{body}</main>{PROSE}"
    return (f"{SITE}{name}.html", text.encode(), "text/html; charset=utf-8")


def run(warc: Path | str, output: Path, *flags: str) -> int:
    return web_pairs.main(["--warc", str(warc), "--output", str(output), *flags])


def rows(folder: Path, spec: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_table(folder, spec).to_pylist()
    return found


def responses_of(picture: Make) -> list[tuple[str, bytes, str]]:
    """Two pages that share a picture under two URLs, a text of three pictures, and dirt."""
    cat, dog = picture(320, 310, seed=1), picture(310, 330, seed=2, format="PNG")
    shared = [(f"{SITE}s{n}.jpg", picture(305, 305, seed=10 + n), "image/jpeg") for n in range(3)]
    same = "".join(f"<img src=s{n}.jpg alt='A view over the bay'>" for n in range(3))
    return [
        html_page("a", "<img src=cat.jpg alt='A black cat on a mat'>"),
        html_page(
            "b",
            "<figure><img src=/copy/cat.jpg><figcaption>The black cat of the neighbours &amp;lt;"
            "script&amp;gt; sleeps on its mat.</figcaption></figure>"
            "<img src=dog.png alt='A dog in the yard'>"
            "<img src=gone.jpg alt='A cow in the yard'><img src=small.jpg alt='A hen in the yard'>"
            "<img src='data:image/gif;base64,R0'><nav><img src=dog.png></nav>",
        ),
        html_page("c", same),
        (f"{SITE}d.html", b"<html lang=de><img src=dog.png alt='A dog on a roof'>", "text/html"),
        (f"{SITE}cat.jpg", cat, "image/jpeg"),
        (f"{SITE}copy/cat.jpg", cat, "image/jpeg"),
        (f"{SITE}dog.png", dog, "image/png"),
        (f"{SITE}small.jpg", picture(300, 400), "image/jpeg"),
        (f"{SITE}broken.jpg", cat[:400], "image/jpeg"),
        (f"{SITE}x.js", b"var x;", "text/javascript"),
        *shared,
    ]


FLAGS = ("--max-images-per-text", "2", "--shards", "3")


@pytest.fixture(scope="module")
def site(picture: Make) -> list[tuple[str, bytes, str]]:
    return responses_of(picture)


@pytest.fixture(scope="module")
def warcs(tmp_path_factory: pytest.TempPathFactory, site: Any, archive: Pack) -> Path:
    """The site as one archive, and a third of it as another, cut off."""
    folder = tmp_path_factory.mktemp("warcs")
    whole = archive(folder / "a.warc.gz", site).read_bytes()
    (folder / "b.warc.gz").write_bytes(whole[: len(whole) // 3])
    return folder / "*.warc.gz"


@pytest.fixture(scope="module")
def mined(tmp_path_factory: pytest.TempPathFactory, warcs: Path) -> Path:
    """The output of one run."""
    out = tmp_path_factory.mktemp("mined") / "out"
    assert run(warcs, out, *FLAGS) == 0
    return out


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_from_pages_to_pairs(mined: Path, site: Any) -> None:
    assert verify_folder(mined) == []
    cat, dog = site[4][1], site[6][1]
    pairs = {row["text"]: row for row in rows(mined, PAIRS)}
    assert pairs.keys() == {
        "The black cat of the neighbours sleeps on its mat.",
        "A dog in the yard",
    }
    row = pairs["A dog in the yard"]
    assert row["pair_id"] == pair_id_of(image_id_of(dog), "A dog in the yard")
    assert (row["language"], row["source"], row["split"]) == ("en", "lait", "train")
    assert (row["text_source"], row["page_url"]) == ("alt", f"{SITE}b.html")
    assert row["image_url"] == f"{SITE}dog.png"
    images = {row["image_id"]: row for row in rows(mined, IMAGES)}
    assert {image["bytes"] for image in images.values()} == {cat, dog}
    assert images[image_id_of(dog)]["width"] == 310 and images[image_id_of(dog)]["format"] == "png"

    reasons = {(row["stage"], row["reason"]) for row in rows(mined, REJECTS)}
    assert reasons >= {
        ("archives", "broken_archive"),
        ("records", "other_type"),
        ("language", "other_language"),
        ("dominant", "bad_url"),
        ("dominant", "navigation"),
        ("pictures", "too_small"),
        ("pictures", "unreadable_image"),
        ("join", "missing_image"),
        ("join", "rejected_image"),
        ("best_text", "not_best_text"),
        ("shared_text", "shared_text"),
    }


def test_the_funnel_adds_up_with_the_tables(mined: Path) -> None:
    funnel = json.loads((mined / "funnel.json").read_text())
    stages = {stage["stage"]: stage for stage in funnel}
    for stage in funnel:
        assert stage["in"] == stage["out"] + sum(stage["rejects"].values())
    # What one stage gives out comes into the next that counts the same unit.
    assert stages["records"]["out"] == stages["pages"]["in"] + stages["pictures"]["in"]
    for first, second in (
        ("pages", "language"),
        ("dominant", "join"),
        ("texts", "score"),
        ("score", "best_text"),
        ("best_text", "shared_text"),
    ):
        assert stages[first]["out"] == stages[second]["in"]
    assert stages["shared_text"]["out"] == len(rows(mined, PAIRS)) == len(rows(mined, IMAGES)) == 2
    rejects = rows(mined, REJECTS)
    for name, stage in stages.items():
        for reason, count in stage["rejects"].items():
            assert count == sum(r["stage"] == name and r["reason"] == reason for r in rejects)
    assert len(rejects) == sum(sum(stage["rejects"].values()) for stage in funnel)
    assert stages["shared_text"]["rejects"] == {"shared_text": 3}


def test_the_same_archives_give_the_same_bytes(mined: Path, warcs: Path, tmp_path: Path) -> None:
    assert run(warcs, tmp_path / "again", *FLAGS) == 0
    assert files(tmp_path / "again") == files(mined)


def test_shards_hold_sorted_ids(mined: Path) -> None:
    shards = [pq.read_table(p)["pair_id"].to_pylist() for p in sorted(mined.glob("pairs-*"))]
    assert len(shards) == 3 and sum(map(len, shards)) == 2
    assert all(shard == sorted(shard) for shard in shards)


def test_finished_continued_refused_fresh(
    mined: Path, warcs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(mined, out)
    assert run(warcs, out, *FLAGS) == 0
    assert "finished before: 2 pairs, 2 images" in capsys.readouterr().out
    # A kill before the manifest leaves shards, and perhaps temporary files.
    (out / "_manifest.json").unlink()
    (out / "report.html").unlink()
    (out / ".tmp-results.json").write_text("{}")
    assert run(warcs, out, *FLAGS) == 0
    assert files(out) == files(mined)
    capsys.readouterr()
    assert run(warcs, out, "--min-side", "330") == 2
    assert "--fresh" in capsys.readouterr().err
    assert run(warcs, out, "--min-side", "330", "--fresh") == 1
    assert "0 pairs" in capsys.readouterr().out


def test_archives_without_a_record_are_rejects(tmp_path: Path) -> None:
    for number, content in enumerate((b"", b"no archive at all", b"\x1f\x8b")):
        (tmp_path / f"{number}.warc").write_bytes(content)
    assert run(tmp_path / "*.warc", tmp_path / "out") == 1
    rejects = rows(tmp_path / "out", REJECTS)
    assert [(r["stage"], r["reason"]) for r in rejects] == [("archives", "broken_archive")] * 3
    assert rows(tmp_path / "out", PAIRS) == [] and (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--warc", "nothing-*.gz", "--output", "out"], "--warc nothing-*.gz"),
        (["--warc", ".", "--output", "out"], "is a folder"),
        (["--warc", "here.warc", "--output", "out", "--shards", "0"], "--shards 0"),
        (["--warc", "here.warc", "--output", "out", "--min-score", "2"], "--min-score 2"),
        (["--warc", "here.warc", "--output", "here.warc"], "--output here.warc"),
        (["--warc", "here.warc", "--output", "out", "--min-sied", "9"], "--min-sied"),
    ],
)
def test_mistakes_are_told_in_one_line(
    flags: list[str],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here.warc").write_bytes(b"")
    assert web_pairs.main(flags) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1


def test_a_full_disk_is_told_in_one_line(
    warcs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No file may grow beyond 5,000 bytes: it fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, before[1]))
    try:
        status = run(warcs, tmp_path / "out", *FLAGS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = capsys.readouterr().err
    assert status == 1 and said.count("failed: ") == 1 and "File too large" in said
    assert "Traceback" not in said and not [r for r in caplog.records if r.exc_info]
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert run(warcs, tmp_path / "out", *FLAGS) == 0  # with room the same command goes on


def test_the_report_is_one_safe_file(mined: Path) -> None:
    report = (mined / "report.html").read_text()
    assert "The black cat of the neighbours sleeps" in report
    assert "data:image/jpeg;base64," in report
    assert "<script" not in report and "src='http" not in report


def test_a_dry_run_measures_and_writes_nothing(
    site: Any, archive: Pack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = archive(tmp_path / "a.warc.gz", site).stat().st_size
    assert run(tmp_path / "a.warc.gz", tmp_path / "out", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "--warc 1 archives" in said and "unknown until it is made" in said
    assert f"measured on {size / 1e6:.4g} in" in said  # a small one is read to its end
    assert not (tmp_path / "out").exists()


def test_a_dry_run_goes_past_broken_archives(tmp_path: Path) -> None:
    (tmp_path / "a.warc.gz").write_bytes(b"no archive")
    (tmp_path / "empty.warc").write_bytes(b"")
    assert run(f"{tmp_path}/*.warc*", tmp_path / "out", "--dry-run") == 0


def test_the_manifest_names_the_archives(mined: Path, warcs: Path) -> None:
    (entry,) = read_manifest(mined)["inputs"]
    assert (entry.flag, entry.files) == ("--warc", 2)
    assert state_of(entry, entry.path) == ("ok", "")
