"""Writes the web-pairs job's report.html, and report.json with the samples and counts it shows.

The samples come from the records of the shards' units, their images from the archives: no file
grows with the number of pairs. With the folder's JSON files alone the page can be written again,
when pairs are rescored and the archives are deleted.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from markupsafe import Markup

from vlmill.pipelines.web.archives.reading import open_archive, read_bodies
from vlmill.pipelines.web_pairs.metrics import (
    SAMPLE_COLUMNS,
    SAMPLES,
    SCORE_BIN,
    SHAPE_BIN,
    SIDE_BIN,
    score_bin,
    select_first,
    sum_counts,
)
from vlmill.pipelines.web_pairs.mine import INLINE
from vlmill.pipelines.web_pairs.units import Job
from vlmill.runtime.console import report
from vlmill.runtime.console.bars import bar_chart, binned_columns, funnel_bars
from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.plurals import format_count
from vlmill.schemas.rejects import Rejected

MOST_BARS = 20
SHOWN_IMAGES = 12  # of each, kept and rejected
_SIDES = report.template(
    "<div class='sides'>{% for title, cards in sides %}<div><h3>{{ title }}</h3>{{ cards }}</div>"
    "{% endfor %}</div>"
)
SHOWN = "report.json"
FILTER = "_filter"  # the end of the names of settings that describe filters


def write_shown(
    job: Job, written: Sequence[Mapping[str, Any]], decoded: Sequence[Mapping[str, Any]]
) -> None:
    """Writes ``report.json``: counts by bins, samples with their images, examples of rejects.

    ``written`` has the metrics of the shards, ``decoded`` the metrics of the archives' images.
    """
    samples = sorted((s for part in written for s in part["samples"]), key=lambda s: str(s[0]))
    sample_rows = [_with_image(about, job) for _, about in samples[:SAMPLES]]
    counts = {
        name: sorted(counter.items(), key=lambda item: str(item[0]))
        for name, counter in sum_counts(written).items()
    }
    content = {
        "counts": counts,
        "samples": sample_rows,
        "rejected": _rejected_images(decoded, job),
        "rejects": list(_reject_rows(written)),
    }
    write_json(to_path(job.output) / SHOWN, content)


def _with_image(sample: Mapping[str, Any], job: Job) -> dict[str, Any]:
    row = {name: sample[name] for name in SAMPLE_COLUMNS}
    return row | {"picture": _thumbnail(sample, job)}


def _rejected_images(decoded: Sequence[Mapping[str, Any]], job: Job) -> list[dict[str, Any]]:
    """Returns a few rejected images of each reason that can be shown, reasons by turns."""
    kinds: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for part in decoded:
        for drawn, row in part.get("rejected", []):
            kinds.setdefault(row["reason"], []).append((drawn, row))
    turns = zip_longest(*(select_first(examples) for _, examples in sorted(kinds.items())))
    examples = [example for turn in turns for example in turn if example is not None]
    # Lazily: each thumbnail reads an archive and decodes an image.
    rows = ({**row, "picture": _thumbnail(row, job)} for _, row in examples)
    hidden = ("archive", "offset")
    previews = ({k: v for k, v in row.items() if k not in hidden} for row in rows if row["picture"])
    return list(islice(previews, SHOWN_IMAGES))


def _thumbnail(sample: Mapping[str, Any], job: Job) -> str:
    if sample["archive"] == INLINE:
        return ""  # an inline image is represented by its text
    max_bytes = job.rules.max_record_bytes
    with open_archive(sample["archive"], job.allowed) as file:
        (body,) = read_bodies(file, [sample["offset"]], max_bytes=max_bytes)
    try:
        return "" if isinstance(body, Drop) else report.thumbnail_uri(body)
    except Rejected:
        return ""  # thumbnails do not support its format


def _reject_rows(written: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yields a few rejects of each stage and reason, over all shards."""
    kinds: dict[tuple[str, str], list[tuple[str, dict[str, Any]]]] = {}
    for part in written:
        for drawn, row in part["examples"]:
            kinds.setdefault((row["stage"], row["reason"]), []).append((drawn, row))
    for kind, examples in sorted(kinds.items()):
        for _, row in select_first(examples):
            yield [*kind, row["key"][:100], (row["detail"] or "")[:160]]


def write_report(output: Path, settings: Mapping[str, Any], scores: "Scores | None" = None) -> None:
    """Writes ``report.html`` from the folder's JSON files.

    ``scores`` replace the mined scores, in the histogram and under the samples.
    """
    funnel, metrics, content = (
        read_json(output / name) for name in ("funnel.json", "metrics.json", SHOWN)
    )
    counts = {name: Counter(dict(items)) for name, items in content["counts"].items()}
    samples = content["samples"]
    if scores is not None:
        counts["score"] = scores.counts
        samples = [
            sample | {"score": scores.sample_scores[sample["pair_id"]]} for sample in samples
        ]
    report.write_page(
        output / "report.html",
        "Web pairs",
        [
            report.Section(
                "Funnel", funnel_bars(funnel) + report.funnel_table(funnel), "in = out + dropped"
            ),
            report.Section(
                "Kept and rejected images",
                _compare_images(samples, content.get("rejected", [])),
                "Sampled at random; rejected images come from pairs that only their image "
                "excluded. Racy images are counted, and not shown.",
            ),
            report.Section(
                "Sample pairs", _images(samples), f"At most {SAMPLES}, sampled at random."
            ),
            report.Section("Distributions", _charts(counts)),
            report.Section("Counted besides", _counted(metrics)),
            report.Section(
                "Sample rejects",
                report.html_table(["stage", "reason", "key", "detail"], content["rejects"]),
                "A few of each stage and reason, sampled at random.",
            ),
            report.Section(
                "Filters",
                report.html_table(["filter", "what was on"], filter_rows(settings)),
                "Each is switched off by its flag, such as --safety-model none.",
            ),
            report.Section("Settings", report.settings_table(settings)),
        ],
        subtitle=f"{format_count(funnel[-1]['out'], 'pair')} from "
        f"{format_count(funnel[0]['in'], 'archive')}",
    )


def filter_rows(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the filters of a run from the job's settings, with the setting of each."""
    rows = []
    for name, value in settings.items():
        if name.endswith(FILTER):
            kind = name.removesuffix(FILTER)
            threshold = settings.get(f"{kind}_threshold")
            text = str(value) if threshold is None else f"{value}, threshold {threshold}"
            rows.append((kind.replace("_", " "), text))
    lists = ", ".join(settings.get("lists", {})) or "none"
    personal = "kept" if settings.get("keep_personal_data") else "dropped"
    return [*rows, ("your lists of words and pages", lists), ("personal data", personal)]


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Holds scores computed after mining: counts by ``score_bin``, and the samples' scores."""

    counts: Counter[Any]
    sample_scores: Mapping[str, float]


def read_scores(output: Path, shards: Sequence[Path]) -> Scores:
    """Returns the current scores in shards of ``pairs``. Memory: a row group."""
    ids = {sample["pair_id"] for sample in read_json(output / SHOWN)["samples"]}
    counts, sample_scores = Counter[Any](), dict[str, float]()
    for path in shards:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["pair_id", "score"]):
                pair_ids, scores = (column.to_pylist() for column in batch.columns)
                counts.update(map(score_bin, scores))
                pairs = zip(pair_ids, scores, strict=True)
                sample_scores |= {name: score for name, score in pairs if name in ids}
    return Scores(counts=counts, sample_scores=sample_scores)


def _charts(counts: Mapping[str, Counter[Any]]) -> Markup:
    def bins(name: str, width: float, title: str, label: str) -> Markup:
        return binned_columns(counts.get(name, Counter()), width, title=title, label=label)

    def draw_top(name: str, title: str) -> Markup:
        return bar_chart(dict(counts.get(name, Counter()).most_common(MOST_BARS)), title=title)

    charts = [
        bins("words", 1, "Words of a text", "words"),
        bins("score", SCORE_BIN, "Score", "score"),
        bins("side", SIDE_BIN, "Shorter side of an image", "pixels"),
        bins("shape", SHAPE_BIN, "Shape", "width / height"),
        draw_top("language", "Languages"),
        draw_top("text_source", "Where texts come from"),
        draw_top("license", "Licences that pages state"),
        draw_top("split", "Splits"),
        draw_top("host", "Hosts with most pairs"),
    ]
    return Markup("<div class='charts'>{}</div>").format(Markup("").join(charts))


def _counted(metrics: Mapping[str, int]) -> Markup:
    alike = "<p>Pairs with an image similar to that of another pair: {}, in groups: {}.</p>"
    digests = "<p>Records whose bytes do not match the digest in their archive: {}.</p>"
    return Markup(alike + digests).format(
        metrics["near_duplicates"], metrics["near_duplicate_groups"], metrics["wrong_digests"]
    )


def _compare_images(
    samples: Sequence[Mapping[str, Any]], rejected: Sequence[Mapping[str, Any]]
) -> Markup:
    """Shows kept images left and rejected ones right, like LAIT's figures (arXiv:2001.07966)."""
    kept_cards = [
        {"uri": sample["picture"], "text": sample["text"], "about": ""}
        for sample in samples
        if sample["picture"]
    ]
    dropped = [
        {
            "uri": row["picture"],
            "text": row["text"],
            "about": f"{row['reason']} {row['detail'] or ''}".strip(),
        }
        for row in rejected
    ]
    none = Markup("<p class='soft'>No image.</p>")
    sides = [
        (title, report.image_cards(cards[:SHOWN_IMAGES]) if cards else none)
        for title, cards in (("Kept", kept_cards), ("Rejected", dropped))
    ]
    return Markup(_SIDES.render(sides=sides))


def _images(samples: Sequence[Mapping[str, Any]]) -> Markup:
    if not samples:
        return Markup("<p>No pair came out.</p>")
    return report.image_cards(
        [
            {
                "uri": sample["picture"],
                "text": sample["text"],
                "about": f"{sample['text_source']}, score {sample['score']:.2f}: "
                f"{(sample['page_url'] or 'page not known')[:100]}",
            }
            for sample in samples
        ]
    )
