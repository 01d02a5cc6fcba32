"""Tiny tables of pairs, regions and negatives, drawn from a seed."""

from pathlib import Path

import numpy as np

from vlmill.schemas.ids import pair_id_of
from vlmill.schemas.regions import RegionRow, encode_regions, region_arrays
from vlmill.schemas.shards import write_shard
from vlmill.schemas.tables import NEGATIVES, PAIRS, REGIONS

NOUNS = ("dog", "cat", "horse", "boat", "tree", "house", "child", "train", "plate", "river")
VERBS = ("runs", "sleeps", "waits", "shines", "falls", "stands", "moves", "rests")
PLACES = ("beach", "street", "kitchen", "forest", "field", "station", "garden")


def caption(number: int) -> str:
    """A caption that no other number below 560 has."""
    noun, rest = NOUNS[number % 10], number // 10
    return f"A {noun} {VERBS[rest % 8]} in the {PLACES[rest // 8 % 7]}"


def write_regions(
    folder: Path,
    image_ids: list[str],
    *,
    boxes: int = 5,
    dim: int = 16,
    classes: int = 7,
    seed: int = 0,
    fingerprint: str | None = "detector-a",
    shared: float = 0.0,
) -> Path:
    """A regions table; ``shared`` is how much of a feature all pictures have in common."""
    rng = np.random.default_rng(seed)
    common = rng.random((boxes, dim)) * shared
    rows = []
    for image_id in image_ids:
        corners = rng.random((boxes, 2, 2)) * (200, 100)
        rows.append(
            RegionRow(
                image_id=image_id,
                width=200,
                height=100,
                boxes=np.concatenate([corners.min(1), corners.max(1)], axis=1, dtype=np.float32),
                features=rng.random((boxes, dim)) + common,
                class_ids=rng.integers(classes, size=boxes).astype(np.int16),
                class_scores=rng.random(boxes).astype(np.float32),
            )
        )
    producer = {"detector_fingerprint": fingerprint} if fingerprint else {}
    arrays = region_arrays(dtype="float16", feature_dim=dim)
    write_shard(
        folder, REGIONS, encode_regions(rows, dtype="float16"), producer=producer, arrays=arrays
    )
    return folder


def write_pairs(folder: Path, rows: list[tuple[str, str]], **columns: str | None) -> list[str]:
    """A pairs table of (image_id, text); returns the pair ids."""
    empty = dict.fromkeys(PAIRS.schema.names) | {"language": "en"} | columns
    ids = [pair_id_of(image_id, text) for image_id, text in rows]
    write_shard(
        folder,
        PAIRS,
        [
            {**empty, "pair_id": pair_id, "image_id": image_id, "text": text}
            for pair_id, (image_id, text) in zip(ids, rows, strict=True)
        ],
    )
    return ids


def write_negatives(folder: Path, negatives: dict[str, list[str]]) -> Path:
    """A table of hard negatives by pair id."""
    write_shard(
        folder,
        NEGATIVES,
        [
            {"pair_id": k, "negative_pair_ids": v, "similarities": [0.4] * len(v)}
            for k, v in negatives.items()
        ],
    )
    return folder


def write_tables(folder: Path, count: int = 12) -> tuple[Path, Path]:
    """``count`` pairs of different pictures and texts, with regions; the two folders."""
    image_ids = [f"picture-{i}" for i in range(count)]
    write_pairs(folder / "pairs", [(name, caption(i)) for i, name in enumerate(image_ids)])
    write_regions(folder / "regions", image_ids)
    return folder / "pairs", folder / "regions"
