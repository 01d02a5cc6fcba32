"""Writes the outcome of every URL: a shard of ``outcomes`` and of ``rejects`` for each bucket."""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from vlmill.pipelines.web.fetching.entries import SUCCESSES
from vlmill.pipelines.web.fetching.journal import Journal
from vlmill.pipelines.web.fetching.stages import FETCH_LISTED, URLS
from vlmill.pipelines.web.fetching.warc import part_name
from vlmill.pipelines.web.fetching.work import FetchState, open_bucket, read_lines
from vlmill.runtime.files.listed import ListedFile, describe_file, file_problem
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.shards import Shard, stream_shard
from vlmill.runtime.units.funnel import IN, OUT, Tally
from vlmill.runtime.units.unit import Result
from vlmill.schemas.rejects import Reason, reject
from vlmill.schemas.tables import OUTCOMES, REJECTS, Table

GROUP_ROWS = 2_000
MOST_HOSTS = 30  # in the report
EXAMPLES = 5  # of each reason
_OUTCOMES = """
SELECT url, hosts.name, source, referrer, outcome, detail, status, target, media_type, urls.bytes,
sha256, etag, modified, at, urls.seconds, attempts, address, part, offset, length, times
FROM urls JOIN hosts ON hosts.id = urls.host ORDER BY url
"""
_LINES = "SELECT line, reason, detail, times FROM lines ORDER BY line, reason"
_HOSTS = f"""
SELECT hosts.name, count(*), sum(outcome IN {SUCCESSES!r}), total(urls.bytes),
avg(urls.seconds), max(urls.seconds), max(hosts.left_out)
FROM urls JOIN hosts ON hosts.id = urls.host GROUP BY urls.host
ORDER BY count(*) DESC, hosts.name LIMIT {MOST_HOSTS}
"""


@dataclass(kw_only=True)
class CrawlSummary:
    """Holds the counts of one bucket's tables, computed while they are written."""

    shards: list[Shard] = field(default_factory=list)
    tallies: Counter[Tally] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    tenths: Counter[int] = field(default_factory=Counter)  # of a second, of responses
    left_out: int = 0  # links beyond --max-pages-per-host
    hosts: list[tuple[Any, ...]] = field(default_factory=list)
    examples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    records: Counter[str] = field(default_factory=Counter)  # by archive
    archives: list[ListedFile] = field(default_factory=list)

    def to_metrics(self) -> dict[str, Any]:
        """Returns the counts as plain values, without shards and tallies."""
        return {
            "outcomes": self.outcomes,
            "statuses": self.statuses,
            "tenths": sorted(self.tenths.items()),
            "left_out": self.left_out,
            "hosts": self.hosts,
            "examples": self.examples,
            "records": self.records,
            "archives": [asdict(archive) for archive in self.archives],
        }

    @classmethod
    def from_result(cls, result: Result) -> "CrawlSummary":
        """Returns the counts that a unit's result holds."""
        values = result.metrics
        return cls(
            shards=result.shards,
            tallies=result.tallies,
            outcomes=Counter(values["outcomes"]),
            statuses=Counter(values["statuses"]),
            tenths=Counter(dict(values["tenths"])),
            left_out=values["left_out"],
            hosts=[tuple(host) for host in values["hosts"]],
            examples=values["examples"],
            records=Counter(values["records"]),
            archives=[ListedFile(**archive) for archive in values["archives"]],
        )


def write_tables(job: FetchState, bucket: int) -> CrawlSummary:
    """Finishes a bucket's archive, and writes its shards of both tables. Memory: a group of rows.

    Raises OSError if the bucket's lines do not match its outcomes and rejects, or an archive has
    changed since it was finished: no data of the journal or the archives is deleted then.
    """
    written = CrawlSummary()
    with open_bucket(job, bucket) as opened:
        journal = opened.journal
        opened.finish_part()
        outcomes = _count_rows(job, journal, written, bucket)
        written.shards.append(_write(job, OUTCOMES, bucket, outcomes))
        written.shards.append(_write(job, REJECTS, bucket, _rejects(job, journal, written)))
        written.hosts = list(journal.rows(_HOSTS))
        (left_out,) = next(journal.rows("SELECT total(left_out) FROM hosts"))
        written.left_out = int(left_out)
        written.archives = _find_archives(job, bucket, journal, written)
    _check_lines(job, bucket, written)
    return written


def _check_lines(job: FetchState, bucket: int, written: CrawlSummary) -> None:
    """Raises OSError unless every line that the bucket received is an outcome or a reject."""
    lines = read_lines(job.folder)
    actual = written.tallies[URLS.name, IN]
    if lines is not None and actual != lines[bucket]:
        raise OSError(
            f"the journal {job.journal_path(bucket)} accounts for {actual} of the {lines[bucket]} "
            "lines that it was given; use --fresh"
        )


def _find_archives(
    job: FetchState, bucket: int, journal: Journal, written: CrawlSummary
) -> list[ListedFile]:
    """Returns the bucket's finished archives. Raises OSError for one that is missing or cut."""
    if job.scope.contents:
        return []
    output = to_path(job.output)
    archives = {archive.name: archive for archive in journal.finished_parts(bucket)}
    for archive in archives.values():
        if problem := file_problem(output / archive.name, archive, hashes=False):
            raise OSError(f"{problem}; use --fresh")
    for name in written.records.keys() - archives.keys():  # finished by an older vlmill
        if not (output / name).is_file():
            raise OSError(f"{output / name} is missing; use --fresh")
        archives[name] = describe_file(output / name)
    return [archives[name] for name in sorted(archives)]


def _count_rows(
    job: FetchState, journal: Journal, written: CrawlSummary, bucket: int
) -> Iterator[dict[str, Any]]:
    for values in journal.rows(_OUTCOMES):
        *columns, part, offset, length, times = values
        row = dict(zip(OUTCOMES.schema.names, columns, strict=False))
        if row["outcome"] is None:
            path = job.journal_path(bucket)
            raise OSError(f"the journal {path} has no outcome of {row['url']}; use --fresh")
        timestamp = row["fetched_at"]
        row["fetched_at"] = None if timestamp is None else datetime.fromtimestamp(timestamp, UTC)
        if job.scope.contents:
            part = offset = length = None
        row["warc"] = None if part is None else part_name(bucket, part)
        row["warc_offset"], row["warc_length"] = offset, length
        _count(row, times, written, repeats=not job.has_rows)
        yield row


def _count(row: dict[str, Any], times: int, written: CrawlSummary, *, repeats: bool) -> None:
    """Counts an outcome; ``repeats``: repeated lines are duplicates."""
    stage, outcome = row["stage"], row["outcome"]
    if stage == FETCH_LISTED.name:
        written.tallies[URLS.name, IN] += times
        written.tallies[URLS.name, OUT] += 1 if repeats else times
        written.tallies[URLS.name, Reason.DUPLICATE.value] += times - 1 if repeats else 0
    written.tallies[stage, IN] += 1
    written.tallies[stage, OUT if outcome in SUCCESSES else outcome] += 1
    written.outcomes[outcome] += 1
    if row["status"] is not None:
        written.statuses[str(row["status"])] += 1
    if row["seconds"] is not None:
        written.tenths[int(row["seconds"] * 10)] += 1
    if row["warc"] is not None:
        written.records[row["warc"]] += 1
    examples = written.examples.setdefault(outcome, [])
    if outcome not in SUCCESSES and len(examples) < EXAMPLES:
        examples.append((row["url"], row["detail"] or ""))


def _rejects(
    job: FetchState, journal: Journal, written: CrawlSummary
) -> Iterator[dict[str, object]]:
    for line, reason, detail, times in journal.rows(_LINES):
        written.tallies[URLS.name, IN] += times
        written.tallies[URLS.name, reason] += times
        for _ in range(times):
            yield reject(URLS.name, line, Reason(reason), detail)
    for values in journal.rows(_OUTCOMES):
        url, _, stage, _, outcome, detail, *_, times = values
        if stage == FETCH_LISTED.name and not job.has_rows:
            for _ in range(times - 1):
                yield reject(URLS.name, url, Reason.DUPLICATE)
        if outcome not in SUCCESSES:
            yield reject(stage, url, Reason(outcome), detail)


def _write(job: FetchState, table: Table, bucket: int, rows: Iterable[dict[str, Any]]) -> Shard:
    producer = {"job": "crawl", "manners": job.policy.as_settings()}
    shards = job.reject_shards if table is REJECTS else job.buckets
    return stream_shard(
        job.output, table, rows, bucket, shards, producer=producer, group_rows=GROUP_ROWS
    )


def merge_summaries(parts: Iterable[CrawlSummary]) -> CrawlSummary:
    """Adds the counts of all buckets."""
    summary = CrawlSummary()
    for part in parts:
        summary.shards += part.shards
        summary.archives += part.archives
        for name in ("tallies", "outcomes", "statuses", "tenths", "records"):
            getattr(summary, name).update(getattr(part, name))
        summary.left_out += part.left_out
        summary.hosts = heapq.nlargest(MOST_HOSTS, summary.hosts + part.hosts, key=lambda h: h[1])
        for reason, examples in part.examples.items():
            summary.examples.setdefault(reason, []).extend(examples)
    return summary
