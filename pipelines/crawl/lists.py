"""Lists of URLs: text files, one a line, and columns of Parquet files; each line is accounted for.

Of tables of an earlier crawl, ``rejects`` gives the URLs whose failure may be over, and
``outcomes`` all URLs, with what lets a server say that nothing has changed since.
"""

import codecs
import gzip
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.fetching.answers import TRANSIENT, TRANSIENT_STATUSES
from vlmill.pipelines.fetching.entries import FETCHED, NOT_MODIFIED, Wanted
from vlmill.pipelines.fetching.lines import Line, line_of
from vlmill.pipelines.fetching.stages import FETCH_LISTED, FETCH_PICTURES, STAGES
from vlmill.schemas.console.command import say
from vlmill.schemas.errors import InputError
from vlmill.schemas.files.contract import check_file, footer_of
from vlmill.schemas.files.paths import matches, path_of, readable
from vlmill.schemas.files.reading import find_shards
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import OUTCOMES, REJECTS

MAX_LINE_BYTES = 64 << 10
COLUMNS = ("url", "URL", "image_url")  # looked for in this order
_NOT_ASCII = re.compile(rb"[\x80-\xff]")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def find_lists(argument: str) -> list[Path]:
    """Returns the files that ``--urls`` names. Raises InputError for none."""
    path = path_of(argument)
    if path.is_dir():
        return find_shards(path, OUTCOMES, "--urls")
    paths = [path] if path.is_file() else matches(argument)
    if not paths:
        raise InputError(f"--urls {argument}: no such file; give a text file, a table or a glob")
    for file in paths:
        if not file.is_file():
            raise InputError(f"--urls {argument}: {file} is no file; give a file or a glob")
    return paths


def read_lists(paths: Iterable[Path], *, column: str | None, follow: int) -> Iterator[Line]:
    """Yields each line of the lists, and what it asks for. Memory: one line, or one batch.

    Raises InputError for a file that cannot be read, as one that lacks the column.
    """
    for path in paths:
        if _is_parquet(path):
            yield from _of_table(path, column, follow)
        else:
            for line in text_lines(path):
                yield line_of(line, follow)


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


# Text files.


class Lines(Protocol):
    """What bytes are read from, line by line or in pieces."""

    def readline(self, size: int, /) -> bytes:
        """Returns the next line, or its first ``size`` bytes."""

    def read(self, size: int, /) -> bytes:
        """Returns the next ``size`` bytes."""


def text_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a text file, gzipped or not, without blank ones.

    Bytes that are not UTF-8 are percent-encoded, as a browser that is given them sends them. Of a
    line longer than ``MAX_LINE_BYTES`` the rest is left out.
    """
    with path.open("rb") as raw:
        start = raw.read(2)
        raw.seek(0)
        try:
            yield from _lines(gzip.GzipFile(fileobj=raw) if start == b"\x1f\x8b" else raw)
        except (OSError, EOFError, UnicodeError) as error:
            raise InputError(f"--urls {path}: cannot be read to its end ({error})") from None


def _lines(file: Lines) -> Iterator[str]:
    at_start = True
    while line := file.readline(MAX_LINE_BYTES):
        if at_start and line[:2] in _UTF_16:
            yield from _utf_16_lines(line, file)
            return
        if at_start:
            line, at_start = line.removeprefix(b"\xef\xbb\xbf"), False
        whole = line.endswith(b"\n") or len(line) < MAX_LINE_BYTES
        if text := _text(line).strip():
            yield text
        while not whole and (rest := file.readline(MAX_LINE_BYTES)):
            whole = rest.endswith(b"\n")


def _utf_16_lines(first: bytes, file: Lines) -> Iterator[str]:
    """Lines of a UTF-16 file, as Windows writes some; it is read in pieces."""
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    text = decoder.decode(first)
    while piece := file.read(MAX_LINE_BYTES):
        *lines, text = (text + decoder.decode(piece)).split("\n")
        text = text[:MAX_LINE_BYTES]
        yield from (line.strip() for line in lines if line.strip())
    yield from (line.strip() for line in text.split("\n") if line.strip())


def _text(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        escaped = _NOT_ASCII.sub(lambda byte: b"%%%02X" % byte[0][0], line)
        return escaped.decode("ascii")


# Tables.


def _of_table(path: Path, column: str | None, follow: int) -> Iterator[Line]:
    metadata = footer_of(path).metadata or {}
    name = metadata.get(b"vlmill.table", b"").decode("utf-8", "replace")
    if column is None and name == REJECTS.name:
        yield from _retried(path, follow)
    elif column is None and name == OUTCOMES.name:
        yield from _again(path, follow)
    else:
        names = pq.read_schema(readable(path)).names
        column = column or next((name for name in COLUMNS if name in names), None)
        if column is None or column not in names:
            listed = ", ".join(names)[:200]
            raise InputError(
                f"--urls {path}: no column {column or 'url'}; name one of {listed} by --url-column"
            )
        for (url,) in _rows(path, [column]):
            if isinstance(url, str) and url.strip():
                yield line_of(url.strip(), follow)
            else:
                yield f"{path.name}: {url!r}"[:200], Drop(Reason.BAD_URL, "empty, or no text")


def _rows(path: Path, columns: list[str]) -> Iterator[tuple[object, ...]]:
    try:
        with pq.ParquetFile(readable(path)) as file:
            for batch in file.iter_batches(batch_size=10_000, columns=columns):
                values = [batch.column(name).to_pylist() for name in columns]
                yield from zip(*values, strict=True)
    except (OSError, pa.ArrowException, UnicodeError) as error:
        said = (str(error).splitlines() or ["unreadable"])[0]
        raise InputError(f"--urls {path} is damaged: {said}") from None


def _retried(path: Path, follow: int) -> Iterator[Line]:
    check_file(path, REJECTS)
    stages = {stage.name for stage in STAGES[1:]}
    left_out = 0
    for stage, key, reason, detail in _rows(path, ["stage", "key", "reason", "detail"]):
        if stage in stages and may_be_over(str(reason), str(detail)):
            yield line_of(str(key), -1 if stage == FETCH_PICTURES.name else follow)
        else:
            left_out += 1
    if left_out:
        say(f"--urls {path}: {left_out} rejects are left out, as they would end as they did")


def may_be_over(reason: str, detail: str) -> bool:
    """Whether a URL that was rejected so may be fetched another time."""
    if reason == Reason.BAD_STATUS:
        return detail in {str(status) for status in TRANSIENT_STATUSES}
    if reason == Reason.ROBOTS:
        return detail.startswith("robots.txt")
    return reason in TRANSIENT or reason in (Reason.TLS_ERROR, Reason.HOST_LIMIT)


def _again(path: Path, follow: int) -> Iterator[Line]:
    check_file(path, OUTCOMES)
    for url, stage, outcome, etag, modified in _rows(
        path, ["url", "stage", "outcome", "etag", "last_modified"]
    ):
        unchanged = outcome in (FETCHED, NOT_MODIFIED)
        wanted = Wanted(
            url=str(url),
            source=FETCH_LISTED.name,
            follow=-1 if stage == FETCH_PICTURES.name else follow,
            etag=str(etag) if unchanged and etag else None,
            modified=str(modified) if unchanged and modified else None,
        )
        yield str(url), wanted
