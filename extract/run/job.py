"""Runs ``extract-rois run``: writes shards of regions and rejects of planned images, resumably.

A separate thread encodes, writes and syncs the shards.
"""

import dataclasses
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from vlmill.extract.config import ExtractConfig
from vlmill.extract.detect.detector import Detector
from vlmill.extract.detect.predict import lacks_bfloat16_units
from vlmill.extract.images.given_boxes import GivenBoxes
from vlmill.extract.images.plan import InputImage, plan_digest
from vlmill.extract.run.batches import ExtractionResult, get_unique_row, planned_ids, row_images
from vlmill.extract.run.devices import Engine, Window, WorkerSettings, split_windows, start_engine
from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.atomic import TEMPORARY_PREFIX, remove_leftovers
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.lock import wait_for_turn
from vlmill.runtime.files.manifest import MANIFEST, read_manifest, write_manifest
from vlmill.runtime.files.outputs import State, prepare_output, remove_work
from vlmill.runtime.files.shards import SOFTWARE, Shard, ShardWriter, shard_name, write_shard
from vlmill.runtime.readers.region_rows import RegionRow, RowGroup, encode_regions, region_arrays
from vlmill.runtime.units.share import Share
from vlmill.runtime.units.unit import (
    Result,
    Unit,
    is_finished,
    read_result,
    record_path,
    work_folder,
    write_record,
)
from vlmill.schemas.rejects import Rejected, reject
from vlmill.schemas.tables import REGIONS, REJECTS

JOB = "extract-rois run"
STAGE = "regions"


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Holds the images of one of ``total`` shards."""

    index: int
    total: int
    images: Sequence[InputImage]


@dataclass(frozen=True, kw_only=True)
class Job:
    """Holds everything that one run needs to write any of its shards.

    A process that did not plan writes a part with an empty ``plan``.
    """

    plan: Sequence[InputImage]
    output: Path
    detector: Detector
    config: ExtractConfig
    given_boxes: GivenBoxes | None = None
    inputs: Sequence[Input] = ()  # for the manifest: the files of the plan and the detector

    @property
    def num_shards(self) -> int:
        return -(-len(self.plan) // self.config.storage.images_per_shard)

    def part(self, index: int) -> Part:
        """Returns the images of a shard."""
        size = self.config.storage.images_per_shard
        images = self.plan[index * size : (index + 1) * size]
        return Part(index=index, total=self.num_shards, images=images)

    def settings(self) -> dict[str, Any]:
        """Returns everything that determines the output, including the plan: a killed run continues
        only with the same.
        """
        return {
            "software": SOFTWARE,
            "pictures": len(self.plan),
            "plan": plan_digest(self.plan),
            **self.producer(),
        }

    def producer(self) -> dict[str, Any]:
        """Returns the producer metadata of the shards."""
        return {
            "job": JOB,
            "detector_fingerprint": self.detector.fingerprint,
            "weights": self.detector.weights,
            **self.detector.config_record,
            **self.detector.names.record(),
            "device": self.detector.device.type,  # the number of devices does not change a row
            "detector": dataclasses.asdict(self.detector.model.config),
            **self.config.settings(),
            **(
                {}
                if self.detector.global_networks is None
                else {"global_cnn": self.detector.global_networks.record()}
            ),
            **(
                {}
                if self.given_boxes is None
                else {"boxes": "given", "given": self.given_boxes.digest}
            ),
        }

    def arrays(self) -> dict[str, Any]:
        """Returns the types and widths of the shards' binary columns."""
        spec, storage = self.detector.model.config, self.config.storage
        stores_probs = storage.class_probs == "full" or storage.top_k is not None
        return region_arrays(
            dtype=storage.dtype,
            feature_dim=spec.feature_size,
            class_probs_dim=spec.num_classes + 1 if stores_probs else None,
            top_k=storage.top_k and min(storage.top_k, spec.num_classes + 1),
            global_dim=None
            if self.detector.global_networks is None
            else self.detector.global_networks.width,
        )


# Groups and ends of shards that wait for the thread: beyond that the network waits, so that memory
# does not grow. Syncing a shard of 400 MB takes about as long as a fast GPU needs for six groups.
TASKS_WAITING = 8


class Background:
    """Runs tasks one after another in a thread.

    The first error of a task ends the work: later tasks are not run, and :meth:`submit` raises it,
    or else the end of the ``with`` block. When the block ends, even by its own error, the tasks
    have been run.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="writing")
        self._room = threading.Semaphore(TASKS_WAITING)
        self.error: BaseException | None = None

    def submit(self, task: Callable[[], object]) -> None:
        """Adds a task; waits while too many are waiting."""
        if self.error is not None:
            raise self.error
        self._add(lambda: None if self.error else task())

    def submit_always(self, task: Callable[[], object]) -> None:
        """Adds a task that is done even if earlier ones failed."""
        self._add(task)

    def _add(self, task: Callable[[], object]) -> None:
        self._room.acquire()
        self._thread.submit(self._do, task)

    def _do(self, task: Callable[[], object]) -> None:
        try:
            task()
        except BaseException as error:  # of any type: the other thread raises it
            self.error = self.error or error
        finally:
            self._room.release()

    def __enter__(self) -> "Background":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._thread.shutdown()
        if error is None and self.error is not None:
            raise self.error


class PartWriter:
    """Writes the two shards of one part, regions and rejects, by a :class:`Background`.

    Leaving the ``with`` block queues their end; on an exception nothing of the part appears.
    ``shards`` holds both once the background work is done, and ``finish`` is called with them.
    """

    def __init__(
        self,
        background: Background,
        folder: Path,
        index: int,
        total: int,
        *,
        producer: Mapping[str, Any],
        arrays: Mapping[str, Any],
        dtype: str,
        compression: str,
        finish: Callable[[list[Shard]], None] = lambda _: None,
    ) -> None:
        self._background, self._dtype, self._finish = background, dtype, finish
        self._place, self._producer = (folder, index, total), producer
        self._writer = ShardWriter(
            folder, REGIONS, index, total, producer=producer, arrays=arrays, compression=compression
        )
        self._open = ExitStack()
        self._group = RowGroup(compression)
        self._rejects: list[dict[str, object]] = []
        self.shards: list[Shard] = []

    def add(self, row: RegionRow) -> None:
        """Adds one row of regions."""
        if self._group.add(row):
            self._flush()

    def reject(self, row: dict[str, object]) -> None:
        """Adds one row of rejects."""
        self._rejects.append(row)

    def _flush(self) -> None:
        rows = self._group.take()
        # Features were checked on the device (extract/detect/rows.py).
        self._background.submit(
            lambda: self._writer.write(encode_regions(rows, dtype=self._dtype, checked=True))
        )

    def __enter__(self) -> "PartWriter":
        self._background.submit(lambda: self._open.enter_context(self._writer))
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None and self._background.error is None:
            self._flush()
        self._background.submit_always(lambda: self._end(error))

    def _end(self, error: BaseException | None) -> None:
        error = error or self._background.error
        if error is not None:
            with suppress(Exception):  # closing an unwritable file fails again
                self._open.__exit__(type(error), error, None)
            return
        self._open.close()
        assert self._writer.shard is not None
        folder, index, total = self._place
        rejects = write_shard(folder, REJECTS, self._rejects, index, total, producer=self._producer)
        self.shards = [self._writer.shard, rejects]
        self._finish(self.shards)


def run(
    job: Job,
    *,
    fresh: bool = False,
    worker_settings: WorkerSettings | None = None,
    share: Share | None = None,
) -> tuple[int, int]:
    """Writes every missing shard; returns the numbers of regions and of rejects.

    With a ``share`` it writes only its own shards, while other processes may write theirs; the
    returned numbers are those of the share unless all shards exist. ``worker_settings`` changes the
    speed, but no byte. Memory is bounded by the images in work, the rows that wait to be written
    and the ids seen so far, not by the images' bytes. Raises InputError if the output has a run
    with other settings.
    """
    settings = job.settings()
    if prepare(job, settings, fresh, share) is State.FINISHED:
        print(f"{job.output} is finished already; nothing to do", file=sys.stderr)
        remove_work(job.output)
        return count_rows(read_manifest(job.output)["shards"])
    if job.config.precision == "fast" and lacks_bfloat16_units(job.detector.device):
        print(
            "--precision fast: this processor has no bfloat16 units; expect it to be slower than "
            "exact; remove it unless you use a GPU",
            file=sys.stderr,
        )
    indices = range(job.num_shards) if share is None else share.select_shards(job.num_shards)
    finished = {index: shards for index in indices if (shards := finished_shards(job, index))}
    if finished:
        print_status(f"continuing: {len(finished)} of {len(indices)} shards finished before")
    images = {index: len(job.part(index).images) for index in indices}
    done = sum(images[index] for index in finished)
    todo = [index for index in indices if index not in finished]
    with (
        Progress(total=sum(images.values()), unit="image", label="regions", done=done) as progress,
        start_engine(
            worker_settings or WorkerSettings(), job.detector, job.config, job.given_boxes
        ) as engine,
        Background() as background,
    ):
        results = compute_results(engine, job, [job.part(index) for index in todo])
        written = write_parts(job, indices, finished, results, progress, background)
    shards = [shard for i in indices for shard in finished.get(i) or written[i].shards]
    if share is None:
        write_manifest(job.output, shards, job=JOB, settings=settings, inputs=job.inputs)
        remove_work(job.output)
    else:
        shards = finish_if_last(job, settings, indices, shards)
    return count_rows(shards)


def prepare(job: Job, settings: Mapping[str, Any], fresh: bool, share: Share | None) -> State:
    """Prepares the output, and returns its state."""
    if share is None:
        return prepare_output(job.output, job=JOB, settings=settings, fresh=fresh)
    for index in share.select_shards(job.num_shards):
        for name in shard_names(job, index):
            for leftover in job.output.glob(f"{TEMPORARY_PREFIX}*-{name}"):
                leftover.unlink()
    return prepare_output(job.output, job=JOB, settings=settings, shared=True)


def shard_names(job: Job, index: int) -> tuple[str, str]:
    """Returns the names of a part's two files; the second appears last."""
    regions, rejects = (shard_name(table, index, job.num_shards) for table in (REGIONS, REJECTS))
    return regions, rejects


def finish_if_last(
    job: Job, settings: Mapping[str, Any], own_indices: Sequence[int], shards: Sequence[Shard]
) -> list[Shard]:
    """Writes the manifest if the shards of all shares exist; returns the counted shards."""
    with wait_for_turn(job.output):
        if (job.output / MANIFEST).exists():
            return list(read_manifest(job.output)["shards"])
        others = sorted(set(range(job.num_shards)) - set(own_indices))
        missing = [i for i in others if not record_path(work_folder(job), part_unit(i)).exists()]
        if missing:
            print(
                f"the shards of this --part are finished; {len(missing)} shards of the "
                "other parts are missing",
                file=sys.stderr,
            )
            return list(shards)
        shards_by_index = {index: finished_shards(job, index) for index in others}
        if damaged := [index for index, pair in shards_by_index.items() if not pair]:
            name = job.output / shard_names(job, damaged[0])[0]
            raise OSError(f"{name} is damaged; run its --part again")
        remove_leftovers(job.output)
        everything = [*shards, *(shard for pair in shards_by_index.values() for shard in pair)]
        write_manifest(job.output, everything, job=JOB, settings=settings, inputs=job.inputs)
        remove_work(job.output)
        return everything


def compute_results(engine: Engine, job: Job, parts: Sequence[Part]) -> Iterator[ExtractionResult]:
    """Yields the results of the parts' images, one after the other."""
    size = job.config.window
    windows: Iterator[Window] = chain.from_iterable(split_windows(p.images, size) for p in parts)
    return chain.from_iterable(engine(windows))


def write_parts(
    job: Job,
    indices: Sequence[int],
    finished: Mapping[int, Sequence[Shard]],
    results: Iterator[ExtractionResult],
    progress: Progress,
    background: Background,
) -> dict[int, PartWriter]:
    """Writes the unfinished parts, each with its number of the results."""
    earlier_images: dict[str, InputImage] = {}
    written = {}
    for index in indices:
        part = job.part(index)
        if index in finished:
            earlier_images |= row_images(
                part.images, *(job.output / s.name for s in finished[index])
            )
        else:
            written[index] = write_part(job, part, earlier_images, results, progress, background)
        for image_id, image in planned_ids(part.images).items():
            earlier_images.setdefault(image_id, image)
    return written


def write_part(
    job: Job,
    part: Part,
    earlier_images: dict[str, InputImage],
    results: Iterator[ExtractionResult],
    progress: Progress,
    background: Background,
) -> PartWriter:
    """Queues one part's shards. ``earlier_images``: the ids that have rows already, with their
    images; grows.
    """
    writer = PartWriter(
        background,
        job.output,
        part.index,
        part.total,
        producer=job.producer(),
        arrays=job.arrays(),
        dtype=job.config.storage.dtype,
        compression=job.config.storage.compression,
        finish=partial(record_part, job, part.index),
    )
    with writer:
        for extracted in islice(results, len(part.images)):
            try:
                writer.add(get_unique_row(extracted, earlier_images))
                progress.advance()
            except Rejected as why:
                writer.reject(reject(STAGE, extracted.image.key, why.reason, why.detail))
                progress.advance(rejects=1)
    return writer


def make_shards(job: Job, part: Part, progress: Progress) -> list[Shard]:
    """Extracts one part: regions, then rejects. Its ids must be planned."""
    with (
        start_engine(WorkerSettings(), job.detector, job.config, job.given_boxes) as engine,
        Background() as background,
    ):
        results = compute_results(engine, job, [part])
        writer = write_part(job, part, {}, results, progress, background)
    return writer.shards


def part_unit(index: int) -> Unit:
    """Returns the unit of a part."""
    return Unit(name=f"part-{index:05d}", number=index)


def record_part(job: Job, index: int, shards: list[Shard]) -> None:
    """Records a part whose two files are written."""
    write_record(job, work_folder(job), part_unit(index), Result(shards=shards), ())


def finished_shards(job: Job, index: int) -> list[Shard]:
    """Returns both files of a part that an earlier run has finished; none if they have changed."""
    folder, unit = work_folder(job), part_unit(index)
    return read_result(folder, unit).shards if is_finished(job, folder, unit) else []


def count_rows(shards: Sequence[Shard]) -> tuple[int, int]:
    """Counts the rows of regions and of rejects."""
    regions, rejects = (
        sum(s.rows for s in shards if s.table == t.name) for t in (REGIONS, REJECTS)
    )
    return regions, rejects
