"""Measures region extraction on this CPU by part, compared with the public extractors' graph.

Prints lines of JSON. ``peer`` is the graph of peers/public_extractor.py, run on the same images
and random weights in the same process; its boxes, features and chosen regions must be equal.
``limit`` is the rate of a 2048^3 matrix product in the same type, measured in turn with the
images. The peer of ``fast`` is ``exact``.
Seconds are CPU seconds of all threads, the least of the rounds: they hold on a machine that does
other work too.

    VLMILL_DATA=data python benchmarks/extract.py --full

Images are the first ones of $VLMILL_DATA/coco, or generated ones without that folder.
"""

import dataclasses
import io
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

# Waiting threads must sleep: spinning ones count as CPU time and take the cores of others.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from peers import public_extractor
from PIL import Image
from shell import add_counts, new_parser, parse_form, peak_gb, print_line, timed
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from vlmill.extract.config import ExtractConfig, Storage
from vlmill.extract.detect.detector import Detector, open_detector
from vlmill.extract.detect.predict import CPU_ROI_CHUNK, extract_regions
from vlmill.extract.detect.rows import Query, in_stored_type, make_outcomes, stored_tensors
from vlmill.extract.detect.selection import select
from vlmill.extract.detect.transfer import compute_measures, make_frames
from vlmill.extract.images.decode import decode
from vlmill.extract.images.resize import NetworkInput, network_input
from vlmill.models.detector.config import ARCHITECTURES, DetectorConfig
from vlmill.models.detector.faster_rcnn import FasterRCNN
from vlmill.models.detector.fused_stages import FusedStage, pooling_windows, window_maxima
from vlmill.models.detector.random_weights import randomise
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.regions import RegionRow, encode_regions, region_arrays
from vlmill.schemas.tables import REGIONS

GEMM_SIDE, GEMM_ROUNDS = 2048, 4
SHORT, FULL = {"images": 1, "rounds": 1}, {"images": 2, "rounds": 2}
TOLERANCE = 1e-5  # of the largest value, where features are compared


@dataclass(frozen=True, kw_only=True)
class Round:
    """CPU seconds and operations of the parts of one image, wall seconds of the whole."""

    seconds: dict[str, float]
    operations: dict[str, int]
    wall: float

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


class Parts:
    """Takes the CPU time of named parts; counts operations only when asked, as that costs time."""

    def __init__(self, *, count: bool) -> None:
        self.count = count
        self.seconds: dict[str, float] = defaultdict(float)
        self.operations: dict[str, int] = defaultdict(int)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Times the block as ``name``."""
        counter = FlopCounterMode(display=False, custom_mapping=fused_counts())
        start = time.process_time()
        if self.count:
            with counter:
                yield
            self.operations[name] += counter.get_total_flops()
        else:
            yield
        self.seconds[name] += time.process_time() - start


def fused_counts() -> dict[Any, Callable[..., int]]:
    """Operations of oneDNN's fused convolutions, which torch's counter does not know."""

    def plain(x: Any, weight: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
        return conv_flop_count(list(x), list(weight), list(out_shape))

    def binary(_: Any, x: Any, weight: Any, *__: Any, out_shape: Any = None, **___: Any) -> int:
        return conv_flop_count(list(x), list(weight), list(out_shape))

    operators = torch.ops.mkldnn
    return {operators._convolution_pointwise: plain, operators._convolution_pointwise_: binary}


def by_parts(
    data: bytes, detector: Detector, config: ExtractConfig, folder: Path, *, count: bool = False
) -> tuple[Round, RegionRow]:
    """One image from its bytes to its shard, part by part: the steps of ``extract-rois run``."""
    parts, wall = Parts(count=count), time.monotonic()
    model, spec = detector.model, detector.model.config
    with torch.inference_mode():
        with parts.part("decode"):
            pixels = decode(data, config.limits)
        with parts.part("preprocess"):
            image = prepare(pixels, spec, config)
        with parts.part("backbone"):
            maps = model.feature_maps(image.tensor)
        query = Query(image_id="picture", image=image)
        frames = make_frames(torch.tensor([compute_measures(query, spec)]))
        with parts.part("rpn"):
            boxes, taken = model.proposals(maps, frames.network_limits, frames.min_sides)
        with parts.part("pooling"):
            (features,) = maps
            rows, columns = features.shape[2:]
            windows = pooling_windows(boxes[taken], 1 / spec.stride, spec.pool_size, rows, columns)
            cells = window_maxima(features[0].permute(1, 2, 0).contiguous(), windows.bounds)
        with parts.part("res5"):
            assert isinstance(model, FasterRCNN)
            res5 = model.roi_heads.res5
            assert isinstance(res5, FusedStage)
            means = boxes.new_zeros((*taken.shape, spec.feature_size))
            means[taken] = res5.shared_means(cells, windows.index, CPU_ROI_CHUNK)
        with parts.part("heads"):
            detections = model.classify(boxes, taken, means)
        with parts.part("selection"):
            chosen = select(detections, spec, frames, config.selection)
            found = stored_tensors(detections, chosen, spec, config.storage)
            tensors = in_stored_type(found, chosen.box_mask, config.storage)
            arrays = {name: values.numpy() for name, values in tensors.items()}
            (row,) = make_outcomes(
                [query], {**arrays, "taken": chosen.box_mask.numpy()}, config.storage
            )
            assert isinstance(row, RegionRow)
        with parts.part("write"):
            write(row, spec, config, folder)
    elapsed = time.monotonic() - wall
    return Round(seconds=parts.seconds, operations=parts.operations, wall=elapsed), row


def prepare(pixels: Any, spec: DetectorConfig, config: ExtractConfig) -> NetworkInput:
    """The network's input."""
    return network_input(pixels, spec, config.limits)


def write(row: RegionRow, spec: DetectorConfig, config: ExtractConfig, folder: Path) -> None:
    """A shard of one row."""
    storage = config.storage
    arrays = region_arrays(dtype=storage.dtype, feature_dim=spec.feature_size, class_probs_dim=None)
    write_shard(folder, REGIONS, encode_regions([row], dtype=storage.dtype), arrays=arrays)


def gemm_rate(dtype: torch.dtype = torch.float32) -> float:
    """GFLOP per CPU second of a matrix product."""
    matrix = torch.randn(GEMM_SIDE, GEMM_SIDE).to(dtype)
    seconds, _ = timed(lambda: matrix @ matrix, GEMM_ROUNDS)
    return 2 * GEMM_SIDE**3 / seconds / 1e9


def photos(count: int) -> list[bytes]:
    """The first photographs of the data folder, or images of coloured blobs, 640 x 480."""
    folder = Path(os.environ.get("VLMILL_DATA", "")) / "coco"
    paths = sorted(folder.glob("*.jpg"))[:count] if "VLMILL_DATA" in os.environ else []
    if paths:
        return [path.read_bytes() for path in paths]
    made = []
    for seed in range(count):
        blobs = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), dtype=np.uint8)
        out = io.BytesIO()
        Image.fromarray(blobs).resize((640, 480), Image.Resampling.BICUBIC).save(out, "JPEG")
        made.append(out.getvalue())
    return made


def peer_round(
    data: bytes, model: FasterRCNN, config: ExtractConfig
) -> tuple[float, public_extractor.Regions, NetworkInput]:
    """CPU seconds of the public graph from the image's bytes to its chosen regions."""
    start = time.process_time()
    with torch.inference_mode():
        image = prepare(decode(data, config.limits), model.config, config)
        regions = public_extractor.extract(model, image.tensor, image.scale, config.selection)
    return time.process_time() - start, regions, image


def difference(row: RegionRow, regions: public_extractor.Regions, scale: float) -> float:
    """The largest difference of features or boxes, as a fraction of the largest value.

    Raises AssertionError for other regions, or the same in another order.
    """
    boxes = regions.boxes[regions.chosen].numpy() / scale
    features = regions.features[regions.chosen].numpy()
    assert row.features is not None and row.boxes.shape == boxes.shape
    pairs = ((row.boxes, boxes), (row.features, features))
    return float(np.max([abs(a - b).max() / abs(b).max() for a, b in pairs]))  # NaN stays NaN


def measure(
    images: Sequence[bytes], rounds: int, detector: Detector, config: ExtractConfig
) -> tuple[list[Round], list[RegionRow], float]:
    """The best round of each image, its row, and the best rate of matrix products."""
    best: list[Round] = []
    rows: list[RegionRow] = []
    gemm = 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, data in enumerate(images):
            counted, row = by_parts(data, detector, config, folder, count=True)
            tried = []
            for _ in range(rounds):
                gemm = max(gemm, gemm_rate())
                tried.append(by_parts(data, detector, config, folder)[0])
            fastest = min(tried, key=lambda r: r.total)
            best.append(
                Round(
                    seconds=fastest.seconds,
                    operations=counted.operations,
                    wall=min(r.wall for r in tried),
                )
            )
            rows.append(row)
            if not number:
                whole = extract_regions("picture", data, detector, config)
                assert whole.features is not None and row.features is not None
                assert np.array_equal(whole.boxes, row.boxes), "the parts are not the whole"
                assert np.array_equal(whole.features, row.features), "the parts are not the whole"
    return best, rows, gemm


def report(name: str, best: Sequence[Round], gemm: float) -> float:
    """Prints the parts, summed over the images; returns CPU seconds an image."""
    count = len(best)
    total = sum(r.total for r in best)
    for part in best[0].seconds:
        seconds = sum(r.seconds[part] for r in best)
        done = sum(r.operations.get(part, 0) for r in best) / 1e9
        print_line(f"{name}/{part}", seconds / count, "CPU s/image", share=seconds / total)
        if done / seconds > 1:
            rate = done / seconds
            fraction = rate / gemm
            print_line(
                f"{name}/{part}/rate", rate, "GFLOP/CPU s", limit=gemm, fraction_of_limit=fraction
            )
    done = sum(sum(r.operations.values()) for r in best) / 1e9
    print_line(
        f"{name}/rate",
        done / total,
        "GFLOP/CPU s",
        limit=gemm,
        fraction_of_limit=done / total / gemm,
    )
    print_line(f"{name}/wall", count / sum(r.wall for r in best), "images/s")
    return total / count


def compare(
    name: str,
    images: Sequence[bytes],
    rows: Sequence[RegionRow],
    own: float,
    rounds: int,
    model: FasterRCNN,
    config: ExtractConfig,
) -> None:
    """Runs the public graph, checks that its output is equal, prints the ratio."""
    seconds, worst = 0.0, 0.0
    for data, row in zip(images, rows, strict=True):
        times = []
        for _ in range(rounds):
            spent, theirs, image = peer_round(data, model, config)
            times.append(spent)
        seconds += min(times)
        worst = float(np.maximum(worst, difference(row, theirs, image.scale)))
        print(f"{len(theirs.boxes)} proposals, {len(row.boxes)} regions", file=sys.stderr)
    peer = seconds / len(images)
    print_line(f"{name}/difference", worst, "of the largest value", limit=TOLERANCE)
    assert worst <= TOLERANCE, "the outputs differ"
    print_line(f"{name}/picture", 1 / own, "images/CPU s", peer=1 / peer, ratio=peer / own)


def compare_precisions(
    name: str,
    images: Sequence[bytes],
    operations: int,
    rounds: int,
    detector: Detector,
    config: ExtractConfig,
) -> None:
    """Prints the rate of ``fast`` against ``exact``, in turn, beside bfloat16's matrix product."""
    configs = {kind: dataclasses.replace(config, precision=kind) for kind in ("exact", "fast")}
    seconds, gemm = dict.fromkeys(configs, 0.0), 0.0
    for data in images:
        times: dict[str, list[float]] = {kind: [] for kind in configs}
        for _ in range(rounds):
            gemm = max(gemm, gemm_rate(torch.bfloat16))
            for kind, own in configs.items():
                spent, _ = timed(partial(extract_regions, "picture", data, detector, own))
                times[kind].append(spent)
        for kind, tried in times.items():
            seconds[kind] += min(tried)
    exact, fast = (seconds[kind] / len(images) for kind in configs)
    print_line(f"{name}/fast", 1 / fast, "images/CPU s", peer=1 / exact, ratio=exact / fast)
    rate = operations / len(images) / fast / 1e9
    print_line(f"{name}/fast/rate", rate, "GFLOP/CPU s", limit=gemm, fraction_of_limit=rate / gemm)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = new_parser(__doc__)
    parser.add_argument("--arch", choices=ARCHITECTURES, default="r101")
    add_counts(parser, images="images to extract", rounds="rounds to measure; the fastest counts")
    arguments = parse_form(parser, argv, short=SHORT, full=FULL)
    config = ExtractConfig(storage=Storage(dtype="float32"))
    images = photos(arguments.images)
    name = f"extract/{arguments.arch}"
    detector = open_detector(ARCHITECTURES[arguments.arch], None)
    best, rows, gemm = measure(images, arguments.rounds, detector, config)
    own = report(name, best, gemm)
    print_line(f"{name}/peak_rss", peak_gb(), "GB")
    operations = sum(sum(of_image.operations.values()) for of_image in best)
    compare_precisions(name, images, operations, arguments.rounds, detector, config)
    plain = FasterRCNN(detector.model.config).requires_grad_(False).eval()
    randomise(plain, 0)
    compare(name, images, rows, own, arguments.rounds, plain, config)
    print_line(f"{name}/peer_peak_rss", peak_gb(), "GB")


if __name__ == "__main__":
    main()
