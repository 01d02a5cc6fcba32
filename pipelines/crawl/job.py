"""Runs a crawl: spreads URLs over buckets, fetches them in rounds, writes tables and report.

`estimate_cost` bounds a crawl's time by the politeness policy of its hosts.
"""

import argparse
import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vlmill.pipelines.crawl.lists import TableInput, find_lists, open_input, read_input, read_lists
from vlmill.pipelines.crawl.pairs import PAIRS_STEP, ROWS
from vlmill.pipelines.crawl.resizing import MODES, ResizeRule
from vlmill.pipelines.crawl.rows import FIND_STEP, PairsJob
from vlmill.pipelines.web.fetching.database import journal_errors
from vlmill.pipelines.web.fetching.entries import SUCCESSES
from vlmill.pipelines.web.fetching.hosts import get_host
from vlmill.pipelines.web.fetching.lines import Line
from vlmill.pipelines.web.fetching.pages import Scope
from vlmill.pipelines.web.fetching.politeness import PolitenessPolicy
from vlmill.pipelines.web.fetching.rounds import (
    collect_tables,
    default_buckets,
    fetch_all,
    run_alone,
)
from vlmill.pipelines.web.fetching.stages import STAGES
from vlmill.pipelines.web.fetching.tables import EXAMPLES, CrawlSummary
from vlmill.pipelines.web.fetching.warc import PARTS
from vlmill.pipelines.web.fetching.work import FetchState, distribute
from vlmill.runtime.console import report
from vlmill.runtime.console.bars import bar_chart, binned_columns, funnel_bars
from vlmill.runtime.console.command import print_reading_hint
from vlmill.runtime.console.cost import Estimate, print_estimate
from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.digests import file_input, path_input
from vlmill.runtime.files.inputs import Input
from vlmill.runtime.files.manifest import WARCS, digest_problems, read_manifest, write_manifest
from vlmill.runtime.files.outputs import PLAN, State, prepare_job, remove_work
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.reading import reject_counts
from vlmill.runtime.files.remote_lock import SECONDS
from vlmill.runtime.files.shards import Shard
from vlmill.runtime.files.written import record_files
from vlmill.runtime.units.funnel import Drop, build_funnel
from vlmill.runtime.units.runner import select_runner
from vlmill.runtime.units.share import end_job
from vlmill.runtime.units.unit import Result, Unit
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.plurals import format_count
from vlmill.schemas.rejects import format_rejects
from vlmill.schemas.tables import OUTCOMES, PAIRS

NOT_URLS = ("line that is not a URL", "lines that are not URLs")
REQUESTS_FIRST = 2  # per host: robots.txt and tdmrep.json

MOST_TENTHS = 100  # ten seconds; the last column has all longer times


def estimate_cost(
    lines: Iterable[Line], policy: PolitenessPolicy, workers: int, flag: str = "--urls"
) -> Estimate:
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
        inputs={flag: urls + (f", {format_count(bad, *NOT_URLS)}" if bad else "")},
        seconds=policy.delay_s * max(longest, all_of_them),
        note="time of the pauses only: responses add to it, robots.txt may ask for "
        "longer pauses, linked URLs are fetched in addition, and repeated URLs are not "
        "fetched; bytes are the size of the responses",
    )


JOB = "crawl"


def run(
    args: argparse.Namespace, policy: PolitenessPolicy, workers: int, beam_flags: Sequence[str]
) -> int:
    """Runs the job unless its output is finished, and prints the result.

    ``workers``: number of local processes, unless ``beam_flags`` name a runner.
    """
    output, share = to_path(args.output), args.part
    on_runner = bool(beam_flags)
    buckets = args.buckets or _buckets_before(output) or default_buckets(share, on_runner=on_runner)
    source = None if args.input is None else _open_table(args)
    lists = [] if source is not None else find_lists(args.urls)
    job = FetchState(
        output=str(output),
        buckets=buckets,
        policy=policy,
        scope=Scope(
            same_host=args.same_host,
            max_pages_per_host=args.max_pages_per_host,
            addresses=args.addresses,
            contents=source is not None and not args.keep_archives,
        ),
        part_bytes=args.warc_bytes,
        lock_seconds=SECONDS if args.lock_seconds is None else args.lock_seconds,
        has_rows=source is not None,
    )
    lines = read_lists(lists, column=args.url_column, follow=args.follow)
    if source is not None:
        lines = read_input(source)
    if args.dry_run:
        flag = "--urls" if source is None else "--input"
        return print_estimate(estimate_cost(lines, policy, workers, flag), output)
    inputs = [file_input("--urls", str(path)) for path in lists]
    if source is not None:
        record = path_input if source.table.parts else file_input
        inputs = [record("--input", args.input)]
    pairs = None if source is None else build_pairs_job(args, job, source)
    settings = read_settings(args, job, inputs, pairs)
    if prepare_job(args, JOB, settings) is State.FINISHED:
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
    with journal_errors():
        run_alone(job, "list", partial(_distribute, lines), share)
        fetch_all(job, run_steps, share)
        if pairs is not None:
            run_steps(pairs, [FIND_STEP, PAIRS_STEP])
        with end_job(output, share) as is_last:
            if not is_last:
                return 0
            finish(job, settings, inputs, pairs)
    return say_result(output, "done")


def _open_table(args: argparse.Namespace) -> TableInput:
    return open_input(
        to_path(args.input),
        args.url_column,
        args.caption_column,
        format=args.format,
        delimiter=args.delimiter,
        encoding=args.encoding,
    )


def build_pairs_job(args: argparse.Namespace, job: FetchState, source: TableInput) -> PairsJob:
    """Returns the job that writes pairs and images."""
    return PairsJob(
        fetching=job,
        name=source.name,
        columns=(source.url_column, source.caption_column),
        rule=ResizeRule(
            size=args.resize,
            mode=args.resize_mode or MODES[0],
            only_larger=args.only_larger,
            encoding=args.encode,
            quality=args.quality,
        ),
        min_side_px=args.min_side,
        rows_per_shard=args.rows_per_shard,
    )


def _distribute(lines: Iterable[Line], job: FetchState, _: Unit) -> Result:
    with record_files():  # journals change, so the unit's record must not list them
        distribute(job, lines)
    return Result()


def _buckets_before(output: Path) -> int | None:
    """Returns the number of buckets of an earlier run, which may be of another machine."""
    try:
        return int(read_json(output / PLAN)["settings"]["buckets"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # no earlier run, or prepare_output reports the problem


def read_settings(
    args: argparse.Namespace, job: FetchState, inputs: Sequence[Input], pairs: PairsJob | None
) -> dict[str, Any]:
    """Returns the settings that determine the output."""
    return {
        **({} if pairs is None else pairs.as_settings()),
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


def finish(
    job: FetchState, settings: dict[str, Any], inputs: Sequence[Input], pairs: PairsJob | None
) -> None:
    """Writes the report and, last, the manifest, after the tables of all buckets.

    The journals are deleted last, after every line is an outcome or a reject of the tables and
    every archive has its final name. Otherwise raises OSError and deletes nothing.
    """
    output, summary = to_path(job.output), collect_tables(job)
    stages, archives = list(STAGES), list_archives(output, summary)
    if pairs is not None:
        stages.append(ROWS)
        for result in PAIRS_STEP.results(pairs):
            summary.shards += result.shards
            summary.tallies.update(result.tallies)
    funnel = build_funnel(summary.tallies.items(), stages)
    write_json(output / "funnel.json", funnel)
    write_json(output / WARCS, archives)
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
    outcomes = Counter[str](read_json(output / "metrics.json")["outcomes"])
    fetched = ", ".join(f"{outcomes[name]} {name}" for name in SUCCESSES)
    shards: list[Shard] = read_manifest(output)["shards"]
    pairs = sum(s.rows for s in shards if s.table == PAIRS.name)
    is_table = any(s.table == PAIRS.name for s in shards)
    made = f"{pairs} pairs, " if is_table else ""
    print(f"{done}: {made}{fetched}, {format_rejects(reject_counts(output))}: {output}")
    print_reading_hint(output, PAIRS.name if is_table else OUTCOMES.name)
    rows = sum(s.rows for s in shards)
    return 0 if sum(outcomes[name] for name in SUCCESSES) or not rows else 1


def write_report(
    path: Path,
    summary: CrawlSummary,
    funnel: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
) -> None:
    """Writes the report page, whose size does not depend on the number of URLs."""
    report.write_page(
        path,
        "Crawl",
        [
            report.Section(
                "Funnel",
                Markup("{}{}").format(funnel_bars(funnel), report.funnel_table(funnel)),
                "By how a URL was found; in = out + dropped.",
            ),
            report.Section("Outcomes", _charts(summary)),
            report.Section(
                "Hosts",
                _hosts(summary),
                "The hosts with the most URLs. Seconds: total response time.",
            ),
            report.Section(
                "Sample rejects",
                _examples(summary),
                f"At most {EXAMPLES} of each reason and bucket.",
            ),
            report.Section("Settings", report.settings_table(settings)),
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
    return report.html_table(header, rows)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _examples(summary: CrawlSummary) -> Markup:
    rows = [
        [reason, url[:100], detail[:160]]
        for reason, examples in sorted(summary.examples.items())
        for url, detail in examples
    ]
    return report.html_table(["reason", "URL", "detail"], rows)
