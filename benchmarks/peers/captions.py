"""Captions and images to be ranked: tables as `train-vl evaluate retrieval` reads them.

I images, T captions, R regions with the full image in row 0 where a model reads it, D feature
width.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from peers.works import CLS, SEP
from PIL import Image
from torch import Tensor

from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.regions import RegionRow, encode_regions, region_arrays
from vlmill.schemas.tables import IMAGES, REGIONS

FEATURES = 2_048
SIDE_PX = 600
IMAGE_PX = (500, 375)  # as Flickr30k and COCO have most of them
FIRST_WORD, WORDS_END = 1_000, 30_000  # of BERT's vocabulary


@dataclass(frozen=True, kw_only=True)
class PeerWork:
    """What is ranked, as a peer takes it: tokens of each caption, [CLS] and [SEP] among them;
    features [I, R, D], locations [I, R, 5] as fractions and region_lengths int64 [I], padded to
    the longest.
    """

    captions: tuple[NDArray[np.int64], ...]
    features: Tensor
    locations: Tensor
    region_lengths: Tensor


def random_captions(lengths: Sequence[int]) -> tuple[NDArray[np.int64], ...]:
    """Draws captions of so many tokens, always the same ones."""
    rng = np.random.default_rng(0)
    return tuple(
        np.array([CLS, *rng.integers(FIRST_WORD, WORDS_END, length - 2), SEP]) for length in lengths
    )


def names(count: int) -> list[str]:
    """The images' ids."""
    return [f"image-{number}" for number in range(count)]


def write_regions(folder: Path, counts: Sequence[int]) -> str:
    """Writes a table of images of so many regions; returns its folder."""
    rng, rows = np.random.default_rng(0), []
    for name, count in zip(names(len(counts)), counts, strict=True):
        corners = np.sort(rng.random((count, 2, 2)) * SIDE_PX, axis=1).astype(np.float32)
        rows.append(
            RegionRow(
                image_id=name,
                width=SIDE_PX,
                height=SIDE_PX,
                boxes=corners.reshape(-1, 4),
                features=np.maximum(rng.standard_normal((count, FEATURES)), 0),
                class_scores=np.linspace(1, 0.2, count, dtype=np.float32),
            )
        )
    write_shard(
        folder,
        REGIONS,
        encode_regions(rows, dtype="float16"),
        arrays=region_arrays(dtype="float16", feature_dim=FEATURES),
    )
    return str(folder)


def write_images(folder: Path, count: int) -> str:
    """Writes a table of so many images of noise, as JPEG; returns its folder."""
    rng, rows = np.random.default_rng(0), []
    for name in names(count):
        coarse = rng.integers(0, 255, (12, 16, 3), dtype=np.uint8)
        data = io.BytesIO()
        Image.fromarray(coarse).resize(IMAGE_PX).save(data, "JPEG", quality=90)
        rows.append(
            dict.fromkeys(IMAGES.schema.names) | {"image_id": name, "bytes": data.getvalue()}
        )
    write_shard(folder, IMAGES, rows)
    return str(folder)
