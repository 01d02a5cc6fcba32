"""Where a batch's time goes: each stage of extraction by itself, outside the pipeline."""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch
from benchmarks.gpu_check.measuring import timed
from benchmarks.gpu_check.setting import Setting

from vlmill.extract.config import ExtractConfig
from vlmill.extract.detect.detector import Detector
from vlmill.extract.detect.precision import computing
from vlmill.extract.detect.predict import Query, kept_tensors
from vlmill.extract.detect.predict_fixed import (
    ROI_CHUNK,
    download,
    frames_of,
    in_one_row,
    start_batch,
    uploaded,
)
from vlmill.extract.detect.selection_fixed import select_fixed
from vlmill.extract.pictures.decode import decode
from vlmill.extract.pictures.plan import Picture
from vlmill.extract.pictures.resize import network_input
from vlmill.extract.run.batches import resizes_pixels
from vlmill.extract.run.job import Job
from vlmill.extract.run.workers import source_of
from vlmill.models.detector.batch import BatchDetections, numbered
from vlmill.schemas.files.shards import write_shard
from vlmill.schemas.readers.regions import RegionRow, encode_regions
from vlmill.schemas.tables import REGIONS
from vlmill.train.devices.throughput import wait_for

ROUNDS, TINY_ROUNDS = 5, 1
DECODED = 400  # pictures, or all there are
WRITTEN_ROWS = 128

Work = Callable[[], object]


def stages_of(
    setting: Setting,
    queries: Sequence[Query],
    detector: Detector,
    config: ExtractConfig,
    plan: Sequence[Picture],
    workers: int,
) -> dict[str, Any]:
    """Milliseconds of a batch on the device and of the host that queues it, and the host's parts.

    ``device_ms`` counts the gaps in which the device has nothing to do: where it is no more than
    ``queue_ms``, the host is what is slow.
    """
    device, rounds = setting.device, TINY_ROUNDS if setting.tiny else ROUNDS
    with computing(config.precision, device):
        on_device = device_stages(queries, detector, config)
        stages = {name: both_times(work, device, rounds) for name, work in on_device.items()}
    rows = start_batch(queries, detector, config)()
    assert all(isinstance(row, RegionRow) for row in rows)
    return {
        **stages,
        "rows": {"host_ms": rows_ms(queries, detector, config, rounds)},
        "decode_one_thread": decode_ms(plan, detector, config, rounds),
        "decode_workers": {"pictures_per_s": decode_rate(plan, detector, config, workers)},
        "writing": writing(setting, rows, detector, config),  # type: ignore[arg-type]
    }


def device_stages(
    queries: Sequence[Query], detector: Detector, config: ExtractConfig
) -> Mapping[str, Work]:
    """The steps of :func:`vlmill.extract.detect.predict_fixed.compute`, each on what the last
    one gave.
    """
    model, spec = detector.model, detector.model.config
    heads = model.roi_heads
    pictures, measures, _ = uploaded(queries, detector)
    frames, (height, width) = frames_of(measures), pictures.shape[2:]
    features = model.feature_map(pictures)
    boxes, taken = model.proposal_generator.propose_fixed(features, height, width, frames.sides)
    rois, flat = numbered(boxes), boxes.reshape(-1, 4)
    maps = features.float().contiguous()
    pooled = heads.pool(maps, rois[:ROI_CHUNK])
    means = heads.region_features(features, rois, ROI_CHUNK)
    batch = BatchDetections(found=model.classify(flat, means), taken=taken, whole=None)
    chosen = select_fixed(batch, spec, frames, config.selection)

    def kept() -> dict[str, torch.Tensor]:
        return kept_tensors(batch.found, in_one_row(chosen, batch), spec, config.storage)

    results = {**kept(), "taken": chosen.taken}
    return {
        "upload": lambda: uploaded(queries, detector),
        "backbone": lambda: model.feature_map(pictures),
        "proposals": lambda: model.proposal_generator.propose_fixed(
            features, height, width, frames.sides
        ),
        f"pooling_of_{len(pooled)}_regions": lambda: heads.pool(maps, rois[:ROI_CHUNK]),
        f"res5_of_{len(pooled)}_regions": lambda: heads.region_means(pooled),
        "pooling_and_res5": lambda: heads.region_features(features, rois, ROI_CHUNK),
        "heads": lambda: model.classify(flat, means),
        "selection": lambda: select_fixed(batch, spec, frames, config.selection),
        "kept": kept,
        "download": lambda: download(results)(),
    }


def both_times(work: Work, device: torch.device, rounds: int) -> dict[str, float]:
    """Of the device, and of the host until everything is queued."""
    return {
        "device_ms": 1000 * timed(work, device, rounds, warm_up=min(2, rounds)),
        "queue_ms": 1000 * median(queue_seconds(work, device) for _ in range(rounds)),
    }


def queue_seconds(work: Work, device: torch.device) -> float:
    """Seconds until ``work`` returns, begun with an idle device."""
    wait_for(device)
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def rows_ms(
    queries: Sequence[Query], detector: Detector, config: ExtractConfig, rounds: int
) -> float:
    """Milliseconds that the host takes for a batch's rows once they have arrived."""
    times = []
    for _ in range(rounds):
        finish = start_batch(queries, detector, config)
        times.append(queue_seconds(finish, detector.device))
    return 1000 * median(times)


def decode_ms(
    plan: Sequence[Picture], detector: Detector, config: ExtractConfig, rounds: int
) -> dict[str, float]:
    """Milliseconds of one thread for the first picture: decoding, and resizing."""
    with open(plan[0].path, "rb") as file:
        data = file.read()
    pixels = decode(data, config.limits)
    cpu = torch.device("cpu")
    return {
        "decode_ms": 1000 * timed(lambda: decode(data, config.limits), cpu, rounds),
        "resize_ms": 1000
        * timed(lambda: network_input(pixels, detector.model.config, config.limits), cpu, rounds),
    }


def decode_rate(
    plan: Sequence[Picture], detector: Detector, config: ExtractConfig, workers: int
) -> float:
    """Pictures a second that the worker processes hand over when nothing else is done."""
    spec = detector.model.config
    resize = not resizes_pixels(detector)
    with source_of(spec, config.limits, workers, config.batch_size, resize=resize) as source:
        list(source(plan[: 2 * workers]))  # the processes start
        asked = plan[:DECODED]
        started = time.perf_counter()
        for _ in source(asked):
            pass
        return len(asked) / (time.perf_counter() - started)


def writing(
    setting: Setting, rows: Sequence[RegionRow], detector: Detector, config: ExtractConfig
) -> dict[str, float]:
    """Milliseconds of the writing thread for a picture, and bytes a second."""
    many = [rows[number % len(rows)] for number in range(WRITTEN_ROWS)]
    job = Job(plan=(), output=setting.folder, detector=detector, config=config)
    folder = setting.folder / "written"

    def write() -> object:
        table = encode_regions(many, dtype=config.storage.dtype)
        return write_shard(folder, REGIONS, table, arrays=job.arrays())

    seconds = timed(write, torch.device("cpu"), TINY_ROUNDS if setting.tiny else 3)
    size = sum(path.stat().st_size for path in folder.iterdir())
    return {"ms_per_picture": 1000 * seconds / len(many), "mb_per_s": size / seconds / 1e6}
