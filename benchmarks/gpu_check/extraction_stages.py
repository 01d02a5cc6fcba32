"""Measures each stage of extraction alone, outside the pipeline."""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch
from benchmarks.gpu_check.measuring import Setting, timed

from vlmill.extract.config import ExtractConfig
from vlmill.extract.detect.detector import Detector
from vlmill.extract.detect.predict import computing, get_chunk_size, start_batch
from vlmill.extract.detect.rows import Query, in_stored_type, stored_tensors
from vlmill.extract.detect.selection import select
from vlmill.extract.detect.transfer import download, make_frames, upload_batch
from vlmill.extract.images.decode import decode
from vlmill.extract.images.plan import InputImage
from vlmill.extract.images.resize import network_input
from vlmill.extract.run.batches import resizes_pixels
from vlmill.extract.run.job import Job
from vlmill.extract.run.workers import open_source
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.roi_heads import number_boxes, pool_regions, poolable
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.regions import RegionRow, encode_regions
from vlmill.schemas.tables import REGIONS
from vlmill.train.devices.throughput import wait_for

ROUNDS, TINY_ROUNDS = 5, 1
DECODED = 400  # images, or all there are
WRITTEN_ROWS = 128

Work = Callable[[], object]


def stages_of(
    setting: Setting,
    queries: Sequence[Query],
    detector: Detector,
    config: ExtractConfig,
    plan: Sequence[InputImage],
    workers: int,
) -> dict[str, Any]:
    """Returns milliseconds of a batch on the device and of the host that queues it, and the host's
    parts.

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
    """Repeats the steps of ``compute`` (extract/detect/predict.py), each on what the last gave."""
    model, device = detector.model, detector.device
    assert isinstance(model, FasterRCNN)  # these are its steps, no other backend's
    spec = model.config
    heads, chunk = model.roi_heads, get_chunk_size(device)
    batch = upload_batch(queries, spec, device)
    frames = make_frames(batch.measures)
    limits, min_sides = frames.network_limits, frames.min_sides
    features = model.feature_maps(batch.images)
    boxes, taken = model.proposals(features, limits, min_sides)
    rois, maps = number_boxes(boxes)[:chunk], poolable(features, spec)
    pooled = pool_regions(maps, rois, spec)
    means = heads.region_features(features, boxes, taken, chunk)
    detections = model.classify(boxes, taken, means)
    chosen = select(detections, spec, frames, config.selection)

    def stored() -> dict[str, torch.Tensor]:
        found = stored_tensors(detections, chosen, spec, config.storage)
        return in_stored_type(found, chosen.box_mask, config.storage)

    results = {**stored(), "taken": chosen.box_mask}
    return {
        "upload": lambda: upload_batch(queries, spec, device),
        "backbone": lambda: model.feature_maps(batch.images),
        "proposals": lambda: model.proposals(features, limits, min_sides),
        f"pooling_of_{len(pooled)}_regions": lambda: pool_regions(maps, rois, spec),
        f"res5_of_{len(pooled)}_regions": lambda: heads.describe(pooled),
        "pooling_and_res5": lambda: heads.region_features(features, boxes, taken, chunk),
        "heads": lambda: model.classify(boxes, taken, means),
        "selection": lambda: select(detections, spec, frames, config.selection),
        "kept": stored,
        "download": lambda: download(results)(),
    }


def both_times(work: Work, device: torch.device, rounds: int) -> dict[str, float]:
    """Of the device, and of the host until everything is queued."""
    return {
        "device_ms": 1000 * timed(work, device, rounds, warm_up=min(2, rounds)),
        "queue_ms": 1000 * median(queue_seconds(work, device) for _ in range(rounds)),
    }


def queue_seconds(work: Work, device: torch.device) -> float:
    """Returns seconds until ``work`` returns, begun with an idle device."""
    wait_for(device)
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def rows_ms(
    queries: Sequence[Query], detector: Detector, config: ExtractConfig, rounds: int
) -> float:
    """Returns milliseconds that the host takes for a batch's rows once they have arrived."""
    times = []
    for _ in range(rounds):
        finish = start_batch(queries, detector, config)
        times.append(queue_seconds(finish, detector.device))
    return 1000 * median(times)


def decode_ms(
    plan: Sequence[InputImage], detector: Detector, config: ExtractConfig, rounds: int
) -> dict[str, float]:
    """Returns milliseconds of one thread for the first image: decoding, and resizing."""
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
    plan: Sequence[InputImage], detector: Detector, config: ExtractConfig, workers: int
) -> float:
    """Returns the images a second that the worker processes hand over when nothing else is
    done.
    """
    spec = detector.model.config
    resize = not resizes_pixels(detector)
    device = detector.device
    with open_source(
        spec, config.limits, workers, config.batch_size, resize=resize, device=device
    ) as source:
        list(source(plan[: 2 * workers]))  # the processes start
        asked = plan[:DECODED]
        started = time.perf_counter()
        for _ in source(asked):
            pass
        return len(asked) / (time.perf_counter() - started)


def writing(
    setting: Setting, rows: Sequence[RegionRow], detector: Detector, config: ExtractConfig
) -> dict[str, float]:
    """Returns milliseconds of the writing thread for an image, and bytes a second."""
    many = [rows[number % len(rows)] for number in range(WRITTEN_ROWS)]
    job = Job(plan=(), output=setting.folder, detector=detector, config=config)
    folder = setting.folder / "written"

    def write() -> object:
        table = encode_regions(many, dtype=config.storage.dtype)
        return write_shard(folder, REGIONS, table, arrays=job.arrays())

    seconds = timed(write, torch.device("cpu"), TINY_ROUNDS if setting.tiny else 3)
    size = sum(path.stat().st_size for path in folder.iterdir())
    return {"ms_per_picture": 1000 * seconds / len(many), "mb_per_s": size / seconds / 1e6}
