"""Lists of URLs: whatever a line is, it is accounted for."""

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vlmill.pipelines.crawl.lists import find_lists, may_be_over, read_lists
from vlmill.pipelines.web.fetching.entries import UrlEntry
from vlmill.runtime.files.shards import ShardWriter
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason, reject
from vlmill.schemas.tables import REJECTS


def read(path: Path, column: str | None = None) -> list[tuple[str, UrlEntry | Drop]]:
    return list(read_lists(find_lists(str(path)), column=column, follow=1))


def urls_of(path: Path, column: str | None = None) -> list[str]:
    return [w.url if isinstance(w, UrlEntry) else w.reason for _, w in read(path, column)]


def test_a_line_is_a_url_or_dropped(tmp_path: Path) -> None:
    lines = [
        b"http://a.org/1",
        b"  http://A.org/1#part \r",
        b"",
        b"a.org/no-scheme",
        b"ftp://a.org/x",
        "http://bücher.example/ü".encode(),
        "http://a.org/ü".encode("latin-1"),
        b"http://a.org/" + b"x" * 100_000,
        b"http://a.org/" + b"y" * 200_000_0,
        b"\0\0",
        b"http://[::1",
        b"http://a.org/last",
    ]
    path = tmp_path / "urls.txt"
    path.write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines))
    assert urls_of(path) == [
        *("http://a.org/1", "http://a.org/1", "bad_url", "bad_url"),
        *("http://xn--bcher-kva.example/%C3%BC", "http://a.org/%FC"),
        *("bad_url", "bad_url", "bad_url", "bad_url", "http://a.org/last"),
    ]


def test_a_list_may_be_compressed_or_of_windows(tmp_path: Path) -> None:
    text = "http://a.org/1\r\nhttp://a.org/2\r\n"
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "b.txt").write_bytes(text.encode("utf-16"))
    for name in ("a.txt.gz", "b.txt"):
        assert urls_of(tmp_path / name) == ["http://a.org/1", "http://a.org/2"]


def test_a_cut_list_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"http://a.org/1\n" * 1_000)[:-20])
    with pytest.raises(InputError, match=r"a\.gz: cannot be read to its end"):
        urls_of(path)


def test_an_empty_list_has_no_lines(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert urls_of(tmp_path / "a") == []


def test_a_column_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"URL": ["http://a.org/1", None, ""], "n": [1, 2, 3]}), path)
    assert urls_of(path) == ["http://a.org/1", "bad_url", "bad_url"]
    assert urls_of(path, "n") == ["bad_url"] * 3
    with pytest.raises(InputError, match="no column other; name one of URL, n"):
        urls_of(path, "other")


def test_a_damaged_table_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match=r"a\.parquet"):
        urls_of(path)


def test_no_list_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        find_lists(str(tmp_path / "nothing*"))


def test_rejects_are_tried_again_if_they_may_end_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        reject("fetch_listed", "http://a.org/1", Reason.TIMED_OUT),
        reject("fetch_pictures", "http://a.org/2", Reason.BAD_STATUS, "503"),
        reject("fetch_listed", "http://a.org/3", Reason.BAD_STATUS, "404"),
        reject("urls", "x", Reason.BAD_URL),
    ]
    with ShardWriter(tmp_path, REJECTS, 0, 1) as writer:
        writer.write(rows)
    lines = read(tmp_path / "rejects-00000-of-00001.parquet")
    wanted = [w for _, w in lines if isinstance(w, UrlEntry)]
    assert [(w.url[-1], w.follow) for w in wanted] == [("1", 1), ("2", -1)]
    assert "2 rejects are skipped" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reason", "detail", "over"),
    [
        ("timed_out", "", True),
        ("bad_status", "503", True),
        ("bad_status", "404", False),
        ("robots", "", False),
        ("robots", "robots.txt: status 500", True),
        ("host_limit", "", True),
        ("no_ai", "", False),
    ],
)
def test_what_may_be_over(reason: str, detail: str, over: bool) -> None:
    assert may_be_over(reason, detail) is over
