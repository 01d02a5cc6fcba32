"""Tiny tables, images and checkpoints for tests of several folders."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from vlmill.models.beit.dvae import Dvae, DvaeConfig
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.regions import (
    RegionReader,
    RegionRow,
    encode_regions,
    region_arrays,
)
from vlmill.schemas.ids import compute_pair_id
from vlmill.schemas.tables import IMAGES, NEGATIVES, PAIRS, REGIONS
from vlmill.train.recipes import RECIPES
from vlmill.train.run.inputs import Inputs

# The job of web pairs without the filters that load a model or a table of words.
NO_MODELS = ("--safety-model", "none", "--realism-model", "none", "--vocabulary", "none")
SMALL = [name for name in RECIPES if name.endswith("-small")]


NOUNS = ("dog", "cat", "horse", "boat", "tree", "house", "child", "train", "plate", "river")
VERBS = ("runs", "sleeps", "waits", "shines", "falls", "stands", "moves", "rests")
PLACES = ("beach", "street", "kitchen", "forest", "field", "station", "garden")


def write_dvae(folder: Path) -> str:
    torch.manual_seed(0)
    model = Dvae(DvaeConfig(num_tokens=12, width=4, codebook_width=6))
    save_file(model.state_dict(), folder / "dvae.safetensors")
    return str(folder / "dvae.safetensors")


def write_images(folder: Path, count: int) -> str:
    """Images of one colour each."""
    empty = dict.fromkeys(IMAGES.schema.names)
    rows = []
    for number in range(count):
        data = io.BytesIO()
        colour = np.array([20 * number, 255 - 20 * number, 100], np.uint8)
        Image.fromarray(np.tile(colour, (30, 40, 1))).save(data, "PNG")
        rows.append({**empty, "image_id": f"image-{number}", "bytes": data.getvalue()})
    write_shard(folder, IMAGES, rows)
    return str(folder)


def write_photographs(folder: Path, count: int, *, cut: Sequence[int] = ()) -> str:
    """JPEGs of noise; those ``cut`` end in the middle, as an interrupted download does."""
    random, rows = np.random.default_rng(0), []
    for number in range(count):
        data = io.BytesIO()
        Image.fromarray(random.integers(0, 255, (48, 64, 3), np.uint8)).save(data, "JPEG")
        content = data.getvalue()[: len(data.getvalue()) // 2 if number in cut else None]
        empty = dict.fromkeys(IMAGES.schema.names)
        rows.append({**empty, "image_id": f"image-{number}", "bytes": content})
    write_shard(folder, IMAGES, rows)
    return str(folder)


def find_value(reader: RegionReader, name: str, number: int) -> tuple[int, int, int] | None:
    """The shard, offset and size of a value of a row."""
    group, within = reader.locate_row(number)
    place = group.locate_value(name, within)
    return None if place is None else (group.shard_number, *place)


def caption(number: int) -> str:
    """A caption that no other number below 560 has."""
    noun, rest = NOUNS[number % 10], number // 10
    return f"A {noun} {VERBS[rest % 8]} in the {PLACES[rest // 8 % 7]}"


class Tables:
    """Writes tables under ``folder`` and names them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pairs, self.regions = str(folder / "pairs"), str(folder / "regions")
        self.negatives = str(folder / "negatives")

    def write(self, count: int = 12) -> Inputs:
        """``count`` pairs of different images and texts, with regions."""
        images = [f"image-{i}" for i in range(count)]
        self.write_pairs([(name, caption(i)) for i, name in enumerate(images)])
        self.write_regions(images)
        return Inputs(pairs=self.pairs, regions=self.regions)

    def write_pairs(
        self, rows: list[tuple[str, str]], columns: Mapping[str, Sequence[str | None]] | None = None
    ) -> list[str]:
        """Pairs of (image_id, text), with further columns; returns their ids."""
        ids = [compute_pair_id(image_id, text) for image_id, text in rows]
        empty = dict.fromkeys(PAIRS.schema.names)
        more = [{k: v[i] for k, v in (columns or {}).items()} for i in range(len(rows))]
        filled = [
            {**empty, **extra, "pair_id": pair_id, "image_id": image_id, "text": text}
            for pair_id, (image_id, text), extra in zip(ids, rows, more, strict=True)
        ]
        write_shard(self.pairs, PAIRS, filled)
        return ids

    def write_regions(
        self,
        images: list[str],
        *,
        boxes: int = 5,
        empty: tuple[str, ...] = (),
        classes: int | None = 7,
        fingerprint: str | None = "detector-a",
        broken: tuple[str, ...] = (),
        whole: tuple[str, ...] = (),
    ) -> None:
        """Regions of random features, 16 wide; images in ``empty`` have none, those in ``whole``
        a feature of the full image.
        """
        rng = np.random.default_rng(0)
        rows = []
        for name in images:
            count = 0 if name in empty else boxes
            corners = rng.random((count, 2, 2)) * (200, 100)
            scale = 60_000 if name in broken else 1  # what overflows once it is squared
            class_ids = None if classes is None else np.arange(count) % classes
            rows.append(
                RegionRow(
                    image_id=name,
                    width=200,
                    height=100,
                    boxes=np.concatenate([corners.min(1), corners.max(1)], 1).astype(np.float32),
                    features=rng.random((count, 16)) * scale,
                    class_ids=class_ids,
                    global_feature=rng.random(16) if name in whole else None,
                )
            )
        write_shard(
            self.regions,
            REGIONS,
            encode_regions(rows, dtype="float16"),
            producer={"detector_fingerprint": fingerprint} if fingerprint else {},
            arrays=region_arrays(dtype="float16", feature_dim=16),
        )

    def write_negatives(self, negatives: dict[str, list[str]]) -> str:
        """Hard negatives by pair id."""
        rows = [
            {"pair_id": k, "negative_pair_ids": v, "similarities": [0.4] * len(v)}
            for k, v in negatives.items()
        ]
        write_shard(self.negatives, NEGATIVES, rows)
        return self.negatives


class Call:
    """A pickle of it calls ``function`` when it is loaded."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.arguments
