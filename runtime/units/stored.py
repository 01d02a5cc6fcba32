"""A job and its steps in a file of ``--output/work``: what a runner's graph names, and not holds.

With 90,000 archives or the images of a crawl a job has megabytes; a graph that holds it in every
step is refused by runners. The graph has the file's path and SHA-256, which a worker compares
before it unpickles anything.
"""

import hashlib
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from vlmill.runtime.files.atomic import write_bytes
from vlmill.runtime.files.outputs import WORK
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.units.step import Step
from vlmill.runtime.units.unit import AnyJob

JobAndSteps = tuple[Any, Sequence[Step[Any]]]


@dataclass(frozen=True, kw_only=True)
class StoredJob:
    """Where a job and its steps are."""

    path: str
    sha256: str

    def load(self) -> JobAndSteps:
        """Returns both, read once a process.

        Raises OSError for a file that is not the one of this run.
        """
        return _load(self)


@lru_cache(maxsize=1)
def _load(stored: StoredJob) -> JobAndSteps:
    content = to_path(stored.path).read_bytes()
    if hashlib.sha256(content).hexdigest() != stored.sha256:
        raise OSError(
            f"{stored.path} is not of this run: another one has written it, or it is damaged; "
            "run the command again"
        )
    loaded: JobAndSteps = pickle.loads(content)
    return loaded


def store_job(job: AnyJob, steps: Sequence[Step[AnyJob]]) -> StoredJob:
    """Writes a job and its steps for the workers of a runner."""
    content = pickle.dumps((job, tuple(steps)))
    digest = hashlib.sha256(content).hexdigest()
    path = to_path(job.output) / WORK / f"job-{digest[:16]}.pickle"
    write_bytes(path, content)
    return StoredJob(path=str(path), sha256=digest)


def remove_stored(job: AnyJob) -> None:
    """Deletes what was stored for workers, also by runs that were killed."""
    for path in (to_path(job.output) / WORK).glob("job-*.pickle"):
        path.unlink()
