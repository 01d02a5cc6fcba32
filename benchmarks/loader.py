"""Measures the input path: shuffled batches for the model, compared with memcpy and LMDB.

Writes regions of random features as Parquet and, as the reference repositories store them, as
pickled LMDB records of base64 float32; reads both in random order from the page cache. ``limit`` is
memcpy of as many bytes between two arrays, one thread, measured right before and after each row:
on a shared machine the memory is twice as fast in one minute as in the next. The fractions by CPU
seconds leave out what other processes take of the cores.

    python benchmarks/loader.py --full
"""

import base64
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import lmdb
import numpy as np
import torch
from shell import add_counts, new_parser, parse_form, print_line

from vlmill.runtime.files.shards import ShardWriter, write_shard
from vlmill.runtime.readers.regions import RegionReader, RegionRow, encode_regions, region_arrays
from vlmill.schemas.ids import compute_pair_id
from vlmill.schemas.tables import PAIRS, REGIONS, REJECTS
from vlmill.train.loading.features import region_batch
from vlmill.train.loading.loader import batch_loader
from vlmill.train.loading.masking.words import Lexicon
from vlmill.train.loading.pretrain_batches import PretrainBatches
from vlmill.train.loading.store.prepare import PreparationInputs, prepare_samples
from vlmill.train.loading.vocabulary import train_vocabulary
from vlmill.train.recipes import Feeding, Optimizer, Stage

BOXES, WIDTH, GROUP, SHARDS = 100, 2048, 16, 4
SHORT, FULL = {"images": 1_000, "rounds": 3}, {"images": 2_000, "rounds": 7}
WORDS = ("a", "the", "man", "woman", "dog", "runs", "sits", "red", "in", "near", "with", "beach")


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Medians of images a second, by the clock and by this process's CPU seconds."""

    wall: float
    cpu: float


def rows(numbers: range) -> Iterator[RegionRow]:
    """Random regions, a third to a half of the features zeros."""
    for number in numbers:
        rng = np.random.default_rng(number)
        corners = rng.random((BOXES, 2, 2)) * (640, 480)
        yield RegionRow(
            image_id=f"image-{number}",
            width=640,
            height=480,
            boxes=np.concatenate([corners.min(1), corners.max(1)], 1).astype(np.float32),
            features=np.maximum(rng.standard_normal((BOXES, WIDTH), dtype=np.float32) + 0.3, 0),
            class_ids=rng.integers(0, 1600, BOXES).astype(np.int16),
            class_scores=rng.random(BOXES, dtype=np.float32),
        )


def write_parquet(folder: Path, images: int) -> None:
    """The regions table, in shards."""
    arrays = region_arrays(dtype="float16", feature_dim=WIDTH)
    each = -(-images // SHARDS)
    for shard in range(SHARDS):
        with ShardWriter(folder, REGIONS, shard, SHARDS, arrays=arrays) as writer:
            last = min((shard + 1) * each, images)
            for first in range(shard * each, last, GROUP):
                group = list(rows(range(first, min(first + GROUP, last))))
                writer.write(encode_regions(group, dtype="float16"))


def write_lmdb(folder: Path, images: int) -> None:
    """The same regions as records of the reference repositories: base64 of float32, pickled."""
    with lmdb.open(str(folder), map_size=1 << 40) as store:
        for row in rows(range(images)):
            assert row.features is not None
            record = {
                "image_id": row.image_id,
                "image_h": str(row.height),
                "image_w": str(row.width),
                "num_boxes": str(len(row.boxes)),
                "boxes": base64.b64encode(row.boxes.tobytes()),
                "features": base64.b64encode(row.features.astype(np.float32).tobytes()),
            }
            with store.begin(write=True) as transaction:
                transaction.put(row.image_id.encode(), pickle.dumps(record))


def read_lmdb(folder: Path, batches: list[list[int]]) -> Iterator[torch.Tensor]:
    """Batches as those repositories read them: float32 features and locations."""
    with lmdb.open(str(folder), readonly=True, lock=False, readahead=False) as store:
        for numbers in batches:
            features = np.zeros((len(numbers), BOXES, WIDTH), dtype=np.float32)
            locations = np.zeros((len(numbers), BOXES, 5), dtype=np.float32)
            for i, number in enumerate(numbers):
                with store.begin() as transaction:
                    stored = transaction.get(f"image-{number}".encode())
                assert stored is not None
                record = pickle.loads(stored)  # of our own making, above
                count, size = int(record["num_boxes"]), (record["image_w"], record["image_h"])
                values = np.frombuffer(base64.b64decode(record["features"]), dtype=np.float32)
                boxes = np.frombuffer(base64.b64decode(record["boxes"]), dtype=np.float32)
                features[i, :count] = values.reshape(count, -1)
                corners = boxes.reshape(count, 4) / np.array([float(x) for x in size] * 2)
                locations[i, :count, :4] = corners
                extent = corners[:, 2:] - corners[:, :2]
                locations[i, :count, 4] = extent[:, 0] * extent[:, 1]
            torch.from_numpy(locations)
            yield torch.from_numpy(features)


def prepared(folder: Path, images: int, batch_size: int) -> PretrainBatches:
    """Batches of ImageBERT's pretraining on a caption for each image."""
    rng = np.random.default_rng(0)
    captions = [" ".join(rng.choice(WORDS, 10)) for _ in range(images)]
    empty = dict.fromkeys(PAIRS.schema.names)
    ids = [f"image-{number}" for number in range(images)]
    pairs = [
        {**empty, "pair_id": compute_pair_id(i, text), "image_id": i, "text": text}
        for i, text in zip(ids, captions, strict=True)
    ]
    write_shard(folder / "pairs", PAIRS, pairs)
    tokenizer, reader = train_vocabulary(captions, 400), RegionReader(folder / "regions")
    with ShardWriter(folder, REJECTS, 0, 1) as rejects:
        prepare_samples(
            folder / "prepared",
            PreparationInputs(
                pairs=str(folder / "pairs"), images=reader, tokenizer=tokenizer, max_tokens=44
            ),
            rejects,
        )
    return PretrainBatches(
        samples=folder / "prepared",
        stage=Stage(name="pairs", steps=1, batch_size=batch_size, optimizer=Optimizer(lr=1e-4)),
        stage_number=0,
        seed=0,
        lexicon=Lexicon.from_tokenizer(tokenizer),
        regions=reader,
    )


def measure(read: Callable[[], Any], images: int, rounds: int) -> Rate:
    """Rates of ``read``, after one round that fills the caches."""
    walls, cpus = [], []
    for number in range(rounds + 1):
        wall, cpu = time.perf_counter(), time.process_time()
        read()
        if number:
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
    return Rate(wall=images / median(walls), cpu=images / median(cpus))


def exhaust(batches: Iterator[Any]) -> None:
    """Ask for all of them, and keep one at a time."""
    for _ in batches:
        pass


def copy_rate(images: int, rounds: int) -> Rate:
    """memcpy of the bytes of so many images, 512 MB at a time."""
    size = BOXES * WIDTH * 2
    count = min(images, (512 << 20) // size)
    source, target = np.ones(count * size, np.uint8), np.zeros(count * size, np.uint8)
    return measure(lambda: np.copyto(target, source), count, rounds)


def beside_copy(read: Callable[[], Any], images: int, rounds: int) -> tuple[Rate, Rate]:
    """Rates of ``read``, and of memcpy before and after it."""
    before = copy_rate(images, rounds)
    rate = measure(read, images, rounds)
    after = copy_rate(images, rounds)
    wall, cpu = (before.wall + after.wall) / 2, (before.cpu + after.cpu) / 2
    return rate, Rate(wall=wall, cpu=cpu)


def line(name: str, rate: Rate, limit: Rate, peer: Rate | None, **more: Any) -> None:
    """Print a result as JSON."""
    gigabytes = BOXES * WIDTH * 2 / 1e9
    about = {
        "pictures_per_second": round(rate.wall, 1),
        "pictures_per_cpu_second": round(rate.cpu, 1),
        "peer": None if peer is None else "lmdb",
        "ratio": None if peer is None else round(rate.wall / peer.wall, 2),
        "ratio_cpu": None if peer is None else round(rate.cpu / peer.cpu, 2),
        "limit": "memcpy",
        "limit_value": round(limit.wall * gigabytes, 3),
        "fraction_of_limit": round(rate.wall / limit.wall, 3),
        "fraction_of_limit_cpu": round(rate.cpu / limit.cpu, 3),
    }
    value = round(rate.wall * gigabytes, 3)
    print_line(f"loader/{name}", value, "GB/s", **about, **more)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = new_parser(__doc__)
    add_counts(
        parser,
        images="images of 0.4 MB each, in LMDB 1.1 MB (500 at most)",
        rounds="rounds to measure; the median counts",
        batch_size=(32, "images per batchs)"),
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=max(1, min(2, (os.cpu_count() or 1) - 1)),  # this process needs a core, too
        help="workers that make the pretraining batches (default: %(default)s)",
    )
    args = parse_form(parser, argv, short=SHORT, full=FULL)
    torch.set_num_threads(1)
    images, size = args.images, args.batch_size
    order = np.random.default_rng(0).permutation(images).tolist()
    cut = [order[i : i + size] for i in range(0, images, size)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_parquet(folder / "regions", images)
        batches = prepared(folder, images, size)
        write_lmdb(folder / "lmdb", min(images, 500))
        few = [[n % min(images, 500) for n in numbers] for numbers in cut[: -(-500 // size)]]
        lmdb_rate, limit = beside_copy(
            lambda: exhaust(read_lmdb(folder / "lmdb", few)), sum(map(len, few)), args.rounds
        )
        line("memcpy", limit, limit, lmdb_rate)
        line("lmdb", lmdb_rate, limit, None)
        reader = RegionReader(folder / "regions")
        regions, limit = beside_copy(
            lambda: exhaust(region_batch(reader, numbers, Feeding()) for numbers in cut),
            images,
            args.rounds,
        )
        line("regions", regions, limit, lmdb_rate, batch_size=size)
        whole = images // size
        for workers in sorted({0, args.workers}):
            # Planned and assembled batches of a steady run: starting processes is not counted.
            loader = batch_loader(batches, 0, whole * (args.rounds + 1), workers=workers)
            read = partial(lambda made: exhaust(islice(made, whole)), loader)
            rate, limit = beside_copy(read, whole * size, args.rounds)
            loader.close()
            line(f"pretraining/{workers}-workers", rate, limit, lmdb_rate, batch_size=size)


if __name__ == "__main__":
    main()
