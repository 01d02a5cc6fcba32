import base64
import errno
import io
import json
import logging
import os
import resource
import shutil
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.factories import NO_MODELS
from tests.pipelines.filters.generated_pairs import CLASSES, region_row

from vlmill.pipelines.web_pairs import __main__ as web_pairs
from vlmill.pipelines.web_pairs import order
from vlmill.pipelines.web_pairs.units import Job
from vlmill.runtime.console.lineage import check_state
from vlmill.runtime.files.manifest import read_manifest, verify_folder, write_manifest
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.regions import encode_regions, region_arrays
from vlmill.runtime.units import flags
from vlmill.runtime.units import step as steps_module
from vlmill.runtime.units.unit import Unit, record_path, run_unit
from vlmill.schemas.ids import compute_image_id, compute_pair_id
from vlmill.schemas.tables import IMAGES, PAIRS, REGIONS, REJECTS

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
    return web_pairs.main(["--warc", str(warc), "--output", str(output), *NO_MODELS, *flags])


def rows(folder: Path, spec: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_table(folder, spec).to_pylist()
    return found


def responses_of(image: Make) -> list[tuple[str, bytes, str]]:
    """Two pages that share an image under two URLs, a text of three images, and dirt."""
    cat, dog = image(320, 310, seed=1), image(310, 330, seed=2, format="PNG")
    shared = [(f"{SITE}s{n}.jpg", image(305, 305, seed=10 + n), "image/jpeg") for n in range(3)]
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
        (f"{SITE}small.jpg", image(300, 400), "image/jpeg"),
        (f"{SITE}broken.jpg", cat[:400], "image/jpeg"),
        (f"{SITE}x.js", b"var x;", "text/javascript"),
        *shared,
    ]


FLAGS = ("--max-images-per-text", "2", "--shards", "3")


@pytest.fixture(scope="module")
def site(image: Make) -> list[tuple[str, bytes, str]]:
    return responses_of(image)


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
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_from_pages_to_pairs(mined: Path, site: Any) -> None:
    assert verify_folder(mined) == []
    cat, dog = site[4][1], site[6][1]
    pairs = {row["text"]: row for row in rows(mined, PAIRS)}
    assert pairs.keys() == {"A black cat on a mat", "A dog in the yard"}
    row = pairs["A dog in the yard"]
    assert row["pair_id"] == compute_pair_id(compute_image_id(dog), "A dog in the yard")
    assert (row["language"], row["source"], row["split"]) == ("en", "lait", "train")
    assert (row["text_source"], row["page_url"]) == ("alt", f"{SITE}b.html")
    assert row["image_url"] == f"{SITE}dog.png"
    images = {row["image_id"]: row for row in rows(mined, IMAGES)}
    assert {image["bytes"] for image in images.values()} == {cat, dog}
    assert (
        images[compute_image_id(dog)]["width"] == 310
        and images[compute_image_id(dog)]["format"] == "png"
    )

    reasons = {(row["stage"], row["reason"]) for row in rows(mined, REJECTS)}
    assert reasons >= {
        ("archives", "broken_archive"),
        ("records", "other_type"),
        ("language", "other_language"),
        ("inline_pictures", "unreadable_image"),
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
        ("join", "dominant"),
        ("dominant", "texts"),
        ("texts", "exclude"),
        ("exclude", "best_text"),
        ("best_text", "shared_text"),
        ("shared_text", "near_duplicates"),
    ):
        assert stages[first]["out"] == stages[second]["in"]
    assert (
        stages["near_duplicates"]["out"] == len(rows(mined, PAIRS)) == len(rows(mined, IMAGES)) == 2
    )
    rejects = rows(mined, REJECTS)
    for name, stage in stages.items():
        for reason, count in stage["rejects"].items():
            assert count == sum(r["stage"] == name and r["reason"] == reason for r in rejects)
    assert len(rejects) == sum(sum(stage["rejects"].values()) for stage in funnel)
    assert stages["shared_text"]["rejects"] == {"shared_text": 3}


@pytest.mark.parametrize("how", ["--workers=1", "--workers=3", "--runner=FnApiRunner"])
def test_the_same_archives_give_the_same_bytes_with_beam_and_without(
    how: str, mined: Path, warcs: Path, tmp_path: Path
) -> None:
    assert run(warcs, tmp_path / "again", *FLAGS, how) == 0
    assert files(tmp_path / "again") == files(mined)


@pytest.mark.usefixtures("in_a_loop")
def test_one_large_shard_is_sorted_in_parts(
    mined: Path, warcs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into the same bytes; who writes the shard reads rows that are sorted."""
    flags = [*FLAGS[:2], "--shards", "1"]
    assert run(warcs, tmp_path / "whole", *flags) == 0
    names: list[str] = []

    def note(job: Job, folder: Path, unit: Unit, work: Any) -> Any:
        names.append(unit.name)
        return run_unit(job, folder, unit, work)

    monkeypatch.setattr(steps_module, "run_unit", note)
    monkeypatch.setattr(order, "PART_BYTES", 400)
    assert run(warcs, tmp_path / "parts", *flags) == 0
    assert len([name for name in names if name.startswith("order-00000-")]) > 3
    assert files(tmp_path / "parts") == files(tmp_path / "whole")


def test_workers_are_not_for_beam(
    warcs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(warcs, tmp_path / "out", "--workers", "2", "--runner=FlinkRunner") == 2
    assert "--parallelism" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_shards_hold_sorted_ids(mined: Path) -> None:
    shards = [pq.read_table(p)["pair_id"].to_pylist() for p in sorted(mined.glob("pairs-*"))]
    assert len(shards) == 3 and sum(map(len, shards)) == 2
    assert all(shard == sorted(shard) for shard in shards)


@pytest.mark.usefixtures("in_a_loop")
def test_finished_continued_refused_fresh(
    mined: Path, warcs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(mined, out)
    assert run(warcs, out, *FLAGS) == 0
    assert "finished before: 2 pairs, 2 images" in capsys.readouterr().out
    # A kill before the manifest leaves shards, joins, and perhaps temporary files.
    (out / "_manifest.json").unlink()
    (out / "report.html").unlink()
    (out / "work" / "joins-of-others").mkdir()
    (out / "work" / "archives" / ".tmp-1-x.spool").write_text("{}")
    (out / "work" / "archives" / ".tmp-1-x.json").write_text('{"path"')
    assert run(warcs, out, *FLAGS) == 0
    assert files(out) == files(mined)
    capsys.readouterr()
    assert run(warcs, out, "--min-side", "330") == 2
    assert "--fresh" in capsys.readouterr().err
    assert run(warcs, out, "--min-side", "330", "--fresh") == 0
    captured = capsys.readouterr()
    assert "0 pairs" in captured.out and "warning: the result has no pairs" in captured.err


@pytest.mark.usefixtures("in_a_loop")
def test_images_beyond_the_limit_of_a_rules_file_are_one_reject(
    archive: Pack, image: Make, tmp_path: Path
) -> None:
    most = 20
    rules = tmp_path / "rules.toml"
    rules.write_text(f"max_images_per_page = {most}\n")
    body = "<img src=cat.jpg alt='A black cat on a mat'>" + "<img src=gone.jpg>" * (most + 2)
    site = [html_page("a", body), (f"{SITE}cat.jpg", image(310, 320), "image/jpeg")]
    warc = archive(tmp_path / "a.warc.gz", site)
    assert run(warc, tmp_path / "out", "--rules", str(rules)) == 0
    assert "20 (default: 2000)" in (tmp_path / "out" / "report.html").read_text()
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    assert str(rules) in json.dumps(manifest["inputs"])
    (row,) = (row for row in rows(tmp_path / "out", REJECTS) if row["reason"] == "too_many")
    assert (row["stage"], row["key"]) == ("join", f"{SITE}a.html")
    assert row["detail"] == f"3 images after {most}"
    (join,) = (
        stage
        for stage in json.loads((tmp_path / "out" / "funnel.json").read_text())
        if stage["stage"] == "join"
    )
    assert join["rejects"] == {"too_many": 1, "missing_image": most - 1} and join["out"] == 1


def test_archives_without_a_record_are_rejects(tmp_path: Path) -> None:
    for number, content in enumerate((b"", b"no archive at all", b"\x1f\x8b")):
        (tmp_path / f"{number}.warc").write_bytes(content)
    assert run(tmp_path / "*.warc", tmp_path / "out") == 1  # nothing could be read
    rejects = rows(tmp_path / "out", REJECTS)
    assert [(r["stage"], r["reason"]) for r in rejects] == [("archives", "broken_archive")] * 3
    assert rows(tmp_path / "out", PAIRS) == [] and (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--warc", "nothing-*.gz", "--output", "out"], "--warc nothing-*.gz"),
        (["--warc", ".", "--output", "out"], "is a folder"),
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
    assert web_pairs.main([*flags, *NO_MODELS]) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1


@pytest.mark.usefixtures("in_a_loop")
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


@pytest.mark.usefixtures("in_a_loop")
def test_a_full_disk_says_that_the_command_goes_on(
    warcs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(steps_module, "run_unit", full)
    out = tmp_path / "out"
    assert run(warcs, out, *FLAGS) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("failed: ") and "No space left on device" in said
    assert said.endswith(f"; free disk space at {out}, and the same command continues")


def test_the_report_is_one_safe_file(mined: Path) -> None:
    report = (mined / "report.html").read_text()
    assert "A black cat on a mat" in report
    assert "data:image/jpeg;base64," in report
    assert "<script" not in report and "src='http" not in report


def test_the_report_shows_the_scores_by_regions(mined: Path, tmp_path: Path) -> None:
    """Without the archives; a killed publication is made up for."""
    out = tmp_path / "out"
    shutil.copytree(mined, out)
    rng = np.random.default_rng(0)
    ids = [row["image_id"] for row in rows(out, IMAGES)]
    boxes = [region_row(rng, image_id, [0, 3, 4]) for image_id in ids]
    table = encode_regions(boxes, dtype="float16")
    arrays = region_arrays(dtype="float16", feature_dim=2)
    shard = write_shard(tmp_path / "regions", REGIONS, table, arrays=arrays)
    write_manifest(tmp_path / "regions", [shard], job="regions", settings={})
    (tmp_path / "classes.txt").write_text("\n".join(CLASSES))
    flags = ["--regions", f"{tmp_path}/regions", "--classes", f"{tmp_path}/classes.txt"]
    assert web_pairs.main(["--output", str(out), *flags]) == 0
    assert verify_folder(out) == []
    report = (out / "report.html").read_text()
    for row in rows(out, PAIRS):
        assert f"{row['text_source']}, score {row['score']:.2f}" in report
    assert {row["score"] for row in rows(out, PAIRS)} != {
        row["score"] for row in rows(mined, PAIRS)
    }
    assert "agreement with regions" in report and "data:image/jpeg;base64," in report
    for name in ("funnel.json", "metrics.json", "report.json"):
        assert (out / name).read_bytes() == (mined / name).read_bytes()


@pytest.mark.usefixtures("in_a_loop")
def test_rejected_images_are_shown_next_to_kept_ones(
    archive: Pack, image: Make, tmp_path: Path
) -> None:
    """As LAIT's figures 2 and 3; with the text that the image would have had."""
    blank = io.BytesIO()
    Image.new("RGB", (320, 330), "white").save(blank, "PNG")
    lines = [
        html_page("a", "<img src=1.jpg alt='A boat on the lake'>"),
        html_page("b", "<img src=2.png alt='A plain <b>wall</b> of a house'>"),
        (f"{SITE}1.jpg", image(320, 330), "image/jpeg"),
        (f"{SITE}2.png", blank.getvalue(), "image/png"),
    ]
    assert run(archive(tmp_path / "a.warc.gz", lines), tmp_path / "out") == 0
    (rejected,) = json.loads((tmp_path / "out" / "report.json").read_text())["rejected"]
    assert (rejected["reason"], rejected["detail"]) == ("blank_image", "320x330")
    assert rejected["url"] == f"{SITE}2.png" and rejected["picture"].startswith("data:image/jpeg")
    report = (tmp_path / "out" / "report.html").read_text()
    sides = report[report.index("<h3>Kept</h3>") : report.index("Sample pairs</h2>")]
    kept, _, dropped = sides.partition("<h3>Rejected</h3>")
    assert "A boat on the lake" in kept and "blank_image" not in kept
    assert "A plain" in dropped and "blank_image 320x330" in dropped and "<b>" not in dropped


@pytest.mark.usefixtures("in_a_loop")
def test_wrong_digests_are_counted_and_shown(response: Make, image: Make, tmp_path: Path) -> None:
    page = response(*html_page("a", "<img src=1.jpg alt='A boat on the lake'>"), gzip=False)
    other = response(f"{SITE}1.jpg", image(320, 330), "image/jpeg", gzip=False)
    head = b"WARC-Block-Digest: sha1:"
    at = other.index(head) + len(head)
    (tmp_path / "a.warc").write_bytes(page + other[:at] + b"A" * 32 + other[at + 32 :])
    assert run(tmp_path / "a.warc", tmp_path / "out") == 0
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["wrong_digests"] == 1
    assert (
        "do not match the digest in their archive: 1."
        in (tmp_path / "out" / "report.html").read_text()
    )


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
    assert check_state(entry, entry.path) == ("ok", "")


@pytest.mark.usefixtures("in_a_loop")
def test_every_unit_resumes_by_itself(
    mined: Path, warcs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is stopped after each of its units in turn; what is done is not done again."""
    out = tmp_path / "out"
    done: list[str] = []

    def stop_after_one(job: Job, folder: Path, unit: Unit, work: Any) -> None:
        if record_path(folder, unit).exists():
            return
        done.append(unit.name)
        run_unit(job, folder, unit, work)
        raise OSError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(steps_module, "run_unit", stop_after_one)
        for _ in range(50):
            if run(warcs, out, *FLAGS) == 0:
                break
            assert not (out / "_manifest.json").exists()
    assert len(done) == len(set(done)) > 10
    assert files(out) == files(mined)


@pytest.mark.usefixtures("in_a_loop")
def test_archives_that_are_added_are_mined_alone(
    site: Any, archive: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of their coming or all at once, the tables are the same."""
    folder, out, whole = tmp_path / "warcs", tmp_path / "out", tmp_path / "whole"
    folder.mkdir()
    archive(folder / "pages.warc.gz", site[:4])
    assert run(folder / "*.warc.gz", out, *FLAGS) == 0  # no image is at hand
    before = (out / "_manifest.json").read_bytes()
    archive(folder / "pictures.warc.gz", site[4:])
    names: list[str] = []

    def note(job: Job, folder: Path, unit: Unit, work: Any) -> None:
        if folder == job.mined and not record_path(folder, unit).exists():
            names.append(job.archives[unit.number].path)
        run_unit(job, folder, unit, work)

    with monkeypatch.context() as patch:
        patch.setattr(steps_module, "run_unit", note)
        assert run(folder / "pictures.warc.gz", out, *FLAGS) == 0
    assert names == [str(folder / "pictures.warc.gz")]
    assert (out / "_manifest.json").read_bytes() != before
    assert run(folder / "*.warc.gz", whole, *FLAGS) == 0
    for table in (PAIRS, IMAGES, REJECTS):
        assert rows(out, table) == rows(whole, table)
    assert verify_folder(out) == []


@pytest.mark.usefixtures("in_a_loop")
def test_without_work_no_archive_is_added_alone(
    site: Any, archive: Pack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pairs of the archives before would be gone."""
    first, second = (archive(tmp_path / f"{name}.warc.gz", site) for name in "ab")
    out = tmp_path / "out"
    assert run(first, out) == 0
    shutil.rmtree(out / "work")
    assert run(first, out) == 0  # nothing is to be done
    before = rows(out, PAIRS)
    capsys.readouterr()
    assert run(second, out) == 2
    assert "its work/archives no longer has their results" in capsys.readouterr().err
    assert rows(out, PAIRS) == before and verify_folder(out) == []
    assert run(tmp_path / "*.warc.gz", out) == 0


@pytest.mark.usefixtures("in_a_loop")
def test_an_archive_that_has_changed_is_refused(
    site: Any, archive: Pack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = archive(tmp_path / "a.warc.gz", site)
    assert run(path, tmp_path / "out") == 0
    archive(path, site[:5])
    assert run(path, tmp_path / "out") == 2
    assert "--fresh" in capsys.readouterr().err


@pytest.mark.usefixtures("in_a_loop")
def test_an_archive_that_changes_at_equal_size_is_noticed(
    site: Any,
    archive: Pack,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run ends before it reads the images again, and their archive changes meanwhile."""
    path = archive(tmp_path / "a.warc.gz", site)

    def stop_at_shards(job: Job, folder: Path, unit: Unit, work: Any) -> Any:
        if unit.name.startswith("shard-"):
            raise OSError("stopped")
        return run_unit(job, folder, unit, work)

    with monkeypatch.context() as patch:
        patch.setattr(steps_module, "run_unit", stop_at_shards)
        assert run(path, tmp_path / "out") == 1
    content = path.read_bytes()
    middle = content.index(b"\x1f\x8b\x08", len(content) // 2)  # where a record begins
    path.write_bytes(content[middle:] + content[:middle])
    capsys.readouterr()
    assert run(path, tmp_path / "out") == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"{path} has changed since it was mined" in said and "--fresh" in said
    assert run(path, tmp_path / "out", "--fresh") == 0


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory, archive: Pack) -> Path:
    """Three images that look alike in two sizes, one that does not, each with a text."""
    pixels = [noise(seed).resize(size) for seed, size in ((1, (640, 480)), (1, (400, 320)))]
    encoded = [
        encode(p, quality) for p, quality in ((pixels[0], 90), (pixels[1], 90), (pixels[1], 60))
    ]
    encoded.append(encode(noise(2).resize((400, 320)), 90))
    texts = ("A boat on the lake", "The same boat again", "A boat once more", "A house on a hill")
    body = "".join(f"<img src={n}.jpg alt='{text}'>" for n, text in enumerate(texts))
    responses = [html_page("a", body)]
    responses += [(f"{SITE}{n}.jpg", data, "image/jpeg") for n, data in enumerate(encoded)]
    return archive(tmp_path_factory.mktemp("alike") / "a.warc.gz", responses)


def noise(seed: int) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((640, 480), Image.Resampling.BICUBIC)


def encode(image: Image.Image, quality: int) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality)
    return out.getvalue()


@pytest.fixture
def in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's steps in this process alone, where a test can look into them."""
    monkeypatch.setattr(flags, "all_cores", lambda: 1)


@pytest.mark.usefixtures("in_a_loop")
def test_images_that_look_alike_are_counted_and_dropped_on_request(
    alike: Path, tmp_path: Path
) -> None:
    assert run(alike, tmp_path / "all") == 0
    assert len(rows(tmp_path / "all", PAIRS)) == 4
    metrics = json.loads((tmp_path / "all" / "metrics.json").read_text())
    assert (metrics["near_duplicates"], metrics["near_duplicate_groups"]) == (2, 1)
    assert run(alike, tmp_path / "few", "--drop-near-duplicates") == 0
    pairs = {row["image_url"]: row["text"] for row in rows(tmp_path / "few", PAIRS)}
    assert pairs.keys() == {f"{SITE}0.jpg", f"{SITE}3.jpg"}  # the largest, and the other one
    assert len(rows(tmp_path / "few", IMAGES)) == 2
    funnel = json.loads((tmp_path / "few" / "funnel.json").read_text())
    assert funnel[-1]["rejects"] == {"near_duplicate": 2}
    assert sum(row["reason"] == "near_duplicate" for row in rows(tmp_path / "few", REJECTS)) == 2


@pytest.mark.usefixtures("in_a_loop")
def test_groups_are_held_out_as_a_whole(alike: Path, tmp_path: Path) -> None:
    assert run(alike, tmp_path / "out", "--hold-out", "0.5") == 0
    splits = {row["image_url"]: row["split"] for row in rows(tmp_path / "out", PAIRS)}
    assert len({splits[f"{SITE}{n}.jpg"] for n in range(3)}) == 1
    assert set(splits.values()) <= {"train", "val"}


@pytest.mark.usefixtures("in_a_loop")
@pytest.mark.parametrize("listed", ["id", "url"])
def test_images_of_a_list_are_kept_out(
    listed: str, mined: Path, site: Any, warcs: Path, tmp_path: Path
) -> None:
    """By its URL an image is kept out under its other URLs, too."""
    line = compute_image_id(site[4][1]) if listed == "id" else f"{SITE}cat.jpg"
    (tmp_path / "list.txt").write_text(f"{line}\nunknown\n")
    out = tmp_path / "out"
    assert run(warcs, out, *FLAGS, "--exclude", str(tmp_path / "list.txt")) == 0
    assert [row["text"] for row in rows(out, PAIRS)] == ["A dog in the yard"]
    stages = {s["stage"]: s for s in json.loads((out / "funnel.json").read_text())}
    assert stages["exclude"]["rejects"]["excluded"] > 1 and stages["exclude"]["out"] > 0


@pytest.mark.usefixtures("in_a_loop")
def test_what_looks_like_a_test_set_is_kept_out(alike: Path, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    noise(1).resize((320, 240)).save(tmp_path / "tests" / "boat.png")
    out = tmp_path / "out"
    assert run(alike, out, "--exclude-hash", str(tmp_path / "tests")) == 0
    assert [row["image_url"] for row in rows(out, PAIRS)] == [f"{SITE}3.jpg"]


@pytest.mark.usefixtures("in_a_loop")
def test_webdataset_holds_the_same_pairs(mined: Path, warcs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(warcs, out, *FLAGS, "--format", "webdataset") == 0
    assert not list(out.glob("images-*"))
    samples: dict[str, dict[str, bytes]] = {}
    for path in sorted(out.glob("pairs-*.tar")):
        with tarfile.open(path) as tar:
            for entry in tar:
                file = tar.extractfile(entry)
                assert file is not None
                key, extension = entry.name.split(".")
                samples.setdefault(key, {})[extension] = file.read()
    pairs = {row["pair_id"]: row for row in rows(mined, PAIRS)}
    images = {row["image_id"]: row for row in rows(mined, IMAGES)}
    assert samples.keys() == pairs.keys()
    for key, sample in samples.items():
        image = images[pairs[key]["image_id"]]
        extension = {"jpeg": "jpg"}.get(image["format"], image["format"])
        assert sample.keys() == {extension, "txt", "json"}
        assert sample[extension] == image["bytes"] and sample["txt"].decode() == pairs[key]["text"]
        of_sets = {"fold", "caption_no", "doc", "category"}  # of published data sets alone
        of_pages = pairs[key].keys() - of_sets
        assert json.loads(sample["json"]) == {name: pairs[key][name] for name in of_pages}
    index = json.loads((out / "webdataset.json").read_text())
    assert sum(shard["nsamples"] for shard in index["shardlist"]) == len(pairs)
    assert verify_folder(out) == []


def test_a_model_that_does_not_exist_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--warc", "a.warc", "--output", str(tmp_path / "out")]
    assert web_pairs.main([*flags, *NO_MODELS, "--realism-model", "absent.model"]) == 2
    assert "--realism-model absent.model: no such file" in capsys.readouterr().err
    assert not (tmp_path / "out" / "_manifest.json").exists()


@pytest.mark.usefixtures("in_a_loop")
def test_redirects_and_inline_images_lead_to_pairs(
    image: Make, response: Make, tmp_path: Path
) -> None:
    """An image that has moved twice, at last to another archive, and one that is in its page."""
    inline, moved = image(330, 320, seed=5), image(340, 320, seed=6)
    source = base64.b64encode(inline).decode()
    page = html_page(
        "a",
        f"<img src='data:image/jpeg;base64,{source}' alt='A red boat on the lake'>"
        "<p>Something else stands between them, and goes on for some words.</p>"
        "<img src=old.jpg alt='A white house on a hill'>",
    )
    leads = {"old": "newer", "newer": "newest"}
    hops = [
        response(f"{SITE}{a}.jpg", b"", "text/html", status="301 Moved", Location=f"/{b}.jpg")
        for a, b in leads.items()
    ]
    (tmp_path / "a.warc.gz").write_bytes(response(*page) + b"".join(hops))
    (tmp_path / "b.warc.gz").write_bytes(response(f"{SITE}newest.jpg", moved, "image/jpeg"))
    out = tmp_path / "out"
    assert run(tmp_path / "*.warc.gz", out) == 0
    assert {row["image_id"] for row in rows(out, PAIRS)} == {
        compute_image_id(inline),
        compute_image_id(moved),
    }
    assert {row["bytes"] for row in rows(out, IMAGES)} == {inline, moved}


@pytest.mark.usefixtures("in_a_loop")
@pytest.mark.parametrize("ignored", [False, True])
def test_opt_outs_are_honoured_and_counted(
    ignored: bool, image: Make, response: Make, tmp_path: Path
) -> None:
    texts = ("A boat on the lake", "A house on a hill")
    pages = [html_page(f"{n}", f"<img src={n}.jpg alt='{text}'>") for n, text in enumerate(texts)]
    forbidden = pages[1][1].replace(b"<head>", b"<head><meta name=robots content=noai>")
    (tmp_path / "a.warc").write_bytes(
        response(*pages[0])
        + response(pages[1][0], forbidden, "text/html")
        + response(f"{SITE}0.jpg", image(320, 320), "image/jpeg", X_Robots_Tag="noimageai")
        + response(f"{SITE}1.jpg", image(330, 320, seed=1), "image/jpeg")
    )
    flags = ["--ignore-opt-outs"] if ignored else []
    run(tmp_path / "a.warc", tmp_path / "out", *flags)
    stages = {s["stage"]: s for s in json.loads((tmp_path / "out" / "funnel.json").read_text())}
    assert len(rows(tmp_path / "out", PAIRS)) == 2 * ignored
    if not ignored:
        assert stages["parse"]["rejects"] == {"no_ai": 1}
        assert stages["pictures"]["rejects"] == {"no_image_ai": 1}
