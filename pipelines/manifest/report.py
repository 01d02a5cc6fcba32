"""Writes report.html of ``manifest``: funnel, sample pairs with their images, distributions.

Memory is bounded by samples: the first rows of at most ``MAX_SHARDS`` shards, evenly spread.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from markupsafe import Markup

from vlmill.pipelines.web.texts.words import split_words
from vlmill.runtime.console import report
from vlmill.runtime.console.bars import bar_chart, histogram
from vlmill.runtime.files.paths import readable
from vlmill.schemas.plurals import format_count
from vlmill.schemas.tables import PAIRS, Table

MAX_SHARDS, ROWS_OF_SHARD = 8, 2_000
MAX_CARDS, MAX_REJECTS_SHOWN = 24, 5


def write_report(
    folder: Path,
    funnel: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
    table: Table = PAIRS,
) -> None:
    """Writes ``folder/report.html`` from the tables there."""
    sample = [
        [show_as_pair(row) for row in first_rows(path)]
        for path in spread_shards(folder, table.name)
    ]
    rejects = [row for path in spread_shards(folder, "rejects") for row in first_rows(path)]
    report.write_page(
        folder / "report.html",
        f"Own {table.name}",
        [
            report.Section("Funnel", report.funnel_table(funnel), "in = out + dropped"),
            report.Section(f"Sample {table.name}", pair_cards(folder, sample)),
            report.Section("Distributions", pair_charts([r for rows in sample for r in rows])),
            report.Section(
                "Sample rejects",
                sample_rejects(rejects),
                f"Key: the file and the line (of Parquet: the row). At most "
                f"{MAX_REJECTS_SHOWN} of each reason.",
            ),
            report.Section("Settings", report.settings_table(settings)),
        ],
        subtitle=f"{funnel[-1]['out']:,} {table.name} from "
        f"{format_count(funnel[0]['in'], 'row')} of {settings['input']}",
    )


def show_as_pair(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an example of any table with the columns of a pair that the report shows."""
    texts = [row.get(name) for name in ("text", "text_a", "question", "answer", "label")]
    texts.append(", ".join(row.get("labels") or ()))
    image_ids = row.get("image_ids") or [None]
    return {
        "image_id": row.get("image_id", image_ids[0]),
        "text": " | ".join(text for text in texts if text),
        "split": row["split"],
    }


def spread_shards(folder: Path, table: str) -> list[Path]:
    """Returns at most ``MAX_SHARDS`` of a table's shards, evenly spread."""
    files = sorted(folder.glob(f"{table}-*.parquet"))
    step = max(1, -(-len(files) // MAX_SHARDS))
    return files[::step]


def first_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the first rows of a shard."""
    with pq.ParquetFile(readable(path)) as file:
        batch = next(file.iter_batches(ROWS_OF_SHARD), None)
    rows: list[dict[str, Any]] = [] if batch is None else batch.to_pylist()
    return rows


def pair_cards(folder: Path, sample: Sequence[list[dict[str, Any]]]) -> Markup:
    """Returns cards of pairs with their images, some of each shard."""
    pairs = [row for rows in sample for row in rows[: -(-MAX_CARDS // len(sample))]][:MAX_CARDS]
    if not pairs:
        return Markup("<p>No pair came out.</p>")
    shown = first_images(folder, {row["image_id"] for row in pairs})
    uris = {name: report.thumbnail_uri(data) for name, data in shown}
    return report.image_cards(
        [
            {
                "uri": uris.get(row["image_id"], ""),
                "text": row["text"],
                "about": " ".join(filter(None, [(row["image_id"] or "")[:100], row["split"]])),
            }
            for row in pairs
        ]
    )


def first_images(folder: Path, image_ids: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Yields the ids and bytes of these images, if they are in the first row groups."""
    for path in spread_shards(folder, "images"):
        with pq.ParquetFile(readable(path)) as file:
            if not file.num_row_groups:
                continue
            group = file.read_row_group(0, columns=["image_id", "bytes"])
        for image_id, content in zip(*(c.to_pylist() for c in group.columns), strict=True):
            if image_id in image_ids and content is not None:
                yield image_id, content


def pair_charts(pairs: list[dict[str, Any]]) -> Markup:
    """Returns charts of caption lengths, captions per image, and splits."""
    words = [float(len(split_words(row["text"]))) for row in pairs]
    mean = sum(words) / len(words) if words else 0.0
    captions = Counter(row["image_id"] for row in pairs if row["image_id"])
    charts = [
        histogram(words, title=f"Words of a caption (mean {mean:.1f})", label="words"),
        histogram(
            [float(n) for n in captions.values()],
            title="Captions of an image",
            label="captions in the sample",
        ),
    ]
    if pairs:
        splits = Counter(row["split"] or "none" for row in pairs)
        charts.append(bar_chart(dict(splits.most_common(20)), title="Split, in the sample"))
    return Markup("<div class='charts'>{}</div>").format(Markup("").join(charts))


def sample_rejects(rejects: list[dict[str, Any]]) -> Markup:
    """Returns some rejects of each reason."""
    counts: Counter[str] = Counter()
    rows = []
    for row in rejects:
        counts[row["reason"]] += 1
        if counts[row["reason"]] <= MAX_REJECTS_SHOWN:
            rows.append([row["reason"], row["key"][-100:], (row["detail"] or "")[:200]])
    return report.html_table(["reason", "key", "detail"], sorted(rows))
