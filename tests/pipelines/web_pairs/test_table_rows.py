"""Tables of image URLs with texts: each row is a pair or a reject, by the rules of pages."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from tests.pipelines.web_pairs.test_archives import index_of
from tests.pipelines.web_pairs.test_fetch import serve
from tests.pipelines.web_pairs.test_job import SITE, rows
from tests.pipelines.web_pairs.test_wat import ALTS, found, photo, rejected, run

from vlmill.pipelines.web.archives.reading import Record
from vlmill.pipelines.web.pages.described import RowPage
from vlmill.pipelines.web_pairs import table_rows
from vlmill.pipelines.web_pairs.table_rows import (
    NO_COLUMNS,
    find_tables,
    read_table,
    require_columns,
)
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import PAIRS, REJECTS

Make = Callable[..., bytes]
Pack = Callable[[Path, Sequence[tuple[str, bytes, str]]], Path]

PAGE = f"{SITE}about.html"
ROWS = [
    (f"{SITE}p0.jpg", ALTS[0], PAGE),
    ("p1.jpg", ALTS[1], PAGE),  # relative to its page
    (f"{SITE}p2.jpg", ALTS[2], ""),
]
EXPECTED = {
    f"{SITE}p0.jpg": (ALTS[0], PAGE),
    f"{SITE}p1.jpg": (ALTS[1], PAGE),
    f"{SITE}p2.jpg": (ALTS[2], None),
}


@pytest.fixture
def images(image: Make, archive: Pack, tmp_path: Path) -> Path:
    photos = [photo(image, f"p{seed}.jpg", seed) for seed in range(3)]
    return archive(tmp_path / "images.warc.gz", photos)


def write_table(path: Path, names: Sequence[str], values: Sequence[Sequence[Any]]) -> Path:
    """A table of texts in the format of its name."""
    columns = {
        name: pa.array([row[i] for row in values], pa.string()) for i, name in enumerate(names)
    }
    table = pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    elif path.suffix == ".json":
        path.write_text(json.dumps(table.to_pylist()))
    elif path.suffix == ".csv":
        pc.write_csv(table, path)
    else:
        path.write_text("".join("\t".join(line) + "\n" for line in [names, *values]))
    return path


@pytest.mark.parametrize("ending", ["parquet", "csv", "tsv", "json", "jsonl", "txt"])
def test_every_format_gives_the_same_pairs(ending: str, images: Path, tmp_path: Path) -> None:
    """In a file .txt the columns are separated by tabs."""
    table = write_table(tmp_path / f"t.{ending}", ("url", "caption", "page_url"), ROWS)
    assert run(tmp_path / "out", "--table", str(table), "--warc", str(images)) == 0
    assert found(tmp_path / "out") == EXPECTED
    assert not rejected(tmp_path / "out")
    assert {row["text_source"] for row in rows(tmp_path / "out", PAIRS)} == {"alt"}


def test_a_finished_output_is_a_table_too(images: Path, tmp_path: Path) -> None:
    """Of a folder only its pairs are read; further tables join the earlier archives."""
    table = write_table(tmp_path / "t.csv", ("image_url", "text", "page_url"), ROWS[:2])
    first, second = tmp_path / "first", tmp_path / "second"
    assert run(first, "--table", str(table), "--warc", str(images)) == 0
    assert run(second, "--table", str(first), "--warc", str(images)) == 0
    assert found(second) == found(first) and len(found(first)) == 2
    more = write_table(tmp_path / "u.csv", ("image_url", "text", "page_url"), ROWS[2:])
    assert run(first, "--table", str(more)) == 0
    assert found(first) == EXPECTED


def test_images_come_from_an_index_too(images: Path, tmp_path: Path) -> None:
    """Only its records of the archive are read; a table has none."""
    (tmp_path / "cdx").write_text(index_of(tmp_path, ["p1.jpg"]))
    table = write_table(tmp_path / "t.csv", ("url", "text", "page_url"), ROWS)
    flags = ["--index", str(tmp_path / "cdx"), "--base", str(tmp_path)]
    assert run(tmp_path / "out", "--table", str(table), *flags) == 0
    assert list(found(tmp_path / "out")) == [f"{SITE}p1.jpg"]
    assert rejected(tmp_path / "out") == {("join", "missing_image")}


def test_columns_by_name_and_by_number(images: Path, tmp_path: Path) -> None:
    named = write_table(tmp_path / "t.csv", ("link", "words", "from"), ROWS)
    flags = ["--image-column", "link", "--text-column", "words", "--page-column", "from"]
    assert run(tmp_path / "named", "--table", str(named), "--warc", str(images), *flags) == 0
    assert found(tmp_path / "named") == EXPECTED
    bare = tmp_path / "bare.tsv"
    bare.write_text("".join(f"{text}\t{SITE}p{n}.jpg\n" for n, (_, text, _) in enumerate(ROWS)))
    flags = ["--image-column", "2", "--text-column", "1"]
    assert run(tmp_path / "bare", "--table", str(bare), "--warc", str(images), *flags) == 0
    assert {url: text for url, (text, _) in found(tmp_path / "bare").items()} == {
        url: text for url, (text, _) in EXPECTED.items()
    }


def test_every_row_is_a_pair_or_a_reject(images: Path, tmp_path: Path) -> None:
    lines = [
        "image_url,text,page_url,language",
        f"{SITE}p0.jpg,{ALTS[0]},{PAGE},en",
        f"{SITE}p1.jpg,,{PAGE},",
        f"javascript:x,{ALTS[1]},{PAGE},",
        f"p1.jpg,{ALTS[1]},,",  # relative to nothing
        f"{SITE}p1.jpg,{ALTS[1]},no page,",
        f"{SITE}p1.jpg,Ein rotes Boot auf dem ruhigen See am Mittag,{PAGE},de",
        f"{SITE}p1.jpg,Dieses kleine rote Boot liegt seit dem letzten Sommer auf dem stillen See "
        f"und wartet,{PAGE},",
        f"{SITE}p2.jpg,湖の上の船の写真,{PAGE},",
        f"{SITE}gone.jpg,{ALTS[2]},{PAGE},",
        f"{SITE}p2.jpg,{ALTS[2]},http://blocked.example/x,",
        f"{SITE}p2.jpg,IMG_2034.jpg,{PAGE},",
        "one field",
        f'{SITE}p2.jpg,"{ALTS[2]},{PAGE},',  # never closed
    ]
    table = tmp_path / "t.csv"
    table.write_bytes("\n".join(lines).encode() + b"\nhttp://a.example/\xff\xfe,x,y,z\n")
    (tmp_path / "blocked").write_text("blocked.example\n")
    flags = ["--warc", str(images), "--blocked-pages", str(tmp_path / "blocked")]
    assert run(tmp_path / "out", "--table", str(table), *flags) == 0
    assert found(tmp_path / "out") == {f"{SITE}p0.jpg": (ALTS[0], PAGE)}
    assert {
        *(("records", r) for r in ("empty_text", "bad_url", "bad_record", "bad_encoding")),
        ("language", "other_language"),
        ("pages", "excluded"),
        ("join", "missing_image"),
    } <= rejected(tmp_path / "out")
    funnel = {s["stage"]: s for s in json.loads((tmp_path / "out" / "funnel.json").read_text())}
    num_rows, num_images = len(lines), 3
    assert funnel["records"]["in"] == num_rows + num_images
    rejects = rows(tmp_path / "out", REJECTS)
    assert len(rejects) == num_rows - 1
    assert f"{table}:3" in {row["key"] for row in rejects}


@pytest.mark.parametrize("language", ["any", "en,de", "de"])
def test_languages_of_rows(language: str, images: Path, tmp_path: Path) -> None:
    """A short text counts as the only language that was asked for."""
    texts = [ALTS[0], "Ein rotes Boot auf dem ruhigen See am Mittag", "A boat"]
    values = [(f"{SITE}p{n}.jpg", text) for n, text in enumerate(texts)]
    table = write_table(tmp_path / "t.csv", ("url", "text"), values)
    flags = ["--warc", str(images), "--language", language, "--min-words", "1"]
    assert run(tmp_path / "out", "--table", str(table), *flags) == 0
    languages = {row["text"]: row["language"] for row in rows(tmp_path / "out", PAIRS)}
    assert languages[texts[1]] == "de"
    assert language == "de" or languages[texts[0]] == "en"


@pytest.mark.parametrize(
    ("content", "flags", "words"),
    [
        ("a,b\n1,2\n", [], "has none of image_url, img_url, image_link, url, URL; name one with"),
        ("url,b\n1,2\n", [], "name one with --text-column NAME: url, b"),
        ("url,text\n1,2\n", ["--page-column", "p"], "no such column; it has url, text"),
        ("url,url,text\n1,2,3\n", [], "several columns of this name"),
        ("url,image_url,alt\n1,2,3\n", [], "has the columns image_url, url; name one with"),
        ("sep=;\nurl;alt;text\n1;2;3\n", [], "text, alt; name one with --text-column"),
        ("url,text\n1,2\n", ["--text-column", "url"], "name another one"),
        ("", [], "is empty"),
    ],
)
def test_a_table_without_the_columns_is_refused(
    content: str, flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "t.csv"
    table.write_text(content)
    assert run(tmp_path / "out", "--table", str(table), *flags) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert words in error and str(table) in error and "--input" not in error
    assert not (tmp_path / "out").exists()


def test_what_is_no_table_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "t.csv.gz").write_bytes(b"\x1f\x8b")
    for name, words in (("t.parquet", "not a readable Parquet file"), ("t.csv.gz", "unpack it")):
        assert run(tmp_path / "out", "--table", str(tmp_path / name)) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert words in error and name in error and "--table" in error
    assert run(tmp_path / "out", "--table", str(tmp_path / "none*")) == 2
    assert "no such table" in capsys.readouterr().err
    assert run(tmp_path / "out", "--text-column", "x", "--warc", str(tmp_path / "t.csv.gz")) == 2
    assert "--text-column x: give --table" in capsys.readouterr().err


@pytest.mark.parametrize("text", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
@pytest.mark.parametrize(
    "extra",
    [
        {"page_url": pa.nulls(3), "language": pa.nulls(3)},
        {"page_url": pa.array([float("nan")] * 3), "language": pa.array([["en"]] * 3)},
        {"page": pa.array([1, 2, 3]), "language": pa.array([0, 1, 2])},
    ],
    ids=["null", "other", "numbers"],
)
def test_usual_columns_of_other_types_are_ignored(
    text: pa.DataType, extra: dict[str, pa.Array], tmp_path: Path
) -> None:
    """A page number is no page; a column without any value has the type null or double."""
    texts = {"url": [row[0] for row in (ROWS[0], ROWS[2])] * 2, "text": [r[1] for r in ROWS] * 2}
    columns = {name: pa.array(values[:3], text) for name, values in texts.items()}
    pq.write_table(pa.table(columns | extra), tmp_path / "t.parquet")
    table = read_table(str(tmp_path / "t.parquet"), NO_COLUMNS)
    pages = [r.described for _, r in table if isinstance(r, Record)]
    assert [
        (p.address, p.page_url, p.text, p.language) for p in pages if isinstance(p, RowPage)
    ] == [(url, "", text, "") for url, text in zip(*(v[:3] for v in texts.values()), strict=True)]


def test_a_column_twice_in_parquet(tmp_path: Path) -> None:
    arrays = [pa.array([ROWS[0][0]]), *[pa.array(["en"])] * 3]
    names = ["url", "text", "language", "language"]
    pq.write_table(pa.Table.from_arrays(arrays, names), tmp_path / "t.parquet")
    ((_, record),) = read_table(str(tmp_path / "t.parquet"), NO_COLUMNS)
    assert isinstance(record, Record)


@pytest.mark.parametrize(
    ("values", "kind"), [([b"x"], "binary"), ([["x"]], "list"), ([1.5], "double")]
)
def test_required_columns_of_other_types_are_refused(
    values: list[Any], kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"url": ["x"], "text": values}), path)
    with pytest.raises(InputError, match=f"--table {path}: the column text is {kind}"):
        require_columns([str(path)], NO_COLUMNS)


def test_values_that_state_no_language(tmp_path: Path) -> None:
    values = {"en-US": "en-US", "zh_CN": "zh_CN", "nolang": "", "und": "", "English": "", "NaN": ""}
    lines = [f"{ROWS[0][0]},x,{value}\n" for value in values]
    (tmp_path / "t.csv").write_text("url,text,language\n" + "".join(lines))
    table = read_table(str(tmp_path / "t.csv"), NO_COLUMNS)
    pages = [r.described for _, r in table if isinstance(r, Record)]
    assert [page.language for page in pages if isinstance(page, RowPage)] == [*values.values()]


def test_hidden_files_and_folders(tmp_path: Path) -> None:
    folder = tmp_path / "t.parquet"
    folder.mkdir()
    (folder / "a.csv").write_text("url,text\n")
    (folder / "._a.csv").write_bytes(b"\0\5\x16\7")
    assert [path for path, _ in find_tables(str(folder))] == [str(folder / "a.csv")]
    with pytest.raises(InputError, match=r"t\.parquet is a folder; give '.*\*\.parquet/\*'"):
        find_tables(f"{tmp_path}/*.parquet")


def test_one_broken_line_of_ascii(tmp_path: Path) -> None:
    """It is a reject; lines end with a carriage return in no table."""
    lines = [b"url,text", *[f"{SITE}{n}.jpg,{ALTS[0]}".encode() for n in range(20)]]
    lines[5] = b"http://a.example/,\xff\xfe"
    lines[6] = b"http://a.example/,a\rb"
    (tmp_path / "t.csv").write_bytes(b"\n".join(lines))
    rejects = {
        key.rpartition(":")[2]: str(row.detail)
        for key, row in read_table(str(tmp_path / "t.csv"), NO_COLUMNS)
        if isinstance(row, Drop)
    }
    assert list(rejects) == ["6", "7"] and "encoding" in rejects["6"]
    assert "carriage return" in rejects["7"]


def test_a_file_that_is_damaged_later_is_a_reject(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows before the damage count, and so do other files."""
    monkeypatch.setattr(table_rows, "MOST_CHECKED", 0)
    folder = tmp_path / "tables"
    folder.mkdir()
    write_table(folder / "a.csv", ("url", "text"), [row[:2] for row in ROWS[:1]])
    write_table(folder / "b.csv", ("other",), [("x",)])
    (folder / "c.parquet").write_bytes(b"PAR1 and no more")
    assert run(tmp_path / "out", "--table", str(folder), "--warc", str(images)) == 0
    assert list(found(tmp_path / "out")) == [f"{SITE}p0.jpg"]
    broken = [r["key"] for r in rows(tmp_path / "out", REJECTS) if r["stage"] == "archives"]
    assert broken == [str(folder / "b.csv"), str(folder / "c.parquet")]


def test_images_of_rows_are_downloaded(image: Make, tmp_path: Path) -> None:
    with serve(image) as site:
        values = [(f"{site.url}/p{n}.jpg", ALTS[n], "") for n in range(2)]
        values.append((f"{site.url}/gone.jpg", ALTS[2], f"{site.url}/page.html"))
        table = write_table(tmp_path / "t.csv", ("url", "text", "page_url"), values)
        fetch = ["--fetch", "--contact", "me@example.org", "--allow-address", "127.0.0.0/8"]
        assert run(tmp_path / "out", "--table", str(table), *fetch, "--delay", "0") == 0
        expected: dict[str, Any] = {f"{site.url}/p{n}.jpg": (ALTS[n], None) for n in range(2)}
    assert found(tmp_path / "out") == expected
    assert ("join", "missing_image") in rejected(tmp_path / "out")


def test_a_dry_run_reads_the_first_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write_table(tmp_path / "t.csv", ("url", "text", "page_url"), ROWS)
    assert run(tmp_path / "out", "--table", str(table), "--dry-run") == 0
    assert "--table 1 tables" in capsys.readouterr().out
