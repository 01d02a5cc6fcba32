"""Defines a fetch as a job: its buckets, distributing URLs to them, and fetching one of them."""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from zlib import crc32

from vlmill.pipelines.web.fetching.fetcher import Fetcher
from vlmill.pipelines.web.fetching.hosts import assign_bucket, get_host
from vlmill.pipelines.web.fetching.journal import Journal
from vlmill.pipelines.web.fetching.lines import Line
from vlmill.pipelines.web.fetching.pages import Scope
from vlmill.pipelines.web.fetching.politeness import PolitenessPolicy
from vlmill.pipelines.web.fetching.warc import PARTS, Parts, part_name
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
from vlmill.runtime.net.client import Client
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json

LINES_A_COMMIT = 10_000
ORPHANS_S = 30.0  # how long a worker of a killed run may take to end
LINES = "lines.json"  # alongside the journals: how many lines of the list each received


@dataclass(frozen=True, kw_only=True)
class FetchState:
    """Holds the state that every worker of a fetch needs; small, as each worker receives it."""

    output: str
    buckets: int
    policy: PolitenessPolicy
    scope: Scope = field(default_factory=Scope)
    part_bytes: int = 1 << 30
    local: str | None = None  # for an output in a store: a local folder for growing files

    @property
    def resume_folder(self) -> Path:
        """Returns the folder of the journals from which a killed run continues."""
        return to_path(self.output) / WORK / "buckets"

    @property
    def folder(self) -> Path:
        """Returns the folder of the buckets' current journals and open parts."""
        return self.resume_folder if self.local is None else Path(self.local, "buckets")

    def journal_path(self, bucket: int) -> Path:
        """Returns the path of a bucket's journal."""
        return self.folder / f"{bucket:05d}.journal"

    def journal(self, bucket: int) -> Journal:
        """Opens a bucket's journal."""
        path = self.journal_path(bucket)
        return Journal(path, None if self.local is None else self.resume_folder / path.name)

    @contextmanager
    def parts(self, bucket: int, journal: Journal) -> Iterator[Parts]:
        """Opens a bucket's archive after its last journalled record."""
        parts = Parts(
            to_path(self.output),
            self.folder / f"{bucket:05d}.warc.gz",
            bucket,
            contact=self.policy.contact,
            max_bytes=self.part_bytes,
            journalled=journal.last_location(),
        )
        try:
            yield parts
        finally:
            parts.close()


@contextmanager
def use_local_scratch(job: FetchState) -> Iterator[FetchState]:
    """Yields the job, with a local folder if its output is in a store."""
    if not is_remote(job.output):
        yield job
        return
    with temporary_folder() as folder:
        yield replace(job, local=str(folder))


def continue_fetch(job: FetchState) -> FetchState:
    """Returns the fetch with the number of buckets of an earlier run, if one has begun it."""
    if not has_folder(job.resume_folder):
        return job
    lines = read_lines(job.resume_folder)
    journals = len(list(job.resume_folder.glob("[0-9]*.journal"))) if lines is None else len(lines)
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


def _check_journals(job: FetchState) -> None:
    """Raises OSError for a missing journal, before the other journals are changed."""
    for bucket in range(job.buckets):
        job.journal(bucket).close()
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
    if job.folder.exists() or restore(job):
        _check_journals(job)
        return
    for leftover in job.folder.parent.glob(f"{TEMPORARY_PREFIX}*"):  # of a run that was killed
        shutil.rmtree(leftover)
    with atomic_folder(job.folder) as folder, ExitStack() as stack:
        journals = [
            stack.enter_context(Journal(folder / job.journal_path(bucket).name, new=True))
            for bucket in range(job.buckets)
        ]
        counts = [0] * job.buckets
        progress = stack.enter_context(Progress(total=None, unit="line", label="list of URLs"))
        for number, (line, entry) in enumerate(lines, start=1):
            if isinstance(entry, Drop):
                bucket = crc32(line.encode("utf-8", "replace")) % job.buckets
                journals[bucket].drop_line(line, entry.reason, entry.detail)
            else:
                bucket = assign_bucket(get_host(entry.url), job.buckets)
                journals[bucket].list_url(entry)
            counts[bucket] += 1
            progress.advance()
            if number % LINES_A_COMMIT == 0:
                for journal in journals:
                    journal.commit()
        for journal in journals:
            journal.commit()
            journal.close()
        write_json(folder / LINES, {"lines": counts})
    if job.local is not None:
        for bucket in range(job.buckets):
            with job.journal(bucket) as journal:
                journal.keep()
        write_json(job.resume_folder / LINES, {"lines": counts})
        write_bytes(job.resume_folder / WHOLE, b"")


def restore(job: FetchState) -> bool:
    """Restores the journals of a killed run from its store; returns False without a folder of them.

    Raises OSError if a journal is missing. Responses since the stored state are discarded, and
    their archives are removed.
    """
    if job.local is None or not has_folder(job.resume_folder):
        return False
    names = [job.journal_path(bucket).name for bucket in range(job.buckets)]
    if missing := [name for name in names if not (job.resume_folder / name).is_file()]:
        raise OSError(f"the journal {job.resume_folder / missing[0]} is missing; use --fresh")
    lines = read_lines(job.resume_folder)
    with atomic_folder(job.folder) as folder:
        for name in names:
            remote = job.resume_folder / name
            assert isinstance(remote, RemotePath)
            remote.download(folder / name)
        if lines is not None:
            write_json(folder / LINES, {"lines": lines})
    sent = {}
    for bucket in range(job.buckets):
        with job.journal(bucket) as journal:
            sent[bucket] = journal.outbox.last_sent()
    journalled = set[str]()
    for bucket in range(job.buckets):
        with job.journal(bucket) as journal:
            journal.restored(sent, time.time())
            last = journal.last_location()
        journalled.update(part_name(bucket, part) for part in range(last.part + 1 if last else 0))
    for path in to_path(job.output).glob(PARTS):
        if path.name not in journalled:
            path.unlink()
    return True


def pull_all(job: FetchState) -> list[int]:
    """Gives each bucket the URLs that others have sent to it; returns buckets with waiting URLs."""
    waiting = []
    for bucket in range(job.buckets):
        with _lock_bucket(job, bucket), job.journal(bucket) as journal:
            for number in range(job.buckets):
                if number != bucket:
                    with job.journal(number) as other:
                        sent = other.outbox.sent_to(bucket, journal.outbox.pulled(number))
                        journal.pull(number, sent, max_pages=job.scope.max_pages_per_host)
            if journal.waiting():
                waiting.append(bucket)
    return waiting


def retry_failed(job: FetchState, number: int) -> int:
    """Begins retry round ``number`` for transient failures; returns how many URLs wait."""
    urls = 0
    for bucket in range(job.buckets):
        with job.journal(bucket) as journal:
            urls += journal.retry_failed(number)
            journal.commit()
    return urls


def try_failed_again(job: FetchState) -> None:
    """Begins one more retry round for transient failures, after any that were begun."""
    passes = []
    for bucket in range(job.buckets):
        with job.journal(bucket) as journal:
            passes.append(journal.last_pass())
    retry_failed(job, max(passes) + 1)


def fetch_bucket(job: FetchState, bucket: int) -> None:
    """Fetches the waiting URLs of a bucket."""
    with ExitStack() as stack:
        stack.enter_context(_lock_bucket(job, bucket))
        journal = stack.enter_context(job.journal(bucket))
        parts = stack.enter_context(job.parts(bucket, journal))
        progress = stack.enter_context(
            Progress(total=journal.waiting(), unit="URL", label=f"crawl, bucket {bucket}")
        )
        client = stack.enter_context(Client(job.policy.client_settings()))
        fetcher = Fetcher(
            journal,
            parts,
            client,
            bucket=bucket,
            buckets=job.buckets,
            policy=job.policy,
            scope=job.scope,
            watch=_watch(journal, progress),
        )
        fetcher.run()


def finish_bucket(job: FetchState, bucket: int) -> None:
    """Moves the open part of a bucket's archive to its final path: the bucket is complete."""
    with job.journal(bucket) as journal, job.parts(bucket, journal) as parts:
        journal.finish_part(parts)


@contextmanager
def _lock_bucket(job: FetchState, bucket: int) -> Iterator[None]:
    """Locks a bucket; waits for a worker of a killed run, which ends when it notices."""
    until = time.monotonic() + ORPHANS_S
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(lock_output(job.journal_path(bucket), alongside=True))
                break
            except InputError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
        yield


def _watch(journal: Journal, progress: Progress) -> Callable[[int, int], None]:
    """Returns a function that updates the progress bar."""

    def watch(done: int, rejected: int) -> None:
        if done:
            progress.total = progress.done + done + journal.waiting()
            progress.advance(done, rejects=rejected)

    return watch
