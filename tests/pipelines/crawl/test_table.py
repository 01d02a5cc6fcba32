"""Tables of URLs and captions become pairs and images; each row is a pair or a reject."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.pipelines.crawl.test_site import (
    arguments,
    killed_when,
    most_asked_again,
    rows_of,
    served,
    start,
)
from worlds.host_kinds import KINDS
from worlds.host_server import MANY, Served, serve_site
from worlds.hosts import large_image

from vlmill.pipelines.crawl import pairs
from vlmill.pipelines.crawl.__main__ import main
from vlmill.pipelines.crawl.lists import open_input
from vlmill.runtime.files.manifest import verify_folder
from vlmill.schemas.errors import InputError

__all__ = ["served"]  # the fixture of that module
HOSTS = range(len(KINDS), len(KINDS) + 3)


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Served]:
    with serve_site(tmp_path / "hits") as served:
        yield served


def images(served: Served, number: int = 3) -> list[tuple[str, str]]:
    return [
        (served.site.url(host, f"{MANY}{n}.jpg"), f"image {n} of host {host}")
        for host in HOSTS
        for n in range(number)
    ]


def table_arguments(table: Path, output: Path, *more: str) -> list[str]:
    args = arguments(table, output, "--retries", "0", "--workers", "1", *more)
    args[0] = "--input"
    return args


def written(path: Path, rows: list[tuple[str, str]], kind: str) -> Path:
    urls, texts = [url for url, _ in rows], [text for _, text in rows]
    if kind == "parquet":
        pq.write_table(pa.table({"URL": urls, "TEXT": texts, "other": texts}), path)
    elif kind == "jsonl":
        lines = [json.dumps({"caption": text, "url": url}) for url, text in rows]
        path.write_text("\n".join(lines))
    else:
        separator = "\t" if kind == "tsv" else ","
        lines = [f"{url}{separator}{text}" for url, text in [("url", "caption"), *rows]]
        path.write_text("".join(f"{line}\n" for line in lines))
    return path


def is_complete(output: Path) -> None:
    assert verify_folder(output) == []
    funnel = json.loads((output / "funnel.json").read_text())
    assert all(s["in"] == s["out"] + sum(s["rejects"].values()) for s in funnel)
    assert len(rows_of(output, "rejects")) == sum(sum(s["rejects"].values()) for s in funnel)
    assert funnel[-1]["out"] == len(rows_of(output, "pairs")) == len(rows_of(output, "images"))
    assert not [path for path in output.iterdir() if path.is_dir()]


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_formats(kind: str, tmp_path: Path, served: Served) -> None:
    rows = images(served, 2)
    table = written(tmp_path / f"urls.{kind}", rows, kind)
    output = tmp_path / "out"
    assert main(table_arguments(table, output)) == 0
    found = {row["image_url"]: row for row in rows_of(output, "pairs")}
    assert {url: row["text"] for url, row in found.items()} == dict(rows)
    by_id = {row["image_id"]: row for row in rows_of(output, "images")}
    assert found[rows[1][0]]["image_id"] == "urls/000000001" in by_id
    assert {row["bytes"] for row in by_id.values()} == {large_image()}
    assert {(row["width"], row["height"], row["format"]) for row in by_id.values()} == {
        (640, 480, "jpeg")
    }
    is_complete(output)
    assert not list(output.glob("*.warc.gz"))
    assert main(table_arguments(table, output)) == 0  # says that it is finished


def test_each_row_is_a_pair_or_a_reject(tmp_path: Path, served: Served) -> None:
    """With URLs that repeat, redirect to another bucket, fail, or are none."""
    site, rows = served.site, images(served, 1)
    redirected = [e.url for e in site.expected if e.outcome == "redirected"]
    rows += [
        (rows[0][0], "another caption"),
        ("not a URL", "text"),
        (rows[1][0], ""),
        (site.url(HOSTS[0], "/nothing.jpg"), "nothing"),
        *((url, "redirected") for url in redirected),
    ]
    table, output = written(tmp_path / "rows.csv", rows, "csv"), tmp_path / "out"
    assert main(table_arguments(table, output, "--keep-archives")) == 0
    is_complete(output)
    texts = [row["text"] for row in rows_of(output, "pairs")]
    rejects = [row for row in rows_of(output, "rejects") if row["stage"] in ("urls", "pairs")]
    assert len(texts) + len(rejects) == len(rows)
    assert {"another caption", "redirected"} < set(texts)
    reasons = {row["key"]: row["reason"] for row in rejects}
    assert reasons["not a URL"] == "bad_url" and reasons["rows.csv:7"] == "empty_text"
    assert reasons["rows/000000006"] == "bad_status"
    assert list(output.glob("*.warc.gz"))


def test_resized(tmp_path: Path, served: Served) -> None:
    table, output = written(tmp_path / "a.csv", images(served, 1), "csv"), tmp_path / "out"
    more = ("--resize", "64", "--resize-mode", "border", "--encode", "webp", "--quality", "80")
    assert main(table_arguments(table, output, *more)) == 0
    is_complete(output)
    rows = rows_of(output, "images")
    assert [(row["width"], row["height"], row["format"]) for row in rows] == [(64, 64, "webp")] * 3
    assert rows[0]["bytes"][8:12] == b"WEBP"


@pytest.mark.slow
def test_a_killed_run_goes_on(tmp_path: Path, fresh: Served) -> None:
    """Killed while it fetches, and stopped while it writes pairs."""
    rows = images(fresh, 12)
    table, output = written(tmp_path / "a.csv", rows, "csv"), tmp_path / "out"
    args = table_arguments(table, output, "--delay", "0.2", "--rows-per-shard", "5")
    killed_when(start(args), lambda: len(fresh.hits()) > 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs._Writer, "begin", _stop)
        assert main(args) == 1
    assert main(args) == 0
    is_complete(output)
    assert len(rows_of(output, "pairs")) == len(rows)
    assert len(list(output.glob("pairs-*"))) > 3
    assert most_asked_again(fresh) <= 1


def _stop(*_: object) -> None:
    raise OSError("killed")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--caption-column", "words"], "--caption-column words: --input"),
        (["--url-column", "link"], "--url-column link: --input"),
        (["--resize-mode", "border"], "--resize-mode goes with --resize SIZE"),
        (["--quality", "90"], "--quality goes with --resize or --encode"),
        (["--encode", "png", "--quality", "10"], "--quality 10: must be 0 to 9"),
        (["--follow", "1"], "--follow 1: --input has URLs of images"),
    ],
)
def test_mistakes_are_one_line(
    more: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = written(tmp_path / "a.csv", [("http://a.org/1.jpg", "text")], "csv")
    assert main(table_arguments(table, tmp_path / "out", *more)) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_columns_and_separators_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("sep=;\nkey;image_url;caption\n")
    source = open_input(tmp_path / "a.csv")
    assert (source.url_column, source.caption_column) == ("image_url", "caption")
    (tmp_path / "b.csv").write_text("url|image_url|caption\n")
    with pytest.raises(InputError, match="has the columns image_url, url; name one with --url-col"):
        open_input(tmp_path / "b.csv")
    assert open_input(tmp_path / "b.csv", "url").url_column == "url"


def test_what_is_detected_may_be_said(tmp_path: Path, served: Served) -> None:
    ((url, _), *_) = images(served, 1)
    table, output = tmp_path / "table", tmp_path / "out"
    table.write_bytes(f"link|words\n{url}|caf\xe9\n".encode("cp1252"))
    columns = ("--url-column", "link", "--caption-column", "words")
    said = ("--format", "csv", "--delimiter", "|", "--encoding", "cp1252")
    assert main(table_arguments(table, output, *columns, *said)) == 0
    (row,) = rows_of(output, "pairs")
    assert row["text"] == "caf\xe9"


def test_flags_of_tables_go_with_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "urls").write_text("http://a.org/\n")
    assert main(arguments(tmp_path / "urls", tmp_path / "out", "--resize", "64")) == 2
    assert "--resize goes with --input" in capsys.readouterr().err


def test_a_table_without_rows_has_shards(tmp_path: Path) -> None:
    table, output = written(tmp_path / "a.csv", [], "csv"), tmp_path / "out"
    assert main(table_arguments(table, output)) == 0
    assert len(list(output.glob("pairs-*"))) == 1 and not rows_of(output, "images")
