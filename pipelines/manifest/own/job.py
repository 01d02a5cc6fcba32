"""Converts the user's own captions, and their images, to ``pairs`` and ``images``.

A part is a number of consecutive rows. It is a unit, and becomes one shard of each table. The
result of a row depends on the rows before it (is it a duplicate? is it the first to name its
image?) and never on whether an image could be read. So a killed run can continue from the table
alone.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from vlmill.pipelines.manifest.cleaning import MAX_TEXT, clean_text, usable_id
from vlmill.pipelines.manifest.part import Part
from vlmill.pipelines.manifest.reading.images import image_row
from vlmill.pipelines.manifest.reading.rows import TableFile, read_rows
from vlmill.pipelines.manifest.reading.text_rows import Row
from vlmill.pipelines.manifest.reject_counts import funnel_stage, rejects_by_stage
from vlmill.pipelines.manifest.spooled import part_unit
from vlmill.pipelines.web.pages.images import Examiner, open_examiner
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.listed import hash_file
from vlmill.runtime.files.shards import Shard
from vlmill.runtime.units.funnel import Drop
from vlmill.runtime.units.unit import Result, Unit, read_result, run_unit, work_folder
from vlmill.schemas.ids import compute_pair_id
from vlmill.schemas.images.decode import FORMATS
from vlmill.schemas.rejects import Reason, reject
from vlmill.schemas.tables import IMAGES, PAIRS, REJECTS, Table

JOB = "manifest own"
ROWS, IMAGE_STAGE = "rows", "pictures"  # stages of the funnel
CHUNK = 16  # rows whose images are in memory together
MAX_PIXELS = 50_000_000  # also the default limit of region extraction
_WEB = ("http://", "https://")


@dataclass(frozen=True, kw_only=True)
class OwnJob:
    """Holds the settings that determine the output.

    ``column_indices`` are the columns of text, image, id and split; the last two may be absent.
    ``rows`` and ``digest`` refer to the entire file.
    """

    table: TableFile
    columns: dict[str, str]  # text, image, id, split -> the file's column
    column_indices: tuple[int, ...]
    rows: int
    digest: str
    output: Path
    image_root: Path | None = None
    source: str = "own"
    split: str | None = None
    language: str | None = None
    rows_per_shard: int = 10_000
    workers: int = 1

    @property
    def num_parts(self) -> int:
        """Returns the number of parts: at least one, so that an empty table has shards, too."""
        return max(1, -(-self.rows // self.rows_per_shard))

    @property
    def tables(self) -> tuple[Table, ...]:
        """Returns the job's tables in the order that a part's shards are written."""
        images = () if self.image_root is None else (IMAGES,)
        return (*images, PAIRS, REJECTS)

    def settings(self) -> dict[str, Any]:
        """Returns the settings that a continued run must share."""
        root = None if self.image_root is None else str(self.image_root)
        return {"image_root": root, **self.producer()}

    def producer(self) -> dict[str, Any]:
        """Returns the producer metadata of the shards."""
        return {
            "job": JOB,
            "input": self.table.path.name,
            "input_sha256": self.digest,
            "format": self.table.format,
            "delimiter": self.table.delimiter,
            "encoding": self.table.encoding,
            "header": self.table.header,
            "columns": self.columns,
            "source": self.source,
            "split": self.split,
            "language": self.language,
            "rows_per_shard": self.rows_per_shard,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Caption:
    """Holds a row that is a pair if its image is valid; ``first``: the first to name it."""

    pair: dict[str, Any]
    first: bool


@dataclass(kw_only=True)
class Ledger:
    """Holds the claims of the rows so far: about 300 bytes for each pair with its image."""

    contents: dict[bytes, bytes] = field(default_factory=dict)  # id of a pair -> its content
    texts: set[bytes] = field(default_factory=set)
    images: set[bytes] = field(default_factory=set)

    def judge(self, job: OwnJob, fields: Sequence[str | None]) -> Caption | Drop:
        """Returns the result of a row, given all rows before it."""
        values = dict(zip(job.columns, fields, strict=True))
        text = clean_text(values["text"] or "")
        image_id = usable_id(values["image"], job.columns["image"])
        pair_id = usable_id(values["id"], job.columns["id"]) if "id" in values else None
        for part in (image_id, pair_id):
            if isinstance(part, Drop):
                return part
        if not text:
            return Drop(Reason.NO_TEXT, f"the column {job.columns['text']} is empty")
        if len(text) > MAX_TEXT:
            return Drop(Reason.TOO_LONG, f"{len(text)} characters, at most {MAX_TEXT}")
        assert isinstance(image_id, str) and not isinstance(pair_id, Drop)
        content = compute_pair_id(image_id, text)
        repeated = self._claim(pair_id or content, content)
        if repeated is not None:
            return repeated
        key = _key(image_id)
        first = key not in self.images
        self.images.add(key)
        pair = {
            "pair_id": pair_id or content,
            "image_id": image_id,
            "text": text,
            "language": job.language,
            "source": job.source,
            "split": (values.get("split") or "").strip() or job.split,
            "image_url": image_id if image_id.startswith(_WEB) else None,
        }
        return Caption(pair=pair, first=first)

    def _claim(self, pair_id: str, content: str) -> Drop | None:
        key, value = _key(pair_id), bytes.fromhex(content)
        if key in self.contents:
            if self.contents[key] == value:
                return Drop(Reason.DUPLICATE, "the same caption of the same image came earlier")
            return Drop(Reason.ID_CONFLICT, f"{pair_id} has different content in an earlier row")
        if value in self.texts:
            return Drop(Reason.DUPLICATE, "the same caption of the same image came earlier")
        self.contents[key] = value
        self.texts.add(value)
        return None


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


Judged = tuple[int, Caption | Drop]
"""The number of a row, and its result."""


def judge_rows(job: OwnJob, rows: Iterable[Row], ledger: Ledger) -> Iterator[Judged]:
    """Yields the result of each row, given all rows before it."""
    for number, row in rows:
        yield number, row if isinstance(row, Drop) else ledger.judge(job, row)


class Run:
    """Writes parts. An image that an earlier row has named is not read again."""

    def __init__(self, job: OwnJob, pool: ThreadPoolExecutor, examiner: Examiner) -> None:
        self.job, self._pool, self._examiner = job, pool, examiner
        self._verdicts: dict[bytes, Drop | None] = {}

    def make_part(self, index: int, judged: Iterator[Judged], progress: Progress) -> Result:
        """Writes the shards of a part."""
        job = self.job
        with Part(job.output, job.tables, (index, job.num_parts), job.producer()) as part:
            while chunk := list(islice(judged, CHUNK)):
                progress.advance(len(chunk), rejects=self._add(part, chunk))
        return Result(shards=part.shards)

    def _add(self, part: Part, judged: Sequence[Judged]) -> int:
        images = self._images([c for _, c in judged if isinstance(c, Caption)])
        rejected = 0
        for number, caption in judged:
            key = f"{self.job.table.path.name}:{number}"
            if isinstance(caption, Drop):
                part.add(REJECTS, reject(ROWS, key, caption.reason, caption.detail))
                rejected += 1
                continue
            image_id = caption.pair["image_id"]
            drop = self._verdicts.get(_key(image_id))
            if drop is not None:
                detail = f"{image_id}: {drop.detail or ''}"
                part.add(REJECTS, reject(IMAGE_STAGE, key, drop.reason, detail))
                rejected += 1
                continue
            part.add(PAIRS, caption.pair)
            if caption.first and image_id in images:
                part.add(IMAGES, images[image_id])
        return rejected

    def _images(self, captions: Sequence[Caption]) -> dict[str, dict[str, Any]]:
        """Reads the images that no row of this process has named before."""
        root = self.job.image_root
        if root is None:
            return {}
        names = dict.fromkeys(c.pair["image_id"] for c in captions)
        new = [name for name in names if _key(name) not in self._verdicts]
        rows: dict[str, dict[str, Any]] = {}
        read = self._pool.map(lambda name: image_row(root, name, self._examiner), new)
        for name, row in zip(new, read, strict=True):
            self._verdicts[_key(name)] = row if isinstance(row, Drop) else None
            if not isinstance(row, Drop):
                rows[name] = row
        return rows


def examining(job: OwnJob) -> AbstractContextManager[Examiner]:
    """Opens the examiner for the images of a run."""
    return open_examiner(job.workers, min_side_px=0, max_pixels=MAX_PIXELS, formats=FORMATS)


@contextmanager
def open_run(job: OwnJob) -> Iterator[Run]:
    """Yields a run, with the threads that read images and the processes that decode them."""
    with ThreadPoolExecutor(job.workers) as pool, examining(job) as examiner:
        yield Run(job, pool, examiner)


def make_parts(job: OwnJob) -> list[Shard]:
    """Writes every missing part and returns all shards. Raises OSError if the file changes."""
    rows, ledger = read_rows(job.table, job.column_indices), Ledger()
    with open_run(job) as run, make_progress(job) as progress:
        for index in range(job.num_parts):
            judged = judge_rows(job, islice(rows, job.rows_per_shard), ledger)

            def make(_: OwnJob, unit: Unit, judged: Iterator[Judged] = judged) -> Result:
                return run.make_part(unit.number, judged, progress)

            if run_unit(job, work_folder(job), part_unit(index), make) is None:
                progress.advance(sum(1 for _ in judged))  # records the claims of its rows
    if progress.done != job.rows:
        raise changed(job)
    return collect_shards(job)


def make_progress(job: OwnJob) -> Progress:
    """Returns the progress of all rows."""
    return Progress(total=job.rows, unit="row", label="pairs")


def collect_shards(job: OwnJob) -> list[Shard]:
    """Returns all shards of a finished job. Raises OSError if the file has changed meanwhile."""
    if hash_file(job.table.path) != job.digest:
        raise changed(job)
    units = map(part_unit, range(job.num_parts))
    return [shard for unit in units for shard in read_result(work_folder(job), unit).shards]


def changed(job: OwnJob) -> OSError:
    """Returns the error for a file that has changed since the run began."""
    return OSError(f"{job.table.path} changed during the run; start again with --fresh")


def make_funnel(job: OwnJob) -> list[dict[str, Any]]:
    """Returns the funnel from the rejects: inputs, outputs and drops, by stage and reason."""
    dropped, entered = rejects_by_stage(job.output), job.rows
    funnel: list[dict[str, Any]] = []
    for stage in (ROWS, IMAGE_STAGE):
        funnel.append(funnel_stage(stage, "rows", entered, dropped[stage]))
        entered = funnel[-1]["out"]
    return funnel
