"""Indexes name the records of archives, in whatever form."""

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vlmill.pipelines.web.archives.index import Index, coalesce_ranges, read_index
from vlmill.schemas.errors import InputError

WARC = "crawl-data/a.warc.gz"
PLACES = {WARC: [[5, 10], [40, 7]], "b.warc": [[0, 3]]}
ROWS = [(WARC, 40, 7), ("b.warc", 0, 3), (WARC, 5, 10), (WARC, 40, 7)]


def fields(row: tuple[str, int, int]) -> str:
    name, offset, length = row
    return json.dumps({"url": "u", "filename": name, "offset": str(offset), "length": length})


CDX = " CDX N b a m s k r M S V g\n" + "".join(
    f"org,x)/ 2024 http://x.org/ text/html 200 SHA - - {length} {offset} {name}\n"
    for name, offset, length in ROWS
)
FORMS = {
    "cdx": CDX,
    "cdx without a header": CDX.partition("\n")[2],
    "other letters": "".join(["CDX g V S\n", *(f"{n} {o} {z}\n" for n, o, z in ROWS)]),
    "cdxj": "".join(f"org,x)/ 20240101 {fields(row)}\n" for row in ROWS) + "\n",
    "json": "".join(f"{fields(row)}\n" for row in ROWS),
}


def said(index: Index) -> dict[str, list[list[int]]]:
    return {name: ranges.tolist() for name, ranges in index.ranges.items()}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("packed", [False, True])
def test_lines(form: str, packed: bool, tmp_path: Path) -> None:
    text = FORMS[form].encode()
    (tmp_path / "index").write_bytes(gzip.compress(text) if packed else text)
    index = read_index([tmp_path / "index"], "--index")
    assert said(index) == PLACES and index.count_bytes(WARC) == 17


@pytest.mark.parametrize(
    "names",
    [("warc_filename", "warc_record_offset", "warc_record_length"), ("file", "offset", "length")],
)
def test_tables(names: tuple[str, ...], tmp_path: Path) -> None:
    columns = dict(zip(names, map(list, zip(*ROWS, strict=True)), strict=True))
    pq.write_table(pa.table({"url": ["u"] * len(ROWS), **columns}), tmp_path / "a.parquet")
    assert said(read_index([tmp_path / "a.parquet"] * 2, "--index")) == PLACES


def test_archives_may_be_called_otherwise(tmp_path: Path) -> None:
    (tmp_path / "index").write_text(FORMS["json"])
    index = read_index([tmp_path / "index"], "--index").rename_archives(lambda name: "one")
    assert said(index) == {"one": [[0, 3], [5, 10], [40, 7]]}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "no record"),
        (b"\n\n", "no record"),
        (b"org,x)/ 2024 {broken\n", "line 1: it does not name an archive"),
        (b'{"filename": "a", "offset": -1, "length": 3}\n', "line 1"),
        (b'{"filename": "a", "offset": 1e3, "length": 3}\n', "line 1"),
        (b'{"filename": "a", "offset": 99999999999999, "length": 3}\n', "line 1"),
        (b'{"filename": "a", "offset": true, "length": 3}\n', "line 1"),
        (b'{"filename": 3, "offset": 0, "length": 3}\n', "line 1"),
        (b'{"filename": "a", "offset": 0, "length": 0}\n', "no length"),
        (b"[" * 5_000 + b"{" * 5_000 + b"\n", "line 1"),
        (b"\x1f\x8bnot gzip", "CDX lines or Parquet"),
        (b"PAR1 and no table", "CDX lines or Parquet"),
        (b"\0" * 3_000_000, "line 1"),
    ],
)
def test_what_is_no_index_is_told(content: bytes, named: str, tmp_path: Path) -> None:
    (tmp_path / "index").write_bytes(content)
    with pytest.raises(InputError, match=named):
        read_index([tmp_path / "index"], "--index i")


def test_a_table_without_the_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"filename": ["a"], "offset": [1]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"lacks a column; .*warc_record_length or length"):
        read_index([tmp_path / "a.parquet"], "--index")


def test_records_that_lie_near_are_read_together() -> None:
    ranges = np.array([[0, 10], [12, 5], [17, 3], [100, 50], [120, 5], [140, 30], [400, 900]])
    parts = list(coalesce_ranges(ranges, gap_bytes=2, most_bytes=50))
    assert parts == [
        (0, 20, [(0, 10), (12, 5), (17, 3)]),
        (100, 150, [(100, 50), (120, 5)]),
        (140, 170, [(140, 30)]),
        (400, 1300, [(400, 900)]),
    ]
    assert list(coalesce_ranges(ranges[:0], gap_bytes=2, most_bytes=50)) == []
