"""Measures the decoding of images that need far more than their bytes, and of damaged ones.

    python benchmarks/hostile_images.py [--full]

Each hostile image is decoded in a process of the kind that services and jobs decode in: its seconds
of a processor, and the memory that it takes in addition. Those at the limits are the dearest that
pass. Then bad images go through the process of ``web_pairs``: hostile ones, and photographs that
were cut or changed; memory before and after. Last, photographs in this process and in that one.
"""

import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from shell import add_counts, new_parser, parse_form, print_lines, result_line
from worlds.hostile_images import AT_LIMITS, IMAGES, photograph

from vlmill.pipelines.web.pages.images import Examiner, examine_image, open_examiner
from vlmill.runtime.bounded_calls import BoundedPool
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.images.decode import Bounds, decode
from vlmill.schemas.rejects import Rejected

BOUNDS = Bounds(max_pixels=50_000_000, max_bytes=64 << 20)
SETTINGS: dict[str, Any] = {"min_side_px": 50, "max_pixels": 50_000_000, "hashed": True}
AHEAD = 32  # images that wait for their outcome
MOST_BYTES = 200_000  # of a hostile image among the thousands
MIB = 1 << 20
SHORT = {"kinds": 1_000, "bad": 400, "rounds": 1}
FULL = {"kinds": 1_000, "bad": 5_000, "rounds": 5}


def start_decoding() -> Callable[[bytes], str]:
    """Returns what decodes an image in another process and says how that ended."""

    def decode_here(data: bytes) -> str:
        try:
            decode(data, BOUNDS)
        except Rejected as why:
            return why.reason.value
        return "decoded"

    return decode_here


def read_memory(process_id: int, field: str) -> float:
    """Returns a process's memory in MiB: ``VmRSS``, or ``VmHWM``, its peak."""
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def read_cpu_seconds(process_id: int) -> float:
    """Returns the seconds of a processor that a process has taken."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def measure_image(pool: BoundedPool[bytes, str], data: bytes) -> tuple[str, float, float]:
    """Returns how decoding an image ends, its seconds of a processor, and its MiB in addition."""
    pool.call(photograph("PNG"))
    (process_id,) = pool.process_ids
    Path(f"/proc/{process_id}/clear_refs").write_text("5")  # the peak begins anew
    seconds, before = read_cpu_seconds(process_id), read_memory(process_id, "VmRSS")
    try:
        outcome = pool.call(data)
    except Rejected as why:
        return f"killed: {why}", float("nan"), float("nan")
    peak = read_memory(process_id, "VmHWM")
    return outcome, read_cpu_seconds(process_id) - seconds, max(0.0, peak - before)


def hostile_lines(kinds: str, images: dict[str, Callable[[], bytes]]) -> Iterator[dict[str, Any]]:
    """Yields the worst seconds and the worst memory of these images."""
    results: dict[str, tuple[str, float, float]] = {}
    with BoundedPool[bytes, str](1, start_decoding) as pool:
        for name, make in images.items():
            results[name] = measure_image(pool, make())
    outcomes = dict(Counter(outcome for outcome, _, _ in results.values()))
    for index, (value, unit) in enumerate((("seconds", "s"), ("memory", "MiB")), 1):
        costs = {image: float(result[index]) for image, result in results.items()}
        name = max(costs, key=costs.__getitem__)
        worst = round(costs[name], 2)
        more = {"image": name, "images": len(results), "outcomes": outcomes}
        yield result_line(f"hostile_images/{kinds}/worst_{value}", worst, unit, **more)


def bad_images(count: int) -> Iterator[bytes]:
    """Yields hostile images in turns with damaged photographs."""
    rng = random.Random(0)
    hostile = [data for image in IMAGES.values() if len(data := image.make()) < MOST_BYTES]
    plain = [photograph(kind, 400) for kind in ("JPEG", "PNG", "WEBP", "GIF")]
    for number in range(count):
        if number % 2:
            yield hostile[number // 2 % len(hostile)]
            continue
        damaged = bytearray(plain[number // 2 % len(plain)])
        del damaged[rng.randrange(len(damaged) // 2, len(damaged)) :]
        damaged[rng.randrange(len(damaged))] ^= 0xFF
        yield bytes(damaged)


def examine_all(examiner: Examiner, images: Sequence[bytes]) -> list[str]:
    """Returns what becomes of images, some of which are under way together."""
    waits = []
    outcomes = []
    for data in images:
        waits.append(examiner.submit(data))
        if len(waits) > AHEAD:
            outcomes.append(waits.pop(0)())
    outcomes += [wait() for wait in waits]
    return [o.reason.value if isinstance(o, Drop) else "decoded" for o in outcomes]


def bad_image_lines(count: int) -> Iterator[dict[str, Any]]:
    """Yields the seconds of bad images through a job's process, and the memory before and after."""
    images = list(bad_images(count))
    with open_examiner(**SETTINGS) as examiner:
        examiner.examine(photograph("JPEG", 400))
        processes = [os.getpid(), *examiner.process_ids]
        before = [read_memory(process_id, "VmRSS") for process_id in processes]
        begin = time.perf_counter()
        outcomes = Counter(examine_all(examiner, images))
        seconds = time.perf_counter() - begin
        same = examiner.process_ids == processes[1:]
        after = [read_memory(process_id, "VmRSS") for process_id in processes] if same else before
    yield result_line(
        "hostile_images/bad_images",
        round(count / seconds, 1),
        "images/s",
        images=count,
        outcomes=dict(outcomes),
        same_process=same,
        job_mib=[round(before[0], 1), round(after[0], 1)],
        decoder_mib=[round(before[1], 1), round(after[1], 1)],
    )


def photograph_lines(images: Sequence[bytes], rounds: int) -> Iterator[dict[str, Any]]:
    """Yields the rate of photographs in this process and in another one, in turns."""
    here, there = [], []
    with open_examiner(**SETTINGS) as examiner:
        examiner.examine(images[0])
        for _ in range(rounds):
            begin = time.perf_counter()
            for data in images:
                examine_image(data, **SETTINGS)
            here.append(len(images) / (time.perf_counter() - begin))
            begin = time.perf_counter()
            examine_all(examiner, images)
            there.append(len(images) / (time.perf_counter() - begin))
    rate, direct = statistics.median(there), statistics.median(here)
    yield result_line(
        "hostile_images/photographs",
        round(rate, 1),
        "images/s",
        peer=f"in the job's own process: {direct:.1f}",
        ratio=round(rate / direct, 3),
        rounds=rounds,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the results as lines of JSON."""
    parser = new_parser(__doc__)
    add_counts(
        parser,
        kinds="kinds of hostile images to measure",
        bad="number of bad images",
        rounds="rounds over the photographs",
    )
    options = parse_form(parser, argv, short=SHORT, full=FULL)
    photographs = [photograph("JPEG", side) for side in range(400, 1_000, 5)]
    for lines in (
        hostile_lines(
            "rejected", {name: image.make for name, image in list(IMAGES.items())[: options.kinds]}
        ),
        hostile_lines("at_the_limits", dict(list(AT_LIMITS.items())[: options.kinds])),
        bad_image_lines(options.bad),
        photograph_lines(photographs, options.rounds),
    ):
        print_lines(lines)


if __name__ == "__main__":
    main()
