"""Measures extraction within 100 seconds: the rate of the command's path from JPEG files to
Parquet, that of the device alone, and the host's milliseconds of an image by stage.
"""

import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from benchmarks.gpu_check.extraction import FULL, TINY, Precision, Size, extract, queries_of
from benchmarks.gpu_check.extraction_stages import decode_rate
from benchmarks.gpu_check.measuring import Setting, places_of_waits, timed, write_photos

from vlmill.extract.config import CUDA_BATCH_SIZE, ExtractConfig
from vlmill.extract.detect import predict
from vlmill.extract.detect.detector import Detector, open_detector
from vlmill.extract.detect.predict import (
    ROI_CHUNKS,
    compute,
    computing,
    get_chunk_size,
    start_batch,
)
from vlmill.extract.detect.rows import Query
from vlmill.extract.detect.transfer import upload_batch
from vlmill.extract.images.plan import InputImage, plan_images
from vlmill.extract.run import batches, job, workers
from vlmill.extract.run.devices import WorkerSettings, start_engine
from vlmill.extract.run.job import Job
from vlmill.extract.run.workers import PixelRing
from vlmill.runtime.files.shards import ShardWriter
from vlmill.runtime.readers.regions import RegionRow

if TYPE_CHECKING:  # it imports what training needs
    from benchmarks.gpu_check.minutes_steps import Bench

DIFFERENT = 24  # photographs: two of each size
ROUNDS, TINY_ROUNDS = 10, 1
# What is timed: each is called by one thread, the first three of `IDLE` and the last by the one
# that queues the work. ShardWriter.__exit__ syncs the shard.
STAGES: dict[str, tuple[object, str]] = {
    "receive": (workers, "receive"),
    "upload": (predict, "upload_batch"),
    "queue": (predict, "compute"),
    "rows": (predict, "make_outcomes"),
    "encode": (job, "encode_regions"),
    "parquet_and_hash": (ShardWriter, "write"),
    "sync": (ShardWriter, "__exit__"),
}
# Where that thread waits: for worker processes, for the device and for the thread that writes.
IDLE: dict[str, tuple[object, str]] = {
    "workers": STAGES["receive"],
    "device": (batches, "finish"),
    "writer": (job.Background, "submit"),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """Says what is measured: batches of ``batch_size`` images for ``seconds``."""

    precision: Precision
    batch_size: int
    warm_up: int  # images
    seconds: float
    rounds: int = ROUNDS
    chunk_rounds: int = 0  # of the device alone with other numbers of regions together
    decoding: bool = False  # also the worker processes alone


CASES = (
    Case(precision="fast", batch_size=CUDA_BATCH_SIZE, warm_up=192, seconds=7.0, chunk_rounds=5),
    Case(precision="fast", batch_size=2 * CUDA_BATCH_SIZE, warm_up=192, seconds=7.0, decoding=True),
    Case(
        precision="exact",
        batch_size=CUDA_BATCH_SIZE,
        warm_up=32,
        seconds=8.0,
        rounds=3,
        chunk_rounds=1,
    ),
)
TINY_CASES = tuple(
    dataclasses.replace(case, batch_size=size, warm_up=2, seconds=0.0)
    for case, size in zip(CASES, (2, 4, 2), strict=True)
)


@dataclass(kw_only=True)
class Spent:
    """Collects the seconds of a function's calls: of the processor, and those it waited."""

    cpu: float = 0.0
    idle: float = 0.0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns ``function`` with its calls timed by their thread's clock."""

        def call(*args: Any, **kwargs: Any) -> Any:
            cpu, wall = time.thread_time(), time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                used = time.thread_time() - cpu
                self.cpu += used
                self.idle += time.perf_counter() - wall - used

        return call


def measure_extraction(bench: "Bench") -> None:
    """Records two lines of each case: the rates, and the host's time of an image."""
    setting = bench.setting
    size, cases = (TINY, TINY_CASES) if setting.tiny else (FULL, CASES)
    folder = setting.folder / "extraction"
    folder.mkdir()
    photos = write_photos(folder / "photos", size.most, different=DIFFERENT)
    plan = plan_images([str(folder / "photos")], ids="name")
    done = []
    with restored_switches():
        detector = open_detector(size.spec, None, device=str(setting.device))
        for case in cases:
            config = ExtractConfig(
                limits=size.limits, precision=case.precision, batch_size=case.batch_size
            )
            name = f"extraction {case.precision} {case.batch_size}"
            works = {
                name: partial(measure_device, setting, case, detector, config, photos),
                f"{name}/path": partial(measure_path, size, case, detector, config, plan, folder),
            }
            if case.decoding:
                works["extraction decoding"] = partial(
                    measure_decoding, plan, detector, config, size.workers
                )
            done += [record_fields(bench, name, work) for name, work in works.items()]
    if not all(done):
        raise RuntimeError(f"{done.count(False)} of {len(done)} measurements failed (above)")


def record_fields(bench: "Bench", name: str, work: Callable[[], dict[str, Any]]) -> bool:
    """Records a line with the fields that ``work`` returns; returns False if it failed."""
    return bench.record.attempt(name, lambda: bench.record.write(name, **work()))


def measure_decoding(
    plan: Sequence[InputImage], detector: Detector, config: ExtractConfig, num_workers: int
) -> dict[str, Any]:
    """Returns the images a second that worker processes decode when nothing else is done."""
    rate = decode_rate(plan, detector, config, num_workers)
    return {"images_per_s": round(rate, 1), "workers": num_workers}


@contextmanager
def restored_switches() -> Iterator[None]:
    """Sets the switches of TensorFloat-32 back after the block: other parts follow."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def measure_device(
    setting: Setting, case: Case, detector: Detector, config: ExtractConfig, photos: Sequence[Path]
) -> dict[str, Any]:
    """Returns the images a second of a device that waits for nobody, and how often the host waits
    for it in a batch.
    """
    queries = queries_of(photos, detector, config)
    start_batch(queries, detector, config)()
    rounds = TINY_ROUNDS if setting.tiny else case.rounds
    compared = compare_chunks(queries, detector, config, case.chunk_rounds)
    seconds = device_seconds(queries, detector, config, rounds)
    waits = places_of_waits(lambda: start_batch(queries, detector, config)())
    return {
        "device_images_per_s": round(len(queries) / seconds, 2),
        "device_batch_ms": round(1e3 * seconds, 2),
        "chunk": get_chunk_size(detector.device),
        "waits": waits,
        **compared,
    }


def device_seconds(
    queries: Sequence[Query], detector: Detector, config: ExtractConfig, rounds: int
) -> float:
    """Returns the median seconds of the device for a batch that is there already."""
    batch = upload_batch(queries, detector.model.config, detector.device)
    with computing(config.precision, detector.device):
        work = partial(compute, batch, detector, config)
        return timed(work, detector.device, rounds, warm_up=min(2, rounds))


def compare_chunks(
    queries: Sequence[Query], detector: Detector, config: ExtractConfig, rounds: int
) -> dict[str, Any]:
    """Returns the device's milliseconds with other numbers of regions together, and the largest
    difference of features from those of the fewest; nothing for no rounds.
    """
    if not rounds:
        return {}
    times, features = {}, {}
    for chunk in sorted(ROI_CHUNKS):
        with patch.object(predict, "get_chunk_size", lambda _, chunk=chunk: chunk):
            times[chunk] = round(1e3 * device_seconds(queries, detector, config, rounds), 2)
            rows = start_batch(queries, detector, config)()
        features[chunk] = [row.features for row in rows if isinstance(row, RegionRow)]
    first = features[min(features)]
    differences = {chunk: largest_difference(first, other) for chunk, other in features.items()}
    return {"chunk_ms": times, "chunk_difference": differences}


def largest_difference(first: Sequence[Any], other: Sequence[Any]) -> float | None:
    """Returns the largest difference of arrays; None if others were chosen."""
    if [array.shape for array in first] != [array.shape for array in other]:
        return None
    pairs = zip(first, other, strict=True)
    return max(float(abs(a.astype("f4") - b.astype("f4")).max(initial=0)) for a, b in pairs)


def measure_path(
    size: Size,
    case: Case,
    detector: Detector,
    config: ExtractConfig,
    plan: Sequence[InputImage],
    folder: Path,
) -> dict[str, Any]:
    """Returns the images a second from JPEG files to shards on disk, and where the host's time
    goes, once worker processes and kernels are warm.
    """

    def job_of(name: str, count: int) -> Job:
        output = Path(scratch) / name
        output.mkdir()
        return Job(plan=plan[:count], output=output, detector=detector, config=config)

    with (
        tempfile.TemporaryDirectory(dir=folder) as scratch,
        remembered_rings() as rings,
        start_engine(WorkerSettings(workers=size.workers), detector, config, None) as engine,
    ):
        first = min(len(plan), case.warm_up)
        started = time.perf_counter()
        extract(job_of("start", min(len(plan), 2 * size.workers)), engine)
        start_s = time.perf_counter() - started
        warm_rate = first / extract(job_of("first", first), engine)
        count = min(len(plan), max(first, int(warm_rate * case.seconds)))
        with stage_clocks() as (stages, idle, no_slots):
            cpu = time.process_time()
            seconds = extract(job_of("measured", count), engine)
            cpu = time.process_time() - cpu
    return {
        "images_per_s": round(count / seconds, 2),
        "images": count,
        "workers": size.workers,
        "start_s": round(start_s, 1),
        "host_cpu_ms": round(1e3 * cpu / count, 3),  # of all threads of this process
        "host_ms": {name: round(1e3 * spent.cpu / count, 3) for name, spent in stages.items()},
        "idle_ms": {name: round(1e3 * spent.idle / count, 3) for name, spent in idle.items()},
        "slots": [ring.memory.num_slots for ring in rings],
        "pinned": [ring.is_pinned for ring in rings],
        "images_without_slot": len(no_slots),
    }


@contextmanager
def remembered_rings() -> Iterator[list[PixelRing]]:
    """Yields a list of the rings that are opened in the block."""
    rings: list[PixelRing] = []

    def remember(*args: Any) -> PixelRing:
        rings.append(PixelRing(*args))
        return rings[-1]

    with patch.object(workers, "PixelRing", remember):
        yield rings


@contextmanager
def stage_clocks() -> Iterator[tuple[dict[str, Spent], dict[str, Spent], list[None]]]:
    """Yields the time spent in the functions of `STAGES` and of `IDLE`, which are timed in the
    block, and a list that grows with each task for which no slot was free.
    """
    clocks: dict[tuple[object, str], Spent] = {}
    no_slots: list[None] = []
    take = PixelRing.take

    def counted(ring: PixelRing) -> int | None:
        slot = take(ring)
        if slot is None:
            no_slots.append(None)
        return slot

    with ExitStack() as stack:
        for owner, name in {*STAGES.values(), *IDLE.values()}:
            spent = clocks[owner, name] = Spent()
            function = spent.timed(getattr(owner, name))
            stack.enter_context(patch.object(owner, name, function))
        stack.enter_context(patch.object(PixelRing, "take", counted))
        by_stage, by_wait = (
            {name: clocks[place] for name, place in places.items()} for places in (STAGES, IDLE)
        )
        yield by_stage, by_wait, no_slots
