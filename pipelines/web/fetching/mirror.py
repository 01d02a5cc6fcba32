"""Mirrors a bucket's growing files to an object store, from which another worker takes it over.

Objects do not grow, so each push uploads only the new bytes: of the open archive, then of SQLite's
write-ahead log, which holds the committed changes since the last complete copy of the journal
(``base``). Together they restore the state of the last push. The worker that has a bucket holds the
lock object in its folder, and writes nothing after another worker has taken the lock.
"""

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from vlmill.runtime.files.remote import RemotePath
from vlmill.runtime.files.remote_lock import require_held

PUSH_S = 1.0  # between two pushes, unless the pause of hosts is shorter
LOG_BYTES = 64 << 20  # a larger log is replaced by a new base
BASE, LOG, PART = "journal", "log", "part"
_NAME = re.compile(r"(journal|log|part)-(\d{6})(?:-(\d{15}))?")


def base_name(generation: int) -> str:
    """Returns the name of a complete copy of a journal."""
    return f"{BASE}-{generation:06d}"


class BucketMirror:
    """Restores and mirrors one bucket: its journal and the open part of its archive."""

    def __init__(
        self, folder: RemotePath, journal: Path, open_part: Path, *, interval_s: float
    ) -> None:
        """Sets up the mirror at ``folder`` of two local files; no request is made."""
        self._folder, self._journal, self._open_part = folder, journal, open_part
        self._log = journal.with_name(f"{journal.name}-wal")
        self._interval_s = interval_s
        self._objects: set[str] = set()
        self._generation = 0
        self._log_bytes = self._part = self._part_bytes = 0
        self._pushed_at = time.monotonic()
        self.is_interrupted = False  # the worker before was killed

    def restore(self) -> None:
        """Downloads the state of the last push. Raises OSError for a missing journal."""
        matches = [_NAME.fullmatch(path.name) for path in self._folder.iterdir()]
        named = sorted((m[1], int(m[2]), int(m[3] or 0), m[0]) for m in matches if m)
        bases = [(number, name) for kind, number, _, name in named if kind == BASE]
        if not bases:
            raise OSError(f"the journal {self._folder} is missing; use --fresh")
        self._generation, base = bases[-1]
        self._objects = {name for *_, name in named}
        self._download(base, self._journal)
        logs = [(o, name) for kind, n, o, name in named if (kind, n) == (LOG, self._generation)]
        self._concatenate(logs, self._log)
        part = max((number for kind, number, *_ in named if kind == PART), default=0)
        parts = [(o, name) for kind, number, o, name in named if (kind, number) == (PART, part)]
        self._part = part
        self._part_bytes = self._concatenate(parts, self._open_part)
        self._log_bytes = self._log.stat().st_size if logs else 0
        self.is_interrupted = len(named) > 1

    def _download(self, name: str, file: Path) -> None:
        remote = self._folder / name
        assert isinstance(remote, RemotePath)
        remote.download(file)

    def _concatenate(self, pieces: list[tuple[int, str]], file: Path) -> int:
        """Writes pieces that follow each other into a file; returns its size in bytes."""
        size, piece = 0, file.with_name(f"{file.name}.piece")
        with file.open("wb") as target:
            for offset, name in pieces:
                if offset != size:
                    break
                self._download(name, piece)
                with piece.open("rb") as part:
                    shutil.copyfileobj(part, target, 1 << 20)
                size = target.tell()
                piece.unlink()
        if not size:
            file.unlink()
        return size

    @property
    def seconds_left(self) -> float:
        """Returns the seconds until the next push is due."""
        return max(0.0, self._pushed_at + self._interval_s - time.monotonic())

    def require(self) -> None:
        """Raises StoreFailed if another worker has taken the bucket over."""
        require_held(str(self._folder))

    def push(self, part: int, checkpoint: Callable[[], bool]) -> None:
        """Uploads the bytes since the last push; the open part has the number ``part``.

        Everything must be committed. ``checkpoint`` moves the log into the journal's own file.
        """
        self._pushed_at = time.monotonic()
        if part != self._part:
            self._part, self._part_bytes = part, 0
        # Records before their journal: every journalled record is in the archive.
        name = f"{PART}-{part:06d}"
        self._part_bytes = self._append(self._open_part, name, self._part_bytes)
        name = f"{LOG}-{self._generation:06d}"
        self._log_bytes = self._append(self._log, name, self._log_bytes)
        if self._log_bytes > LOG_BYTES:
            self._upload_base(checkpoint, keeps_part=True)

    def _append(self, file: Path, name: str, start: int) -> int:
        """Uploads a file's bytes from ``start`` on; returns the number of uploaded bytes."""
        size = file.stat().st_size if file.exists() else 0
        if size <= start:
            return start
        piece = file.with_name(f"{file.name}.piece")
        with file.open("rb") as source, piece.open("wb") as part:
            source.seek(start)
            shutil.copyfileobj(source, part, 1 << 20)
            end = source.tell()
        self._upload(piece, f"{name}-{start:015d}")
        piece.unlink()
        return end

    def _upload(self, file: Path, name: str) -> None:
        remote = self._folder / name
        assert isinstance(remote, RemotePath)
        remote.upload(file)
        self._objects.add(name)

    def finish(self, checkpoint: Callable[[], bool]) -> None:
        """Uploads a complete journal, if it has changed; no archive is open."""
        if self.is_interrupted or (self._log.exists() and self._log.stat().st_size):
            self._upload_base(checkpoint, keeps_part=False)

    def _upload_base(self, checkpoint: Callable[[], bool], *, keeps_part: bool) -> None:
        if not checkpoint():
            raise OSError(f"{self._journal} is being read by another process")
        self._generation += 1
        new = base_name(self._generation)
        self._upload(self._journal, new)
        self._log_bytes, self.is_interrupted = 0, False
        for name in sorted(self._objects - {new}):
            if not (keeps_part and name.startswith(PART)):
                (self._folder / name).unlink(missing_ok=True)
                self._objects.discard(name)
        if not keeps_part:
            self._part_bytes = 0
