"""Fetches the images of candidates that the archives lack, into additional archives.

Candidates are found by the job's own rules, on the assumption that each missing image is large:
images that would be dropped even then are not requested.
"""

import dataclasses
import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from vlmill.pipelines.web.fetching.database import journal_errors
from vlmill.pipelines.web.fetching.entries import UrlEntry
from vlmill.pipelines.web.fetching.lines import Line
from vlmill.pipelines.web.fetching.pages import order_addresses
from vlmill.pipelines.web.fetching.politeness import PolitenessPolicy
from vlmill.pipelines.web.fetching.rounds import run_rounds_here
from vlmill.pipelines.web.fetching.stages import FETCH_LISTED
from vlmill.pipelines.web.fetching.tables import write_tables
from vlmill.pipelines.web.fetching.warc import PARTS
from vlmill.pipelines.web.fetching.work import (
    FetchState,
    continue_fetch,
    distribute,
    finish_bucket,
    use_local_scratch,
)
from vlmill.pipelines.web.pages.images import ArchivedImage
from vlmill.pipelines.web.pages.page import PageImage
from vlmill.pipelines.web_pairs import rows
from vlmill.pipelines.web_pairs.spool import SLICES, read_slices, spool
from vlmill.pipelines.web_pairs.steps import LINK, MINE, UP_TO_CHOOSE
from vlmill.pipelines.web_pairs.units import Archive, Job, prepare_work
from vlmill.runtime.console.command import print_status
from vlmill.runtime.cores import all_cores
from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.listed import ListedFile, file_problems, parse_listed
from vlmill.runtime.files.outputs import WORK, remove_work
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.remote import is_remote
from vlmill.runtime.units.runner import RunSteps
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.rejects import MAX_KEY

ASSUMED = Archive(path="assumed:", size=0)
"""Stands in for an archive with every image that is missing"""
ASSUMED_SIDE_PX = 1_000
ADDRESSES = 4  # of an image that are tried, the largest first, until one succeeds
DONE = "_fetched"

Keys = NDArray[np.uint64]


def fetch_missing(job: Job, policy: PolitenessPolicy, run_steps: RunSteps) -> list[tuple[str, int]]:
    """Mines the archives and fetches missing candidate images; returns all (path, bytes).

    The result includes the archives with fetched images. ``run_steps`` runs some of the job's
    steps. A killed run continues; images that an earlier run fetched for these archives are not
    requested again. Memory: 8 bytes for each available image and each candidate, and that of a
    crawl's workers.
    """
    folders = to_path(job.output) / WORK
    folder = folders / f"fetch-{_compute_digest(job)}"
    if not (folder / DONE).exists():
        prepare_work(job)
        run_steps(job, [MINE, LINK])
        fetching = FetchState(output=str(folder), buckets=all_cores(), policy=policy)
        folder.mkdir(parents=True, exist_ok=True)
        with journal_errors(), use_local_scratch(continue_fetch(fetching)) as fetching:
            distribute(fetching, _missing(job, run_steps))
            run_rounds_here(fetching, all_cores())
            fetched = list[ListedFile]()
            for bucket in range(fetching.buckets):
                finish_bucket(fetching, bucket)
                fetched += write_tables(fetching, bucket).archives
        write_json(folder / DONE, [dataclasses.asdict(file) for file in fetched])
        remove_work(folder)
    return [archive for each in sorted(folders.glob("fetch-*")) for archive in _list_fetched(each)]


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


def _missing(job: Job, run_steps: RunSteps) -> Iterator[Line]:
    """Yields the addresses of the missing images of candidates."""
    available_keys = _find_available_keys(job)
    assumed = replace(job, archives=(*job.archives, ASSUMED))
    names = {kind: assumed.mined / f"{ASSUMED.id.hex()}.mined-{kind}.spool" for kind in _SPOOLS}
    with ExitStack() as stack:
        spools = {kind: stack.enter_context(spool(path)) for kind, path in names.items()}
        for _, image in _images_without(job, available_keys):
            archived = _assumed(image.urls[0])
            key = rows.url_key(image.urls[0])
            fact = rows.encode(rows.Fact(archived, None))
            spools["urls"].add(key[0], rows.outcome_key(key, archived), fact)
    prepare_work(assumed)
    run_steps(assumed, UP_TO_CHOOSE)
    chosen = _sorted_keys(
        rows.url_key(archived.url)
        for _, stream in read_slices(assumed.join_spools("choose", "candidates"), range(SLICES))
        for _, value in stream
        if (archived := rows.pair(value).image).archive == ASSUMED.path
    )
    for path in names.values():
        path.unlink()
    print_status(f"{len(chosen)} candidates lack their images")
    for page_url, image in _images_without(job, available_keys):
        if _has(chosen, rows.url_key(image.urls[0])):
            urls = [url for url in order_addresses(image, page_url) if len(url) <= MAX_KEY]
            if urls:
                yield (
                    urls[0],
                    UrlEntry(
                        url=urls[0],
                        source=FETCH_LISTED.name,
                        referrer=page_url,
                        alternatives=tuple(urls[1:ADDRESSES]),
                    ),
                )


_SPOOLS = ("pages", "urls", "redirects", "inline", "rejects")


def _images_without(job: Job, available_keys: Keys) -> Iterator[tuple[str, PageImage]]:
    """Yields (page's URL, image) for images without a file under any of their addresses."""
    for _, stream in read_slices(job.written_spools("mined-pages"), range(SLICES)):
        for _, value in stream:
            page = rows.page(value)
            for image in page.images:
                # Inline images have a name instead of an address.
                urls = [url for url in image.urls if not url.startswith("urn:")]
                if urls and not any(_has(available_keys, rows.url_key(url)) for url in image.urls):
                    yield page.url, structs.replace(image, urls=tuple(urls))


def _assumed(url: str) -> ArchivedImage:
    return ArchivedImage(
        image_id=hashlib.sha256(url.encode("utf-8", "replace")).hexdigest(),
        url=url,
        width=ASSUMED_SIDE_PX,
        height=ASSUMED_SIDE_PX,
        format="jpeg",
        phash=None,
        archive=ASSUMED.path,
        offset=0,
    )


def _find_available_keys(job: Job) -> Keys:
    return _sorted_keys(
        key
        for _, stream in read_slices(job.written_spools("mined-urls"), range(SLICES))
        for key, _ in stream
        if key[rows.KEY : rows.KEY + 1] == rows.FACT
    )


def _sorted_keys(keys: Iterator[bytes]) -> Keys:
    """Returns the sorted, distinct first eight bytes of the keys."""
    return np.unique(np.fromiter((_short(key) for key in keys), np.uint64))


def _short(key: bytes) -> int:
    return int.from_bytes(key[:8], "big")


def _has(keys: Keys, key: bytes) -> bool:
    index = int(np.searchsorted(keys, np.uint64(_short(key))))
    return index < len(keys) and int(keys[index]) == _short(key)
