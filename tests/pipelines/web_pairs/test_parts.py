"""A large archive is mined in parts, to the same bytes wherever it is cut."""

import gzip
import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.web_pairs.test_job import SITE, files, html_page, run

from vlmill.pipelines.web_pairs import steps, units

Make = Callable[..., bytes]
REVISIT = b"WARC/1.0\r\nWARC-Type: revisit\r\nWARC-Target-URI: %s\r\n%s\r\nContent-Length: 0\r\n"


def make_records(image: Make, response: Make) -> list[bytes]:
    """Returns unpacked records: pages, images, and what leads from each to an earlier or later one.

    Of five images each, the last URL of a page is a redirect to the next image, and the one before
    a revisit that names the digest of the first image of all.
    """
    records: list[bytes] = []
    digest = b""
    for number in range(6):
        names = [f"{number}-{which}" for which in ("own", "moved", "again", "unknown")]
        body = "".join(
            f"<p>Some words of page {number} come before {name}, so that they stand apart.</p>"
            f"<img src=/{name}.jpg alt='A {name} boat on the quiet lake at noon'>"
            for name in names
        )
        page, photo = html_page(f"page-{number}", body), image(320 + number, 310, seed=number)
        own, moved, again, unknown = (f"{SITE}{name}.jpg" for name in names)
        picture = response(own, photo, "image/jpeg", gzip=False)
        digest = digest or next(
            line for line in picture.split(b"\r\n") if line.startswith(b"WARC-Payload-Digest")
        )
        target = f"/{(number + 1) % 6}-own.jpg"
        records += [
            response(*page, gzip=False),
            picture,
            response(moved, b"", "text/html", status="301 M", Location=target, gzip=False),
            REVISIT % (again.encode(), digest) + b"\r\n\r\n\r\n",
            REVISIT % (unknown.encode(), b"WARC-Payload-Digest: sha1:NONE") + b"\r\n\r\n\r\n",
        ]
    return records


def pack(records: list[bytes]) -> bytes:
    return b"".join(gzip.compress(record, mtime=0) for record in records)


def damage(records: list[bytes]) -> bytes:
    data = bytearray(pack(records))
    data[len(data) // 2 : len(data) // 2 + 40] = bytes(40)
    return bytes(data)


def embed(records: list[bytes], response: Make) -> bytes:
    """An archive with an image's record that holds an archive: members that are no records."""
    inner = response(f"{SITE}inner.jpg", random.Random(3).randbytes(1_000), "image/jpeg")
    held = response(f"{SITE}a.bin", inner * 30, "application/gzip", gzip=False)
    stored = gzip.compress(held, compresslevel=0, mtime=0)
    return pack(records[:3]) + stored + pack(records[3:])


def zipped(records: list[bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("archive/a.warc.gz", pack(records))
    return out.getvalue()


@pytest.fixture
def archives(image: Make, response: Make) -> dict[str, bytes]:
    records = make_records(image, response)
    return {
        "members": pack(records),
        "plain": b"".join(records),
        "one stream": gzip.compress(b"".join(records), mtime=0),
        "zip": zipped(records),
        "damaged": damage(records),
        "cut": pack(records)[:-300],
        "padded": pack(records) + bytes(9_000),
        "embedded": embed(records, response),
    }


def tables(folder: Path) -> dict[str, bytes]:
    """Returns the output without the work on it."""
    return {name: data for name, data in files(folder).items() if not name.startswith("work/")}


KINDS = ("members", "plain", "one stream", "zip", "damaged", "cut", "padded", "embedded")
IN_ONE = {"damaged", "cut", "embedded"}


@pytest.mark.parametrize("kind", KINDS)
def test_parts_give_the_bytes_of_one_piece(
    kind: str, archives: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every cut; only what cannot be cut is mined in one piece after all."""
    path = tmp_path / "a.warc.gz"
    path.write_bytes(archives[kind])
    assert run(path, tmp_path / "whole", "--workers", "1") == 0
    funnel = json.loads((tmp_path / "whole" / "funnel.json").read_text())
    counts = {stage["stage"]: stage for stage in funnel}
    assert counts["redirects"]["in"] >= 6 and counts["records"]["rejects"]["revisit"] >= 2
    again: list[Any] = []
    mine_whole = steps.mine_whole

    def note_whole(*words: Any) -> Any:
        again.append(words)
        return mine_whole(*words)

    monkeypatch.setattr(steps, "mine_whole", note_whole)
    for part_bytes in (len(archives[kind]) // 7, len(archives[kind]) // 2):
        monkeypatch.setattr(units, "PART_BYTES", part_bytes)
        out = tmp_path / f"parts-{part_bytes}"
        assert run(path, out, "--workers", "1") == 0
        assert len(list(out.glob("work/archives/*.json"))) > 2
        assert tables(out) == tables(tmp_path / "whole")
    assert bool(again) == (kind in IN_ONE)


@pytest.mark.parametrize("how", ["--workers=2", "--runner=FnApiRunner"])
def test_parts_are_units_of_workers_and_of_beam(
    how: str, archives: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.warc.gz"
    path.write_bytes(archives["damaged"])
    assert run(path, tmp_path / "whole", "--workers", "1") == 0
    monkeypatch.setattr(units, "PART_BYTES", 3_000)
    assert run(path, tmp_path / "parts", how) == 0
    assert tables(tmp_path / "parts") == tables(tmp_path / "whole")


def test_what_was_mined_keeps_its_cuts(
    archives: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with other cuts continues it; a damaged part of it is mined again."""
    path, out = tmp_path / "a.warc.gz", tmp_path / "out"
    path.write_bytes(archives["damaged"])
    monkeypatch.setattr(units, "PART_BYTES", 3_000)
    assert run(path, out, "--workers", "1") == 0
    expected = tables(out)
    names = {entry.name for entry in (out / "work" / "archives").iterdir()}
    (out / "_manifest.json").unlink()
    first = min((out / "work" / "archives").glob("*.mined-pages.spool"))
    first.write_bytes(first.read_bytes()[:-9])
    monkeypatch.setattr(units, "PART_BYTES", 5_000)
    assert run(path, out, "--workers", "1") == 0
    assert tables(out) == expected
    assert {entry.name for entry in (out / "work" / "archives").iterdir()} == names
