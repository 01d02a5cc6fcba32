"""Writes the report of a crawl: URLs by reason, status, host and time."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vlmill.pipelines.web.fetching.tables import EXAMPLES, CrawlSummary
from vlmill.runtime.console.bars import bar_chart, binned_columns, funnel_bars
from vlmill.runtime.console.report import (
    Section,
    funnel_table,
    html_table,
    settings_table,
    write_page,
)
from vlmill.schemas.plurals import format_count

MOST_TENTHS = 100  # ten seconds; the last column has all longer times


def write_report(
    path: Path,
    summary: CrawlSummary,
    funnel: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
) -> None:
    """Writes the report page, whose size does not depend on the number of URLs."""
    write_page(
        path,
        "Crawl",
        [
            Section(
                title="Funnel",
                body=Markup("{}{}").format(funnel_bars(funnel), funnel_table(funnel)),
                intro="By how a URL was found; in = out + dropped.",
            ),
            Section(title="Outcomes", body=_charts(summary)),
            Section(
                title="Hosts",
                body=_hosts(summary),
                intro="The hosts with the most URLs. Seconds: total response time.",
            ),
            Section(
                title="Sample rejects",
                body=_examples(summary),
                intro=f"At most {EXAMPLES} of each reason and bucket.",
            ),
            Section(title="Settings", body=settings_table(settings)),
        ],
        subtitle=f"{format_count(sum(summary.outcomes.values()), 'URL')}, "
        f"{format_count(sum(summary.records.values()), 'response')}",
    )


def _charts(summary: CrawlSummary) -> Markup:
    tenths = {min(tenth, MOST_TENTHS): 0 for tenth in summary.tenths}
    for tenth, count in summary.tenths.items():
        tenths[min(tenth, MOST_TENTHS)] += count
    charts = [
        bar_chart(dict(summary.outcomes.most_common()), title="Outcomes"),
        bar_chart(dict(summary.statuses.most_common()), title="Status of answers"),
        binned_columns(tenths, 0.1, title="Response time", label="seconds"),
    ]
    return Markup("<div class='charts'>{}</div>").format(Markup("").join(charts))


def _hosts(summary: CrawlSummary) -> Markup:
    header = ["host", "URLs", "fetched", "MB", "mean s", "longest s", "links skipped"]
    rows = [
        [
            host,
            urls,
            fetched or 0,
            f"{size / 1e6:.2f}",
            _seconds(mean),
            _seconds(max_seconds),
            left_out,
        ]
        for host, urls, fetched, size, mean, max_seconds, left_out in summary.hosts
    ]
    return html_table(header, rows)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _examples(summary: CrawlSummary) -> Markup:
    rows = [
        [reason, url[:100], detail[:160]]
        for reason, examples in sorted(summary.examples.items())
        for url, detail in examples
    ]
    return html_table(["reason", "URL", "detail"], rows)
