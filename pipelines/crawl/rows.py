"""Finds the contents of a table's rows, once all URLs have an outcome; by bucket.

A redirect may lead to another bucket, whose outcomes `FIND_STEP` has written before.
"""

import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vlmill.pipelines.crawl.resizing import ResizeRule
from vlmill.pipelines.web.fetching.database import journal_errors
from vlmill.pipelines.web.fetching.entries import FETCHED, REDIRECTED
from vlmill.pipelines.web.fetching.hosts import assign_bucket, get_host
from vlmill.pipelines.web.fetching.work import FetchState, OpenBucket, open_bucket
from vlmill.runtime.files.atomic import atomic_path
from vlmill.runtime.files.outputs import WORK
from vlmill.runtime.files.paths import readable, to_path
from vlmill.runtime.net.responses import decode_body, split_http
from vlmill.runtime.units.funnel import Drop
from vlmill.runtime.units.step import Step
from vlmill.runtime.units.unit import Result, Unit
from vlmill.schemas.rejects import Reason

GROUP_ROWS = 2_000  # of outcomes
_ROWS = """
SELECT row, text, urls.url, outcome, detail, target, sha256, part, offset, length
FROM captions JOIN urls ON urls.id = captions.url ORDER BY part, offset, row
"""


@dataclass(frozen=True, kw_only=True)
class PairsJob:
    """Holds the state that every unit needs.

    ``name`` begins the ids of images; ``columns`` are the names of the two columns.
    """

    fetching: FetchState
    name: str
    columns: tuple[str, str]
    rule: ResizeRule = field(default_factory=ResizeRule)
    min_side_px: int = 0
    max_pixels: int = 50_000_000
    rows_per_shard: int = 10_000

    def as_settings(self) -> dict[str, Any]:
        """Returns names and values, for plans, manifests and reports."""
        return {
            "columns": list(self.columns),
            "resize": asdict(self.rule),
            "min_side": self.min_side_px,
            "rows_per_shard": self.rows_per_shard,
            "keep_archives": not self.fetching.scope.contents,
        }

    @property
    def output(self) -> str:
        """Returns ``--output``."""
        return self.fetching.output

    def outcomes_file(self, bucket: int) -> Path:
        """Returns the file of a bucket's outcomes."""
        return records_folder(self) / f"outcomes-{bucket:05d}.parquet"


class Location(NamedTuple):
    """Holds the location of a response: the name of its archive, offset and length in bytes."""

    archive: str
    offset: int
    length: int


class Row(NamedTuple):
    """Holds a row of the table with its URL, and the SHA-256 of its content if it is known."""

    number: int
    text: str
    url: str
    sha256: str | None


def records_folder(job: PairsJob) -> Path:
    """Returns the folder of the units' records."""
    return to_path(job.output) / WORK / "pairs"


def bucket_units(step: str, job: PairsJob) -> list[Unit]:
    """Returns a unit for each bucket."""
    return [Unit(name=f"{step}-{n:05d}", number=n) for n in range(job.fetching.buckets)]


def read_contents(job: PairsJob, opened: OpenBucket) -> Iterator[tuple[Row, bytes | Drop]]:
    """Yields a bucket's rows, each with the content of its URL or the reason for having none."""
    redirected: list[tuple[Row, str]] = []
    with ExitStack() as stack:
        reader = stack.enter_context(_ArchiveReader(job))
        for number, text, url, outcome, detail, target, sha256, *where in opened.journal.rows(
            _ROWS
        ):
            row = Row(number, text, url, sha256)
            if outcome == FETCHED:
                archive = opened.parts.name(where[0])
                yield row, reader.read(Location(archive, where[1], where[2]))
            elif outcome == REDIRECTED:
                redirected.append((row, target))
            else:
                yield row, Drop(Reason(outcome), detail)
        ends = follow_redirects(job, {target for _, target in redirected})
        for row, target in redirected:
            end = ends[target]
            yield row, end if isinstance(end, Drop) else reader.read(end)


def follow_redirects(job: PairsJob, targets: Iterable[str]) -> dict[str, Location | Drop]:
    """Returns where redirects lead, from the outcomes of all buckets. Memory: the targets."""
    now = {target: target for target in targets}  # a target, and where its redirects have led
    ends: dict[str, Location | Drop] = {}
    for _ in range(job.fetching.policy.max_redirects + 1):
        outcomes = find_outcomes(job, set(now.values()))
        following: dict[str, str] = {}
        for target, url in now.items():
            row = outcomes.get(url)
            if row is None:
                ends[target] = Drop(Reason.BAD_URL, f"redirects to {url}")
            elif row["outcome"] == FETCHED:
                ends[target] = Location(row["archive"], row["offset"], row["length"])
            elif row["outcome"] == REDIRECTED:
                following[target] = row["target"]
            else:
                ends[target] = Drop(Reason(row["outcome"]), row["detail"])
        now = following
        if not now:
            break
    return ends | {target: Drop(Reason.TOO_MANY_REDIRECTS) for target in now}


def find_outcomes(job: PairsJob, urls: set[str]) -> dict[str, dict[str, Any]]:
    """Returns the outcomes of URLs, from the files of their hosts' buckets."""
    outcomes: dict[str, dict[str, Any]] = {}

    def bucket(url: str) -> int:
        return assign_bucket(get_host(url), job.fetching.buckets)

    for number, group in groupby(sorted(urls, key=bucket), key=bucket):
        urls_here = pa.array(list(group))
        with pq.ParquetFile(readable(job.outcomes_file(number))) as file:
            for batch in file.iter_batches():
                rows = batch.filter(pc.is_in(batch.column("url"), urls_here))
                outcomes.update((row["url"], row) for row in rows.to_pylist())
    return outcomes


_FOUND = pa.schema(
    [(name, pa.string()) for name in ("url", "outcome", "detail", "target", "archive")]
    + [(name, pa.int64()) for name in ("offset", "length")]
)
_OUTCOMES = "SELECT url, outcome, detail, target, part, offset, length FROM urls"


def write_outcomes(job: PairsJob, unit: Unit) -> Result:
    """Writes the outcomes of a bucket, for those buckets from which redirects lead there."""
    with (
        journal_errors(),
        open_bucket(job.fetching, unit.number) as opened,
        atomic_path(job.outcomes_file(unit.number)) as path,
        pq.ParquetWriter(path, _FOUND) as writer,
    ):
        rows = opened.journal.rows(_OUTCOMES)
        while group := list(islice(rows, GROUP_ROWS)):
            *texts, parts, offsets, lengths = zip(*group, strict=True)
            names = [None if part is None else opened.parts.name(part) for part in parts]
            columns = [*texts, names, offsets, lengths]
            writer.write_batch(pa.record_batch([pa.array(c) for c in columns], schema=_FOUND))
    return Result()


FIND_STEP = Step(
    name="outcomes",
    units=partial(bucket_units, "outcomes"),
    work=write_outcomes,
    folder=records_folder,
)


class _ArchiveReader:
    """Reads responses of archives, which stay open: mostly of one, in their order."""

    def __init__(self, job: PairsJob) -> None:
        self._folder = job.fetching.archive_folder
        self._has_records = not job.fetching.scope.contents
        self._max_bytes = job.fetching.policy.max_bytes
        self._name, self._stack = "", ExitStack()

    def read(self, location: Location) -> bytes | Drop:
        """Returns the content of a response."""
        if location.archive != self._name:
            self._stack.close()
            path = self._folder / location.archive
            self._file = self._stack.enter_context(path.open("rb"))
            self._name = location.archive
        self._file.seek(location.offset)
        record: bytes = self._file.read(location.length)
        content = read_content(record, self._max_bytes) if self._has_records else record
        return content if content else Drop(Reason.EMPTY)

    def __enter__(self) -> "_ArchiveReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def read_content(record: bytes, max_bytes: int) -> bytes | None:
    """Returns the content of a response from its record in a crawl's archive."""
    block = zlib.decompress(record, wbits=zlib.MAX_WBITS | 16)
    start = block.index(b"\r\n\r\n") + 4
    _, headers, body = split_http(block[start:-4])
    return decode_body(body, headers, max_bytes)
