"""Writes the pairs and images of a table's rows; each bucket has its own shards."""

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

from vlmill.pipelines.crawl.resizing import EncodedImage, start_encoding
from vlmill.pipelines.crawl.rows import PairsJob, Row, bucket_units, read_contents, records_folder
from vlmill.pipelines.manifest.part import Part
from vlmill.pipelines.web.fetching.database import journal_errors
from vlmill.pipelines.web.fetching.work import open_bucket
from vlmill.pipelines.web.pages.images import FORMATS, Examiner, ImageFacts, measure_header
from vlmill.runtime.bounded_calls import BoundedPool
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.shards import Shard, ShardWriter
from vlmill.runtime.units.funnel import OUT, Counts, Drop, Stage
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
# Of images: buffers of 16 MiB, always new to the processor, take twice as long.
GROUP_BYTES = 2 << 20


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
        for row, content in read_contents(job, opened):
            images.take(row, content)
        images.finish()
    tallies = counts.tallies
    numbers = Numbers(pairs=tallies[ROWS.name, OUT])
    return Result(shards=[*writer.shards, rejects.writer.shard], tallies=tallies, numbers=numbers)


PAIRS_STEP = Step(
    name="pairs", units=partial(bucket_units, "pairs"), work=write_pairs, folder=records_folder
)


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
                content, min_side_px=self._job.min_side_px, max_pixels=self._job.max_pixels
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
            detail = f"{row.url}: {image.detail}" if image.detail else row.url
            self._counts.dropped(ROWS, image_id, Drop(image.reason, detail))
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
