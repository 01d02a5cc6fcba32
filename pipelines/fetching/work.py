"""A fetch as a job: its buckets, distributing URLs to them, and fetching one of them."""

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from zlib import crc32

from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.fetching.fetcher import Fetcher
from vlmill.pipelines.fetching.journal import Journal, Wanted
from vlmill.pipelines.fetching.manners import Manners
from vlmill.pipelines.fetching.pages import Scope
from vlmill.pipelines.fetching.places import bucket_of, host_of
from vlmill.pipelines.fetching.warc import Parts
from vlmill.schemas.console.progress import Progress
from vlmill.schemas.errors import InputError
from vlmill.schemas.files.atomic import TEMPORARY_PREFIX, atomic_folder
from vlmill.schemas.files.lock import locked
from vlmill.schemas.files.outputs import WORK
from vlmill.schemas.net.client import Client
from vlmill.schemas.net.exchange import ClientSettings

LINES_A_COMMIT = 10_000
ORPHANS_S = 30.0  # how long a worker of a killed run may take to end
CONNECTIONS = 64  # of a worker, each with one body in memory

Line = tuple[str, Wanted | Drop]
"""A line of a list of URLs, and what it asks for"""


@dataclass(frozen=True, kw_only=True)
class Fetching:
    """What every worker of a fetch knows; small, as it goes to each."""

    output: str
    buckets: int
    manners: Manners
    scope: Scope = field(default_factory=Scope)
    part_bytes: int = 1 << 30
    runner_pid: int = 0  # the process that has started the workers, where they are its children

    @property
    def folder(self) -> Path:
        """Where the journals and open parts of the buckets lie."""
        return Path(self.output, WORK, "buckets")

    def journal_path(self, bucket: int) -> Path:
        """Where a bucket's journal lies."""
        return self.folder / f"{bucket:05d}.journal"

    def journal(self, bucket: int) -> Journal:
        """Opens a bucket's journal."""
        return Journal(self.journal_path(bucket))

    @contextmanager
    def parts(self, bucket: int, journal: Journal) -> Iterator[Parts]:
        """Opens a bucket's archive behind the last record that is journalled."""
        parts = Parts(
            Path(self.output),
            self.folder / f"{bucket:05d}.warc.gz",
            bucket,
            contact=self.manners.contact,
            max_bytes=self.part_bytes,
            journalled=journal.last_place(),
        )
        try:
            yield parts
        finally:
            parts.close()

    def client_settings(self) -> ClientSettings:
        """The settings of a worker's client."""
        manners = self.manners
        return ClientSettings(
            contact=manners.contact,
            connections=min(CONNECTIONS, manners.hosts_at_once * manners.per_host),
            connect_seconds=manners.connect_s,
            seconds=manners.response_s,
            max_bytes=manners.max_bytes,
            allowed=tuple(ip_network(network) for network in manners.allow_addresses),
        )


def distribute(job: Fetching, lines: Iterable[Line]) -> None:
    """Gives each line of a list to the bucket of its host, unless an earlier run has done so.

    Duplicates are counted. All of it or, killed, nothing. Memory does not grow with the list.
    """
    if job.folder.exists():
        return
    for leftover in job.folder.parent.glob(f"{TEMPORARY_PREFIX}*"):  # of a run that was killed
        shutil.rmtree(leftover)
    with atomic_folder(job.folder) as folder, ExitStack() as stack:
        journals = [
            stack.enter_context(Journal(folder / job.journal_path(bucket).name))
            for bucket in range(job.buckets)
        ]
        progress = stack.enter_context(Progress(total=None, unit="line", label="list of URLs"))
        for number, (line, wanted) in enumerate(lines, start=1):
            if isinstance(wanted, Drop):
                journal = journals[crc32(line.encode("utf-8", "replace")) % job.buckets]
                journal.drop_line(line, wanted.reason, wanted.detail)
            else:
                journals[bucket_of(host_of(wanted.url), job.buckets)].list_url(wanted)
            progress.advance()
            if number % LINES_A_COMMIT == 0:
                for journal in journals:
                    journal.commit()
        for journal in journals:
            journal.commit()
            journal.close()


def pull_all(job: Fetching) -> list[int]:
    """Gives each bucket what others have sent to it; returns those in which URLs wait."""
    waiting = []
    for bucket in range(job.buckets):
        with _lock_of(job, bucket), job.journal(bucket) as journal:
            for number in range(job.buckets):
                if number != bucket:
                    with job.journal(number) as other:
                        sent = other.sent_to(bucket, journal.pulled(number))
                        journal.pull(number, sent, max_pages=job.scope.max_pages_per_host)
            if journal.waiting():
                waiting.append(bucket)
    return waiting


def retry_failed(job: Fetching, number: int) -> int:
    """Begins the pass ``number`` over URLs whose failure may be over; returns how many wait."""
    urls = 0
    for bucket in range(job.buckets):
        with job.journal(bucket) as journal:
            urls += journal.retry_failed(number)
            journal.commit()
    return urls


def fetch_bucket(
    job: Fetching, bucket: int, *, stopped: Callable[[], bool] = lambda: False
) -> None:
    """Fetches what waits in a bucket. Raises OSError once it is ``stopped``, or its run is gone."""
    with ExitStack() as stack:
        stack.enter_context(_lock_of(job, bucket))
        journal = stack.enter_context(job.journal(bucket))
        parts = stack.enter_context(job.parts(bucket, journal))
        progress = stack.enter_context(
            Progress(total=journal.waiting(), unit="URL", label=f"crawl, bucket {bucket}")
        )
        client = stack.enter_context(Client(job.client_settings()))
        fetcher = Fetcher(
            journal,
            parts,
            client,
            bucket=bucket,
            buckets=job.buckets,
            manners=job.manners,
            scope=job.scope,
            watch=_watch(job, journal, progress, stopped),
        )
        fetcher.run()


def finish_bucket(job: Fetching, bucket: int) -> None:
    """Gives the open part of a bucket's archive its place: nothing more will come."""
    with job.journal(bucket) as journal, job.parts(bucket, journal) as parts:
        parts.finish()


@contextmanager
def _lock_of(job: Fetching, bucket: int) -> Iterator[None]:
    """Holds a bucket; waits for a worker of a killed run, which ends as it notices."""
    until = time.monotonic() + ORPHANS_S
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(job.journal_path(bucket), beside=True))
                break
            except InputError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
        yield


def _watch(
    job: Fetching, journal: Journal, progress: Progress, stopped: Callable[[], bool]
) -> Callable[[int, int], None]:
    """Returns what shows progress, and ends a worker that is stopped or whose run is gone."""
    is_child = os.getppid() == job.runner_pid

    def watch(done: int, rejected: int) -> None:
        if stopped() or (is_child and os.getppid() != job.runner_pid):
            raise OSError("the run that this worker belongs to has ended")
        if done:
            progress.total = progress.done + done + journal.waiting()
            progress.advance(done, rejects=rejected)

    return watch
