"""Measures a device's measured peaks, times and memory, and how often the host waited for it."""

import io
import re
import subprocess
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw
from torch.profiler import ProfilerActivity, profile

from vlmill.train.devices.throughput import wait_for


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Says where a part runs, and whether at the small size of the tests.

    ``folder`` is the part's own and is removed after it.
    """

    device: torch.device
    tiny: bool
    folder: Path


SYNCHRONISED = "called a synchronizing CUDA operation"
COPIED_BYTES = {"cuda": 2**31, "cpu": 2**24}
# Long enough for the clocks to settle where the power limit lets them: a card alone in its first
# milliseconds is faster than it will be.
WARM_UP_S = {"cuda": 1.0, "cpu": 0.02}
PEAK_ROUNDS = 20


def timed(
    work: Callable[[], object], device: torch.device, rounds: int, *, warm_up: int = 1
) -> float:
    """Returns the median seconds of ``work``: on CUDA between two events, else by the clock.

    On CUDA that is the device's time from the first kernel to the last, gaps between them included.
    """
    for _ in range(warm_up):
        work()
    if device.type != "cuda":
        return median(clock_seconds(work, device) for _ in range(rounds))
    pairs = []
    for _ in range(rounds):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begun.record()
        work()
        ended.record()
        pairs.append((begun, ended))
    wait_for(device)
    return float(median(begun.elapsed_time(ended) for begun, ended in pairs)) / 1000


def clock_seconds(work: Callable[[], object], device: torch.device) -> float:
    """Returns seconds by the clock from an idle device to an idle device."""
    wait_for(device)
    started = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - started


def copy_peak(device: torch.device) -> float:
    """Bytes per second of a copy within the device's memory, read and written ones counted."""
    source = torch.ones(COPIED_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def copy() -> object:
        return target.copy_(source)

    warm(copy, device)
    return float(2 * source.nbytes / timed(copy, device, PEAK_ROUNDS))


def warm(work: Callable[[], object], device: torch.device) -> None:
    """Does the work until the device's clocks have settled."""
    started = time.perf_counter()
    while time.perf_counter() - started < WARM_UP_S[device.type]:
        work()
        wait_for(device)


def places_of_waits(work: Callable[[], object]) -> list[str] | None:
    """Returns each time the host waits for the device in ``work``: file and line that made it wait.

    None where there is no CUDA device, as nothing could be counted. A wait for an event, as at the
    end of a batch, does not count: it is meant.
    """
    if not torch.cuda.is_available():
        work()
        return None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [warning for warning in caught if SYNCHRONISED in str(warning.message)]
    return [f"{warning.filename}:{warning.lineno}" for warning in waits]


def kernel_times(work: Callable[[], object], device: torch.device) -> list[tuple[str, int, float]]:
    """Returns the name, number of calls and milliseconds of each kernel of ``work``, the longest
    first; on a CPU those of each operator.
    """
    is_cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if is_cuda else ProfilerActivity.CPU]) as record:
        work()
        wait_for(device)
    averages: Any = record.key_averages()
    field = "self_device_time_total" if is_cuda else "self_cpu_time_total"
    times = [(e.key, e.count, getattr(e, field) / 1000) for e in averages]
    times = [row for row in times if row[2]]  # calls of CUDA's functions take none on the device
    assert times, "the profiler recorded nothing"
    return sorted(times, key=lambda row: -row[2])


def reset_peak_memory(device: torch.device) -> None:
    """Begins anew to watch the most memory that was in use."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_gb(device: torch.device) -> float | None:
    """Returns the most memory that tensors took since the last reset, in GB; None on a CPU."""
    if device.type != "cuda":
        return None
    return torch.cuda.max_memory_allocated(device) / 1e9


def card(device: torch.device) -> dict[str, Any]:
    """Says what the numbers were measured on."""
    if device.type != "cuda":
        return {"name": "cpu", "torch": torch.__version__}
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "memory_gb": round(properties.total_memory / 1e9, 1),
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "driver": driver(),
    }


def driver() -> str | None:
    """Returns the driver's version; None where its tool is not there to ask."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    matched = re.match(r"[\d.]+", said.stdout)
    return matched[0] if matched else None


# Width and height, as often as photographs of web pages have them.
SIZES = (*((640, 480),) * 6, *((480, 640),) * 2, *((640, 427),) * 2, (640, 640), (500, 375))
SHAPES = 40
OCTAVES = 6


def photo(seed: int, size: tuple[int, int]) -> bytes:
    """Draws a JPEG with detail at every scale and edges of things, about as large as a
    photograph's.
    """
    rng = np.random.default_rng(seed)
    image = Image.fromarray(clouds(rng, size))
    draw = ImageDraw.Draw(image)
    for _ in range(SHAPES):
        corner = rng.integers(0, size)
        extent = rng.integers(10, max(size) // 3, 2)
        shade = tuple(int(value) for value in rng.integers(0, 256, 3))
        box = [*map(int, corner), *map(int, corner + extent)]
        (draw.ellipse if rng.random() < 0.5 else draw.rectangle)(box, fill=shade)
    grain = rng.normal(0, 6, (size[1], size[0], 3))
    pixels = (np.asarray(image) + grain).clip(0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=90)
    return out.getvalue()


def clouds(rng: np.random.Generator, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Draws noise of falling strength at rising resolution."""
    total = np.zeros((size[1], size[0], 3))
    for octave in range(1, OCTAVES + 1):
        coarse = rng.integers(0, 256, (2**octave, 2**octave, 3), dtype=np.uint8)
        fine = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
        total += np.asarray(fine) * 0.6**octave
    spread = (total - total.min()) / (total.max() - total.min())
    pixels: npt.NDArray[np.uint8] = (255 * spread).astype(np.uint8)
    return pixels


def write_photos(folder: Path, count: int, *, different: int) -> Sequence[Path]:
    """Writes ``count`` files; more than ``different`` repeat the first ones under other names."""
    folder.mkdir()
    files = [photo(seed, SIZES[seed % len(SIZES)]) for seed in range(min(count, different))]
    paths = [folder / f"{number:06}.jpg" for number in range(count)]
    for path, data in zip(paths, files, strict=False):
        path.write_bytes(data)
    for number in range(len(files), count):
        paths[number].hardlink_to(paths[number % len(files)])
    return paths
