"""Labelled pairs that are made up: a text names what its image's regions are, or other things."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.pipelines.filters.generated import encoded, photograph

from vlmill.runtime.files.manifest import write_manifest
from vlmill.runtime.files.shards import Shard, write_shard
from vlmill.runtime.readers.regions import RegionRow, encode_regions, region_arrays
from vlmill.schemas.ids import compute_pair_id
from vlmill.schemas.tables import IMAGES, PAIRS, REGIONS

CLASSES = ("dog,puppy", "cat", "horse", "tree", "boat,ship", "house", "car", "man,person")
FRAMES = (
    "A {0} near a {1} on a fine morning",
    "The old {0} and the {1}",
    "Two {0}s beside a {1} in Lisbon",
    "My {0} with a {1}, 1998",
)


@dataclass(frozen=True)
class World:
    """Paths of the tables, as flags take them."""

    output: Path  # pairs and images, as the mining job leaves them
    regions: Path
    classes: Path
    labels: Path


def write_world(folder: Path, count: int, *, seed: int = 0, shards: int = 2) -> World:
    """``count`` images with a pair each, of which every other one is described."""
    rng = np.random.default_rng(seed)
    pairs: list[dict[str, Any]] = []
    images: list[dict[str, Any]] = []
    regions: list[RegionRow] = []
    lines = []
    for number in range(count):
        seen = rng.choice(len(CLASSES), 3, replace=False)
        unseen = [n for n in range(len(CLASSES)) if n not in seen]
        label = number % 2
        named = seen[:2] if label else rng.choice(unseen, 2, replace=False)
        names = [CLASSES[n].split(",")[0] for n in named]
        text = FRAMES[rng.integers(len(FRAMES))].format(*names)
        image_id = f"image-{number}"
        pair_id = compute_pair_id(image_id, text)
        lines.append(f"{pair_id}\t{label}")
        pairs.append(
            dict.fromkeys(PAIRS.schema.names)
            | {"pair_id": pair_id, "image_id": image_id, "text": text, "language": "en"}
            | {"text_source": "alt", "score": 0.6, "page_url": f"http://a.example/{number}"}
            | {"image_url": f"http://a.example/{number}.jpg"}
        )
        data = encoded(photograph(rng, 48, 36))
        images.append(dict.fromkeys(IMAGES.schema.names) | {"image_id": image_id, "bytes": data})
        regions.append(region_row(rng, image_id, [*seen, *rng.choice(seen, 2)]))
    folder.mkdir()
    output = folder / "out"
    parts = [pairs[n::shards] for n in range(shards)]
    written: list[Shard] = [
        write_shard(output, PAIRS, part, n, shards) for n, part in enumerate(parts)
    ]
    written.append(write_shard(output, IMAGES, images))
    write_manifest(output, written, job="web_pairs", settings={"min_score": 0.5})
    (output / "_plan.json").write_text('{"job": "web_pairs", "settings": {}}')
    arrays = region_arrays(dtype="float16", feature_dim=2)
    table = encode_regions(regions, dtype="float16")
    shard = write_shard(folder / "regions", REGIONS, table, arrays=arrays)
    write_manifest(folder / "regions", [shard], job="regions", settings={})
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    (folder / "labels.tsv").write_text("\n".join(lines) + "\n")
    return World(output, folder / "regions", folder / "classes.txt", folder / "labels.tsv")


def region_row(rng: np.random.Generator, image_id: str, classes: list[int]) -> RegionRow:
    count = len(classes)
    corners = rng.uniform(0, 20, (count, 2))
    return RegionRow(
        image_id=image_id,
        width=48,
        height=36,
        boxes=np.concatenate([corners, corners + 10], axis=1).astype(np.float32),
        features=np.zeros((count, 2), dtype=np.float16),
        class_ids=np.array(classes, dtype=np.int16),
        class_scores=rng.uniform(0.4, 1, count).astype(np.float32),
    )
