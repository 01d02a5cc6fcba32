"""report.html of the web-pairs job: the funnel, what was counted, sample pairs and rejects.

Everything comes from the records of the shards' units, and the pictures of the samples from their
archives: nothing grows with the number of pairs.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from vlmill.pipelines.archives.reading import open_archive, read_bodies
from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.web_pairs.metrics import (
    SAMPLES,
    SCORE_BIN,
    SHAPE_BIN,
    SIDE_BIN,
    first_of,
    sum_counts,
)
from vlmill.pipelines.web_pairs.mine import INLINE
from vlmill.pipelines.web_pairs.units import Job
from vlmill.schemas.console.bars import binned_columns, count_bars, funnel_bars
from vlmill.schemas.console.report import (
    Section,
    funnel_table,
    html_table,
    picture_cards,
    settings_table,
    thumbnail_uri,
    write_page,
)
from vlmill.schemas.files.remote import path_of
from vlmill.schemas.rejects import Rejected

MOST_BARS = 20


def write_report(
    job: Job,
    funnel: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
    groups: Mapping[str, int],
    written: Sequence[Mapping[str, Any]],
) -> None:
    """Writes ``report.html``; ``written`` are the metrics of the shards."""
    samples = sorted((s for part in written for s in part["samples"]), key=lambda s: str(s[0]))
    write_page(
        path_of(job.output) / "report.html",
        "Web pairs",
        [
            Section(title="Funnel", body=_funnel(funnel), intro="in = out + dropped"),
            Section(
                title="Sample pairs",
                body=_pictures([about for _, about in samples[:SAMPLES]], job),
                intro=f"At most {SAMPLES}, drawn by chance.",
            ),
            Section(title="Distributions", body=_charts(sum_counts(written))),
            Section(title="Pictures that look alike", body=_groups(groups)),
            Section(
                title="Sample rejects",
                body=_rejects(written),
                intro="A few of each stage and reason, drawn by chance.",
            ),
            Section(title="Settings", body=settings_table(settings)),
        ],
        subtitle=f"{funnel[-1]['out']} pairs from {funnel[0]['in']} archives",
    )


def _funnel(funnel: Sequence[Mapping[str, Any]]) -> Markup:
    return Markup("{}{}").format(funnel_bars(funnel), funnel_table(funnel))


def _charts(counts: Mapping[str, Counter[Any]]) -> Markup:
    def bins(name: str, width: float, title: str, label: str) -> Markup:
        return binned_columns(counts.get(name, Counter()), width, title=title, label=label)

    def most(name: str, title: str) -> Markup:
        return count_bars(dict(counts.get(name, Counter()).most_common(MOST_BARS)), title=title)

    charts = [
        bins("words", 1, "Words of a text", "words"),
        bins("score", SCORE_BIN, "Score", "score"),
        bins("side", SIDE_BIN, "Shorter side of a picture", "pixels"),
        bins("shape", SHAPE_BIN, "Shape", "width / height"),
        most("language", "Languages"),
        most("text_source", "Where texts come from"),
        most("license", "Licences that pages state"),
        most("split", "Splits"),
        most("host", "Hosts with most pairs"),
    ]
    return Markup("<div class='charts'>{}</div>").format(Markup("").join(charts))


def _groups(groups: Mapping[str, int]) -> Markup:
    return Markup("<p>{} pairs' pictures look like another's, in {} groups.</p>").format(
        groups["near_duplicates"], groups["near_duplicate_groups"]
    )


def _pictures(samples: Sequence[Mapping[str, Any]], job: Job) -> Markup:
    if not samples:
        return Markup("<p>No pair came out.</p>")
    return picture_cards(
        [
            {
                "uri": _thumbnail(sample, job.rules.max_record_bytes),
                "text": sample["text"],
                "about": f"{sample['text_source']}, score {sample['score']:.2f}: "
                f"{sample['page_url'][:100]}",
            }
            for sample in samples
        ]
    )


def _thumbnail(sample: Mapping[str, Any], max_bytes: int) -> str:
    if sample["archive"] == INLINE:
        return ""  # one that stood in its page is shown by its text
    with open_archive(sample["archive"]) as file:
        (body,) = read_bodies(file, [sample["offset"]], max_bytes=max_bytes)
    try:
        return "" if isinstance(body, Drop) else thumbnail_uri(body)
    except Rejected:
        return ""  # thumbnails do not know its format


def _rejects(written: Sequence[Mapping[str, Any]]) -> Markup:
    kinds: dict[tuple[str, str], list[tuple[str, dict[str, Any]]]] = {}
    for part in written:
        for drawn, row in part["examples"]:
            kinds.setdefault((row["stage"], row["reason"]), []).append((drawn, row))
    return html_table(["stage", "reason", "key", "detail"], list(_reject_rows(kinds)))


def _reject_rows(
    kinds: Mapping[tuple[str, str], Sequence[tuple[str, dict[str, Any]]]],
) -> Iterator[list[str]]:
    for kind, examples in sorted(kinds.items()):
        for _, row in first_of(examples):
            yield [*kind, row["key"][:100], (row["detail"] or "")[:160]]
