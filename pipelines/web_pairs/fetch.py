"""Fetches the images of candidates that the archives lack, into additional archives.

Candidates are found by the job's own rules, on the assumption that each missing image is large:
images that would be dropped even then are not requested. They are found and listed in units.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from vlmill.pipelines.web.fetching.database import journal_errors
from vlmill.pipelines.web.fetching.entries import UrlEntry
from vlmill.pipelines.web.fetching.journal import Journal
from vlmill.pipelines.web.fetching.pages import order_addresses
from vlmill.pipelines.web.fetching.politeness import PolitenessPolicy
from vlmill.pipelines.web.fetching.rounds import collect_tables, fetch_all
from vlmill.pipelines.web.fetching.stages import FETCH_LISTED
from vlmill.pipelines.web.fetching.warc import PARTS
from vlmill.pipelines.web.fetching.work import (
    LINES,
    FetchState,
    add_line,
    bucket_for,
    check_journals,
    continue_fetch,
    finish_lists,
    journal_name,
    upload_journal,
)
from vlmill.pipelines.web.pages.images import ArchivedImage
from vlmill.pipelines.web.pages.page import PageImage
from vlmill.pipelines.web_pairs import rows
from vlmill.pipelines.web_pairs.spool import SLICES, read_slices, sorted_rows, spool
from vlmill.pipelines.web_pairs.steps import KEYS, LINK, MERGE_KEYS, MINE, UP_TO_CHOOSE
from vlmill.pipelines.web_pairs.units import Archive, Job, even_units, prepare_work
from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.atomic import atomic_path, temporary_folder, write_json
from vlmill.runtime.files.listed import file_problems, parse_listed
from vlmill.runtime.files.outputs import WORK, remove_work
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.remote import is_remote
from vlmill.runtime.files.written import record_files
from vlmill.runtime.units.runner import RunSteps
from vlmill.runtime.units.step import Step, Work
from vlmill.runtime.units.unit import Result, Unit
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.rejects import MAX_KEY

BUCKETS, DONE = "_buckets", "_fetched"

ASSUMED = "assumed:"  # begins the paths of archives that replace missing ones
ASSUMED_SIDE_PX = 1_000
ADDRESSES = 4  # of an image that are tried, the largest first, until one succeeds

Keys = NDArray[np.uint64]
_encode_entry = msgspec.msgpack.Encoder().encode
_decode_entry = msgspec.msgpack.Decoder(UrlEntry).decode


def fetch_missing(
    job: Job, policy: PolitenessPolicy, run_steps: RunSteps, *, buckets: int, lock_seconds: float
) -> list[tuple[str, int]]:
    """Mines the archives and fetches missing candidate images; returns all (path, bytes).

    The result includes the archives with fetched images. ``run_steps`` runs all steps. An earlier
    run may have begun with another number of ``buckets``. A killed run continues; images that an
    earlier run fetched for these archives are not requested again.
    """
    folders = to_path(job.output) / WORK
    folder = folders / f"fetch-{_compute_digest(job)}"
    if not (folder / DONE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        fetching = FetchState(
            output=str(folder), buckets=buckets, policy=policy, lock_seconds=lock_seconds
        )
        fetching = replace(fetching, buckets=_count_buckets(folder, fetching))
        with journal_errors():
            if (fetching.folder / LINES).exists():
                check_journals(fetching)
            else:
                list_missing(job, fetching, run_steps)
            fetch_all(fetching, run_steps)
        write_json(folder / DONE, [asdict(file) for file in collect_tables(fetching).archives])
        remove_work(folder)
    return [archive for each in sorted(folders.glob("fetch-*")) for archive in _list_fetched(each)]


def _count_buckets(folder: Path, fetching: FetchState) -> int:
    """Returns the number of buckets of an earlier run, or stores that of this run."""
    path = folder / BUCKETS
    if not path.exists():
        write_json(path, continue_fetch(fetching).buckets)
    try:
        return int(read_json(path))
    except (ValueError, TypeError) as error:
        raise OSError(f"{path} is damaged ({error}); use --fresh") from None


def _list_fetched(folder: Path) -> list[tuple[str, int]]:
    """Returns the paths and sizes of fetched archives.

    Raises InputError for one that has changed since it was written.
    """
    try:
        listed = parse_listed(read_json(folder / DONE))
    except FileNotFoundError:  # of a run that was killed
        listed = []
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{folder / DONE} is damaged; give --fresh to begin again") from None
    # A store keeps checksums itself, and a hash would have to fetch all bytes.
    if problems := file_problems(folder, listed, hashes=not is_remote(folder)):
        raise InputError(f"{problems[0]}; give --fresh to fetch and mine again")
    return [(str(path), path.stat().st_size) for path in sorted(folder.glob(PARTS))]


def _compute_digest(job: Job) -> str:
    """Returns a digest that identifies the set of the user's archives."""
    fetched = f"{to_path(job.output) / WORK}{os.sep}"
    archive_lines = sorted(
        f"{a.path}\0{a.size}" for a in job.archives if not a.path.startswith(fetched)
    )
    return hashlib.blake2b(
        "\n".join(archive_lines).encode("utf-8", "replace"), digest_size=8
    ).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Search:
    """Holds the state of every unit: the job, the fetch that gets the URLs, and the ranges."""

    job: Job
    fetching: FetchState
    num_ranges: int

    @property
    def output(self) -> str:
        """Returns the folder of the fetch."""
        return self.fetching.output

    @property
    def folder(self) -> Path:
        """Returns the folder of the units' files and records."""
        return to_path(self.output) / WORK / "missing"

    def file(self, step: str, number: int) -> Path:
        """Returns the file of a unit over a range."""
        return self.folder / f"{step}-{number:05d}"

    @cached_property
    def assumed(self) -> Job:
        """Returns the job with additional archives that have every missing image."""
        archives = [Archive(path=f"{ASSUMED}{n:05d}", size=0) for n in range(self.num_ranges)]
        return replace(self.job, archives=(*self.job.archives, *archives))

    def assumed_spool(self, number: int, kind: str) -> Path:
        """Returns the path of a spool of an assumed archive."""
        archive = self.assumed.archives[len(self.job.archives) + number]
        return self.job.mined_spool(archive.id.hex(), kind.removeprefix("mined-"))


def list_missing(job: Job, fetching: FetchState, run_steps: RunSteps) -> None:
    """Mines the archives, and gives the fetch's buckets the addresses of missing candidates.

    Memory of a unit: 8 bytes for each available image and each candidate.
    """
    prepare_work(job)
    run_steps(job, [MINE, LINK, *MERGE_KEYS])
    search = Search(job=job, fetching=fetching, num_ranges=job.num_ranges)
    search.folder.mkdir(parents=True, exist_ok=True)
    run_steps(search, [AVAILABLE, ASSUME])
    prepare_work(search.assumed)
    run_steps(search.assumed, UP_TO_CHOOSE)
    number = search.assumed.num_ranges
    chosen = _step("chosen", partial(keep_chosen, number), number)
    run_steps(search, [chosen, _step("list", partial(list_chosen, number)), FILL])
    finish_lists(fetching, [result.metrics["lines"] for result in FILL.results(search)])
    for unit in range(search.num_ranges):  # only now: a killed run needs them again
        for kind in KEYS:
            search.assumed_spool(unit, kind).unlink(missing_ok=True)
    candidates = sum(result.metrics["candidates"] for result in chosen.results(search))
    print_status(f"{candidates} candidates lack their images")


def _ranges(step: str, number: int | None, search: Search) -> list[Unit]:
    return even_units(step, search.num_ranges if number is None else number)


def _search_folder(search: Search) -> Path:
    return search.folder


def _step(name: str, work: Work[Search], number: int | None = None) -> Step[Search]:
    """Returns a step over ranges: ``number`` of them, or as many as the job's joins have."""
    units = partial(_ranges, name, number)
    return Step(name=name, units=units, work=work, folder=_search_folder)


def keep_available(search: Search, unit: Unit) -> Result:
    """Keeps the keys of a range of URLs that the archives have an image of."""
    paths = search.job.spools("mined-urls", unit.slices)
    keys = (
        key
        for _, stream in read_slices(paths, unit.slices)
        for key, _ in stream
        if key[rows.KEY : rows.KEY + 1] == rows.FACT
    )
    _save_keys(search.file("available", unit.number), keys)
    return Result()


def assume_images(search: Search, unit: Unit) -> Result:
    """Gives the images of a range of pages an assumed content, if the archives have none."""
    available = _load_keys(search, "available", search.num_ranges)
    with ExitStack() as stack:
        paths = {kind: search.assumed_spool(unit.number, kind) for kind in KEYS}
        spools = {kind: stack.enter_context(spool(path)) for kind, path in paths.items()}
        for _, _, image in _images_without(search.job, unit, available):
            archived = _assumed_image(image.urls[0], f"{ASSUMED}{unit.number:05d}")
            key = rows.url_key(image.urls[0])
            fact = rows.encode(rows.Fact(archived, None))
            spools["mined-urls"].add(key[0], rows.outcome_key(key, archived), fact)
    return Result()


def keep_chosen(number: int, search: Search, unit: Unit) -> Result:
    """Keeps the keys of assumed images that are candidates, of one of ``number`` ranges."""
    path = search.assumed.join_spools("choose", "candidates")[unit.number]
    keys = (
        rows.url_key(archived.url)
        for _, stream in read_slices([path], range(SLICES))
        for _, value in stream
        if (archived := rows.pair(value).image).archive.startswith(ASSUMED)
    )
    return Result(metrics={"candidates": _save_keys(search.file("chosen", unit.number), keys)})


def list_chosen(number: int, search: Search, unit: Unit) -> Result:
    """Lists the addresses of chosen images on a range of pages, by the bucket of their host."""
    available = _load_keys(search, "available", search.num_ranges)
    chosen = _load_keys(search, "chosen", number)
    with spool(search.file("list", unit.number)) as writer:
        for key, page_url, image in _images_without(search.job, unit, available):
            if not _has(chosen, rows.url_key(image.urls[0])):
                continue
            urls = [url for url in order_addresses(image, page_url) if len(url) <= MAX_KEY]
            if urls:
                entry = UrlEntry(
                    url=urls[0],
                    source=FETCH_LISTED.name,
                    referrer=page_url,
                    alternatives=tuple(urls[1:ADDRESSES]),
                )
                bucket = bucket_for(urls[0], entry, search.fetching.buckets)
                writer.add(bucket, key, _encode_entry(entry))
    return Result()


def fill_bucket(search: Search, unit: Unit) -> Result:
    """Creates the journal of a bucket with the URLs that were listed for it."""
    fetching, lines = search.fetching, 0
    paths = [search.file("list", number) for number in range(search.num_ranges)]
    # Journals change, so the unit's record must not list them.
    with (
        record_files(),
        _new_journal(fetching, unit.number) as path,
        Journal(path, new=True) as journal,
    ):
        for _, value in sorted_rows(paths, unit.number):
            entry = _decode_entry(value)
            add_line(journal, entry.url, entry)
            lines += 1
        journal.commit()
    return Result(metrics={"lines": lines})


@contextmanager
def _new_journal(fetching: FetchState, bucket: int) -> Iterator[Path]:
    """Yields the path for a new journal, which is stored at the end of the block."""
    if not is_remote(fetching.output):
        with atomic_path(fetching.journal_path(bucket)) as path:
            yield path
        return
    with temporary_folder() as folder:
        yield folder / journal_name(bucket)
        upload_journal(fetching, bucket, folder / journal_name(bucket))


def bucket_units(search: Search) -> list[Unit]:
    """Returns a unit for each bucket of the fetch."""
    return [Unit(name=f"fill-{n:05d}", number=n) for n in range(search.fetching.buckets)]


AVAILABLE = _step("available", keep_available)
ASSUME = _step("assume", assume_images)
FILL = Step(name="fill", units=bucket_units, work=fill_bucket, folder=_search_folder)


def _images_without(
    job: Job, unit: Unit, available: Keys
) -> Iterator[tuple[bytes, str, PageImage]]:
    """Yields (key, page's URL, image) for images without a file under any of their addresses."""
    for _, stream in read_slices(job.spools("mined-pages", unit.slices), unit.slices):
        for key, value in stream:
            if key[rows.PLACE :] != rows.PAGE:
                continue  # the rules of a robots.txt
            page = rows.page(value)
            for number, image in enumerate(page.images):
                # Inline images have a name instead of an address.
                urls = [url for url in image.urls if not url.startswith("urn:")]
                if urls and not any(_has(available, rows.url_key(url)) for url in image.urls):
                    image_key = key + number.to_bytes(4, "big")
                    yield image_key, page.url, structs.replace(image, urls=tuple(urls))


def _assumed_image(url: str, archive: str) -> ArchivedImage:
    return ArchivedImage(
        image_id=hashlib.sha256(url.encode("utf-8", "replace")).hexdigest(),
        url=url,
        width=ASSUMED_SIDE_PX,
        height=ASSUMED_SIDE_PX,
        format="jpeg",
        phash=None,
        archive=archive,
        offset=0,
    )


def _save_keys(path: Path, keys: Iterator[bytes]) -> int:
    """Writes the sorted, distinct first eight bytes of the keys; returns their number."""
    distinct = np.unique(np.fromiter((_short(key) for key in keys), np.uint64))
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.save(file, distinct, allow_pickle=False)
    return len(distinct)


def _load_keys(search: Search, step: str, number: int) -> Keys:
    parts = []
    for path in (search.file(step, index) for index in range(number)):
        with path.open("rb") as file:
            parts.append(np.load(file, allow_pickle=False))
    return np.unique(np.concatenate(parts))


def _short(key: bytes) -> int:
    return int.from_bytes(key[:8], "big")


def _has(keys: Keys, key: bytes) -> bool:
    index = int(np.searchsorted(keys, np.uint64(_short(key))))
    return index < len(keys) and int(keys[index]) == _short(key)
