"""Measures regions from JPEG files to Parquet, as ``extract-rois run`` makes them: rate, stages,
waits.
"""

import dataclasses
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
import torch
from benchmarks.gpu_check.extraction_stages import stages_of
from benchmarks.gpu_check.measuring import (
    Setting,
    kernel_times,
    peak_memory_gb,
    places_of_waits,
    reset_peak_memory,
    write_photos,
)
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from vlmill.extract.config import CUDA_BATCH_SIZE, ExtractConfig, InputLimits
from vlmill.extract.detect.detector import Detector, open_detector
from vlmill.extract.detect.predict import compute, computing, start_batch
from vlmill.extract.detect.rows import Query
from vlmill.extract.detect.transfer import upload_batch
from vlmill.extract.images.decode import decode
from vlmill.extract.images.plan import InputImage, plan_images
from vlmill.extract.images.resize import network_input, pixel_input
from vlmill.extract.run.batches import resizes_pixels
from vlmill.extract.run.devices import Engine, WorkerSettings, start_engine
from vlmill.extract.run.job import Background, Job, compute_results, write_parts
from vlmill.models.detector.config import ARCHITECTURES, DetectorConfig
from vlmill.runtime.console.progress import Progress
from vlmill.train.devices.throughput import product_rate

BARS = {"exact": 20.0, "fast": 150.0}  # images/s on an H100, from the design
Precision = Literal["exact", "fast"]


@dataclass(frozen=True, kw_only=True)
class Size:
    """Says how much is done."""

    spec: DetectorConfig
    limits: InputLimits
    different: int  # photographs
    batch_sizes: tuple[int, ...]
    warm_up: int  # images
    measured_s: float
    most: int  # images
    workers: int


# Two cores stay for the process that queues the work and for the thread that writes.
FULL = Size(
    spec=ARCHITECTURES["r101"],
    limits=InputLimits(),
    different=96,
    batch_sizes=(CUDA_BATCH_SIZE, 2 * CUDA_BATCH_SIZE),
    warm_up=128,
    measured_s=12.0,
    most=4000,
    workers=max(1, len(os.sched_getaffinity(0)) - 2),
)
TINY = Size(
    spec=dataclasses.replace(ARCHITECTURES["tiny"], post_nms_top=12, num_classes=50),
    limits=InputLimits(short_side=64, long_side=112),
    different=4,
    batch_sizes=(2,),
    warm_up=2,
    measured_s=0.0,
    most=4,
    workers=1,
)


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Holds what a run of the pipeline gave."""

    batch_size: int
    images: int
    images_per_s: float  # after the warm-up, until everything is on disk
    regions_per_image: float
    peak_memory_gb: float | None


def exact(setting: Setting) -> dict[str, object]:
    """Measures extraction in float32."""
    return extraction(setting, "exact")


def fast(setting: Setting) -> dict[str, object]:
    """Measures extraction in bfloat16."""
    return extraction(setting, "fast")


def extraction(setting: Setting, precision: Precision) -> dict[str, object]:
    """Returns the best batch size's rate beside what matrix products alone would allow, with its
    stages.
    """
    size = TINY if setting.tiny else FULL
    config = ExtractConfig(limits=size.limits, precision=precision)
    detector = open_detector(size.spec, None, device=str(setting.device))
    photos = write_photos(setting.folder / "photos", size.most, different=size.different)
    plan = plan_images([str(setting.folder / "photos")], ids="name")
    speeds = [speed_of(setting, size, detector, config, plan, batch) for batch in size.batch_sizes]
    best = max(speeds, key=lambda speed: speed.images_per_s)
    config = dataclasses.replace(config, batch_size=best.batch_size)
    queries = queries_of(photos, detector, config)
    operations = operations_of(queries, detector, config) / len(queries)
    peak = peak_of(precision, setting.device)
    waits = places_of_waits(lambda: start_batch(queries, detector, config)())
    return {
        "value": best.images_per_s,
        "unit": "images/s",
        "limit": peak / operations,
        "fraction_of_limit": best.images_per_s * operations / peak,
        "bar": BARS[precision],
        "bar_met": best.images_per_s >= BARS[precision],
        "batch_size": best.batch_size,
        "workers": size.workers,
        "layers": size.spec.depth,
        "gflop_per_picture": operations / 1e9,
        "product_tflops": peak / 1e12,
        "waits_of_host_per_batch": None if waits is None else len(waits),
        "places_of_waits": waits,
        "runs": [dataclasses.asdict(speed) for speed in speeds],
        "stages": stages_of(setting, queries, detector, config, plan, size.workers),
    }


def speed_of(
    setting: Setting,
    size: Size,
    detector: Detector,
    config: ExtractConfig,
    plan: Sequence[InputImage],
    batch_size: int,
) -> Speed:
    """Runs the pipeline for a while: first for the warm-up's rate, which says how many images."""
    config = dataclasses.replace(config, batch_size=batch_size)
    folder = setting.folder / f"regions-{batch_size}"

    def job_of(output: Path, count: int) -> Job:
        output.mkdir(parents=True)
        return Job(plan=plan[:count], output=output, detector=detector, config=config)

    with start_engine(WorkerSettings(workers=size.workers), detector, config, None) as engine:
        first = min(len(plan), size.warm_up)
        warm_rate = first / extract(job_of(folder / "first", first), engine)
        count = min(len(plan), max(first, int(warm_rate * size.measured_s)))
        reset_peak_memory(setting.device)
        seconds = extract(job_of(folder / "measured", count), engine)
    return Speed(
        batch_size=batch_size,
        images=count,
        images_per_s=count / seconds,
        regions_per_image=regions_in(folder / "measured", count) / count,
        peak_memory_gb=peak_memory_gb(setting.device),
    )


def extract(job: Job, engine: Engine) -> float:
    """Returns seconds from the first image that is asked for until the last shard is on disk.

    As ``vlmill.extract.run.job.run`` does it, with processes that have been started already.
    """
    started = time.perf_counter()
    with (
        Progress(total=len(job.plan), unit="image", label="regions") as progress,
        Background() as background,
    ):
        indices = range(job.num_shards)
        results = compute_results(engine, job, [job.part(index) for index in indices])
        write_parts(job, indices, {}, results, progress, background)
    return time.perf_counter() - started


def regions_in(folder: Path, images: int) -> int:
    """Returns how many regions were written, once every image is seen to have its row."""
    columns = [pq.read_table(path, columns=["num_boxes"]) for path in folder.glob("regions-*")]
    counts = [count for table in columns for count in table.column(0).to_pylist()]
    assert len(counts) == images, f"{len(counts)} rows of {images} images"
    return sum(counts)


def queries_of(
    photos: Sequence[Path], detector: Detector, config: ExtractConfig
) -> Sequence[Query]:
    """Returns a batch of the first photographs that have the first one's size."""
    queries: list[Query] = []
    for number in range(config.batch_size * len(photos)):
        path = photos[number % len(photos)]
        pixels = decode(path.read_bytes(), config.limits)
        make = pixel_input if resizes_pixels(detector) else network_input
        image = make(pixels, detector.model.config, config.limits)
        if not queries or image.size == queries[0].image.size:
            queries.append(Query(image_id=str(number), image=image))
        if len(queries) == config.batch_size:
            break
    return queries


def operations_of(queries: Sequence[Query], detector: Detector, config: ExtractConfig) -> int:
    """Returns floating-point operations of a batch's convolutions and products."""
    batch = upload_batch(queries, detector.model.config, detector.device)
    # The fused ones, which the counter does not know.
    aten = torch.ops.aten
    fused = {
        aten._addmm_activation: product_operations,
        aten.cudnn_convolution_relu: convolution_operations,
        aten.cudnn_convolution_add_relu: convolution_operations,
    }
    counter = FlopCounterMode(display=False, custom_mapping=fused)
    with computing(config.precision, detector.device), counter:
        compute(batch, detector, config)
    return counter.get_total_flops()


def product_operations(
    bias: Sequence[int], rows: Sequence[int], columns: Sequence[int], *_: Any, **__: Any
) -> int:
    """Counts the operations of a product with a bias, by the shapes of what it takes."""
    return 2 * math.prod(rows) * columns[1]


def convolution_operations(
    x: list[int], weight: list[int], *_: Any, out_shape: list[int], **__: Any
) -> int:
    """Counts the operations of a convolution, by the shapes of what it takes and gives."""
    return conv_flop_count(x, weight, out_shape)


def peak_of(precision: Precision, device: torch.device) -> float:
    """Returns the device's rate of products in the arithmetic of that precision."""
    kind = torch.bfloat16 if precision == "fast" else torch.float32
    with computing(precision, device):
        return product_rate(device, kind)


LONGEST = 25
NAME_LENGTH = 100


def kernels(setting: Setting) -> dict[str, object]:
    """Returns the milliseconds of all kernels in a fast batch, their number, and the longest ones
    by name.

    On a CPU the operators' own time.
    """
    size = TINY if setting.tiny else FULL
    config = ExtractConfig(limits=size.limits, precision="fast", batch_size=size.batch_sizes[0])
    detector = open_detector(size.spec, None, device=str(setting.device))
    photos = write_photos(setting.folder / "photos", 2 * config.batch_size, different=12)
    queries = queries_of(photos, detector, config)
    for _ in range(2):
        start_batch(queries, detector, config)()
    times = kernel_times(lambda: start_batch(queries, detector, config)(), setting.device)
    return {
        "value": sum(ms for *_, ms in times),
        "unit": "ms of kernels per batch",
        "pictures": len(queries),
        "calls": sum(calls for _, calls, _ in times),
        "longest": [
            {"kernel": name[:NAME_LENGTH], "calls": calls, "ms": round(ms, 3)}
            for name, calls, ms in times[:LONGEST]
        ],
    }
