"""Runs a crawl: spreads URLs over buckets, fetches them in rounds, writes tables and report.

`estimate_cost` bounds a crawl's time by the politeness policy of its hosts. report.html counts URLs
by reason, status, host and time.
"""

import argparse
import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vlmill.pipelines.crawl.lists import find_lists, read_lists
from vlmill.pipelines.web.fetching.database import journal_errors
from vlmill.pipelines.web.fetching.entries import SUCCESSES
from vlmill.pipelines.web.fetching.hosts import MOST_BUCKETS, get_host
from vlmill.pipelines.web.fetching.lines import Line
from vlmill.pipelines.web.fetching.pages import Scope
from vlmill.pipelines.web.fetching.politeness import PolitenessPolicy
from vlmill.pipelines.web.fetching.rounds import run_alone, run_rounds
from vlmill.pipelines.web.fetching.stages import STAGES
from vlmill.pipelines.web.fetching.tables import (
    EXAMPLES,
    CrawlSummary,
    merge_summaries,
    write_tables,
)
from vlmill.pipelines.web.fetching.warc import PARTS
from vlmill.pipelines.web.fetching.work import (
    FetchState,
    distribute,
    finish_bucket,
    use_local_scratch,
)
from vlmill.runtime.console.bars import bar_chart, binned_columns, funnel_bars
from vlmill.runtime.console.command import print_reading_hint
from vlmill.runtime.console.cost import Estimate, print_estimate
from vlmill.runtime.console.report import (
    Section,
    funnel_table,
    html_table,
    settings_table,
    write_page,
)
from vlmill.runtime.cores import all_cores
from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.digests import file_input
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.manifest import (
    WARCS,
    digest_problems,
    read_manifest,
    write_manifest,
)
from vlmill.runtime.files.outputs import PLAN, State, prepare_output, remove_work
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.reading import reject_counts
from vlmill.runtime.files.written import record_files
from vlmill.runtime.units.funnel import Drop, build_funnel
from vlmill.runtime.units.runner import select_runner
from vlmill.runtime.units.share import Share, end_job
from vlmill.runtime.units.unit import Result, Unit
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.plurals import format_count
from vlmill.schemas.rejects import format_rejects

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
        subtitle=f"{sum(summary.outcomes.values())} URLs, "
        f"{sum(summary.records.values())} responses",
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


NOT_URLS = ("line that is not a URL", "lines that are not URLs")
REQUESTS_FIRST = 2  # per host: robots.txt and tdmrep.json


def estimate_cost(lines: Iterable[Line], policy: PolitenessPolicy, workers: int) -> Estimate:
    """Returns the cost of the URLs of a list. Memory: some 150 bytes per host."""
    hosts, bad = Counter[str](), 0
    for _, entry in lines:
        if isinstance(entry, Drop):
            bad += 1
        else:
            hosts[get_host(entry.url)] += 1
    parallel_requests = workers * policy.hosts_at_once * policy.per_host
    longest = max(hosts.values(), default=0) / policy.per_host
    all_of_them = (hosts.total() + REQUESTS_FIRST * len(hosts)) / parallel_requests
    urls = f"{hosts.total():,} URLs on {len(hosts):,} hosts"
    return Estimate(
        inputs={"--urls": urls + (f", {format_count(bad, *NOT_URLS)}" if bad else "")},
        seconds=policy.delay_s * max(longest, all_of_them),
        note="time of the pauses only: responses add to it, robots.txt may ask for "
        "longer pauses, linked URLs are fetched in addition, and repeated URLs are not "
        "fetched; bytes are the size of the responses",
    )


JOB = "crawl"
BUCKETS_PER_PART = 8  # without --buckets


def run(
    args: argparse.Namespace,
    policy: PolitenessPolicy,
    workers: int,
    beam_flags: Sequence[str],
) -> int:
    """Runs the job unless its output is finished, and prints the result.

    ``workers``: number of local processes, unless ``beam_flags`` name a runner.
    """
    output, share = to_path(args.output), args.part
    buckets = args.buckets or _buckets_before(output) or _default_buckets(share)
    lists = find_lists(args.urls)
    job = FetchState(
        output=str(output),
        buckets=buckets,
        policy=policy,
        scope=Scope(
            same_host=args.same_host,
            max_pages_per_host=args.max_pages_per_host,
            addresses=args.addresses,
        ),
        part_bytes=args.warc_bytes,
    )
    lines = read_lists(lists, column=args.url_column, follow=args.follow)
    if args.dry_run:
        return print_estimate(estimate_cost(lines, policy, workers), output)
    inputs = [file_input("--urls", str(path)) for path in lists]
    settings = read_settings(args, job, inputs)
    shared = share is not None
    state = prepare_output(output, job=JOB, settings=settings, fresh=args.fresh, shared=shared)
    if state is State.FINISHED:
        if problems := digest_problems(output):
            raise InputError(f"{problems[0]}; put the file back, or use --fresh to crawl again")
        remove_work(output)
        return say_result(output, "finished before")
    run_steps = select_runner(
        beam_flags,
        workers=workers,
        module=__name__,
        paths={"--output": str(args.output)},
        share=share,
    )
    with journal_errors(), use_local_scratch(job) as job:
        run_alone(job, "list", partial(_distribute, lines), share)
        run_rounds(job, run_steps, share)
        with end_job(output, share) as is_last:
            if not is_last:
                return 0
            finish(job, settings, inputs)
    return say_result(output, "done")


def _distribute(lines: Iterable[Line], job: FetchState, _: Unit) -> Result:
    with record_files():  # journals change, so the unit's record must not list them
        distribute(job, lines)
    return Result()


def _default_buckets(share: Share | None) -> int:
    """Returns the number of buckets; parts on different machines need the same number."""
    return all_cores() if share is None else min(share.count * BUCKETS_PER_PART, MOST_BUCKETS)


def _buckets_before(output: Path) -> int | None:
    """Returns the number of buckets of an earlier run, which may be of another machine."""
    try:
        plan = read_json(output / PLAN)
        return int(plan["settings"]["buckets"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # no earlier run, or prepare_output reports the problem


def read_settings(
    args: argparse.Namespace, job: FetchState, inputs: Sequence[Input]
) -> dict[str, Any]:
    """Returns the settings that determine the output."""
    return {
        "urls": [entry.digest for entry in inputs],
        "url_column": args.url_column,
        "follow": args.follow,
        "same_host": job.scope.same_host,
        "max_pages_per_host": job.scope.max_pages_per_host,
        "addresses": job.scope.addresses,
        "buckets": job.buckets,
        "warc_bytes": job.part_bytes,
        **job.policy.as_settings(),
    }


def finish(job: FetchState, settings: dict[str, Any], inputs: Sequence[Input]) -> None:
    """Moves the archives, writes tables and report and, last, the manifest.

    The journals are deleted last, after every line is an outcome or a reject of the tables and
    every archive has its final name. Otherwise raises OSError and deletes nothing.
    """
    output, parts = to_path(job.output), list[CrawlSummary]()
    for bucket in range(job.buckets):
        finish_bucket(job, bucket)
        parts.append(write_tables(job, bucket))
    summary = merge_summaries(parts)
    funnel = build_funnel(summary.tallies.items(), STAGES)
    write_json(output / "funnel.json", funnel)
    write_json(output / WARCS, list_archives(output, summary))
    write_json(output / "metrics.json", collect_metrics(summary))
    write_report(output / "report.html", summary, funnel, settings)
    write_manifest(output, summary.shards, job=JOB, settings=settings, inputs=inputs)
    remove_work(output)


def list_archives(output: Path, summary: CrawlSummary) -> list[dict[str, Any]]:
    """Returns the archives with their sizes, SHA-256 and numbers of responses.

    Raises OSError for an archive in the output that no journal lists.
    """
    listed = {archive.name for archive in summary.archives}
    if strays := sorted(p.name for p in output.glob(PARTS) if p.name not in listed):
        raise OSError(f"{output / strays[0]} is in no journal; use --fresh")
    return [
        {**dataclasses.asdict(archive), "records": summary.records[archive.name]}
        for archive in sorted(summary.archives, key=lambda archive: archive.name)
    ]


def collect_metrics(summary: CrawlSummary) -> dict[str, Any]:
    """Returns the number of URLs by outcome and by status, and their times."""
    return {
        "outcomes": dict(summary.outcomes.most_common()),
        "statuses": dict(summary.statuses.most_common()),
        "links_left_out": summary.left_out,
        "median_seconds": compute_median(summary.tenths),
    }


def compute_median(tenths: Mapping[int, int]) -> float | None:
    """Returns the median of times that are counted in tenths of a second, in seconds."""
    left = sum(tenths.values()) / 2
    for tenth, count in sorted(tenths.items()):
        left -= count
        if left < 0:
            return tenth / 10
    return None


def say_result(output: Path, done: str) -> int:
    """Prints the counts of the output; returns the exit status."""
    metrics = read_json(output / "metrics.json")
    outcomes = Counter[str](metrics["outcomes"])
    fetched = ", ".join(f"{outcomes[name]} {name}" for name in SUCCESSES)
    print(f"{done}: {fetched}, {format_rejects(reject_counts(output))}: {output}")
    print_reading_hint(output, "outcomes")
    rows = sum(s.rows for s in read_manifest(output)["shards"])
    return 0 if sum(outcomes[name] for name in SUCCESSES) or not rows else 1
