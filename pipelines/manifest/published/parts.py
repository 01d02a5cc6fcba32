"""Writes a data set's entries as shards: each part is a number of consecutive published rows.

A part becomes one shard of each table; its rejects shard is written last, so a part with that shard
is finished. Every run reads the file of entries from its beginning, even if it continues a killed
run: an entry's result may depend on earlier entries, and reading is cheap. Images are read and
shards are written only for missing parts.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vlmill.pipelines.manifest.entries import FOOTER, IMAGE_STAGE, Entry, ListedImage, Reading, Rows
from vlmill.pipelines.manifest.part import Part
from vlmill.pipelines.manifest.published.images import (
    LIMITS,
    MAX_PIXELS,
    published_row,
    write_image,
)
from vlmill.pipelines.manifest.published.overlaps import Overlaps
from vlmill.pipelines.manifest.reading.sources import Folder
from vlmill.pipelines.manifest.reject_counts import funnel_stage, rejects_by_stage
from vlmill.pipelines.manifest.spooled import part_unit
from vlmill.pipelines.web.pages.images import Examiner, open_examiner
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.kept_values import NumberStore, ValueStore
from vlmill.runtime.files.shards import Shard, shard_name
from vlmill.runtime.units.funnel import Drop
from vlmill.runtime.units.unit import Result, Unit, read_result, run_unit, work_folder
from vlmill.schemas.ids import key64
from vlmill.schemas.images.decode import FORMATS
from vlmill.schemas.rejects import Reason, reject
from vlmill.schemas.tables import IMAGES, REJECTS, Table

if TYPE_CHECKING:
    from vlmill.pipelines.manifest.published.downloads import FetchedImages

ROWS, EXCLUDE, REQUIRE = "rows", "exclude", "require_images"  # stages, with IMAGES
CHUNK_WITH_IMAGES, CHUNK = 64, 1_000  # entries in memory together


class Reject(NamedTuple):
    """Holds the stage that drops an entry, and the reason."""

    stage: str
    drop: Drop


@dataclass(frozen=True, kw_only=True)
class Job:
    """Holds the opened and checked inputs that determine a run's output."""

    name: str
    reading: Reading
    folder: Folder
    output: Path
    tables: tuple[Table, ...]  # in the order that a part's shards are written
    overlaps: Overlaps
    producer: Mapping[str, Any]
    placeholders: frozenset[str] = frozenset()  # SHA-256 of placeholders
    fetched: "FetchedImages | None" = None  # images that were downloaded for this run
    require_images: bool = False
    rows_per_shard: int = 100_000
    workers: int = 1

    @property
    def with_images(self) -> bool:
        """Returns whether the table of images is written."""
        return IMAGES in self.tables

    @property
    def judges_images(self) -> bool:
        """Returns whether an image that is unreadable or on a list drops the rows that name it."""
        return self.with_images and (self.require_images or self.overlaps.by_hash)

    @property
    def chunk_size(self) -> int:
        """Returns the number of entries that are in memory together."""
        return CHUNK_WITH_IMAGES if self.with_images else CHUNK


@dataclass(kw_only=True)
class Tally:
    """Counts entries by group, named images, and notes."""

    groups: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    num_entries: int = 0
    num_required: int = 0  # images missing for --require-images, whose rows are rejects


def make_funnel(job: Job, tally: Tally) -> list[dict[str, Any]]:
    """Returns the funnel from the rejects: inputs, outputs and drops, by stage and reason."""
    dropped = rejects_by_stage(job.output)
    funnel: list[dict[str, Any]] = []
    stages = (ROWS, *((EXCLUDE,) if job.overlaps.has_lists else ()))
    entered = tally.num_entries
    for stage in (*stages, *((REQUIRE,) if job.require_images else ())):
        funnel.append(funnel_stage(stage, "published rows", entered, dropped[stage]))
        entered = funnel[-1]["out"]
    if job.with_images:
        images = tally.groups[IMAGE_STAGE] - tally.num_required
        funnel.append(funnel_stage(IMAGE_STAGE, IMAGE_STAGE, images, dropped[IMAGE_STAGE]))
    return funnel


def _pack(drop: Drop) -> tuple[str, str | None]:
    return drop.reason.value, drop.detail


def _unpack(values: tuple[str, str | None]) -> Drop:
    return Drop(Reason(values[0]), values[1])


class FirstImages:
    """Finds the images of an entry that no earlier entry has named."""

    def __init__(self) -> None:
        self._named = NumberStore()
        self._last: ListedImage | None = None  # the previous image: its entries are often adjacent

    def select(self, entry: Entry) -> Sequence[ListedImage]:
        """Returns the images that are named for the first time, by an entry that has rows."""
        if isinstance(entry.rows, Drop):
            return ()
        new_images = []
        for image in entry.images:
            if not image.alone:
                if image is self._last:
                    continue
                self._last = image
                if self._named.claim(key64(image.image_id), 0) is not None:
                    continue
            new_images.append(image)
        return new_images


class Run:
    """Holds the state of one run over entries: counts, and the outcomes of their images.

    ``note`` is called with the key of each image that drops the rows which name it.
    """

    def __init__(
        self,
        job: Job,
        pool: ThreadPoolExecutor,
        examiner: Examiner,
        note: Callable[[int, Drop], None] | None = None,
    ) -> None:
        self.job, self._pool, self._examiner = job, pool, examiner
        self.tally = Tally()
        self._note = note or self.keep_verdict
        self._verdicts = ValueStore(_pack, _unpack)  # of images whose rows are dropped
        self._own_verdicts: dict[int, Drop] = {}  # images that only one entry names
        self._has_verdicts = False
        self._judges = job.require_images or job.overlaps.has_lists

    def keep_verdict(self, key: int, drop: Drop) -> None:
        """Stores why the rows that name an image are dropped."""
        self._has_verdicts = True
        self._verdicts.put(key, drop)

    def take(
        self, entries: Sequence[Entry], first: Sequence[Sequence[ListedImage]], part: Part | None
    ) -> int:
        """Checks and writes entries (``part`` None: their part exists). Returns the rejects.

        ``first`` has, for each entry, the images that no earlier entry names.
        """
        tally = self.tally
        tally.num_entries += len(entries)
        tally.groups.update([entry.group for entry in entries])
        for entry in entries:
            if entry.notes:
                tally.notes.update(entry.notes)
        new_images = [image for images in first for image in images]
        tally.groups[IMAGE_STAGE] += len(new_images)
        is_needed = part is not None or self.job.judges_images
        rows_by_id = self.read_images(new_images) if is_needed else {}
        if part is None and not self._judges:
            return sum(isinstance(entry.rows, Drop) for entry in entries)
        rejected = 0
        for entry, images in zip(entries, first, strict=True):
            rows = self._judged(entry)
            if isinstance(rows, Reject):
                rejected += 1
                if part is not None:
                    stage, drop = rows
                    part.add(REJECTS, reject(stage, entry.key, drop.reason, drop.detail))
            elif part is not None:
                for table, row in rows:
                    part.add(table, row)
            for image in images:
                image_row = rows_by_id.get(image.image_id)
                if self._is_required(image_row):
                    tally.num_required += 1
                elif part is not None:
                    write_image(image, image_row, part)
        return rejected

    def _is_required(self, row: dict[str, Any] | Drop | None) -> bool:
        """Returns whether the rows of an unreadable image are rejected instead of the image."""
        lost = isinstance(row, Drop) and row.reason is not Reason.EXCLUDED
        return lost and self.job.require_images

    def _judged(self, entry: Entry) -> Rows | Reject:
        """Returns the rows of an entry that passes all stages, else the drop's stage and reason."""
        rows, job = entry.rows, self.job
        if isinstance(rows, Drop):
            return Reject(ROWS, rows)
        if not self._judges:
            return rows
        verdicts = self._find_verdicts(entry)
        drop = job.overlaps.judge(entry) if job.overlaps.has_lists else None
        drop = drop or next((v for v in verdicts if v.reason is Reason.EXCLUDED), None)
        if drop is not None and not job.overlaps.stays(entry):
            return Reject(EXCLUDE, drop)
        missing = [v for v in verdicts if v.reason is not Reason.EXCLUDED]
        if job.require_images and missing:
            return Reject(REQUIRE, missing[0])
        return rows

    def _find_verdicts(self, entry: Entry) -> list[Drop]:
        drops = []
        for image in entry.images if self._has_verdicts else ():
            verdicts = self._own_verdicts if image.alone else self._verdicts
            if (verdict := verdicts.get(key64(image.image_id))) is not None:
                drops.append(verdict)
        return drops

    def read_images(self, images: Sequence[ListedImage]) -> dict[str, dict[str, Any] | Drop]:
        """Returns the row of each image that is named for the first time, or a Drop."""
        job, hashed = self.job, self.job.overlaps.by_hash
        if not job.with_images:
            return {}
        rows: dict[str, dict[str, Any] | Drop] = {}
        self._own_verdicts = {}
        for image, row in zip(images, self._pool.map(self._read, images), strict=True):
            verdict = None
            if isinstance(row, Drop) and job.require_images:
                verdict = Drop(row.reason, f"{image.image_id}: {row.detail or ''}")
            excluded = job.overlaps.judge_image(image) if job.overlaps.ids else None
            if not isinstance(row, Drop) and hashed:
                verdict = job.overlaps.judge_hash(image.image_id, row.pop("phash"), row)
                excluded = excluded or verdict
            if verdict is not None:
                key = key64(image.image_id)
                if image.alone:
                    self._has_verdicts = True
                    self._own_verdicts[key] = verdict
                else:
                    self._note(key, verdict)
            # A training image may also be in validation, whose rows are kept.
            drop = excluded if not job.overlaps.train_only else None
            rows[image.image_id] = drop or row
        return rows

    def _read(self, image: ListedImage) -> dict[str, Any] | Drop:
        job = self.job
        row = published_row(job.folder, job.fetched, image, self._examiner)
        if not isinstance(row, Drop) and row["sha256"] in job.placeholders:
            detail = f"the same bytes as under many other ids: {row['sha256']}"
            return Drop(Reason.PLACEHOLDER, detail)
        return row


@contextmanager
def open_run(job: Job, note: Callable[[int, Drop], None] | None = None) -> Iterator[Run]:
    """Yields a run, with the threads that read images and the processes that decode them."""
    with (
        ThreadPoolExecutor(job.workers) as pool,
        open_examiner(
            job.workers,
            LIMITS,
            min_side_px=0,
            max_pixels=MAX_PIXELS,
            hashed=job.overlaps.by_hash,
            formats=FORMATS,
        ) as examiner,
    ):
        yield Run(job, pool, examiner, note)


class Parts:
    """Goes through the parts of a data set in order: each part is made or skipped.

    Skipping reads the entries, and their images if later entries depend on them.
    """

    def __init__(self, run: Run, progress: Progress) -> None:
        self.job, self.run, self._progress = run.job, run, progress
        self._first = FirstImages()
        self._entries = run.job.reading.entries()
        self._head = list(islice(self._entries, run.job.chunk_size))
        self.index = 0  # of the next part

    @property
    def ended(self) -> bool:
        """Returns whether no part remains; there is at least one."""
        return not self._head and self.index > 0

    def make(self, job: Job, unit: Unit) -> Result:
        """Writes the next part's shards."""
        with Part(job.output, job.tables, (unit.number, None), job.producer) as part:
            self._take(part)
        return Result(shards=part.shards)

    def skip(self) -> None:
        """Skips the next part, whose shards exist."""
        self._take(None)

    def _take(self, part: Part | None) -> None:
        left = self.job.rows_per_shard
        while self._head and left:
            batch, remaining = self._head[:left], self._head[left:]
            first = [self._first.select(entry) for entry in batch]
            self._progress.advance(len(batch), rejects=self.run.take(batch, first, part))
            left -= len(batch)
            self._head = remaining or list(islice(self._entries, self.job.chunk_size))
        self.index += 1


def make_parts(job: Job) -> tuple[list[Shard], Tally]:
    """Writes every missing part; returns all shards and the counts."""
    shards: list[Shard] = []
    with open_run(job) as run, make_progress(job) as progress:
        parts = Parts(run, progress)
        while not parts.ended:
            unit = part_unit(parts.index)
            if run_unit(job, work_folder(job), unit, parts.make) is None:
                parts.skip()
            shards += read_result(work_folder(job), unit).shards
    refuse_stale(job, parts.index)
    return shards, parts.run.tally


def make_progress(job: Job) -> Progress:
    """Returns the progress of all rows."""
    return Progress(total=_expected_rows(job), unit="row", label=job.name)


def _expected_rows(job: Job) -> int | None:
    """Returns the rows of the input if its footers have them; a published count may differ."""
    expected = [e for name, e in job.reading.expected.items() if name != IMAGE_STAGE]
    if any(e.source != FOOTER for e in expected):
        return None
    return sum(e.rows for e in expected) or None


def refuse_stale(job: Job, parts: int) -> None:
    """Raises OSError for shards after the last part, which must come from another input."""
    names = {shard_name(table, parts, None) for table in job.tables}
    stale = [name for name in sorted(names) if (job.output / name).exists()]
    if stale:
        raise OSError(f"{job.output / stale[0]}: the input has changed; start again with --fresh")
