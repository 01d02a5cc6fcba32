"""Downloads a data set's images by URL, with the crawl's client and politeness policy.

They are stored in archives below the output (``work/fetched``), with journals of the outcome of
each URL: a killed run continues, and failures can be retried. The tables are written after all URLs
have an outcome.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from vlmill.pipelines.manifest.entries import Reading
from vlmill.pipelines.manifest.reading.sources import Folder
from vlmill.pipelines.web.archives.reading import read_bodies
from vlmill.pipelines.web.fetching import work
from vlmill.pipelines.web.fetching.database import journal_errors
from vlmill.pipelines.web.fetching.entries import FETCHED, REDIRECTED, SUCCESSES
from vlmill.pipelines.web.fetching.hosts import assign_bucket, get_host
from vlmill.pipelines.web.fetching.journal import Journal
from vlmill.pipelines.web.fetching.lines import Line, parse_url_line
from vlmill.pipelines.web.fetching.politeness import PolitenessPolicy
from vlmill.pipelines.web.fetching.rounds import collect_tables, fetch_all
from vlmill.pipelines.web.fetching.stages import URLS
from vlmill.pipelines.web.fetching.tables import CrawlSummary
from vlmill.pipelines.web.fetching.warc import part_name
from vlmill.runtime.cores import all_cores
from vlmill.runtime.files.atomic import has_folder, write_json
from vlmill.runtime.files.outputs import WORK
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.net.urls import resolve
from vlmill.runtime.units.funnel import IN, OUT, Drop
from vlmill.runtime.units.run_here import run_here
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.rejects import Reason

FOLDER, DONE = "fetched", "_fetched.json"
_ROW = "SELECT outcome, detail, target, part, offset FROM urls WHERE url = ?"
_REPEATED = "SELECT sha256, count(*) FROM urls WHERE sha256 IS NOT NULL GROUP BY sha256"
_lock = threading.Lock()  # of the journals, which several threads read


@dataclass(frozen=True, kw_only=True)
class FetchedImages:
    """Looks up downloaded images by their URLs; ``journals`` is the folder of the journals."""

    fetching: work.FetchState
    journals: Path

    def image(self, url: str) -> bytes | Drop:
        """Returns the image of a URL, or why the download failed."""
        target, drop = resolve("", url), Drop(Reason.BAD_URL, "no http(s) URL")
        for _ in range(self.fetching.policy.max_redirects + 1):
            if target is None or (row := self._row(target)) is None:
                return drop
            outcome, detail, redirect, part, offset = row
            if outcome == FETCHED:
                return self._body(self._bucket(target), part, offset)
            if outcome != REDIRECTED:
                return Drop(Reason(outcome), detail)
            target, drop = redirect, Drop(Reason.BAD_URL, f"redirects to {redirect}")
        return Drop(Reason.TOO_MANY_REDIRECTS)

    def find_repeated(self, max_urls: int) -> frozenset[str]:
        """Returns the SHA-256 of each content that more than ``max_urls`` URLs returned."""
        counts: dict[str, int] = {}
        for bucket in range(self.fetching.buckets):
            with Journal(self.journals / work.journal_name(bucket)) as journal:
                for digest, count in journal.rows(_REPEATED):
                    counts[digest] = counts.get(digest, 0) + count
        return frozenset(digest for digest, count in counts.items() if count > max_urls)

    def counts(self) -> dict[str, Any]:
        """Returns the number of URLs, of URLs with content, and of the others by reason."""
        counts: dict[str, Any] = read_json(to_path(self.fetching.output) / DONE)
        return counts

    def _bucket(self, url: str) -> int:
        return assign_bucket(get_host(url), self.fetching.buckets)

    def _row(self, url: str) -> tuple[Any, ...] | None:
        path = self.journals / work.journal_name(self._bucket(url))
        with _lock:
            row: tuple[Any, ...] | None = _connect(path).execute(_ROW, (url,)).fetchone()
        return row

    def _body(self, bucket: int, part: int, offset: int) -> bytes | Drop:
        path = to_path(self.fetching.output) / part_name(bucket, part)
        with path.open("rb") as file:
            return next(read_bodies(file, [offset], max_bytes=2 * self.fetching.policy.max_bytes))


@lru_cache(maxsize=1_000)
def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{path}?mode=ro", uri=True, check_same_thread=False)


@contextmanager
def fetched_images(
    reading: Reading, folder: Folder, output: Path, manners: PolitenessPolicy, *, retry: bool
) -> Iterator[FetchedImages]:
    """Downloads every image that has a URL and no file, unless a run before has done so; yields the
    images while the block runs.

    ``retry`` repeats failed downloads. Shards in ``output`` from an earlier run are deleted.
    Memory: as in a crawl.
    """
    work_folder = output / WORK / FOLDER
    state = work.FetchState(output=str(work_folder), buckets=all_cores(), policy=manners)
    fetching = work.continue_fetch(state)
    if retry and has_folder(fetching.folder):
        (work_folder / DONE).unlink(missing_ok=True)
    if not (work_folder / DONE).exists():
        for shard in output.glob("*.parquet"):
            shard.unlink()
        work_folder.mkdir(parents=True, exist_ok=True)
        with journal_errors():
            _fetch(fetching, _lines(reading, folder), retry=retry)
    with work.local_journals(fetching) as journals:
        try:
            yield FetchedImages(fetching=fetching, journals=journals)
        finally:
            _connect.cache_clear()  # the next run may use these names for others


def _fetch(fetching: work.FetchState, lines: Iterator[Line], *, retry: bool) -> None:
    is_new = not has_folder(fetching.folder)
    work.distribute(fetching, lines)
    if retry and not is_new:
        work.try_failed_again(fetching)
    fetch_all(fetching, partial(run_here, workers=all_cores(), module=__name__))
    write_json(to_path(fetching.output) / DONE, _summarize_outcomes(collect_tables(fetching)))


def _summarize_outcomes(written: CrawlSummary) -> dict[str, Any]:
    failed = {name: n for name, n in written.outcomes.most_common() if name not in SUCCESSES}
    bad = written.tallies[URLS.name, Reason.BAD_URL.value]
    return {
        "urls": written.tallies[URLS.name, OUT] + bad,
        "named": written.tallies[URLS.name, IN],
        "fetched": written.outcomes[FETCHED],
        "failed": failed | ({Reason.BAD_URL.value: bad} if bad else {}),
    }


def _lines(reading: Reading, folder: Folder) -> Iterator[Line]:
    """Yields the URL of each image without a file."""
    may_be_there = folder.has_images(reading.image_folders)
    for entry in reading.entries():
        for image in entry.images if not isinstance(entry.rows, Drop) else ():
            if image.url is None or image.content is not None:
                continue
            if not may_be_there or folder.image_size(image.paths) is None:
                yield parse_url_line(image.url, follow=-1)
