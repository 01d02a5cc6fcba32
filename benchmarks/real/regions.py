"""Writes region features of photographs as a ``regions`` table.

An image is resized, keeping its aspect ratio, to sides that are multiples of 32 with an area of
about 320 x 320. EfficientNet-Lite0 (ImageNet) gives the 1,280 channels of the layer before its
pooling, at a stride of 32. The feature of a box is the mean of that map over the box (RoIAlign of
2 x 2 bins with 2 x 2 samples each, averaged). Its class distribution is that of the network's own
classifier on this feature: the 20 most likely of 1,000 ImageNet classes, after a background of 0.
``global_feature`` is the mean of the full map.

Up to 32 boxes an image, in this order: the full image, its four quadrants and its centre (half the
sides), up to 10 boxes of the SSD with a score of 0.15 or more (MobileNet v2, trained on COCO; its
COCO classes are not stored), and a 4 x 4 grid. The attributes are null.
"""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision.ops import nms, roi_align

from real import networks
from real.photographs import chunks
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.outputs import State, prepare_output
from vlmill.runtime.files.shards import Shard, describe_finished, shard_name, write_shard
from vlmill.runtime.processes import live_as_long_as_the_parent
from vlmill.runtime.readers.regions import RegionRow, encode_regions, region_arrays
from vlmill.schemas.images.decode import Bounds, decode
from vlmill.schemas.tables import REGIONS

JOB = "real photographs"
DTYPE = "float16"
AREA, STRIDE = 320 * 320, 32
DIM, CLASSES, TOP_K = 1280, 1000, 20
SSD_SCORE, SSD_BOXES, SSD_OVERLAP, SSD_SIDE = 0.15, 10, 0.7, 300
GRID = 4
IMAGES_PER_SHARD = 200
BOUNDS = Bounds(max_pixels=20_000_000, max_bytes=20_000_000)
SETTINGS = {
    "layer": "before pooling",
    "area": AREA,
    "boxes": ["image", "quadrants", "centre", "ssd", f"grid {GRID}"],
    "ssd": [SSD_SCORE, SSD_BOXES, SSD_OVERLAP],
    "top_k": TOP_K,
}


def write_regions(images: list[tuple[str, Path]], output: Path, *, jobs: int = 1) -> None:
    """Writes the regions of (image_id, path) items; finished shards of an earlier run are kept."""
    detector = networks.fingerprint(SETTINGS)
    settings = {**SETTINGS, "images": len(images), "detector": detector}
    if prepare_output(output, job=JOB, settings=settings) is State.FINISHED:
        return
    parts = list(chunks(images, IMAGES_PER_SHARD))
    tasks = [(part, output, i, len(parts), detector) for i, part in enumerate(parts)]
    context = multiprocessing.get_context("spawn")
    with (
        Progress(total=len(images), unit="image", label="regions") as progress,
        ProcessPoolExecutor(
            jobs, mp_context=context, initializer=live_as_long_as_the_parent
        ) as pool,
    ):
        shards = []
        for shard in pool.map(write_part, tasks):
            shards.append(shard)
            progress.advance(shard.rows)
    write_manifest(output, shards, job=JOB, settings=settings)


def write_part(task: tuple[Sequence[tuple[str, Path]], Path, int, int, str]) -> Shard:
    """Writes one shard, unless it is there already."""
    part, output, index, total, detector = task
    path = output / shard_name(REGIONS, index, total)
    if finished := describe_finished([(REGIONS, path)]):
        return finished[0]
    torch.set_num_threads(1)
    rows = [image_regions(image_id, file) for image_id, file in part]
    producer = {"job": JOB, "detector_fingerprint": detector, "weights": "efficientnet-lite0"}
    arrays = region_arrays(
        dtype=DTYPE,
        feature_dim=DIM,
        class_probs_dim=1 + CLASSES,
        top_k=TOP_K,
        global_dim=DIM,
        background="first",
    )
    table = encode_regions(rows, dtype=DTYPE)
    return write_shard(output, REGIONS, table, index, total, producer=producer, arrays=arrays)


@cache
def efficientnet() -> Any:
    """Returns the network of this process."""
    return networks.open_efficientnet()


@cache
def ssd() -> Any:
    """Returns the detector of this process."""
    return networks.open_ssd()


@torch.inference_mode()
def image_regions(image_id: str, file: Path) -> RegionRow:
    """Returns the regions of one image as a row."""
    image = decode(file.read_bytes(), BOUNDS).image
    boxes = np.concatenate([fixed_boxes(), ssd_boxes(image), grid_boxes()])  # fractions of sides
    network, sides = efficientnet(), network_sides(*image.size)
    pixels = np.asarray(image.resize(sides, Image.Resampling.BICUBIC), np.float32)
    x = torch.from_numpy((pixels - 127) / 128).permute(2, 0, 1)[None]
    features = network.extract_features(x.contiguous(memory_format=torch.channels_last))
    height, width = features.shape[2:]
    scaled = torch.from_numpy(boxes * np.array([width, height, width, height], np.float32))
    bins = roi_align(features, [scaled], output_size=2, sampling_ratio=2, aligned=True)
    regions = bins.mean((2, 3))
    regions[0] = features[0].mean((1, 2))  # the full image, exactly
    probs, ids = network._fc(regions).softmax(1).topk(TOP_K)
    return RegionRow(
        image_id=image_id,
        width=image.width,
        height=image.height,
        boxes=boxes * np.array([*image.size, *image.size], np.float32),
        features=regions.numpy(),
        class_ids=ids[:, 0].numpy().astype(np.int16),
        class_scores=probs[:, 0].numpy(),
        class_probs=probs.numpy(),
        class_prob_ids=1 + ids.numpy(),  # column 0 is the background
        global_feature=regions[0].numpy(),
    )


def network_sides(width: int, height: int) -> tuple[int, int]:
    """Returns the width and height that the network reads: the image's aspect, a fixed area."""
    scale = (AREA / (width * height)) ** 0.5
    columns, rows = (max(1, round(side * scale / STRIDE)) for side in (width, height))
    return columns * STRIDE, rows * STRIDE


def fixed_boxes() -> np.ndarray:
    """Returns the full image, its quadrants and its centre [6, 4], as fractions of the sides."""
    corners = [(0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (0.5, 0.5), (0.25, 0.25)]
    boxes = [(0.0, 0.0, 1.0, 1.0), *((x, y, x + 0.5, y + 0.5) for x, y in corners)]
    return np.array(boxes, np.float32)


def grid_boxes() -> np.ndarray:
    """Returns the cells of the grid [16, 4], row by row."""
    cells = [(x, y, x + 1, y + 1) for y in range(GRID) for x in range(GRID)]
    return np.array(cells, np.float32) / GRID


def ssd_boxes(image: Image.Image) -> np.ndarray:
    """Returns the SSD's boxes [N, 4], the most certain first, at most one of overlapping ones."""
    pixels = np.asarray(image.resize((SSD_SIDE, SSD_SIDE), Image.Resampling.BILINEAR), np.float32)
    detector = ssd()
    detector.setInput(pixels.transpose(2, 0, 1)[None])
    found = detector.forward()[0, 0]  # [100, 7]: image, class, score, corners
    found = found[(found[:, 2] >= SSD_SCORE) & np.isfinite(found).all(1)]
    boxes, scores = found[:, 3:].clip(0, 1), found[:, 2]
    large = ((boxes[:, 2:] - boxes[:, :2]) > 0.02).all(1)
    boxes, scores = boxes[large], scores[large]
    kept = nms(torch.from_numpy(boxes), torch.from_numpy(scores), SSD_OVERLAP)[:SSD_BOXES]
    chosen: np.ndarray = boxes[kept.numpy()].reshape(-1, 4)
    return chosen
