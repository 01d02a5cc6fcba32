"""Defines a fetch as a job: its buckets, distributing URLs to them, and fetching one of them.

A bucket's files are in the output. If that is in a store, the worker that has the bucket keeps them
in a temporary folder, and mirrors them to the store (:mod:`.mirror`).
"""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from zlib import crc32

from vlmill.pipelines.web.fetching.entries import SUCCESSES, UrlEntry
from vlmill.pipelines.web.fetching.fetcher import Fetcher
from vlmill.pipelines.web.fetching.hosts import assign_bucket, get_host
from vlmill.pipelines.web.fetching.journal import Journal
from vlmill.pipelines.web.fetching.lines import Line
from vlmill.pipelines.web.fetching.mirror import PUSH_S, BucketMirror, base_name
from vlmill.pipelines.web.fetching.outbox import write_sent
from vlmill.pipelines.web.fetching.pages import Scope
from vlmill.pipelines.web.fetching.politeness import PolitenessPolicy
from vlmill.pipelines.web.fetching.warc import Parts
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.atomic import (
    TEMPORARY_PREFIX,
    WHOLE,
    atomic_folder,
    has_folder,
    temporary_folder,
    write_bytes,
    write_json,
)
from vlmill.runtime.files.lock import lock_output
from vlmill.runtime.files.outputs import WORK
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.remote import RemotePath, is_remote
from vlmill.runtime.files.remote_lock import SECONDS
from vlmill.runtime.net.client import Client
from vlmill.runtime.units.funnel import Drop
from vlmill.runtime.units.numbers import BYTES, Numbers, count_rejects
from vlmill.runtime.units.unit import Result
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json

LINES_A_COMMIT = 10_000
ORPHANS_S = 30.0  # how long a worker of a killed run may take to end
_OUTCOMES = """
SELECT outcome, count(*), total(bytes) FROM urls WHERE outcome IS NOT NULL GROUP BY outcome
"""
LINES = "lines.json"  # alongside the journals: how many lines of the list each received


@dataclass(frozen=True, kw_only=True)
class FetchState:
    """Holds the state that every worker of a fetch needs; small, as each worker receives it.

    A worker takes a bucket in a store over if its lock was not renewed for ``lock_seconds``.
    ``has_rows``: lines are rows of a table, and a URL of several rows is not a duplicate.
    Archives of the ``contents`` alone are deleted with the other files of the run.
    """

    output: str
    buckets: int
    policy: PolitenessPolicy
    scope: Scope = field(default_factory=Scope)
    part_bytes: int = 1 << 30
    lock_seconds: float = SECONDS
    has_rows: bool = False

    @property
    def reject_shards(self) -> int:
        """Returns the number of shards of rejects: one for each bucket, and one for its rows."""
        return 2 * self.buckets if self.has_rows else self.buckets

    @property
    def folder(self) -> Path:
        """Returns the folder of the buckets: their journals, or in a store their mirrors."""
        return to_path(self.output) / WORK / "buckets"

    @property
    def sent_folder(self) -> Path:
        """Returns the folder of URLs that buckets have for each other."""
        return to_path(self.output) / WORK / "sent"

    @property
    def archive_folder(self) -> Path:
        """Returns the folder of finished archives."""
        output = to_path(self.output)
        return output / WORK / "contents" if self.scope.contents else output

    def journal_path(self, bucket: int) -> Path:
        """Returns the path of a bucket's journal, in a store that of its mirror."""
        folder = self.folder
        return folder / (f"{bucket:05d}" if is_remote(folder) else journal_name(bucket))

    def journal(self, bucket: int) -> Journal:
        """Opens a bucket's journal, in an output on this machine."""
        return Journal(self.journal_path(bucket))


def journal_name(bucket: int) -> str:
    """Returns the file name of a bucket's journal."""
    return f"{bucket:05d}.journal"


@dataclass(frozen=True, kw_only=True)
class OpenBucket:
    """Holds a bucket that no other worker may open: its journal, and its archive."""

    journal: Journal
    parts: Parts

    def finish_part(self) -> None:
        """Moves the open part of the archive to its final path."""
        self.journal.finish_part(self.parts)


@contextmanager
def open_bucket(job: FetchState, bucket: int) -> Iterator[OpenBucket]:
    """Locks a bucket and opens it after its last journalled record.

    From a store it is downloaded, and at the end of the block uploaded. If its last worker was
    killed, it continues from the last push. Raises InputError if another worker keeps it.
    """
    with _lock_bucket(job, bucket), ExitStack() as stack:
        folder, mirror = job.folder, None
        if is_remote(job.output):
            folder = stack.enter_context(temporary_folder())
            mirror = _open_mirror(job, bucket, folder)
        journal = stack.enter_context(Journal(folder / journal_name(bucket), mirror))
        if job.scope.contents:
            job.archive_folder.mkdir(parents=True, exist_ok=True)
        parts = Parts(
            job.archive_folder,
            _open_part(folder, bucket),
            bucket,
            contact=job.policy.contact,
            max_bytes=job.part_bytes,
            journalled=journal.last_location(),
            contents=job.scope.contents,
        )
        stack.callback(parts.close)
        opened = OpenBucket(journal=journal, parts=parts)
        if mirror is not None:
            journal.restored(time.time())
            if mirror.is_interrupted:
                opened.finish_part()
        yield opened
        if mirror is not None:
            opened.finish_part()


def _open_part(folder: Path, bucket: int) -> Path:
    return folder / f"{bucket:05d}.warc.gz"


def _open_mirror(job: FetchState, bucket: int, folder: Path) -> BucketMirror:
    remote = job.journal_path(bucket)
    assert isinstance(remote, RemotePath)
    mirror = BucketMirror(
        remote,
        folder / journal_name(bucket),
        _open_part(folder, bucket),
        interval_s=min(PUSH_S, job.policy.delay_s),
    )
    mirror.restore()
    return mirror


@contextmanager
def local_journals(job: FetchState) -> Iterator[Path]:
    """Yields the folder with all journals, in a store copies of them; no bucket may be open."""
    if not is_remote(job.output):
        yield job.folder
        return
    with temporary_folder() as folder:
        for bucket in range(job.buckets):
            _open_mirror(job, bucket, folder)
        yield folder


def continue_fetch(job: FetchState) -> FetchState:
    """Returns the fetch with the number of buckets of an earlier run, if one has begun it."""
    if not has_folder(job.folder):
        return job
    lines = read_lines(job.folder)
    journals = len(list(job.folder.glob("[0-9]*.journal"))) if lines is None else len(lines)
    return replace(job, buckets=journals)


def read_lines(folder: Path) -> list[int] | None:
    """Returns how many lines of the list each bucket received; None if an older vlmill began.

    Raises OSError for a damaged record.
    """
    path = folder / LINES
    if not path.is_file():
        return None
    try:
        return [int(lines) for lines in read_json(path)["lines"]]
    except (ValueError, TypeError, KeyError) as error:
        raise OSError(f"{path} is damaged ({error}); use --fresh") from None


def check_journals(job: FetchState) -> None:
    """Raises OSError for a missing journal, before the other journals are changed."""
    if is_remote(job.output):
        names = {path.name for path in job.folder.iterdir()}
    else:
        names = {path.name for path in job.folder.glob("*.journal")}
    for path in map(job.journal_path, range(job.buckets)):
        if path.name not in names:
            raise OSError(f"the journal {path} is missing; put it back, or use --fresh")
    lines = read_lines(job.folder)
    if lines is not None and len(lines) != job.buckets:
        raise OSError(
            f"{job.folder / LINES} lists {len(lines)} buckets and the run has {job.buckets}; "
            "use --fresh"
        )


def distribute(job: FetchState, lines: Iterable[Line]) -> None:
    """Assigns each line of a list to the bucket of its host, unless an earlier run has done so.

    Duplicates are counted. If killed, no line is assigned. Memory does not grow with the list.
    """
    if has_folder(job.folder):
        check_journals(job)
        return
    with _new_journals(job) as folder, ExitStack() as stack:
        journals = [
            stack.enter_context(Journal(folder / journal_name(bucket), new=True))
            for bucket in range(job.buckets)
        ]
        counts = [0] * job.buckets
        progress = stack.enter_context(Progress(total=None, unit="line", label="list of URLs"))
        for number, (line, entry) in enumerate(lines, start=1):
            bucket = bucket_for(line, entry, job.buckets)
            add_line(journals[bucket], line, entry)
            counts[bucket] += 1
            progress.advance()
            if number % LINES_A_COMMIT == 0:
                for journal in journals:
                    journal.commit()
        for journal in journals:
            journal.commit()
            journal.close()
        write_json(folder / LINES, {"lines": counts})


def bucket_for(line: str, entry: UrlEntry | Drop, buckets: int) -> int:
    """Returns the bucket of a line of a list."""
    if isinstance(entry, Drop):
        return crc32(line.encode("utf-8", "replace")) % buckets
    return assign_bucket(get_host(entry.url), buckets)


def add_line(journal: Journal, line: str, entry: UrlEntry | Drop) -> None:
    """Adds a line of a list to its bucket's journal."""
    if isinstance(entry, Drop):
        journal.drop_line(line, entry.reason, entry.detail)
    else:
        journal.list_url(entry)


@contextmanager
def _new_journals(job: FetchState) -> Iterator[Path]:
    """Yields a folder for new journals, which are stored together at the end of the block."""
    if not is_remote(job.output):
        for leftover in job.folder.parent.glob(f"{TEMPORARY_PREFIX}*"):  # of a run that was killed
            shutil.rmtree(leftover)
        with atomic_folder(job.folder) as folder:
            yield folder
        return
    with temporary_folder() as folder:
        yield folder
        for bucket in range(job.buckets):
            upload_journal(job, bucket, folder / journal_name(bucket))
        finish_lists(job, read_lines(folder) or [])


def upload_journal(job: FetchState, bucket: int, file: Path) -> None:
    """Stores a bucket's new journal in a store."""
    remote = job.journal_path(bucket) / base_name(1)
    assert isinstance(remote, RemotePath)
    remote.upload(file)


def finish_lists(job: FetchState, counts: Sequence[int]) -> None:
    """Records that all journals have been stored, with their numbers of lines."""
    write_json(job.folder / LINES, {"lines": list(counts)})
    if is_remote(job.output):
        write_bytes(job.folder / WHOLE, b"")


def try_failed_again(job: FetchState) -> None:
    """Begins one more retry round for transient failures, after any that were begun."""
    for bucket in range(job.buckets):
        with open_bucket(job, bucket) as opened:
            opened.journal.retry_failed(opened.journal.last_pass() + 1)
            opened.journal.commit()


def fetch_bucket(job: FetchState, bucket: int, retry: int = 0) -> Result:
    """Fetches the waiting URLs of a bucket, after it has taken the URLs of other buckets for it.

    ``retry`` begins that retry round. The result's metrics are for the choice of the next round:
    ``sent`` (the buckets that it has URLs for), ``failed`` (the number of URLs that may be tried
    again) and ``retry`` (the last retry round).
    """
    with open_bucket(job, bucket) as opened, ExitStack() as stack:
        journal = opened.journal
        before = count_outcomes(journal)
        journal.pull_sent(job.sent_folder, bucket, max_pages=job.scope.max_pages_per_host)
        if retry:
            journal.retry_failed(retry)
            journal.commit()
        if waiting := journal.waiting():
            progress = stack.enter_context(
                Progress(total=waiting, unit="URL", label=f"crawl, bucket {bucket}")
            )
            client = stack.enter_context(Client(job.policy.client_settings()))
            Fetcher(
                journal,
                opened.parts,
                client,
                bucket=bucket,
                buckets=job.buckets,
                policy=job.policy,
                scope=job.scope,
                watch=_watch(journal, progress),
            ).run()
        if is_remote(job.output):
            opened.finish_part()  # the journal is stored before others may read its URLs
        sent = write_sent(job.sent_folder, bucket, journal.outbox)
        journal.commit()
        state = {"sent": sent, "failed": journal.failed(), "retry": journal.last_pass()}
        return Result(numbers=count_outcomes(journal) - before, metrics=state)


def count_outcomes(journal: Journal) -> Numbers:
    """Counts a bucket's URLs with an outcome, their bytes, and the URLs without content."""
    numbers = Numbers()
    for outcome, urls, num_bytes in journal.rows(_OUTCOMES):
        numbers += Numbers({"urls": urls, BYTES: int(num_bytes)})
        if outcome not in SUCCESSES:
            numbers += count_rejects({outcome: urls})
    return numbers


@contextmanager
def _lock_bucket(job: FetchState, bucket: int) -> Iterator[None]:
    """Locks a bucket; waits for a worker of a killed run, which ends when it notices.

    In a store nothing notices: a killed worker's lock counts for ``lock_seconds``.
    """
    path, in_store = job.journal_path(bucket), is_remote(job.output)
    until = time.monotonic() + ORPHANS_S + (job.lock_seconds if in_store else 0.0)
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(
                    lock_output(path, alongside=not in_store, seconds=job.lock_seconds)
                )
                break
            except InputError:
                if time.monotonic() > until:
                    raise
                time.sleep(1.0 if in_store else 0.2)
        yield


def _watch(journal: Journal, progress: Progress) -> Callable[[int, int], None]:
    """Returns a function that updates the progress bar."""

    def watch(done: int, rejected: int) -> None:
        if done:
            progress.total = progress.done + done + journal.waiting()
            progress.advance(done, rejects=rejected)

    return watch
