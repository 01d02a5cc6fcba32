"""Writes report.html of nearest images (samples and distances), and prints the result.

Memory is bounded by samples: 50 rows, and the distances of 20,000.
"""

import glob
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from markupsafe import Markup

from vlmill.runtime.console import report
from vlmill.runtime.console.bars import histogram
from vlmill.runtime.console.command import print_reading_hint
from vlmill.runtime.files.manifest import read_manifest
from vlmill.runtime.files.outputs import WORK, State
from vlmill.runtime.files.paths import remove_tree
from vlmill.runtime.files.reading import iter_batches, reject_counts
from vlmill.runtime.files.remote import is_remote
from vlmill.runtime.files.shards import Shard
from vlmill.schemas.plurals import format_count
from vlmill.schemas.rejects import format_rejects
from vlmill.schemas.tables import NEIGHBOURS

SHOWN, NEAREST_SHOWN = 50, 5
MOST_DISTANCES = 20_000
Row = Mapping[str, Any]


def write_report(
    folder: Path,
    num_images: int,
    rejects: Mapping[str, int],
    settings: Mapping[str, Any],
    images: str | None,
) -> None:
    """Writes ``folder/report.html`` from the neighbours there, with thumbnails of ``images``."""
    rows, nearest, farthest = samples(folder, num_images)
    ids = {str(row["image_id"]) for row in rows}
    ids |= {other for row in rows for other in row["neighbour_ids"][:NEAREST_SHOWN]}
    uris = report.thumbnails(images, ids)
    charts = [
        histogram(nearest, title="To the nearest image", label="distance"),
        histogram(farthest, title="To the last one of the list", label="distance"),
    ]
    rejected = sorted(rejects.items(), key=lambda one: -one[1])
    sections = [
        report.Section(
            "Distances",
            Markup("<div class='charts'>{}</div>").format(Markup("").join(charts)),
            "Euclidean, between means of region features. A nearest image at distance 0 "
            "is the same image under another id.",
        ),
        report.Section(
            "Images and their nearest",
            Markup("").join(_cards(row, uris) for row in rows),
            f"{len(rows)} at random; each first, then up to {NEAREST_SHOWN} of its list.",
        ),
        report.Section("Rejects", report.html_table(["reason", "images"], rejected)),
        report.Section("Settings", report.settings_table(settings)),
    ]
    report.write_page(
        folder / "report.html",
        "Nearest images",
        sections,
        subtitle=format_count(num_images, "image"),
    )


def samples(folder: Path, num_images: int) -> tuple[list[Row], list[float], list[float]]:
    """Returns random rows, and the first and last distances of evenly spread rows."""
    chosen = set(random.Random(0).sample(range(num_images), min(SHOWN, num_images)))
    step = max(1, -(-num_images // MOST_DISTANCES))
    rows: list[Row] = []
    nearest: list[float] = []
    farthest: list[float] = []
    start = 0
    # A glob, because the folder has no manifest yet.
    name = str(folder) if is_remote(folder) else glob.escape(str(folder))
    shards = f"{name}/{NEIGHBOURS.name}-*.parquet"
    for batch in iter_batches(shards, NEIGHBOURS) if num_images else ():
        stop = start + batch.num_rows
        rows += [
            batch.slice(index - start, 1).to_pylist()[0]
            for index in sorted(chosen)
            if start <= index < stop
        ]
        for index in range(-start % step, batch.num_rows, step):
            if distances := batch.column("distances")[index].as_py():
                nearest.append(distances[0])
                farthest.append(distances[-1])
        start = stop
    return rows, nearest, farthest


def _cards(row: Row, uris: Mapping[str, str]) -> Markup:
    """Returns cards of an image and its nearest, with their distances if known."""
    ids: Sequence[str] = row["neighbour_ids"][:NEAREST_SHOWN]
    distances = row["distances"]
    labels = ["" if distances is None else f"{d:.4g}" for d in (distances or ids)[: len(ids)]]
    cards = [{"uri": uris.get(row["image_id"], ""), "text": row["image_id"], "about": "image"}]
    for image_id, distance in zip(ids, labels, strict=True):
        cards.append({"uri": uris.get(image_id, ""), "text": image_id, "about": distance})
    return report.image_cards(cards)


def finish(output: Path, state: State, top: int) -> int:
    """Deletes the files for continuing, and prints the counts; returns the exit status."""
    remove_tree(output / WORK)  # twice as large as the vectors, and of no further use
    shards: Sequence[Shard] = read_manifest(output)["shards"]
    count = sum(shard.rows for shard in shards if shard.table == NEIGHBOURS.name)
    print_reading_hint(output, NEIGHBOURS.name)
    short = short_lists(output, top) if count else 0
    fewer = f", {short} with fewer than {top}" if short else ""
    rejects = format_rejects(reject_counts(output))
    print(f"{state.outcome}: neighbours of {count} images{fewer}, {rejects}: {output}")
    return 0 if count else 1


def short_lists(folder: Path, top: int) -> int:
    """Counts the images with fewer than ``top`` neighbours."""
    count = 0
    for batch in iter_batches(folder, NEIGHBOURS, columns=["neighbour_ids"]):
        lengths = pc.list_value_length(batch.column(0))
        count += pc.sum(pc.less(lengths, top)).as_py() or 0
    return count
