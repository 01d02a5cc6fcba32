"""WAT files: the links of pages with alternative texts go through the rules of pages."""

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.factories import NO_MODELS
from tests.pipelines.web_pairs.test_job import PROSE, SITE, files, rows
from tests.pipelines.web_pairs.wat_files import describe, describe_archive, wat_record

from vlmill.pipelines.web_pairs import units
from vlmill.pipelines.web_pairs.__main__ import main
from vlmill.schemas.tables import PAIRS, REJECTS

Make = Callable[..., bytes]
Pack = Callable[[Path, Sequence[tuple[str, bytes, str]]], Path]

ALTS = [f"A {what} boat on the quiet lake at noon" for what in ("red", "small", "white", "long")]


def page(name: str, body: str, head: str = "") -> tuple[str, bytes, str]:
    text = f"<html lang=en><head><title>Boats</title>{head}</head><body>{body}{PROSE}"
    return f"{SITE}{name}.html", text.encode(), "text/html"


def photo(image: Make, name: str, seed: int) -> tuple[str, bytes, str]:
    return f"{SITE}{name}", image(320 + seed, 310, seed=seed), "image/jpeg"


def run(output: Path, *flags: str) -> int:
    return main(["--output", str(output), *NO_MODELS, "--workers", "1", *flags])


def found(output: Path) -> dict[str, tuple[str, str | None]]:
    """Image URL -> text and page URL."""
    return {row["image_url"]: (row["text"], row["page_url"]) for row in rows(output, PAIRS)}


def rejected(output: Path) -> set[tuple[str, str]]:
    """Stage and reason of each reject; checks that every stage adds up."""
    funnel: list[dict[str, Any]] = json.loads((output / "funnel.json").read_text())
    assert all(s["in"] == s["out"] + sum(s["rejects"].values()) for s in funnel)
    table = rows(output, REJECTS)
    assert len(table) == sum(sum(s["rejects"].values()) for s in funnel)
    return {(row["stage"], row["reason"]) for row in table}


@pytest.fixture
def images(image: Make, archive: Pack, tmp_path: Path) -> Path:
    """An archive that has only images."""
    names = ("p0.jpg", "p1.jpg", "p2.jpg", "deep/p3.jpg")
    photos = [photo(image, name, seed) for seed, name in enumerate(names)]
    return archive(tmp_path / "images.warc.gz", photos)


@pytest.fixture
def pages(archive: Pack, tmp_path: Path) -> Path:
    """An archive that has only pages."""
    return archive(
        tmp_path / "pages.warc.gz",
        [
            page("a", "".join(f"<img src=p{n}.jpg alt='{ALTS[n]}'>" for n in range(2))),
            page("b", f"<p><a href=x.html><img src=/p2.jpg alt='{ALTS[2]}'></a></p>"),
            page("c", f"<img src=p3.jpg title='{ALTS[3]}'>", "<base href=/deep/>"),
        ],
    )


def test_links_give_the_pairs_of_their_pages(images: Path, pages: Path, tmp_path: Path) -> None:
    wat = tmp_path / "pages.warc.wat.gz"
    wat.write_bytes(describe_archive(pages))
    assert run(tmp_path / "warc", "--warc", str(tmp_path / "*.warc.gz")) == 0
    assert run(tmp_path / "wat", "--wat", str(wat), "--warc", str(images)) == 0
    expected = found(tmp_path / "warc")
    assert len(expected) == 4 and found(tmp_path / "wat") == expected
    assert not rejected(tmp_path / "wat")
    assert run(tmp_path / "wat", "--wat", str(wat), "--warc", str(images)) == 0  # finished before


def test_every_record_is_a_page_or_a_reject(images: Path, tmp_path: Path) -> None:
    """Damaged and hostile records affect no other one."""
    image = f"<img src=p0.jpg alt='{ALTS[0]}'>".encode()
    good = b"<html lang=en><body>" + image + PROSE.encode()
    german = b"<html lang=de><title>Das Boot liegt auf dem See und wartet auf uns</title>" + image
    odd = describe(f"{SITE}odd.html", good)
    html = odd["Envelope"]["Payload-Metadata"]["HTTP-Response-Metadata"]["HTML-Metadata"]
    html["Links"] += [{"path": 7, "url": ["x"]}, {"path": "IMG@/src", "url": None, "alt": {"a": 1}}]
    html["Head"]["Metas"] += [{"name": 3, "content": None}]
    wrong = json.loads(json.dumps(odd))
    wrong["Envelope"]["Payload-Metadata"]["HTTP-Response-Metadata"]["HTML-Metadata"]["Links"] = 5
    site_head = {"X-Robots-Tag": ["noai", "nofollow"]}
    records = [
        wat_record(f"{SITE}odd.html", odd),
        wat_record(f"{SITE}json.html", b'{"Envelope": {"Payload'),
        wat_record(f"{SITE}deep.html", b'{"Envelope": ' + b"[" * 100_000),
        wat_record(f"{SITE}skipped.html", b'{"x": ' + b'{"x":' * 100_000 + b"1" + b"}" * 100_001),
        wat_record(f"{SITE}list.html", b"[1]"),
        wat_record(f"{SITE}links.html", wrong),
        wat_record(f"{SITE}large.html", b" " * 1_100_000),
        wat_record("ftp://site.example/x", describe("ftp://site.example/x", good)),
        wat_record(f"{SITE}404.html", describe(f"{SITE}404.html", good, status="404")),
        wat_record(f"{SITE}p.png", describe(f"{SITE}p.png", None)),
        wat_record(f"{SITE}none.html", describe(f"{SITE}none.html", b"<html lang=en>words")),
        wat_record(f"{SITE}no.html", describe(f"{SITE}no.html", good, headers=site_head)),
        wat_record(
            f"{SITE}meta.html",
            describe(f"{SITE}meta.html", b"<meta name=robots content=noai>" + good),
        ),
        wat_record(f"{SITE}again.html", describe(f"{SITE}again.html", None, kind="revisit")),
        wat_record(f"{SITE}req.html", describe(f"{SITE}req.html", None, kind="request")),
        wat_record(f"{SITE}other.html", b"languages-cld2: {}", type="application/warc-fields"),
        wat_record(f"{SITE}de.html", describe(f"{SITE}de.html", german * 3)),
        gzip.compress(b"junk"),
    ]
    (tmp_path / "a.wat.gz").write_bytes(b"".join(records))
    rules = tmp_path / "rules.json"
    rules.write_text('{"max_record_bytes": 1048576}')
    flags = ["--wat", str(tmp_path / "a.wat.gz"), "--warc", str(images), "--rules", str(rules)]
    assert run(tmp_path / "out", *flags) == 0
    assert found(tmp_path / "out") == {f"{SITE}p0.jpg": (ALTS[0], f"{SITE}odd.html")}
    assert {
        *(("records", r) for r in ("bad_record", "too_large", "bad_url", "bad_status")),
        *(("records", r) for r in ("other_type", "revisit")),
        *(("pages", r) for r in ("no_images", "no_ai")),
        ("parse", "no_ai"),
        ("language", "other_language"),
        ("join", "bad_url"),  # of the odd page: an address that is no text
    } <= rejected(tmp_path / "out")
    broken = {
        row["key"] for row in rows(tmp_path / "out", REJECTS) if row["reason"] == "bad_record"
    }
    names = ("deep", "json", "links", "list", "skipped")
    assert broken == {f"{SITE}{name}.html" for name in names}
    assert run(tmp_path / "all", *flags, "--ignore-opt-outs") == 0
    assert not {("pages", "no_ai"), ("parse", "no_ai")} & rejected(tmp_path / "all")


def test_null_counts_as_an_absent_list_or_object(images: Path, tmp_path: Path) -> None:
    nulls = [("HTML-Metadata", "Head"), ("HTML-Metadata", "Head", "Metas"), ("Headers",)]
    nulls += [("HTML-Metadata", "Head", "Link"), ("Response-Message",), ("HTML-Metadata", "Links")]
    records = []
    for number, keys in enumerate(nulls):
        url, name = (
            f"{SITE}{number}.html",
            ("p0.jpg", "p1.jpg", "p2.jpg", "deep/p3.jpg")[number % 4],
        )
        html = f"<html lang=en><img src={name} alt='{ALTS[number % 4]}'>{PROSE}"
        described = describe(url, html.encode())
        inner = described["Envelope"]["Payload-Metadata"]["HTTP-Response-Metadata"]
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = None
        records.append(wat_record(url, described))
    (tmp_path / "a.wat.gz").write_bytes(b"".join(records))
    flags = ["--wat", str(tmp_path / "a.wat.gz"), "--warc", str(images)]
    assert run(tmp_path / "out", *flags, "--language", "any") == 0
    assert len(found(tmp_path / "out")) == 4
    assert {reason for _, reason in rejected(tmp_path / "out")} == {"no_images", "not_best_text"}


def test_a_record_that_would_fill_memory(tmp_path: Path) -> None:
    """Empty links take thirty times as many bytes in memory as in the file."""
    html: dict[str, Any] = {"Links": [{}] * (3 << 20)}
    odd = describe(SITE, b"<html>")
    odd["Envelope"]["Payload-Metadata"]["HTTP-Response-Metadata"]["HTML-Metadata"] = html
    (tmp_path / "a.wat.gz").write_bytes(wat_record(SITE, odd))
    assert run(tmp_path / "out", "--wat", str(tmp_path / "a.wat.gz")) == 1
    assert rejected(tmp_path / "out") == {("records", "too_large")}


def test_characters_that_a_writer_has_cut(images: Path, tmp_path: Path) -> None:
    """Half an emoji or a broken byte in one text does not lose the page."""
    url = f"{SITE}a.html"
    html = f"<html lang=en><body><img src=p0.jpg alt='{ALTS[0]}'><i>CUT</i>{PROSE}".encode()
    good = json.dumps(describe(url, html)).encode()
    assert good.count(b"200") == 1
    halves = rb"\ud83d \ud83d\ude00 \ude00 \\ud83d".join((b'"200","Reason":"', b'"'))
    for name, reason in (("half", halves), ("byte", b'"200","Reason":"\xff"')):
        (tmp_path / name).write_bytes(wat_record(url, good.replace(b'"200"', reason)))
        flags = ["--wat", str(tmp_path / name), "--warc", str(images)]
        assert run(tmp_path / f"out-{name}", *flags) == 0
        assert list(found(tmp_path / f"out-{name}")) == [f"{SITE}p0.jpg"]


def test_the_head_s_image_license_and_redirects(
    images: Path, image: Make, archive: Pack, tmp_path: Path
) -> None:
    head = (
        "<meta property=og:image content=/moved.jpg>"
        f"<meta property=og:image:alt content='{ALTS[0]}'>"
        "<link rel=license href=https://creativecommons.org/licenses/by/4.0/>"
    )
    url, html, _ = page("a", "<p>No image here.</p>", head)
    target = f"{SITE}p0.jpg"
    moved = describe(f"{SITE}moved.jpg", b"", status="301", headers={"LOCATION": "/p0.jpg"})
    records = [wat_record(f"{SITE}moved.jpg", moved), wat_record(url, describe(url, html))]
    (tmp_path / "a.wat.gz").write_bytes(b"".join(records))
    flags = ["--wat", str(tmp_path / "a.wat.gz"), "--warc", str(images)]
    assert run(tmp_path / "out", *flags) == 0
    (row,) = rows(tmp_path / "out", PAIRS)
    assert (row["image_url"], row["text"], row["page_url"]) == (target, ALTS[0], url)
    assert row["license"] == "https://creativecommons.org/licenses/by/4.0/"


def test_images_beyond_the_limit_and_inline_images(images: Path, tmp_path: Path) -> None:
    url = f"{SITE}a.html"
    body = "".join(f"<img src=p{n}.jpg alt='{ALTS[n]}'>" for n in range(3))
    html = f"<html lang=en><body>{body}<img src='data:image/gif;base64,R0'>{PROSE}".encode()
    (tmp_path / "a.wat.gz").write_bytes(wat_record(url, describe(url, html)))
    rules = tmp_path / "rules.json"
    rules.write_text('{"max_images_per_page": 2}')
    flags = ["--wat", str(tmp_path / "a.wat.gz"), "--warc", str(images)]
    assert run(tmp_path / "few", *flags, "--rules", str(rules)) == 0
    assert len(found(tmp_path / "few")) == 2 and ("join", "too_many") in rejected(tmp_path / "few")
    assert run(tmp_path / "all", *flags) == 0
    assert ("inline_pictures", "unreadable_image") in rejected(tmp_path / "all")


def test_parts_of_a_large_file_give_the_same_bytes(
    images: Path, pages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wat = tmp_path / "pages.warc.wat.gz"
    wat.write_bytes(describe_archive(pages))
    flags = ["--wat", str(wat), "--warc", str(images)]
    assert run(tmp_path / "whole", *flags) == 0
    monkeypatch.setattr(units, "PART_BYTES", 600)
    assert run(tmp_path / "parts", *flags) == 0
    assert len(list((tmp_path / "parts").glob("work/archives/*.json"))) > 4
    whole, parts = (
        {name: data for name, data in files(tmp_path / each).items() if name[:5] != "work/"}
        for each in ("whole", "parts")
    )
    assert parts == whole


@pytest.mark.parametrize(
    ("flag", "name", "words"),
    [
        (
            "--warc",
            "a.warc.wat.gz",
            "WAT file, which has only the links of pages; give it to --wat",
        ),
        ("--warc", "unnamed.gz", "WAT file, which has only the links of pages; give it to --wat"),
        ("--wat", "images.warc.gz", "WARC file, which has the pages themselves; give it to --warc"),
        ("--wat", "none.wat.gz", "no file matches"),
    ],
)
def test_files_of_the_other_kind_are_refused(
    flag: str,
    name: str,
    words: str,
    images: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = wat_record(SITE, describe(SITE, b"<html>"))
    for each in ("a.warc.wat.gz", "unnamed.gz"):
        (tmp_path / each).write_bytes(record)
    assert run(tmp_path / "out", flag, str(tmp_path / name)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert words in error and name in error and flag in error


def test_a_dry_run_measures_them(
    images: Path, pages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wat = tmp_path / "pages.warc.wat.gz"
    wat.write_bytes(describe_archive(pages))
    assert run(tmp_path / "out", "--wat", str(wat), "--warc", str(images), "--dry-run") == 0
    text = capsys.readouterr().out
    assert "--wat 1 archives" in text and "--warc 1 archives" in text and "MB/s" in text
    assert not (tmp_path / "out").exists()
