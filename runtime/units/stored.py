"""Stores a job and its steps in a file of ``--output/work``, so that a runner's graph only refers
to it.

With 90,000 archives or the images of a crawl a job has megabytes; runners refuse a graph that
contains it in every step. The graph has the file's path and SHA-256, which a worker compares before
unpickling.
"""

import hashlib
import os
import pickle
import platform
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlmill import __version__
from vlmill.runtime.files.atomic import write_bytes
from vlmill.runtime.files.outputs import WORK
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.units.step import Step
from vlmill.runtime.units.unit import AnyJob


def format_versions() -> str:
    """Returns the versions that a worker and the process that starts a job must share.

    Steps travel as pickles, which another minor version of Python may not read.
    """
    return f"vlmill {__version__} and Python {python_version()}"


def python_version() -> str:
    """Returns the version of Python without its last number: 3.11."""
    return ".".join(platform.python_version_tuple()[:2])


JobAndSteps = tuple[Any, Sequence[Step[Any]]]
_keeping = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class StoredJob:
    """Holds the locations of a job and its steps, and the versions that have stored them."""

    path: str
    sha256: str
    versions: str = ""  # of vlmill and Python; "": any

    def load(self) -> JobAndSteps:
        """Returns job and steps, read once per process.

        Raises OSError for a file of another run, and in a process of other versions.
        """
        if self.versions not in ("", here := format_versions()):
            raise OSError(
                f"{os.uname().nodename} {sys.prefix} has {here}, the job was started with "
                f"{self.versions}: use the same on the workers and where the job is started "
                "(docs/clusters.md)"
            )
        if self not in _loaded:
            _keep(self, self._read())
        return _loaded[self]

    def _read(self) -> JobAndSteps:
        content = to_path(self.path).read_bytes()
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise OSError(
                f"{self.path} is not of this run: another one has written it, or it is damaged; "
                "run the command again"
            )
        loaded: JobAndSteps = pickle.loads(content)
        return loaded


_loaded: dict[StoredJob, JobAndSteps] = {}  # the last one


def _keep(stored: StoredJob, loaded: JobAndSteps) -> None:
    with _keeping:
        _loaded.setdefault(stored, loaded)
        for other in [key for key in _loaded if key != stored]:
            del _loaded[other]


def store_job(job: AnyJob, steps: Sequence[Step[AnyJob]]) -> StoredJob:
    """Writes a job and its steps for the workers of a runner."""
    content = pickle.dumps((job, tuple(steps)))
    digest = hashlib.sha256(content).hexdigest()
    path = to_path(job.output) / WORK / f"job-{digest[:16]}.pickle"
    write_bytes(path, content)
    stored = StoredJob(path=str(path), sha256=digest, versions=format_versions())
    _keep(stored, (job, steps))  # a worker inside this process uses the job in memory
    return stored


def remove_stored(job: AnyJob) -> None:
    """Deletes the files stored for workers, also by runs that were killed."""
    for path in (to_path(job.output) / WORK).glob("job-*.pickle"):
        path.unlink()
