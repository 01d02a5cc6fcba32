"""Recommends items by the vectors of InterBERT and of BERT, as the paper's deployment does.

python examples/similar_items.py --output build/similar-items

(arXiv:2003.13198, app. A.2.) Generates items with a title and an image's regions, trains small
models on them, computes a vector for each item, and writes the five nearest items of each item over
all categories as a table. At request time, candidates for a user's history are only looked up in
this table. Prints for both models the recall of the item that the user chose next, the number of
categories among the candidates, and the time of a look-up.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vlmill.inference.search.building import build_index
from vlmill.inference.search.table import Vectors, count_kinds, read_vectors
from vlmill.runtime.files.reading import iter_batches
from vlmill.runtime.files.shards import write_shard
from vlmill.runtime.readers.regions import RegionRow, encode_regions, region_arrays
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import NEIGHBOURS, PAIRS, REGIONS
from vlmill.train.cli import main as train_vl

CATEGORIES = ("dress", "shoes", "bag", "lamp", "chair", "cup", "watch", "scarf")
STYLES = ("nordic", "retro", "sport", "floral", "mono", "pastel")
MAKERS = ("aster", "birch", "cedar", "dahlia", "elder", "fern", "gorse", "hazel")
WIDTH, REGIONS_OF_ITEM = 64, 3
TOP = 5  # neighbours of an item that are kept (the paper)
SEEN, MOST = 4, 20  # items of a history, and candidates that go on to the ranker
LIMIT_MS = 10.0  # what the paper's look-up takes, about

Neighbours = Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Item:
    """Holds an item. Every second title also names the style of the image."""

    item_id: str
    category: str
    style: str
    title: str


def make_items(count: int, seed: int = 0) -> list[Item]:
    """Generates items of every category in every style."""
    rng, items = np.random.default_rng(seed), list[Item]()
    for number in range(count):
        category = CATEGORIES[number % len(CATEGORIES)]
        style = STYLES[int(rng.integers(len(STYLES)))]
        words = [MAKERS[int(rng.integers(len(MAKERS)))], category]
        if number % 2:
            words.insert(1, style)
        title = " ".join(words)
        items.append(Item(item_id=f"{number}", category=category, style=style, title=title))
    return items


def write_items(folder: Path, items: Sequence[Item], seed: int = 0) -> None:
    """Writes titles as `pairs`, and images as `regions`: style and category with noise."""
    rng = np.random.default_rng(seed)
    of_words = {word: rng.normal(size=WIDTH) for word in (*CATEGORIES, *STYLES)}
    empty = dict.fromkeys(PAIRS.schema.names)
    pairs = [
        {
            **empty,
            "pair_id": f"{item.item_id}#0",
            "image_id": item.item_id,
            "text": item.title,
            "category": item.category,
            "split": "train",
        }
        for item in items
    ]
    images = []
    for item in items:
        drawn = of_words[item.style] + of_words[item.category]
        features = drawn + rng.normal(scale=0.5, size=(REGIONS_OF_ITEM, WIDTH))
        boxes = np.array([[0, 0, 90, 90], [5, 5, 60, 40], [20, 30, 80, 85]], np.float32)
        numbers = np.full(REGIONS_OF_ITEM, CATEGORIES.index(item.category))
        images.append(
            RegionRow(
                image_id=item.item_id,
                width=100,
                height=100,
                boxes=boxes,
                features=np.maximum(features, 0),
                class_ids=numbers,
            )
        )
    write_shard(folder / "pairs", PAIRS, pairs)
    arrays = region_arrays(dtype="float16", feature_dim=WIDTH)
    rows = encode_regions(images, dtype="float16")
    write_shard(folder / "regions", REGIONS, rows, arrays=arrays)


def embedded(folder: Path, recipe: str, steps: int) -> Vectors:
    """Pretrains a small model on the items and returns its vector of each item."""
    tables = ["--pairs", str(folder / "pairs")]
    if recipe != "bert-small":
        tables += ["--regions", str(folder / "regions")]
    run, vectors = folder / recipe, folder / f"{recipe}-vectors"
    changes = [f"steps={steps}", "batch_size=32", "trackers=[]"]
    commands = (
        ["pretrain", recipe, *tables, "--output", str(run), *changes],
        ["embed", "--checkpoint", str(run), *tables, "--output", str(vectors)],
    )
    for command in commands:
        if train_vl(command):
            raise InputError(f"train-vl {command[0]} {recipe} failed, see above")
    ((kind, count),) = count_kinds(str(vectors), "--vectors").items()
    return read_vectors(str(vectors), kind, count, "--vectors")


def nearest(vectors: Vectors, top: int = TOP) -> dict[str, list[str]]:
    """Returns the ``top`` nearest other items of each item, over all categories, best first."""
    ids = vectors.about.column("image_id").to_pylist()
    places = build_index(vectors, "flat").nearest(vectors.matrix, top + 1).positions
    return {
        item: [ids[at] for at in row.tolist() if ids[at] != item][:top]
        for item, row in zip(ids, places, strict=True)
    }


def write_neighbours(folder: Path, found: Neighbours) -> None:
    """Writes the table `neighbours`."""
    rows = [
        {"image_id": item, "neighbour_ids": list(others), "distances": None}
        for item, others in found.items()
    ]
    write_shard(folder, NEIGHBOURS, rows)


def read_neighbours(folder: Path) -> dict[str, list[str]]:
    """Reads the table of neighbours into memory: five ids for each item."""
    neighbours: dict[str, list[str]] = {}
    for batch in iter_batches(folder, NEIGHBOURS, columns=["image_id", "neighbour_ids"]):
        neighbours |= {row["image_id"]: row["neighbour_ids"] for row in batch.to_pylist()}
    return neighbours


def candidates(history: Sequence[str], table: Neighbours, most: int = MOST) -> list[str]:
    """Returns up to ``most`` items that are near the items of a history but not in it, each once.

    The nearest neighbours of all items come first, beginning with the last item; the second
    neighbours follow, and so on. An item that is not in the table has no neighbours.
    """
    lists = [table.get(item, ()) for item in reversed(history)]
    seen, items = set(history), list[str]()
    for rank in range(max(map(len, lists), default=0)):
        for others in lists:
            if rank < len(others) and others[rank] not in seen:
                seen.add(others[rank])
                items.append(others[rank])
    return items[:most]


@dataclass(frozen=True, kw_only=True)
class Visit:
    """Holds the items that a user has seen, and the item that the user chose next."""

    history: tuple[str, ...]
    next_item: str


def make_visits(items: Sequence[Item], count: int, seed: int = 0) -> list[Visit]:
    """Samples users who prefer one style in all categories."""
    rng, of_style = np.random.default_rng(seed), dict[str, list[str]]()
    for item in items:
        of_style.setdefault(item.style, []).append(item.item_id)
    styles = [ids for ids in of_style.values() if len(ids) > SEEN]
    visits = []
    for _ in range(count):
        chosen = rng.choice(styles[int(rng.integers(len(styles)))], SEEN + 1, replace=False)
        *history, following = chosen.tolist()
        visits.append(Visit(history=tuple(history), next_item=following))
    return visits


def measured(
    visits: Sequence[Visit], table: Neighbours, category_of: Mapping[str, str]
) -> dict[str, float]:
    """Returns the recall of the next item, the mean number of categories, and the 99th
    percentile of a look-up in milliseconds.
    """
    hits, widths, seconds = list[bool](), list[int](), list[float]()
    for visit in visits:
        start = time.perf_counter()
        items = candidates(visit.history, table)
        seconds.append(time.perf_counter() - start)
        hits.append(visit.next_item in items)
        widths.append(len({category_of[item] for item in items}))
    return {
        "recall": float(np.mean(hits)),
        "category_width": float(np.mean(widths)),
        "lookup_p99_ms": 1000 * float(np.percentile(seconds, 99)),
    }


def compared(folder: Path, *, items: int, steps: int, visits: int) -> dict[str, Any]:
    """Trains both models, and returns the figures of each."""
    goods = make_items(items)
    write_items(folder, goods)
    category_of = {item.item_id: item.category for item in goods}
    users = make_visits(goods, visits)
    figures: dict[str, Any] = {"items": items, "visits": visits, "limit_ms": LIMIT_MS}
    for name, recipe in (("interbert", "interbert-small"), ("bert", "bert-small")):
        write_neighbours(folder / f"{name}-neighbours", nearest(embedded(folder, recipe, steps)))
        table = read_neighbours(folder / f"{name}-neighbours")
        figures[name] = measured(users, table, category_of)
    return figures


def main(arguments: Iterable[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder for the outputs")
    parser.add_argument("--items", type=int, default=600, help="number of items (default: 600)")
    parser.add_argument("--visits", type=int, default=1000, help="number of users (default: 1000)")
    parser.add_argument(
        "--steps", type=int, default=200, help="training steps of each model (default: 200)"
    )
    args = parser.parse_args(None if arguments is None else list(arguments))
    try:
        figures = compared(args.output, items=args.items, steps=args.steps, visits=args.visits)
    except InputError as error:
        print(f"similar_items: {error}", file=sys.stderr)
        return 2
    print(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
