"""Writes the pairs and images of a table's rows, once all URLs have an outcome; by bucket."""

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vlmill.pipelines.crawl.resizing import EncodedImage, ResizeRule, start_encoding
from vlmill.pipelines.manifest.part import Part
from vlmill.pipelines.web.fetching.database import journal_errors
from vlmill.pipelines.web.fetching.entries import FETCHED, REDIRECTED
from vlmill.pipelines.web.fetching.hosts import assign_bucket, get_host
from vlmill.pipelines.web.fetching.work import FetchState, OpenBucket, open_bucket
from vlmill.pipelines.web.pages.images import FORMATS, Examiner, ImageFacts, measure_header
from vlmill.runtime.bounded_calls import BoundedPool
from vlmill.runtime.files.atomic import atomic_path
from vlmill.runtime.files.outputs import WORK
from vlmill.runtime.files.paths import readable, to_path
from vlmill.runtime.files.shards import Shard, ShardWriter
from vlmill.runtime.net.responses import decode_body, split_http
from vlmill.runtime.units.counts import Counts
from vlmill.runtime.units.funnel import OUT, Drop, Stage
from vlmill.runtime.units.numbers import Numbers
from vlmill.runtime.units.step import Step
from vlmill.runtime.units.unit import Result, Unit
from vlmill.schemas.ids import compute_image_id
from vlmill.schemas.images.decode import Bounds
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import IMAGES, PAIRS, REJECTS

ROWS = Stage("pairs", "rows of the table with a URL")
SHARDS_A_BUCKET = 10_000
AHEAD, AHEAD_BYTES = 96, 8 << 20  # images that are being encoded while others are read
GROUP_ROWS = 2_000  # of rejects
GROUP_BYTES = (
    2 << 20
)  # of images: buffers of 16 MiB, always new to the processor, take twice as long
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
        return _records(self) / f"outcomes-{bucket:05d}.parquet"


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


def _records(job: PairsJob) -> Path:
    return to_path(job.output) / WORK / "pairs"


def bucket_units(step: str, job: PairsJob) -> list[Unit]:
    """Returns a unit for each bucket."""
    return [Unit(name=f"{step}-{n:05d}", number=n) for n in range(job.fetching.buckets)]


def write_pairs(job: PairsJob, unit: Unit) -> Result:
    """Writes the pairs and images of a bucket's rows. Memory: a row group of images."""
    with journal_errors(), ExitStack() as stack:
        opened = stack.enter_context(open_bucket(job.fetching, unit.number))
        rejects = stack.enter_context(_Rejects(job, unit.number))
        counts = Counts(rejects.add)
        writer = stack.enter_context(_Writer(job, unit.number))
        if unit.number == 0:  # a table without an image has shards, too
            writer.begin()
        images = stack.enter_context(_Images(job, counts, writer))
        for row, content in read_contents(job, opened, unit.number):
            images.take(row, content)
        images.finish()
    tallies = counts.tallies
    assert rejects.writer.shard is not None
    numbers = Numbers(pairs=tallies[ROWS.name, OUT])
    return Result(shards=[*writer.shards, rejects.writer.shard], tallies=tallies, numbers=numbers)


PAIRS_STEP = Step(
    name="pairs", units=partial(bucket_units, "pairs"), work=write_pairs, folder=_records
)


# The responses.


def read_contents(
    job: PairsJob, opened: OpenBucket, bucket: int
) -> Iterator[tuple[Row, bytes | Drop]]:
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
    name="outcomes", units=partial(bucket_units, "outcomes"), work=write_outcomes, folder=_records
)


class _ArchiveReader:
    """Reads responses of archives, which stay open: mostly of one, in their order."""

    def __init__(self, job: PairsJob) -> None:
        self._folder, self._has_records = (
            job.fetching.archive_folder,
            not (job.fetching.scope.contents),
        )
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


# The images.


class _Encoding(NamedTuple):
    """Holds an image that is being encoded, and a function that waits for the result."""

    row: Row
    content: bytes
    wait: Callable[[], Any]


class _Images:
    """Measures or encodes images; passes the result of each row on."""

    def __init__(self, job: PairsJob, counts: Counts, writer: "_Writer") -> None:
        self._job, self._counts, self._writer = job, counts, writer
        self._bounds = Bounds(max_pixels=job.max_pixels, max_bytes=None, formats=FORMATS)
        settings = {"min_side_px": job.min_side_px, "bounds": self._bounds}
        self._pool: BoundedPool[list[bytes], Any] = BoundedPool(
            1, start_encoding, job.rule, settings
        )
        self._encoder = Examiner(self._pool)
        self._waiting: deque[_Encoding] = deque()
        self._bytes = 0

    def take(self, row: Row, content: bytes | Drop) -> None:
        """Takes a row's image, or the reason for having none."""
        if isinstance(content, Drop):
            self._keep(row, b"", content)
            return
        measured = None
        if self._job.rule.is_off:
            measured = measure_header(
                content,
                min_side_px=self._job.min_side_px,
                max_pixels=self._job.max_pixels,
            )
        if measured is not None:
            is_changed = isinstance(measured, ImageFacts) and row.sha256 not in (
                None,
                measured.image_id,
            )
            damage = Drop(Reason.DAMAGED, "its bytes have changed since they were fetched")
            self._keep(row, content, damage if is_changed else measured)
            return
        self._waiting.append(_Encoding(row, content, self._encoder.submit(content)))
        self._bytes += len(content)
        while self._bytes > AHEAD_BYTES or len(self._waiting) > AHEAD:
            self._settle()

    def _settle(self) -> None:
        row, content, wait = self._waiting.popleft()
        self._bytes -= len(content)
        self._keep(row, content, wait())

    def _keep(self, row: Row, content: bytes, image: ImageFacts | EncodedImage | Drop) -> None:
        image_id = f"{self._job.name}/{row.number:09d}"
        if isinstance(image, Drop):
            self._counts.dropped(ROWS, image_id, Drop(image.reason, _detail(row, image)))
            return
        self._counts.passed(ROWS)
        self._writer.add(row, image_id, content, image)

    def finish(self) -> None:
        """Passes on the remaining images."""
        while self._waiting:
            self._settle()

    def __enter__(self) -> "_Images":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()


def _detail(row: Row, drop: Drop) -> str:
    return f"{row.url}: {drop.detail}" if drop.detail else row.url


# The shards.


class _Writer:
    """Writes pairs and images in shards of ``rows_per_shard`` rows."""

    def __init__(self, job: PairsJob, bucket: int) -> None:
        self._job, self._first = job, bucket * SHARDS_A_BUCKET
        self._stack = ExitStack()
        self._part: Part | None = None
        self._rows = 0
        self.shards: list[Shard] = []

    def add(
        self, row: Row, image_id: str, content: bytes, image: ImageFacts | EncodedImage
    ) -> None:
        """Writes the pair and the image of a row."""
        if self._part is None or self._rows == self._job.rows_per_shard:
            self.begin()
        assert self._part is not None
        self._rows += 1
        encoded = image.content if isinstance(image, EncodedImage) else None
        stored = content if encoded is None else encoded
        sha256 = image.image_id if isinstance(image, ImageFacts) else compute_image_id(stored)
        self._part.add(
            IMAGES,
            {
                "image_id": image_id,
                "bytes": stored,
                "width": image.width,
                "height": image.height,
                "format": image.format,
                "sha256": sha256,
                "source_url": row.url,
            },
        )
        self._part.add(
            PAIRS,
            {
                "pair_id": f"{image_id}#0",
                "image_id": image_id,
                "text": row.text,
                "source": "own",
                "image_url": row.url,
            },
        )

    def begin(self) -> None:
        """Begins the next shards."""
        self._end()
        producer = {"job": "crawl", "table": self._job.name}
        number = self._first + len(self.shards) // 2
        part = Part(
            to_path(self._job.output),
            (IMAGES, PAIRS),
            (number, None),
            producer,
            group_bytes=GROUP_BYTES,
        )
        self._part, self._rows = self._stack.enter_context(part), 0

    def _end(self) -> None:
        self._stack.close()
        if self._part is not None:
            self.shards += self._part.shards
            self._part = None

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self._end()
        else:
            self._stack.__exit__(kind, error, trace)


class _Rejects:
    """Writes the rejects of a bucket's rows, in groups."""

    def __init__(self, job: PairsJob, bucket: int) -> None:
        buckets = job.fetching.buckets
        self.writer = ShardWriter(
            job.output,
            REJECTS,
            buckets + bucket,
            job.fetching.reject_shards,
            producer={"job": "crawl", "table": job.name},
        )
        self._rows: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        """Adds a reject."""
        self._rows.append(row)
        if len(self._rows) == GROUP_ROWS:
            self.writer.write(self._rows)
            self._rows = []

    def __enter__(self) -> "_Rejects":
        self.writer.__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.writer.write(self._rows)
        self.writer.__exit__(kind, error, trace)
