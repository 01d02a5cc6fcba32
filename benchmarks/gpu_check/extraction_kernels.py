"""Measures the time of each kernel in a batch of extraction."""

from collections.abc import Sequence
from typing import Any

import torch
from benchmarks.gpu_check.extraction import FULL, TINY, queries_of
from benchmarks.gpu_check.measuring import write_photos
from benchmarks.gpu_check.setting import Setting
from torch.profiler import ProfilerActivity, profile

from vlmill.extract.config import ExtractConfig
from vlmill.extract.detect.detector import Detector, open_detector
from vlmill.extract.detect.predict import start_batch
from vlmill.extract.detect.rows import Query
from vlmill.train.devices.throughput import wait_for

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
    rows = rows_of(recorded(queries, detector, config), setting.device)
    total = sum(row["ms"] for row in rows)
    return {
        "value": total,
        "unit": "ms of kernels per batch",
        "pictures": len(queries),
        "calls": sum(row["calls"] for row in rows),
        "longest": rows[:LONGEST],
    }


def recorded(queries: Sequence[Query], detector: Detector, config: ExtractConfig) -> Any:
    """Returns the profiler's record of one batch."""
    device = detector.device
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as record:
        start_batch(queries, detector, config)()
        wait_for(device)
    return record


def rows_of(record: Any, device: torch.device) -> list[dict[str, Any]]:
    """Returns names, numbers of calls and milliseconds, the longest first."""
    averages = record.key_averages()
    if device.type == "cuda":
        # The operators that launched them carry their time once more.
        ours = [e for e in averages if e.device_type.name == "CUDA"]
        times = [(e.key, e.count, e.self_device_time_total) for e in ours]
    else:
        times = [(e.key, e.count, e.self_cpu_time_total) for e in averages]
    assert times, "the profiler recorded nothing"
    longest = sorted(times, key=lambda row: -row[2])
    return [
        {"kernel": name[:NAME_LENGTH], "calls": calls, "ms": round(us / 1000, 3)}
        for name, calls, us in longest
    ]
