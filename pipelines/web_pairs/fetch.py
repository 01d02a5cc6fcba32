"""Fetches the images of candidates that the archives lack, into additional archives."""

import dataclasses
import hashlib
import os
from pathlib import Path

from vlmill.pipelines.web.fetching.database import journal_errors
from vlmill.pipelines.web.fetching.politeness import PolitenessPolicy
from vlmill.pipelines.web.fetching.rounds import collect_tables, fetch_all
from vlmill.pipelines.web.fetching.warc import PARTS
from vlmill.pipelines.web.fetching.work import LINES, FetchState, check_journals, continue_fetch
from vlmill.pipelines.web_pairs.missing import list_missing
from vlmill.pipelines.web_pairs.units import Job
from vlmill.runtime.files.atomic import write_json
from vlmill.runtime.files.listed import file_problems, parse_listed
from vlmill.runtime.files.outputs import WORK, remove_work
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.remote import is_remote
from vlmill.runtime.units.runner import RunSteps
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json

BUCKETS, DONE = "_buckets", "_fetched"


def fetch_missing(
    job: Job,
    policy: PolitenessPolicy,
    run_steps: RunSteps,
    *,
    buckets: int,
    lock_seconds: float,
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
        fetching = dataclasses.replace(fetching, buckets=_count_buckets(folder, fetching))
        with journal_errors():
            if (fetching.folder / LINES).exists():
                check_journals(fetching)
            else:
                list_missing(job, fetching, run_steps)
            fetch_all(fetching, run_steps)
        fetched = collect_tables(fetching).archives
        write_json(folder / DONE, [dataclasses.asdict(file) for file in fetched])
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
