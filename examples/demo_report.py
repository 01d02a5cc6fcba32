"""Writes the report of the demo, from the funnel to the results of the trained model."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vlmill.extract.show import ImageCounts, Vocabulary, drawings, encode_image
from vlmill.runtime.console.bars import bar_chart
from vlmill.runtime.console.log import read_log
from vlmill.runtime.console.report import (
    Section,
    funnel_table,
    html_table,
    image_cards,
    image_uri,
    template,
    thumbnails,
    write_page,
)
from vlmill.runtime.files.reading import read_table
from vlmill.runtime.readers.regions import RegionReader
from vlmill.schemas.tables import NEGATIVES, PAIRS, REJECTS
from vlmill.train.run.job import loss_chart
from vlmill.train.tasks.retrieval.examples import evenly
from vlmill.train.tasks.retrieval.report import DIRECTIONS
from vlmill.train.tasks.scores import percent

NOTICE = (
    "This page shows the path, not quality. The detector's weights are random numbers: to train "
    "one until its regions mean something takes longer than all of these steps "
    "(docs/detector-training.md). Retrieval is evaluated on the very pairs that the model was "
    "trained on: it has learned them by heart, nothing more."
)
EXAMPLES = 8
# What the steps write beside this page.
REPORTS = {
    "pairs/report.html": "from the archive to pairs: funnel, what was dropped, rules",
    "trained/report.html": "pretraining: losses, learning rate, captions as the model reads them",
    "before/report.html": "retrieval before training",
    "after/report.html": "retrieval after training: figures with their errors, hits and misses",
}

_LINKS = template(
    "<ul>{% for path, text in reports.items() %}<li><a href='{{ path }}'>{{ path }}</a>: {{ text }}"
    "</li>{% endfor %}</ul>"
)

_DRAWN = template(
    "<div class='wide'>{% for f in figures %}<figure><img src='{{ f.uri }}' alt=''>"
    "<figcaption class='soft'>{{ f.text }}</figcaption></figure>{% endfor %}</div>"
)
_NEAR = template(
    "{% for query in queries %}<h3>{{ query.text }}</h3><ol>{% for n in query.near %}"
    "<li>{{ n.text }} <small>cosine {{ '%.2f' % n.cosine }}</small></li>{% endfor %}</ol>"
    "{% endfor %}"
)
_IMAGES = template(
    "{% for query in queries %}<h3>{{ query.text }}</h3>{% for when, found in query.found %}"
    "<small>{{ when }}: the right image is at place <span class='"
    "{{ 'hit' if found.rank == 0 else 'miss' }}'>{{ found.rank + 1 }}</span></small>"
    "<div class='row'>{% for n in found.neighbours %}<figure{% if n.right %} class='right'"
    "{% endif %}><img src='{{ uris[n.image_id] }}' alt=''><figcaption>{{ '%.2f' % n.score }}"
    "</figcaption></figure>{% endfor %}</div>{% endfor %}{% endfor %}"
)
_TEXTS = template(
    "{% for query in queries %}<div class='row'><figure><img src='{{ uris[query.image_id] }}' "
    "alt=''></figure>{% for when, found in query.found %}<div style='flex:1;min-width:260px'>"
    "<small>{{ when }}: a right caption is at place <span class='"
    "{{ 'hit' if found.rank == 0 else 'miss' }}'>{{ found.rank + 1 }}</span></small><ol>"
    "{% for n in found.neighbours[:3] %}<li{% if n.right %} class='hit'{% endif %}>{{ n.text }}"
    " <small>{{ '%.2f' % n.score }}</small></li>{% endfor %}</ol></div>{% endfor %}</div>"
    "{% endfor %}"
)


def write_report(out: Path, metrics: Mapping[str, Any]) -> None:
    """Writes ``out/report.html`` from the outputs of the steps in ``out``."""
    pairs = read_table(out / "pairs", PAIRS).to_pylist()
    uris = thumbnails(out / "pairs", {pair["image_id"] for pair in pairs})
    write_page(
        out / "report.html",
        "vlmill demo: from web pages to retrieval",
        [*run_sections(metrics), *data_sections(out, pairs, uris), *model_sections(out, uris)],
        subtitle=f"{len(pairs)} pairs, {metrics['seconds']['total']:.0f} seconds on a processor, "
        f"at most {metrics['peak_rss_mib']:.0f} MiB in a process. {metrics['machine']}.",
        notice=NOTICE,
    )


def run_sections(metrics: Mapping[str, Any]) -> list[Section]:
    """Returns the sections with the recall and the time of each step."""
    return [
        Section(
            title="Before and after",
            intro="Share of queries with a correct result among the first K, in percent.",
            body=recall_table(metrics),
        ),
        Section(
            title="Steps",
            intro="Each step is a command; README lists them.",
            body=bar_chart(
                {k: v for k, v in metrics["seconds"].items() if k != "total"},
                title="seconds by step",
            ),
        ),
        Section(
            title="Other pages",
            intro="The reports of the steps, with their settings, are in the same folder.",
            body=Markup(_LINKS.render(reports=REPORTS)),
        ),
    ]


def data_sections(
    out: Path, pairs: Sequence[Mapping[str, Any]], uris: Mapping[str, str]
) -> list[Section]:
    """Returns the sections on the archive, pairs, hard negatives and regions."""
    return [
        Section(
            title="Funnel",
            intro="From the records of the archive to pairs; in = out + dropped in each stage.",
            body=funnel_table(json.loads((out / "funnel.json").read_text())),
        ),
        Section(title="Pairs", intro=f"All {len(pairs)}.", body=pair_cards(pairs, uris)),
        Section(
            title="Dropped",
            intro="One of each stage and reason; the rejects table has them all.",
            body=dropped(out),
        ),
        Section(
            title="Hard negatives",
            intro="For a caption, the most similar captions of other images (TF-IDF, below 0.5).",
            body=hard_negatives(out, pairs),
        ),
        Section(
            title="Regions",
            intro="Up to 36 boxes an image; drawn are the eight of the highest class scores.",
            body=region_cards(out),
        ),
    ]


def model_sections(out: Path, uris: Mapping[str, str]) -> list[Section]:
    """Returns the sections on training, and on results before and after it."""
    rankings = {
        when: json.loads((out / when / "neighbours.json").read_text())
        for when in ("before", "after")
    }
    return [
        Section(
            title="Losses",
            intro="MLM: masked words. MOC: classes of masked regions. MRFR: their features. "
            "ITM: does the text match the image?",
            body=loss_chart(read_log(out / "trained" / "log.jsonl")),
        ),
        Section(
            title="Images found for captions",
            intro="The first five before and after training, the right one framed. Scores are "
            "logits of the matching head.",
            body=images_found(rankings, uris),
        ),
        Section(
            title="Captions found for images",
            intro="The first three before and after training, the right ones green.",
            body=captions_found(rankings, uris),
        ),
    ]


def recall_table(metrics: Mapping[str, Any]) -> Markup:
    """Returns a table of R@1, 5 and 10 in both directions: by chance, before, after."""
    rows = []
    for direction, name in DIRECTIONS.items():
        for k in (1, 5, 10):
            recall = f"{direction}/r{k}"
            after = Markup("<b>{}</b>").format(percent(metrics[f"after/{recall}"]))
            chance = percent(metrics[f"after/{recall}_chance"])
            rows.append([name, f"R@{k}", chance, percent(metrics[f"before/{recall}"]), after])
    return html_table(["direction", "figure", "by chance", "before", "after"], rows)


def pair_cards(pairs: Sequence[Mapping[str, Any]], uris: Mapping[str, str]) -> Markup:
    """Returns a card for each pair: its image, its text, and the source of the text."""
    cards = [
        {
            "uri": uris.get(pair["image_id"], ""),
            "text": pair["text"],
            "about": f"{pair['text_source']}, score {pair['score']:.2f}",
        }
        for pair in pairs
    ]
    return image_cards(cards)


def dropped(out: Path) -> Markup:
    """Returns one reject of each stage and reason."""
    firsts: dict[tuple[str, str], list[Any]] = {}
    for row in read_table(out / "pairs", REJECTS).to_pylist():
        example = [row["stage"], row["reason"], row["key"][-80:], (row["detail"] or "")[:100]]
        firsts.setdefault((row["stage"], row["reason"]), example)
    return html_table(["stage", "reason", "what", "detail"], list(firsts.values()))


def hard_negatives(out: Path, pairs: Sequence[Mapping[str, Any]]) -> Markup:
    """Returns the three nearest captions of some captions that have any."""
    texts = {pair["pair_id"]: pair["text"] for pair in pairs}
    rows = [r for r in read_table(out / "negatives", NEGATIVES).to_pylist() if r["similarities"]]
    queries = [
        {
            "text": texts[row["pair_id"]],
            "near": [
                {"text": texts[pair_id], "cosine": cosine}
                for pair_id, cosine in list(
                    zip(row["negative_pair_ids"], row["similarities"], strict=True)
                )[:3]
            ],
        }
        for row in evenly(rows, 4)
    ]
    return Markup(_NEAR.render(queries=queries))


def region_cards(out: Path) -> Markup:
    """Returns some images with their boxes."""
    reader = RegionReader(out / "regions")
    shown = ImageCounts(num_rows=len(reader))
    drawn = list(
        drawings(reader, [str(out / "pairs")], Vocabulary(), max_boxes=8, image_counts=shown)
    )
    figures = [
        {
            "uri": image_uri(encode_image(canvas, "JPEG"), "image/jpeg"),
            "text": f"{row.width} x {row.height} pixels",
        }
        for row, canvas in evenly(drawn, 4)
    ]
    return Markup(_DRAWN.render(figures=figures))


def images_found(found: Mapping[str, Any], uris: Mapping[str, str]) -> Markup:
    """Returns text queries with their resulting images, before and after training."""
    queries = [
        {"text": query["text"], "found": found_by(found, "image_retrieval", "pair_id", query)}
        for query in evenly(found["after"]["image_retrieval"], EXAMPLES)
    ]
    return Markup(_IMAGES.render(queries=queries, uris=uris))


def captions_found(found: Mapping[str, Any], uris: Mapping[str, str]) -> Markup:
    """Returns image queries with their resulting texts, before and after training."""
    queries = [
        {
            "image_id": query["image_id"],
            "found": found_by(found, "text_retrieval", "image_id", query),
        }
        for query in evenly(found["after"]["text_retrieval"], EXAMPLES)
    ]
    return Markup(_TEXTS.render(queries=queries, uris=uris))


def found_by(
    found: Mapping[str, Any], direction: str, key: str, query: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """Yields the records of a query before and after training, joined by its id."""
    return [
        (when, next(r for r in records[direction] if r[key] == query[key]))
        for when, records in found.items()
    ]
