"""Converts the user's own examples, and their images, to tables.

A part is a number of consecutive rows. It is a unit, and becomes one shard of each table. The
result of a row depends on the rows before it (is it a duplicate? is it the first to name its
image?) and never on whether an image could be read. So a killed run can continue from the table
alone.
"""

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from vlmill.pipelines.manifest.cleaning import usable_id
from vlmill.pipelines.manifest.own.kinds import KINDS, WEB, Columns, Example, Kind, RowReader
from vlmill.pipelines.manifest.part import Part
from vlmill.pipelines.manifest.reading.images import image_row, make_image_row
from vlmill.pipelines.manifest.reading.rows import TableFile, hash_table, read_values
from vlmill.pipelines.manifest.reject_counts import funnel_stage, rejects_by_stage
from vlmill.pipelines.manifest.spooled import part_unit
from vlmill.pipelines.web.pages.images import Examiner, open_examiner
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.shards import Shard
from vlmill.runtime.units.funnel import Drop
from vlmill.runtime.units.unit import Result, Unit, read_result, run_unit, work_folder
from vlmill.schemas.images.decode import FORMATS
from vlmill.schemas.rejects import Reason, reject
from vlmill.schemas.tables import IMAGES, PAIRS, QUESTIONS, REJECTS, Table

JOB = "manifest own"
ROWS, IMAGE_STAGE = "rows", "pictures"  # stages of the funnel
CHUNK = 16  # rows whose images are in memory together
MAX_PIXELS = 50_000_000  # also the default limit of region extraction


@dataclass(frozen=True, kw_only=True)
class OwnJob:
    """Holds the settings that determine the output.

    ``column_indices`` are the columns in the order of ``columns.flagged``. ``rows`` (with an
    example for each caption of a list) and ``digest`` refer to the entire file. ``labels`` is the
    list of labels, None for captions. ``with_images``: the table of images is written.
    """

    table: TableFile
    columns: Columns
    column_indices: tuple[int, ...]
    rows: int
    digest: str
    output: Path
    kind: str = PAIRS.name
    labels: tuple[str, ...] | None = None
    separator: str | None = None
    image_root: Path | None = None
    image_prefix: str = ""
    with_images: bool = False
    source: str = "own"
    split: str | None = None
    language: str | None = None
    rows_per_shard: int = 10_000
    workers: int = 1

    @property
    def num_parts(self) -> int:
        """Returns the number of parts: at least one, so that an empty table has shards, too."""
        return max(1, -(-self.rows // self.rows_per_shard))

    @cached_property
    def example_kind(self) -> Kind:
        """Returns the kind of the examples."""
        return KINDS[self.kind]

    @cached_property
    def reader(self) -> RowReader:
        """Returns the reader of rows."""
        return RowReader(
            kind=self.example_kind, columns=self.columns, separator=self.separator, split=self.split
        )

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """Returns the number of each label."""
        return {label: number for number, label in enumerate(self.labels or ())}

    @property
    def tables(self) -> tuple[Table, ...]:
        """Returns the job's tables in the order that a part's shards are written."""
        images = (IMAGES,) if self.with_images else ()
        return (*images, self.example_kind.table, REJECTS)

    def settings(self) -> dict[str, Any]:
        """Returns the settings that a continued run must share."""
        root = None if self.image_root is None else str(self.image_root)
        return {"image_root": root, **self.producer()}

    def producer(self) -> dict[str, Any]:
        """Returns the producer metadata of the shards."""
        labels = None if self.labels is None else "\n".join(self.labels).encode()
        return {
            "job": JOB,
            "input": self.table.path.name,
            "input_sha256": self.digest,
            "format": self.table.format,
            "delimiter": self.table.delimiter,
            "encoding": self.table.encoding,
            "header": self.table.header,
            "sheet": self.table.sheet,
            "columns": self.columns.settings(),
            "list_separator": self.separator,
            "image_prefix": self.image_prefix,
            "labels_sha256": None if labels is None else hashlib.sha256(labels).hexdigest(),
            "source": self.source,
            "split": self.split,
            "language": self.language,
            "rows_per_shard": self.rows_per_shard,
        }


@dataclass(kw_only=True, slots=True)  # not frozen: a run creates millions
class JudgedRow:
    """Holds a row that is written if its images are valid.

    ``first`` are those of its images that no earlier row has named, ``images`` the contents of
    its images that the file has.
    """

    row: dict[str, Any]
    image_ids: tuple[str, ...]
    first: tuple[str, ...]
    images: dict[str, bytes] = field(default_factory=dict)


@dataclass(kw_only=True)
class Ledger:
    """Holds the claims of the rows so far: about 300 bytes for each example with its image."""

    contents: dict[bytes, bytes] = field(default_factory=dict)  # id of an example -> its content
    values: dict[bytes, int] = field(default_factory=dict)  # content -> hash of its label
    images: dict[bytes, int] = field(default_factory=dict)  # image -> hash of its bytes, or 0

    def judge(self, job: OwnJob, example: Example, given_id: str | None = None) -> JudgedRow | Drop:
        """Returns the row of an example, or why it is dropped, given all earlier rows."""
        kind, row = job.example_kind, example.row
        if kind.number is not None:
            numbers = kind.number(example, job.numbers)
            if isinstance(numbers, Drop):
                return numbers
            row.update(numbers)
        keys = [_key(name) for name in example.image_ids]
        if (conflict := self._other_image(example, keys)) is not None:
            return conflict
        example_id = given_id or example.content
        repeated = self._claim(example_id, example)
        if repeated is not None:
            return repeated
        first = []
        for name, key in zip(example.image_ids, keys, strict=True):
            if key not in self.images:
                self.images[key] = _mark(example, name)
                first.append(name)
        row[kind.id], row["source"] = example_id, job.source
        row.update(_image_columns(job, example.image_ids))
        return JudgedRow(
            row=row, image_ids=example.image_ids, first=tuple(first), images=example.images
        )

    def _other_image(self, example: Example, keys: Sequence[bytes]) -> Drop | None:
        """Returns why a row is dropped one of whose images came earlier with other bytes."""
        for name, key in zip(example.image_ids, keys, strict=True):
            earlier = self.images.get(key)
            if earlier is not None and earlier != _mark(example, name):
                return Drop(Reason.ID_CONFLICT, f"{name} came earlier with another image")
        return None

    def _claim(self, example_id: str, example: Example) -> Drop | None:
        key, content = _key(example_id), bytes.fromhex(example.content)
        value = zlib.crc32(example.value.encode("utf-8", "surrogatepass")) if example.value else 0
        if self.contents.get(key, content) != content:
            return Drop(Reason.ID_CONFLICT, f"{example_id} has different content in an earlier row")
        if content in self.values:
            if self.values[content] == value:
                return Drop(Reason.DUPLICATE, "the same content of the same image came earlier")
            return Drop(
                Reason.ID_CONFLICT,
                "the same image and text came earlier with another label; several labels go into "
                "one row, see --list-separator",
            )
        self.contents[key] = content
        self.values[content] = value
        return None


def _mark(example: Example, name: str) -> int:
    """Returns a hash of the bytes that the file has of an image, 0 without bytes."""
    content = example.images.get(name) if example.images else None
    return 0 if content is None else zlib.crc32(content)


def _image_columns(job: OwnJob, image_ids: Sequence[str]) -> dict[str, Any]:
    """Returns the columns of a row that depend on its images, and the language of captions."""
    table = job.example_kind.table
    if table is PAIRS:
        url = image_ids[0] if image_ids[0].startswith(WEB) else None
        return {"image_id": image_ids[0], "language": job.language, "image_url": url}
    if table is QUESTIONS:
        return {"image_id": image_ids[0]}
    return {"image_ids": list(image_ids)}


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


Judged = tuple[int, JudgedRow | Drop]
"""The number of a row, and its result."""


@dataclass(kw_only=True, slots=True)  # not frozen: a run creates millions
class Candidate:
    """Holds an example of a row, with its id of ``--id-column``."""

    example: Example
    id: str | None = None


def read_candidates(job: OwnJob) -> Iterator[tuple[int, Candidate | Drop]]:
    """Yields the examples of the file with the numbers of their rows, or a Drop for each."""
    for number, values in read_values(job.table, job.column_indices):
        yield from make_candidates(job, number, values)


def make_candidates(
    job: OwnJob, number: int, values: Sequence[Any] | Drop
) -> Iterator[tuple[int, Candidate | Drop]]:
    """Yields the examples of a row, or a Drop for each."""
    if isinstance(values, Drop):
        yield number, values
        return
    given_id = None
    if job.columns.id:
        cell = job.columns.sort(values)["id"][0]
        identifier = usable_id(None if cell is None else str(cell), job.columns.id[0])
        if isinstance(identifier, Drop):
            yield number, identifier
            return
        given_id = identifier
    examples = job.reader.read(values)
    for index, example in enumerate(examples):
        if isinstance(example, Drop):
            yield number, example
            continue
        suffix = f"#{index}" if given_id is not None and len(examples) > 1 else ""
        example_id = None if given_id is None else given_id + suffix
        yield number, Candidate(example=example, id=example_id)


def judge_rows(
    job: OwnJob, candidates: Iterable[tuple[int, Candidate | Drop]], ledger: Ledger
) -> Iterator[Judged]:
    """Yields the result of each example, given all rows before it."""
    for number, candidate in candidates:
        if isinstance(candidate, Drop):
            yield number, candidate
        else:
            yield number, ledger.judge(job, candidate.example, candidate.id)


class Run:
    """Writes parts. An image that an earlier row has named is not read again."""

    def __init__(self, job: OwnJob, pool: ThreadPoolExecutor, examiner: Examiner) -> None:
        self.job, self._pool, self._examiner = job, pool, examiner
        self._verdicts: dict[bytes, Drop | None] = {}
        self._has_drops = False

    def make_part(self, index: int, judged: Iterator[Judged], progress: Progress) -> Result:
        """Writes the shards of a part."""
        job = self.job
        with Part(job.output, job.tables, (index, job.num_parts), job.producer()) as part:
            while chunk := list(islice(judged, CHUNK)):
                progress.advance(len(chunk), rejects=self._add(part, chunk))
        return Result(shards=part.shards)

    def _add(self, part: Part, judged: Sequence[Judged]) -> int:
        images = self._images([row for _, row in judged if isinstance(row, JudgedRow)])
        rejected = 0
        for number, result in judged:
            key = f"{self.job.table.path.name}:{number}"
            if isinstance(result, Drop):
                part.add(REJECTS, reject(ROWS, key, result.reason, result.detail))
                rejected += 1
                continue
            drop = self._find_drop(result.image_ids) if self._has_drops else None
            for name in result.first:  # another row may name the valid one of two images
                if name in images:
                    part.add(IMAGES, images[name])
            if drop is not None:
                detail = f"{drop[0]}: {drop[1].detail or ''}"
                part.add(REJECTS, reject(IMAGE_STAGE, key, drop[1].reason, detail))
                rejected += 1
                continue
            part.add(self.job.example_kind.table, result.row)
        return rejected

    def _find_drop(self, image_ids: Sequence[str]) -> tuple[str, Drop] | None:
        """Returns the first image that cannot be read, and why."""
        for name in image_ids:
            if (drop := self._verdicts.get(_key(name))) is not None:
                return name, drop
        return None

    def _images(self, rows: Sequence[JudgedRow]) -> dict[str, dict[str, Any]]:
        """Reads the images that no row of this process has named before."""
        if not self.job.with_images:
            return {}
        contents = {name: row.images.get(name) for row in rows for name in row.first}
        for row in rows:  # an earlier part, written by another process, has named it first
            for name in row.image_ids:
                contents.setdefault(name, row.images.get(name))
        new = [name for name in contents if _key(name) not in self._verdicts]
        images: dict[str, dict[str, Any]] = {}
        read = self._pool.map(lambda name: self._read(name, contents[name]), new)
        for name, row_or_drop in zip(new, read, strict=True):
            if isinstance(row_or_drop, Drop):
                self._verdicts[_key(name)] = row_or_drop
                self._has_drops = True
            else:
                self._verdicts[_key(name)] = None
                images[name] = row_or_drop
        return images

    def _read(self, name: str, content: bytes | None) -> dict[str, Any] | Drop:
        if content is not None:
            return make_image_row(content, name, self._examiner)
        return read_image_file(self.job, name, self._examiner)


def read_image_file(job: OwnJob, name: str, examiner: Examiner) -> dict[str, Any] | Drop:
    """Returns the row of an image that the file names, or the reason for having none."""
    if job.image_root is None:
        return Drop(Reason.MISSING_IMAGE, "the row has no bytes, and there is no --image-root")
    if name.startswith(WEB):
        return Drop(Reason.MISSING_IMAGE, "a URL: `manifest own` downloads nothing")
    return image_row(job.image_root, name, examiner, prefix=job.image_prefix)


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
    rows, ledger = read_candidates(job), Ledger()
    with open_run(job) as run, make_progress(job) as progress:
        for index in range(job.num_parts):
            judged = judge_rows(job, islice(rows, job.rows_per_shard), ledger)

            def make(_: OwnJob, unit: Unit, judged: Iterator[Judged] = judged) -> Result:
                return run.make_part(unit.number, judged, progress)

            if run_unit(job, work_folder(job), part_unit(index), make) is None:
                progress.advance(sum(1 for _ in judged))  # records the claims of its rows
    if progress.done != job.rows:
        raise changed_error(job)
    return collect_shards(job)


def make_progress(job: OwnJob) -> Progress:
    """Returns the progress of all rows."""
    return Progress(total=job.rows, unit="row", label=job.kind)


def collect_shards(job: OwnJob) -> list[Shard]:
    """Returns all shards of a finished job. Raises OSError if the file has changed meanwhile."""
    if hash_table(job.table) != job.digest:
        raise changed_error(job)
    units = map(part_unit, range(job.num_parts))
    return [shard for unit in units for shard in read_result(work_folder(job), unit).shards]


def changed_error(job: OwnJob) -> OSError:
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
