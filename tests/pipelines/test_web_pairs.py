import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from vlmill.pipelines import web_pairs
from vlmill.schemas.ids import image_id_of, pair_id_of
from vlmill.schemas.manifest import verify_folder
from vlmill.schemas.reading import read_table
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


@pytest.fixture
def responses(picture: Make) -> list[tuple[str, bytes, str]]:
    """Two pages that share a picture under two URLs, a twice shared text, and dirt."""
    cat, dog = picture(320, 310, seed=1), picture(310, 330, seed=2, format="PNG")
    shared = [(f"{SITE}s{n}.jpg", picture(305, 305, seed=10 + n), "image/jpeg") for n in range(3)]
    same = "".join(f"<img src=s{n}.jpg alt='A view over the bay'>" for n in range(3))
    return [
        html_page("a", "<img src=cat.jpg alt='A black cat on a mat'>"),
        html_page(
            "b",
            "<figure><img src=/copy/cat.jpg><figcaption>The black cat of the neighbours sleeps on "
            "its mat.</figcaption></figure><img src=dog.png alt='A dog in the yard'>"
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


def test_from_pages_to_pairs(tmp_path: Path, responses: Any, archive: Pack) -> None:
    warc = archive(tmp_path / "a.warc.gz", responses)
    cut = warc.read_bytes()
    (tmp_path / "b.warc.gz").write_bytes(cut[: len(cut) // 3])
    out = tmp_path / "out"
    assert run(tmp_path / "*.warc.gz", out, "--max-images-per-text", "2") == 0
    assert verify_folder(out) == []

    cat, dog = responses[4][1], responses[6][1]
    pairs = {row["text"]: row for row in rows(out, PAIRS)}
    assert pairs.keys() == {
        "The black cat of the neighbours sleeps on its mat.",
        "A dog in the yard",
    }
    row = pairs["A dog in the yard"]
    assert row["pair_id"] == pair_id_of(image_id_of(dog), "A dog in the yard")
    assert (row["language"], row["source"], row["split"]) == ("en", "lait", "train")
    assert (row["text_source"], row["page_url"]) == ("alt", f"{SITE}b.html")
    assert row["image_url"] == f"{SITE}dog.png"
    images = {row["image_id"]: row for row in rows(out, IMAGES)}
    assert {image["bytes"] for image in images.values()} == {cat, dog}
    assert images[image_id_of(dog)]["width"] == 310 and images[image_id_of(dog)]["format"] == "png"

    reasons = {(row["stage"], row["reason"]) for row in rows(out, REJECTS)}
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


def test_the_funnel_adds_up_with_the_tables(tmp_path: Path, responses: Any, archive: Pack) -> None:
    out = tmp_path / "out"
    assert run(archive(tmp_path / "a.warc.gz", responses), out, "--max-images-per-text=2") == 0
    funnel = json.loads((out / "funnel.json").read_text())
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
    assert stages["shared_text"]["out"] == len(rows(out, PAIRS)) == len(rows(out, IMAGES)) == 2
    rejects = rows(out, REJECTS)
    for name, stage in stages.items():
        for reason, count in stage["rejects"].items():
            assert count == sum(r["stage"] == name and r["reason"] == reason for r in rejects)
    assert len(rejects) == sum(sum(stage["rejects"].values()) for stage in funnel)
    assert stages["shared_text"]["rejects"] == {"shared_text": 3}


def test_the_same_archives_give_the_same_bytes(
    tmp_path: Path, responses: Any, archive: Pack
) -> None:
    warc = archive(tmp_path / "a.warc.gz", responses)
    for name in ("one", "two"):
        assert run(warc, tmp_path / name, "--shards", "3") == 0
    one = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    two = {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    assert one == two
    assert sum(name.startswith("pairs-") for name in one) == 3
    ids = [pq.read_table(p)["pair_id"].to_pylist() for p in (tmp_path / "one").glob("pairs-*")]
    assert all(part == sorted(part) for part in ids) and sum(map(len, ids)) == 5


def test_finished_continued_refused_fresh(
    tmp_path: Path, responses: Any, archive: Pack, capsys: pytest.CaptureFixture[str]
) -> None:
    warc, out = archive(tmp_path / "a.warc.gz", responses), tmp_path / "out"
    assert run(warc, out) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert run(warc, out) == 0
    assert "finished before: 5 pairs, 5 images" in capsys.readouterr().out
    # A kill before the manifest leaves shards, and perhaps temporary files.
    (out / "_manifest.json").unlink()
    (out / "report.html").unlink()
    (out / ".tmp-results.json").write_text("{}")
    assert run(warc, out) == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    capsys.readouterr()
    assert run(warc, out, "--min-side", "310") == 2
    assert "--fresh" in capsys.readouterr().err
    assert run(warc, out, "--min-side", "310", "--fresh") == 0
    assert "0 pairs" in capsys.readouterr().out
    shutil.rmtree(out)


@pytest.mark.parametrize("content", [b"", b"no archive at all"])
def test_archives_without_a_record_are_rejects(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.warc").write_bytes(content)
    assert run(tmp_path / "a.warc", tmp_path / "out") == 0
    (reject,) = rows(tmp_path / "out", REJECTS)
    assert (reject["stage"], reject["reason"]) == ("archives", "broken_archive")
    assert rows(tmp_path / "out", PAIRS) == [] and (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--warc", "nothing-*.gz", "--output", "out"], "--warc nothing-*.gz"),
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


def test_the_report_is_one_safe_file(tmp_path: Path, archive: Pack, picture: Make) -> None:
    text = "A cat &lt;script&gt; alert on the mat"
    warc = archive(
        tmp_path / "a.warc.gz",
        [
            html_page("a", f"<img src=a.jpg alt='{text}'>"),
            (f"{SITE}a.jpg", picture(310, 310), "image/jpeg"),
        ],
    )
    assert run(warc, tmp_path / "out") == 0
    report = (tmp_path / "out" / "report.html").read_text()
    assert "A cat alert on the mat" in report and "data:image/jpeg;base64," in report
    assert "<script" not in report and "src='http" not in report
