"""Measures the reading of published data sets, compared with `csv` and `json.load` alone.

Generates files in the layouts of CC3M, COCO captions and Visual Genome, reads each with the
manifest job in a process of its own, and beside it with the standard library alone, which keeps no
row, or all of them: of more than 1.5 million rows it reads the quarter alone. Peak memory is that
of the job on a quarter of the rows and on all of them.

    python benchmarks/manifest.py --full
"""

import csv
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from shell import new_parser, parse_form, print_lines, result_line

SHORT = {"cc": 100_000, "coco": 100_000, "vg": 150_000}
FULL = {"cc": 3_318_333, "coco": 616_767, "vg": 5_408_689}
REGIONS = 50  # of an image of Visual Genome, about
CAPTIONS = 5
MOST_IN_MEMORY = 1_500_000  # rows that `json.load` keeps, some 500 bytes each
WORDS = ("a", "the", "man", "woman", "dog", "runs", "sits", "red", "in", "near", "with", "beach")
MEASURED = """
import resource, sys, time
from vlmill.pipelines.manifest.__main__ import main
start, cpu = time.perf_counter(), time.process_time()
assert main(sys.argv[1:]) == 0
print(time.perf_counter() - start, time.process_time() - cpu,
      resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def texts(seed: int) -> Iterator[str]:
    """Endless captions of some ten words."""
    draw = random.Random(seed)
    while True:
        yield " ".join(draw.choices(WORDS, k=draw.randint(6, 14)))


def write_cc(folder: Path, rows: int) -> Path:
    """CC3M's lines of caption and URL."""
    path, captions = folder / "Train_GCC-training.tsv", texts(1)
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            file.write(f"{next(captions)} .\thttp://example.org/images/{number:08d}/photo.jpg\n")
    return path


def write_coco(folder: Path, rows: int) -> Path:
    """COCO's captions: images, then annotations, in one object."""
    path, captions = folder / "annotations/captions_train2014.json", texts(2)
    path.parent.mkdir()
    with path.open("w", encoding="utf-8") as file:
        file.write('{"info": {"year": 2014}, "images": [')
        for number in range(-(-rows // CAPTIONS)):
            name = f"COCO_train2014_{number:012d}.jpg"
            image = {
                "license": 5,
                "file_name": name,
                "coco_url": f"http://images.cocodataset.org/train2014/{name}",
                "height": 480,
                "width": 640,
                "date_captured": "2013-11-14 16:28:13",
                "flickr_url": f"http://farm4.staticflickr.com/3153/{number}_b53c9ca31f_z.jpg",
                "id": number,
            }
            file.write(", " * bool(number) + json.dumps(image))
        file.write('], "licenses": [], "annotations": [')
        for number in range(rows):
            row = {"image_id": number // CAPTIONS, "id": number, "caption": next(captions)}
            file.write(", " * bool(number) + json.dumps(row))
        file.write("]}")
    return path


def write_vg(folder: Path, rows: int) -> Path:
    """Visual Genome's images, and the regions of each."""
    path, captions = folder / "region_descriptions.json", texts(3)
    num_images = -(-rows // REGIONS)
    images = (
        {
            "image_id": number,
            "url": f"https://cs.stanford.edu/people/rak248/VG_100K/{number}.jpg",
            "width": 800,
            "height": 600,
            "coco_id": None,
            "flickr_id": number + 10**6,
        }
        for number in range(num_images)
    )
    _write_list(folder / "image_data.json", images)
    _write_list(path, (_vg_image(number, rows, captions) for number in range(num_images)))
    return path


def _vg_image(number: int, rows: int, captions: Iterator[str]) -> dict[str, Any]:
    box = {"x": 4, "y": 5, "width": 200, "height": 160}
    numbers = range(number * REGIONS, min(rows, (number + 1) * REGIONS))
    regions = [
        {"region_id": n, **box, "image_id": number, "phrase": next(captions)} for n in numbers
    ]
    return {"id": number, "regions": regions}


def _write_list(path: Path, values: Iterator[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write("[")
        for number, value in enumerate(values):
            file.write(", " * bool(number) + json.dumps(value))
        file.write("]")


def read_csv(path: Path) -> None:
    """The peer of CC3M: the standard library's rows, each thrown away."""
    with path.open(encoding="utf-8", newline="") as file:
        for _ in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            pass


def read_json(path: Path) -> None:
    """The peer of the JSON files: all of it in memory."""
    with path.open(encoding="utf-8") as file:
        json.load(file)


LAYOUTS: dict[str, tuple[Callable[[Path, int], Path], Callable[[Path], None]]] = {
    "cc": (write_cc, read_csv),
    "coco": (write_coco, read_json),
    "vg": (write_vg, read_json),
}


def job(name: str, source: Path, output: Path) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds and peak MB of the job in a process of its own."""
    flags = [name, "--input", str(source), "--output", str(output)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", MEASURED, *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"the job failed: {done.stderr[-2000:]}")
    wall, cpu, peak = map(float, done.stdout.splitlines()[-1].split())
    return wall, cpu, peak / 1024


def peer(name: str, path: Path) -> tuple[float, float]:
    """CPU seconds and peak MB of the standard library on the same file, in a fork."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        start = time.process_time()
        LAYOUTS[name][1](path)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        os.write(write_end, f"{time.process_time() - start} {peak}".encode())
        os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    with os.fdopen(read_end) as file:
        seconds, peak = map(float, file.read().split())
    return seconds, peak


def measure(name: str, rows: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Lines of one layout: rows a second beside the peer's, and how memory grows with rows."""
    peaks, seconds_of_job, paths = [], [], []
    counts = rows // 4, rows
    for part, count in zip(("quarter", "whole"), counts, strict=True):
        source = folder / part
        source.mkdir()
        paths.append(LAYOUTS[name][0](source, count))
        wall, cpu, peak = job(name, source, folder / f"{part}-out")
        peaks.append(peak)
        seconds_of_job.append(cpu)
    added = seconds_of_job[1] - seconds_of_job[0]  # without what every run costs: imports, charts
    # `json.load` takes the same time for each row, however many there are.
    place = 0 if name != "cc" and rows > MOST_IN_MEMORY else 1
    seconds, peer_peak = peer(name, paths[place])
    peer_speed = counts[place] / seconds
    yield result_line(
        f"manifest {name}",
        round(rows / cpu),
        "rows/CPU s",
        peer=round(peer_speed),
        ratio=round(rows / cpu / peer_speed, 3),
        peer_name="csv" if name == "cc" else "json.load",
        rows=rows,
        peer_rows=counts[place],
        added_rows_per_cpu_second=round((rows - rows // 4) / added),
        seconds=round(wall, 1),
        megabytes=round(paths[1].stat().st_size / 1e6, 1),
    )
    yield result_line(
        f"manifest {name}, peak memory",
        round(peaks[1]),
        "MB",
        peer=round(peer_peak),
        ratio=round(peaks[1] / peer_peak, 3),
        peer_rows=counts[place],
        at_a_quarter=round(peaks[0]),
        growth=round(peaks[1] / peaks[0], 3),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line of JSON for each result."""
    p = new_parser(__doc__)
    for name in LAYOUTS:
        p.add_argument(f"--{name}", type=int, metavar="ROWS", help=f"rows in the layout of {name}")
    options = parse_form(p, argv, short=SHORT, full=FULL)
    for name in LAYOUTS:
        with tempfile.TemporaryDirectory(prefix="vlmill-manifest-") as folder:
            print_lines(measure(name, getattr(options, name), Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
