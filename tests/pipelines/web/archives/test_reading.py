"""Archives of every writer and packing, whole and damaged: the same records, and each counted."""

import gzip
import io
import zipfile
from collections.abc import Callable

import pytest
from fastwarc.stream_io import ZstdWriter, zstd_train_dictionary_from_samples

from vlmill.pipelines.web.archives.reading import BrokenArchive, Record, read_archive, read_bodies
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason

Make = Callable[..., bytes]
Items = list[tuple[str, Record | Drop]]
PAGE = b"<html><body>hello</body></html>"
LIMIT = 100_000


def read(data: bytes, limit: int = LIMIT) -> Items:
    return list(read_archive(io.BytesIO(data), "a.warc.gz", max_bytes=limit))


def read_until_broken(data: bytes) -> tuple[Items, str]:
    """What was readable, and the message of the break."""
    items = []
    try:
        for item in read_archive(io.BytesIO(data), "a.warc.gz", max_bytes=LIMIT):
            items.append(item)
    except BrokenArchive as error:
        return items, str(error)
    return items, ""


def reason(data: bytes, limit: int = LIMIT) -> Reason:
    ((_, drop),) = read(data, limit)
    assert isinstance(drop, Drop)
    return drop.reason


def urls(items: Items) -> list[str]:
    return [item.url.removeprefix("http://a.org/") for _, item in items if isinstance(item, Record)]


def lost(items: Items) -> list[str | None]:
    return [d.detail for _, d in items if isinstance(d, Drop) and d.reason == Reason.DAMAGED]


@pytest.fixture
def plain(response: Make) -> list[bytes]:
    """Records of pages /0 to /4, uncompressed; page n has a body of some 2,000 bytes."""
    bodies = [PAGE + b"".join(b"%d " % (n + i * i) for i in range(400)) for n in range(5)]
    return [response(f"http://a.org/{n}", b, "text/html", gzip=False) for n, b in enumerate(bodies)]


def gzipped(records: list[bytes]) -> bytes:
    return b"".join(gzip.compress(record, mtime=0) for record in records)


def zstd(records: list[bytes], dictionary: bytes | None = None, *, packed: bool = False) -> bytes:
    """A frame for each record, behind one with the dictionary."""
    out = io.BytesIO()
    writer = ZstdWriter(out, dictionary=dictionary, compress_dictionary_frame=packed)
    for record in records:
        writer.write(record)
        writer.finish()
        writer.flush()
    return out.getvalue()


def zstd_with_dictionary(records: list[bytes], *, packed: bool) -> bytes:
    samples = [r[i : i + 100] for r in records for i in range(0, len(r) - 100, 7)]
    return zstd(records, zstd_train_dictionary_from_samples(samples, 2_048), packed=packed)


def wacz(records: list[bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as packed:
        packed.writestr("datapackage.json", "{}")
        packed.writestr("archive/data.warc.gz", gzipped(records[:3]))
        packed.writestr("archive/../../evil.warc.gz", gzipped(records))
        packed.writestr("indexes/index.cdx.gz", b"x")
        packed.writestr("archive/more.warc", b"".join(records[3:]))
    return out.getvalue()


def blocks(records: list[bytes]) -> bytes:
    """Members that end anywhere, as bgzip makes them."""
    whole = b"".join(records)
    return gzipped([whole[i : i + 3_000] for i in range(0, len(whole), 3_000)])


PACKED: dict[str, Callable[[list[bytes]], bytes]] = {
    "plain": b"".join,
    "gzip by record": gzipped,
    "one gzip member": lambda records: gzip.compress(b"".join(records), mtime=0),
    "gzip, two records a member": lambda r: gzipped([r[0] + r[1], r[2] + r[3], r[4]]),
    "gzip blocks": blocks,
    "gzip, an empty member": lambda r: gzipped([r[0], b"", *r[1:], b""]),
    "zstd by record": zstd,
    "one zstd frame": lambda records: zstd([b"".join(records)]),
    "zstd, a dictionary": lambda records: zstd_with_dictionary(records, packed=False),
    "zstd, a packed dictionary": lambda records: zstd_with_dictionary(records, packed=True),
    "wacz": wacz,
    "wacz, deflated": lambda records: wacz(records, zipfile.ZIP_DEFLATED),
    "padded with NULs": lambda records: gzipped(records) + b"\0" * 512,
    "lines end with LF": lambda records: b"".join(
        r.replace(b"\r\n\r\nHTTP", b"\n\nHTTP").replace(b"\r\nWARC", b"\nWARC") for r in records
    ),
    "no blank lines": lambda records: gzipped([r.removesuffix(b"\r\n\r\n") for r in records]),
    "angle brackets": lambda records: gzipped(
        [r.replace(b"URI: http://a.org/%d" % n, b"URI: <http://a.org/%d>" % n)
         for n, r in enumerate(records)]
    ),
    "a header of a megabyte": lambda records: gzipped(
        [records[0].replace(b"\r\n", b"\r\nX: " + b"y" * 1_000_000 + b"\r\n", 1), *records[1:]]
    ),
}  # fmt: skip


@pytest.mark.parametrize("packing", PACKED)
def test_the_packing_makes_no_difference(plain: list[bytes], packing: str) -> None:
    data = PACKED[packing](plain)
    items = read(data)
    assert urls(items) == ["0", "1", "2", "3", "4"] and not set(lost(items)) - {"20 bytes"}
    records = [item for _, item in items if isinstance(item, Record)]
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    assert not any(record.wrong_digest for record in records)
    bodies = [record.body for record in records]
    assert list(read_bodies(io.BytesIO(data), offsets, max_bytes=LIMIT)) == bodies
    assert list(read_bodies(io.BytesIO(data), offsets[1::2], max_bytes=LIMIT)) == bodies[1::2]


@pytest.mark.parametrize("packing", ["plain", "gzip by record", "zstd by record", "wacz"])
def test_bodies_that_are_gone_are_drops(plain: list[bytes], packing: str) -> None:
    data = PACKED[packing](plain)
    offsets = [item.offset for _, item in read(data) if isinstance(item, Record)]
    whole = list(read_bodies(io.BytesIO(data), offsets, max_bytes=LIMIT))
    odd = sorted([*offsets, offsets[1] + 7, offsets[-1] + 10**9, 1 << 50])
    bodies = list(read_bodies(io.BytesIO(data), odd, max_bytes=LIMIT))
    assert [b for b in bodies if isinstance(b, bytes)] == whole
    assert [b.reason for b in bodies if isinstance(b, Drop)] == [Reason.BROKEN_ARCHIVE] * 3
    assert len(list(read_bodies(io.BytesIO(b"none"), offsets, max_bytes=LIMIT))) == len(offsets)


def arc(version: int, records: int, *, extra: bytes = b"") -> list[bytes]:
    fields = b"URL IP-address Archive-date Content-type Archive-length\n"
    head = b"%d 0 InternetArchive\n%s" % (version, fields)
    rest = b"" if version == 1 else b" 200 - - 0 x.arc"
    parts = [b"filedesc://x.arc 0.0.0.0 20010101000000 text/plain%s %d\n%s\n"
             % (rest, len(head), head)]  # fmt: skip
    for n in range(records):
        block = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + PAGE * (n + 1)
        line = b"http://a.org/%d 10.0.0.1 20010101000000 text/html%s %d\n"
        parts.append(line % (n, rest, len(block)) + block + b"\n" + extra)
    return parts


def test_arc_lines_with_spaces_in_them() -> None:
    block = b"HTTP/1.1 200 OK\r\n\r\n" + PAGE
    for url, kind in ((b"a.org/x y", b"text/html"), (b"a.org/x", b"text/html; charset=utf-8")):
        line = b"http://%s 10.0.0.1 20010101000000 %s %d\n" % (url, kind, len(block))
        items = read(arc(1, 0)[0] + b"\n" + line + block + b"\n")
        assert urls(items) == [url.decode().removeprefix("a.org/").replace(" ", "%20")]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("pack", [b"".join, gzipped, lambda r: gzip.compress(b"".join(r), mtime=0)])
def test_arc_files_are_read(version: int, pack: Callable[[list[bytes]], bytes]) -> None:
    data = pack(arc(version, 4, extra=b"\n"))
    items = read(data)
    assert urls(items) == ["0", "1", "2", "3"] and len(items) == 4
    offsets = [item.offset for _, item in items if isinstance(item, Record)]
    bodies = list(read_bodies(io.BytesIO(data), offsets, max_bytes=LIMIT))
    assert bodies == [PAGE * n for n in (1, 2, 3, 4)]


@pytest.mark.parametrize("gzip", [True, False])
def test_a_cut_archive_gives_what_is_readable(response: Make, gzip: bool) -> None:
    data = b"".join(
        response(f"http://a.org/{n}", PAGE * 50, "text/html", gzip=gzip) for n in range(3)
    )
    record = len(data) // 3
    whole, message = read_until_broken(data)
    assert len(whole) == 3 and message == ""
    for cut in range(record, len(data), record // 7 + 1):
        items, message = read_until_broken(data[:cut])
        pages = urls(items)
        # The blank lines behind the last record of a plain file may be missing.
        assert len(pages) in (cut // record, (cut + 4) // record)
        if cut % record:
            assert message or len(items) > len(pages) or len(pages) * record <= cut + 4


@pytest.mark.parametrize("pack", [gzipped, PACKED["zstd by record"], b"".join])
def test_damaged_records_do_not_hide_the_next(
    plain: list[bytes], pack: Callable[[list[bytes]], bytes]
) -> None:
    """Wherever a record is overwritten, those behind it are there and the gap is counted."""
    start, end = len(pack(plain[:2])), len(pack(plain[:3]))
    for at in range(start, end, (end - start) // 9):
        data = bytearray(pack(plain))
        data[at : min(at + 40, end)] = b"\xff" * min(40, end - at)
        items, message = read_until_broken(bytes(data))
        assert not message and urls(items)[:2] == ["0", "1"] and urls(items)[-2:] == ["3", "4"]
        dropped = [d for _, d in items if isinstance(d, Drop)]
        # In a plain file the content itself is changed: its digest tells.
        changed = [r.url for _, r in items if isinstance(r, Record) and r.wrong_digest]
        assert len(dropped) + len(changed) >= 1


def test_a_gap_is_counted_in_bytes(plain: list[bytes]) -> None:
    members = [gzip.compress(record, mtime=0) for record in plain]
    items = read(members[0] + b"\xff" * 5_000 + b"".join(members[1:]))
    assert urls(items) == ["0", "1", "2", "3", "4"] and lost(items) == ["5000 bytes"]
    items = read(plain[0] + b"\0" * 5_000 + b"".join(plain[1:]))
    assert urls(items) == ["0", "1", "2", "3", "4"] and lost(items) == ["5004 bytes"]
    assert urls(read_until_broken(gzip.compress(members[0] + plain[1]))[0]) == []


def test_a_length_that_lies_swallows_nothing(plain: list[bytes]) -> None:
    for pack in (gzipped, b"".join):
        for lie in (b"Content-Length: 9", b"Content-Length: -", b"Content-Length: x"):
            records = [*plain[:2], plain[2].replace(b"Content-Length: ", lie, 1), *plain[3:]]
            items, _ = read_until_broken(pack(records))
            assert {"0", "1", "3", "4"} <= set(urls(items)), lie


def test_arc_behind_damage() -> None:
    records = arc(1, 4)
    items = read(b"".join([*records[:3], b"no record\n" * 20, *records[3:]]))
    assert urls(items) == ["0", "1", "2", "3"] and lost(items) == ["201 bytes"]


def test_damage_costs_bounded_time(plain: list[bytes]) -> None:
    """Thousands of beginnings of records are not all followed up."""
    items, message = read_until_broken(gzipped(plain[:1]) + b"\x1f\x8b\x08" * 200_000)
    assert urls(items) == ["0"] and message
    items, message = read_until_broken(plain[0] + b"\nWARC/1.0\nX:" * 20_000)
    assert urls(items)[:1] == ["0"] and (message or len(items) < 5_000)


def test_long_lines_of_arc_cost_bounded_time() -> None:
    """A line in which a date may stand at a thousand places."""
    line = b"http:" + b" 1 20010101000000" * 900 + b" x\n"
    items, message = read_until_broken(arc(1, 1)[0] + b"\n" + line * 300)
    assert items == [] and "Invalid ARC header" in message


def test_a_wacz_is_read_by_the_names_that_the_format_has(plain: list[bytes]) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        packed.writestr("archive/a.txt", gzipped(plain))
    items, message = read_until_broken(out.getvalue())
    assert items == [] and "without archive/" in message
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("archive/bomb.warc", b"\0" * 10_000_000)
        packed.writestr("archive/a.warc.gz", gzipped(plain))
        packed.writestr("archive/junk.warc.gz", b"junk")
    items = read(bomb.getvalue())
    assert len(urls(items)) == 5
    assert [d.reason for _, d in items if isinstance(d, Drop)] == [Reason.BROKEN_ARCHIVE] * 2


def test_a_stream_that_unpacks_to_too_much_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlmill.pipelines.web.archives.packing.HARMLESS_BYTES", 1 << 20)
    record = b"WARC/1.0\r\nWARC-Type: request\r\nContent-Length: 90000000\r\n\r\n" + bytes(
        90_000_000
    )
    for data in (gzip.compress(record), gzip.compress(record[:30]) + gzip.compress(record[30:])):
        _, message = read_until_broken(data)
        assert message


@pytest.mark.parametrize(
    "junk", [b"", b"no archive", gzip.compress(b"no archive", mtime=0), b"\x1f\x8b\x08", b"PK\3\4"]
)
def test_what_is_no_archive_is_broken(junk: bytes) -> None:
    items, message = read_until_broken(junk)
    assert items == [] and message


def test_redirects_and_revisits_lead_to_what_they_repeat(response: Make, image: Make) -> None:
    photo = image(8, 8)
    data = response("http://a.org/i", photo, "image/jpeg")
    for status in ("301 Moved", "302 Found", "303 See", "307 Temporary", "308 Permanent"):
        data += response(f"http://a.org/{status[:3]}", b"", "text/html", status=status,
                         Location="/i")  # fmt: skip
    data += response("http://a.org/nowhere", b"", "text/html", status="301 Moved")
    payload = gzip.decompress(response("http://a.org/i", photo, "image/jpeg"))
    (digest,) = [s for s in payload.split(b"\r\n") if s.startswith(b"WARC-Payload-Digest")]
    head = b"WARC/1.0\r\nWARC-Type: revisit\r\nWARC-Target-URI: http://a.org/%s\r\n%s\r\n"
    head += b"Content-Length: 0\r\n\r\n\r\n\r\n"
    refers = b"WARC-Refers-To-Target-URI: <http://a.org/i>"
    for name, line in ((b"same-target", refers), (b"same-digest", digest), (b"unknown", b"X: y")):
        data += gzip.compress(head % (name, line))
    data += gzip.compress(head % (b"i", refers))
    items = dict(read(data))
    leads = {k: r.target for k, r in items.items() if isinstance(r, Record) and r.target}
    names = ("301", "302", "303", "307", "308", "same-target")
    assert leads == {f"http://a.org/{name}": "http://a.org/i" for name in names}
    revisits = [r for r in items.values() if isinstance(r, Record) and r.kind == "revisit"]
    ((_, repeated),) = read(response("http://a.org/i", photo, "image/jpeg"))
    assert isinstance(repeated, Record) and repeated.digest
    assert [(r.url, r.digest) for r in revisits] == [("http://a.org/same-digest", repeated.digest)]
    drops = {k: d.reason for k, d in items.items() if isinstance(d, Drop)}
    assert drops == {
        "http://a.org/nowhere": Reason.BAD_STATUS,
        "http://a.org/unknown": Reason.REVISIT,
        "http://a.org/i": Reason.REVISIT,  # of the same URL
    }
    (body,) = read_bodies(io.BytesIO(data), [0], max_bytes=LIMIT)
    assert body == photo


def test_reasons_of_records(response: Make) -> None:
    url = "http://a.org/"
    assert reason(response(url, PAGE, "text/html", status="404 Not Found")) == Reason.BAD_STATUS
    assert reason(response(url, b"", "text/html")) == Reason.EMPTY
    assert reason(response(url, b"var x = 1;", "text/html")) == Reason.OTHER_TYPE
    assert reason(response("urn:x", PAGE, "text/html")) == Reason.BAD_URL
    assert reason(response(url, PAGE * 1000, "text/html"), limit=5_000) == Reason.TOO_LARGE
    bomb = gzip.compress(b"<html>" + b"a" * 10_000_000)
    assert reason(response(url, bomb, "text/html", Content_Encoding="gzip")) == Reason.TOO_LARGE


def test_what_a_record_says_is_kept(response: Make, image: Make) -> None:
    photo = image(8, 8)
    data = response("http://a.org/p", PAGE, "image/png; charset=latin-1", X_Robots_Tag="noai")
    data += response("http://a.org/i", photo, "text/html")
    (_, page), (_, record) = read(data)
    assert isinstance(page, Record) and isinstance(record, Record)
    assert (page.kind, page.body, page.charset) == ("page", PAGE, "latin-1")
    assert page.opt_outs == frozenset({Reason.NO_AI})
    assert (record.kind, record.body, record.url) == ("picture", photo, "http://a.org/i")
    assert record.opt_outs == frozenset()


def test_a_wrong_digest_is_told_and_the_content_used(plain: list[bytes]) -> None:
    (_, record), *_ = read(plain[0].replace(b"hello", b"jello"))
    assert isinstance(record, Record) and record.wrong_digest and b"jello" in record.body
    resource = (
        b"WARC/1.0\r\nWARC-Type: resource\r\nWARC-Target-URI: http://a.org/r\r\n%s"
        b"Content-Type: text/html; charset=koi8-r\r\nContent-Length: 31\r\n\r\n" + PAGE
    )
    ((_, record),) = read(resource % b"")
    assert isinstance(record, Record) and record.charset == "koi8-r"
    assert not record.wrong_digest
    ((_, record),) = read(resource % b"WARC-Block-Digest: md5:00\r\n")
    assert isinstance(record, Record) and record.wrong_digest
    ((_, record),) = read(resource % b"WARC-Block-Digest: blake9:00\r\n")
    assert isinstance(record, Record) and not record.wrong_digest
