"""Estimates a data set's cost: the time for images (own files) or for rows (published files)."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, repeat

from vlmill.pipelines.manifest.entries import IMAGE_STAGE, Entry
from vlmill.pipelines.manifest.own.job import (
    CHUNK,
    JudgedRow,
    Ledger,
    OwnJob,
    examining,
    judge_rows,
    read_candidates,
    read_image_file,
)
from vlmill.pipelines.manifest.published.parts import CHUNK as ENTRIES
from vlmill.pipelines.manifest.published.parts import Job
from vlmill.pipelines.web.pages.images import Examiner
from vlmill.runtime.console.cost import Estimate, Rate, measure_rate
from vlmill.runtime.units.funnel import Drop


class FirstRows:
    """Judges the file's first rows and reads their images as the run does, without writing them."""

    def __init__(self, job: OwnJob) -> None:
        self.job = job
        self.rows = self.bytes = 0

    def chunks(self, pool: ThreadPoolExecutor, examiner: Examiner) -> Iterator[int]:
        """Reads some more rows, and yields their number."""
        judged = judge_rows(self.job, read_candidates(self.job), Ledger())
        while chunk := list(islice(judged, CHUNK)):
            rows = [row for _, row in chunk if isinstance(row, JudgedRow)]
            self.bytes += sum(_text_bytes(row) for row in rows)
            if self.job.with_images:
                new = [(name, row.images.get(name)) for row in rows for name in row.first]
                self.bytes += sum(len(content) for _, content in new if content is not None)
                names = [name for name, content in new if content is None]
                read = pool.map(read_image_file, repeat(self.job), names, repeat(examiner))
                self.bytes += sum(len(row["bytes"]) for row in read if not isinstance(row, Drop))
            self.rows += len(chunk)
            yield len(chunk)


def _text_bytes(row: JudgedRow) -> int:
    names = ("text", "question", "text_a")
    return sum(len(str(row.row[name]).encode()) for name in names if row.row.get(name))


def measure(job: OwnJob) -> tuple[Rate, int]:
    """Returns the rate of the first rows, and the bytes of their texts and images."""
    first = FirstRows(job)
    with ThreadPoolExecutor(job.workers) as pool, examining(job) as examiner:
        rate = measure_rate(first.chunks(pool, examiner), "rows", weight=float)
    return rate, first.bytes


def estimate_cost(num_rows: int, rate: Rate, measured_bytes: int) -> Estimate:
    """Returns the cost of all rows, if they are like the measured ones."""
    about = round(measured_bytes * num_rows / rate.items) if rate.items else 0
    return Estimate(
        inputs={"--input": f"{num_rows:,} rows"},
        expected_bytes=about,
        seconds=rate.seconds_for(num_rows),
        rate=rate,
        note="later rows may repeat images, which are written once",
    )


def published_estimate(job: Job) -> Estimate:
    """Returns the cost of all rows, if they are like the first ones; images are not counted."""
    published = sum(e.rows for name, e in job.reading.expected.items() if name != IMAGE_STAGE)
    read = [0, 0]  # rows, bytes of their values

    def chunks() -> Iterator[int]:
        for entry in job.reading.entries():
            read[0] += 1
            read[1] += _count_bytes(entry)
            if read[0] % ENTRIES == 0:
                yield ENTRIES
        yield read[0] % ENTRIES

    rate = measure_rate(chunks(), "rows", weight=float)
    rows = max(published, read[0])
    return Estimate(
        inputs={s.display_name: f"{s.size:,} bytes" for s in job.reading.sources},
        expected_bytes=round(read[1] * rows / read[0]) if read[0] else 0,
        seconds=rate.seconds_for(rows),
        rate=rate,
        note="images add decoding time and their size",
    )


def _count_bytes(entry: Entry) -> int:
    if isinstance(entry.rows, Drop):
        return 0
    return sum(len(str(v)) for _, row in entry.rows for v in row.values() if v is not None)
