"""WARC records and the parts of an archive."""

from io import BytesIO
from pathlib import Path

import pytest
from fastwarc.warc import ArchiveIterator
from warcio.checker import Checker

from vlmill.pipelines.web.fetching.warc import (
    Parts,
    RecordLocation,
    info_record,
    part_name,
    response_record,
    revisit_record,
)
from vlmill.runtime.files.listed import describe_file

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: image/jpeg\r\n\r\n"
URL = "http://a.org/x.jpg"


def packed(body: bytes = b"body", level: int = 0) -> bytes:
    return response_record(URL, HEAD, body, timestamp=1.5, address="192.0.2.1", level=level)


def parts_of(tmp_path: Path, *, max_bytes: int = 10_000, at: RecordLocation | None = None) -> Parts:
    (tmp_path / "work").mkdir(exist_ok=True)
    return Parts(
        tmp_path,
        tmp_path / "work" / "open.warc.gz",
        3,
        contact="me@example.org",
        max_bytes=max_bytes,
        journalled=at,
    )


def urls_in(path: Path) -> list[str | None]:
    with path.open("rb") as file:
        return [r.headers.get("WARC-Target-URI") for r in ArchiveIterator(file)]


@pytest.mark.parametrize("level", [0, 6])
def test_a_response_is_read_as_it_was_written(level: int) -> None:
    record = next(ArchiveIterator(BytesIO(packed(level=level)), parse_http=True))
    assert record.headers["WARC-Target-URI"] == URL
    assert record.headers["WARC-Date"] == "1970-01-01T00:00:01.500000Z"
    assert record.headers["WARC-IP-Address"] == "192.0.2.1"
    assert record.http_headers.status_code == 200
    assert record.reader.read() == b"body"


def test_a_header_cannot_end_its_line() -> None:
    written = response_record(
        "http://a.org/\r\nX: y", HEAD, b"", timestamp=0, address="1\r\n2", level=0
    )
    (record,) = ArchiveIterator(BytesIO(written))
    assert record.headers["WARC-Target-URI"] == "http://a.org/ X: y"


def test_the_same_answer_has_the_same_record() -> None:
    assert packed() == packed()
    assert packed() != packed(b"another")


def test_another_reader_finds_every_digest_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.warc.gz"
    revisit = revisit_record(URL, b"HTTP/1.1 304 Same\r\n\r\n", timestamp=2, address="")
    path.write_bytes(info_record("a", "me@example.org", timestamp=0) + packed() + revisit)
    checker = Checker(type("Command", (), {"inputs": [str(path)], "verbose": True})())
    checker.process_one(str(path))
    assert checker.exit_value == 0
    assert capsys.readouterr().out.count("digest pass") == 2  # it checks none of revisits


def test_what_the_journal_does_not_know_is_cut_off(tmp_path: Path) -> None:
    parts = parts_of(tmp_path)
    first = parts.add(packed(b"1"), timestamp=0)
    parts.add(packed(b"2"), timestamp=0)
    parts.close()
    again = parts_of(tmp_path, at=first)
    third = again.add(packed(b"3"), timestamp=0)
    assert third.offset == first.offset + first.length
    again.finish()
    again.close()
    path = tmp_path / part_name(3, 0)
    assert urls_in(path) == [None, URL, URL]
    with path.open("rb") as file:
        file.seek(third.offset)
        records = ArchiveIterator(BytesIO(file.read(third.length)), parse_http=True)
    assert next(records).reader.read() == b"3"


def test_parts_end_when_they_are_full(tmp_path: Path) -> None:
    parts = parts_of(tmp_path, max_bytes=500)
    places = []
    for _ in range(3):
        places.append(parts.add(packed(bytes(400)), timestamp=0))
        assert parts.is_full
        parts.finish()
    assert not list(tmp_path.glob("crawl-00003-00003*"))
    parts.finish()
    parts.finish()  # nothing has come since
    parts.close()
    assert [place.part for place in places] == [0, 1, 2]
    assert [urls_in(tmp_path / part_name(3, part)) for part in range(3)] == [[None, URL]] * 3


def test_a_kill_behind_the_rename_is_no_loss(tmp_path: Path) -> None:
    parts = parts_of(tmp_path)
    last = parts.add(packed(), timestamp=0)
    parts.finish()
    parts.close()
    again = parts_of(tmp_path, at=last)
    assert again.add(packed(), timestamp=0).part == 1
    again.close()
    assert urls_in(tmp_path / part_name(3, 0)) == [None, URL]


def test_a_finished_part_that_the_journal_lacks_is_an_error(tmp_path: Path) -> None:
    parts = parts_of(tmp_path)
    parts.add(packed(), timestamp=0)
    described = parts.describe_open_part()
    parts.finish()
    parts.close()
    path = tmp_path / part_name(3, 0)
    assert described == describe_file(path)
    with pytest.raises(OSError, match=f"{path} has records that its journal lacks"):
        parts_of(tmp_path)
    assert path.exists()


def test_lost_records_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="lost records"):
        parts_of(tmp_path, at=RecordLocation(part=0, offset=100, length=5))
