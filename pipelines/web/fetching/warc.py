"""Writes WARC records, and the parts of a bucket's archive: files that appear when they are full.

Each record is one gzip member (ISO 28500, annex D), so that it can be read at its offset. The
open part is stored alongside its bucket's journal; a killed run continues after the last
journalled record.
"""

import base64
import hashlib
import os
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from vlmill.runtime.files.atomic import sync
from vlmill.runtime.files.listed import ListedFile, hash_file
from vlmill.runtime.files.remote import RemotePath
from vlmill.runtime.files.shards import SOFTWARE
from vlmill.runtime.net.exchange import user_agent

PAGE_LEVEL, IMAGE_LEVEL = 6, 0  # images are compressed already: 3 ms for 100 KB at level 6
NOT_MODIFIED = "http://netpreserve.org/warc/1.1/revisit/server-not-modified"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLocation:
    """Holds a record's location: the part of its bucket's archive, offset and length in bytes."""

    part: int
    offset: int
    length: int


def record(
    kind: str, headers: Mapping[str, str], block: bytes, *, level: int = PAGE_LEVEL
) -> bytes:
    """Returns a record as one gzip member; ``headers`` are added to type, id and digest.

    The id depends only on the record's content: the same response at the same time has the same id.
    """
    digest = base64.b32encode(hashlib.sha1(block, usedforsecurity=False).digest()).decode("ascii")
    name = uuid.uuid5(uuid.NAMESPACE_URL, f"{kind} {sorted(headers.items())} {digest}")
    lines = {
        "WARC-Type": kind,
        "WARC-Record-ID": f"<{name.urn}>",
        **headers,
        "WARC-Block-Digest": f"sha1:{digest}",
        "Content-Length": str(len(block)),
    }
    head = "".join(f"{key}: {_line(value)}\r\n" for key, value in lines.items())
    packer = zlib.compressobj(level, wbits=zlib.MAX_WBITS | 16)
    content = b"".join((b"WARC/1.1\r\n", head.encode("utf-8"), b"\r\n", block, b"\r\n\r\n"))
    return packer.compress(content) + packer.flush()


def _line(value: str) -> str:
    """Returns a header's value without line breaks."""
    return " ".join(value.split())


def warc_date(seconds: float) -> str:
    """Returns seconds since 1970 in WARC's date format."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def response_record(
    url: str, head: bytes, body: bytes, *, timestamp: float, address: str, level: int
) -> bytes:
    """Returns the record of a whole HTTP response: its head as received, and its body."""
    headers = _make_headers(url, timestamp, address)
    headers["Content-Type"] = "application/http;msgtype=response"
    return record("response", headers, head + body, level=level)


def revisit_record(url: str, head: bytes, *, timestamp: float, address: str) -> bytes:
    """Returns the record of a response that reports no change since an earlier crawl."""
    headers = _make_headers(url, timestamp, address)
    headers["WARC-Profile"] = NOT_MODIFIED
    headers["WARC-Refers-To-Target-URI"] = url
    headers["Content-Type"] = "application/http;msgtype=response"
    return record("revisit", headers, head)


def _make_headers(url: str, timestamp: float, address: str) -> dict[str, str]:
    headers = {"WARC-Target-URI": url, "WARC-Date": warc_date(timestamp)}
    if address:
        headers["WARC-IP-Address"] = address
    return headers


def info_record(name: str, contact: str, *, timestamp: float) -> bytes:
    """Returns the first record of a part: the writing program, its method, and the contact."""
    fields = {
        "software": SOFTWARE,
        "format": "WARC File Format 1.1",
        "conformsTo": "http://iipc.github.io/warc-specifications/specifications/warc-format/"
        "warc-1.1/",
        "robots": "obey",
        "http-header-user-agent": user_agent(contact),
    }
    block = "".join(f"{key}: {_line(value)}\r\n" for key, value in fields.items())
    headers = {
        "WARC-Date": warc_date(timestamp),
        "WARC-Filename": name,
        "Content-Type": "application/warc-fields",
    }
    return record("warcinfo", headers, block.encode("utf-8"))


PARTS = "crawl-*-*.warc.gz"
"""Finds the finished parts in an output."""


def part_name(bucket: int, part: int) -> str:
    """Returns the file name of a finished part of a bucket's archive."""
    return f"crawl-{bucket:05d}-{part:05d}.warc.gz"


def contents_name(bucket: int, part: int) -> str:
    """Returns the file name of a finished part that has contents alone."""
    return f"{bucket:05d}-{part:05d}.contents"


class Parts:
    """Writes records into the successive parts of one bucket's archive.

    ``journalled`` is the last record in the journal: records after it were written by a run that
    was killed before it could journal them, and are cut off. ``contents``: the parts have contents
    without records, for one run, and their SHA-256 is not computed.
    """

    def __init__(
        self,
        output: Path,
        open_part: Path,
        bucket: int,
        *,
        contact: str,
        max_bytes: int,
        journalled: RecordLocation | None,
        contents: bool = False,
    ) -> None:
        self._contents = contents
        self._output, self._path, self._bucket = output, open_part, bucket
        self._contact, self._max_bytes = contact, max_bytes
        self.part = 0 if journalled is None else journalled.part
        end = 0 if journalled is None else journalled.offset + journalled.length
        if journalled is not None and (output / self.name(self.part)).exists():
            self.part, end = self.part + 1, 0  # that part was full, and has its final name
        stray = output / self.name(self.part)
        if end == 0 and stray.exists():
            raise OSError(f"{stray} has records that its journal lacks; use --fresh")
        self._file = self._path.open("ab")
        if self._file.tell() < end:
            raise OSError(
                f"{output / self.name(self.part)} is missing, and {self._path} has lost "
                "records that its journal lists; use --fresh"
            )
        self._file.truncate(end)
        self._end = end

    def name(self, part: int) -> str:
        """Returns the file name of a finished part."""
        return (contents_name if self._contents else part_name)(self._bucket, part)

    @property
    def is_full(self) -> bool:
        """Returns whether the open part should be finished, once its records are journalled."""
        return self._end >= self._max_bytes

    def add(self, record_bytes: bytes, *, timestamp: float) -> RecordLocation:
        """Appends a record; before it is journalled, :meth:`flush` must have been called."""
        if self._end == 0 and not self._contents:
            self._append(info_record(self.name(self.part), self._contact, timestamp=timestamp))
        location = RecordLocation(part=self.part, offset=self._end, length=len(record_bytes))
        self._append(record_bytes)
        return location

    def _append(self, record_bytes: bytes) -> None:
        self._file.write(record_bytes)
        self._end += len(record_bytes)

    def flush(self) -> None:
        """Passes added records to the operating system: killing this process loses none."""
        self._file.flush()

    def describe_open_part(self) -> ListedFile | None:
        """Returns the name, size and SHA-256 of the open part; None if it has no record.

        The SHA-256 is "" if it is not wanted.
        """
        if self._end == 0:
            return None
        self._file.flush()
        name = self.name(self.part)
        sha256 = "" if self._contents else hash_file(self._path)
        return ListedFile(name=name, bytes=self._end, sha256=sha256)

    def finish(self) -> None:
        """Moves the open part to its final path; the next record begins another part."""
        if self._end == 0:
            return
        self._file.close()
        path = self._output / self.name(self.part)
        if isinstance(path, RemotePath):
            path.upload(self._path)
            self._path.unlink()
        else:
            sync(self._path)
            os.replace(self._path, path)
            sync(self._output)
        self.part, self._end = self.part + 1, 0
        self._file = self._path.open("ab")

    def close(self) -> None:
        """Closes the open part, which a later run continues."""
        self._file.close()
