"""report.html of the web-pairs job: funnel, distributions, sample pairs with pictures, rejects.

Reads the tables that the job has written, so it shows what users will get. Memory is bounded by
samples: the first rows of each shard, which are random because shards are sorted by hashed ids.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from markupsafe import Markup

from vlmill.pipelines.texts.words import words_of
from vlmill.schemas.console.report import (
    Section,
    bar_chart,
    funnel_table,
    histogram,
    html_table,
    picture_cards,
    settings_table,
    thumbnails,
    write_page,
)

MAX_SAMPLE = 20_000
MAX_PICTURES = 24
MAX_REJECTS_SHOWN = 5  # of each stage and reason


def write_report(
    folder: Path, funnel: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]
) -> None:
    """Writes ``folder/report.html`` from the job's tables there."""
    pairs = list(_sample(folder, "pairs", ["text", "score", "text_source", "image_id", "page_url"]))
    sizes = list(_sample(folder, "images", ["width", "height"]))
    rejects = list(_sample(folder, "rejects", ["stage", "reason", "key", "detail"]))
    num_pairs = funnel[-1]["out"]
    write_page(
        folder / "report.html",
        "Web pairs",
        [
            Section(title="Funnel", body=funnel_table(funnel), intro="in = out + dropped"),
            Section(title="Sample pairs", body=_pictures(folder, pairs)),
            Section(title="Distributions", body=_charts(pairs, sizes, funnel)),
            Section(
                title="Sample rejects",
                body=_rejects(rejects),
                intro=f"At most {MAX_REJECTS_SHOWN} of each stage and reason.",
            ),
            Section(title="Settings", body=settings_table(settings)),
        ],
        subtitle=f"{num_pairs} pairs from {funnel[0]['in']} archives",
    )


def _sample(folder: Path, table: str, columns: list[str]) -> Iterator[dict[str, Any]]:
    """Yields at most ``MAX_SAMPLE`` rows, an equal number from each shard."""
    files = sorted(folder.glob(f"{table}-*.parquet"))
    share = -(-MAX_SAMPLE // max(1, len(files)))
    for path in files:
        taken = 0
        for batch in pq.ParquetFile(path).iter_batches(min(share, 5_000), columns=columns):
            rows = batch.to_pylist()[: share - taken]
            yield from rows
            taken += len(rows)
            if taken >= share:
                break


def _charts(
    pairs: list[dict[str, Any]],
    sizes: list[dict[str, Any]],
    funnel: Sequence[Mapping[str, Any]],
) -> Markup:
    words = [float(len(words_of(pair["text"]))) for pair in pairs]
    mean = sum(words) / len(words) if words else 0.0
    reasons: Counter[str] = Counter()
    for stage in funnel:
        reasons.update({f"{stage['stage']}: {r}": n for r, n in stage["rejects"].items()})
    charts = [
        histogram(words, title=f"Words of a text (mean {mean:.1f})", x_label="words"),
        histogram([p["score"] for p in pairs], title="Score", x_label="score"),
        histogram(
            [float(min(s["width"], s["height"])) for s in sizes],
            title="Shorter side of a picture",
            x_label="pixels",
        ),
        histogram(
            [s["width"] / s["height"] for s in sizes], title="Shape", x_label="width / height"
        ),
    ]
    if pairs:
        sources = Counter(pair["text_source"] for pair in pairs)
        charts.append(bar_chart(dict(sources.most_common()), title="Where texts come from"))
    if reasons:
        charts.append(bar_chart(dict(reasons.most_common(30)), title="Dropped, by reason"))
    return Markup("<div class='charts'>{}</div>").format(Markup("").join(charts))


def _pictures(folder: Path, pairs: list[dict[str, Any]]) -> Markup:
    shown = pairs[:MAX_PICTURES]
    if not shown:
        return Markup("<p>No pair came out.</p>")
    uris = thumbnails(f"{folder}/images-*.parquet", {pair["image_id"] for pair in shown})
    return picture_cards(
        [
            {
                "uri": uris.get(pair["image_id"], ""),
                "text": pair["text"],
                "about": f"{pair['text_source']}, score {pair['score']:.2f}: "
                f"{(pair['page_url'] or '')[:100]}",
            }
            for pair in shown
        ]
    )


def _rejects(rejects: list[dict[str, Any]]) -> Markup:
    seen: Counter[tuple[str, str]] = Counter()
    rows = []
    for row in sorted(rejects, key=lambda r: (r["stage"], r["reason"], r["key"])):
        kind = (row["stage"], row["reason"])
        seen[kind] += 1
        if seen[kind] <= MAX_REJECTS_SHOWN:
            rows.append([*kind, row["key"][:100], (row["detail"] or "")[:160]])
    return html_table(["stage", "reason", "key", "detail"], rows)
