"""Mirrors a local work folder of a run with growing files to a store.

The store's state is the last listing of :meth:`Mirror.push` in ``_mirror.json``, which is written
after the files that it names. When the run continues on another machine, files that only grow
(logs) are cut back to the listed length, and unlisted files are removed. Manifests are uploaded
last, so a manifest implies that the run is complete.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vlmill.runtime.files.atomic import (
    TEMPORARY_PREFIX,
    remove_leftovers,
    temporary_folder,
    write_json,
)
from vlmill.runtime.files.lock import LOCK
from vlmill.runtime.files.paths import to_path
from vlmill.runtime.files.remote import RemotePath, is_remote
from vlmill.schemas.errors import InputError
from vlmill.schemas.plain_json import read_json

LISTING = "_mirror.json"
# A file that is rewritten, not appended to, may be newer than the listing if it is as small.
SMALL_BYTES = 1 << 20
_mirrors: dict[Path, "Mirror"] = {}


def push(folder: str | Path) -> None:
    """Updates the store if ``folder`` is, or is inside, the work folder of a mirror."""
    for parent in (Path(folder), *Path(folder).parents):
        if mirror := _mirrors.get(parent):
            mirror.push()


def restore_paths(text: str) -> str:
    """Returns a sentence about work folders of mirrors, with the paths that the user gave."""
    for folder, mirror in _mirrors.items():
        text = text.replace(str(folder), str(mirror.place))
    return text


def named_from(output: str | Path, argument: str | None) -> str | None:
    """Returns a table's or checkpoint's name in the records of ``output``; never relative in a
    store.

    Each start has a different work folder, so no path of the user is relative to it.
    """
    if argument is None or is_remote(argument) or not is_remote(output):
        return argument
    return os.path.abspath(argument)


def require_one_process(output: str | Path) -> None:
    """Raises InputError if several processes have one output that a store mirrors."""
    if is_remote(output) and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError(
            f"--output {output}: several processes share a folder; give a local one, and copy it"
        )


@contextmanager
def mirror_output(
    output: str | Path, *, without: tuple[str, ...] = (), last: str | None = None
) -> Iterator[Path]:
    """Yields the folder to work in: ``output`` itself, or a temporary one for a path in a store.

    The temporary folder starts with the content of the store, and is uploaded at the end of the
    block and at each :func:`push`. Folders named ``without`` stay local. Files named ``last``, by
    which readers recognise a complete folder, are uploaded after the others. The caller must have
    locked the output. Raises InputError for a path with content that no such run has written.
    Errors that name the folder are raised with the name in the store.
    """
    store_path = to_path(output)
    if not isinstance(store_path, RemotePath):
        yield store_path
        return
    with temporary_folder() as base:
        folder = base / (store_path.name or "run")
        folder.mkdir()
        mirror = Mirror(store_path, folder, without, last)
        mirror.pull()
        _mirrors[folder] = mirror
        try:
            yield folder
            mirror.push()
        except InputError as error:
            raise InputError(restore_paths(str(error))) from None
        finally:
            del _mirrors[folder]


class Mirror:
    """Holds a path in a store and the folder that it mirrors."""

    def __init__(
        self, store_path: RemotePath, folder: Path, without: tuple[str, ...], last: str | None
    ) -> None:
        self.place, self.folder, self._without, self._last = store_path, folder, set(without), last
        self._listed: dict[str, tuple[int, str]] = {}
        self._stamps: dict[str, tuple[int, int]] = {}

    def pull(self) -> None:
        """Downloads the listed files, and removes unlisted ones from the store."""
        listing = self.place / LISTING
        there = {str(p).removeprefix(f"{self.place}/"): s.st_size for p, s in self.place.below()}
        there.pop(LOCK, None)
        if there.pop(LISTING, None) is None:
            if there:
                raise InputError(
                    f"--output {self.place} holds {min(there)} and was not made by such a run; "
                    "give an empty or new folder"
                )
            write_json(listing, {"files": {}})
            return
        self._listed = _read_listing(listing)
        remove_leftovers(self.place)
        for name, (size, digest) in self._listed.items():
            self._fetch(name, size, digest)
        for name in there.keys() - self._listed.keys():
            (self.place / name).unlink(missing_ok=True)
        self._stamps = dict(self._files())

    def _fetch(self, name: str, size: int, digest: str) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        remote = self.place / name
        assert isinstance(remote, RemotePath)
        try:
            remote.download(file)
        except FileNotFoundError:
            raise InputError(f"{remote} is listed in {LISTING}, but missing; use --fresh") from None
        if file.stat().st_size > size and _digest(file, size) == digest:
            os.truncate(file, size)  # it has grown since
        elif _digest(file) != digest and file.stat().st_size > SMALL_BYTES:
            raise InputError(f"{remote} differs from its entry in {LISTING} says; use --fresh")

    def push(self) -> None:
        """Uploads changed files, lists them, and removes deleted ones; the manifest is last."""
        stamps = dict(self._files())
        changed = [name for name in stamps if stamps[name] != self._stamps.get(name)]
        changed.sort(key=lambda name: (Path(name).name == self._last, name))
        gone = self._stamps.keys() - stamps.keys()
        if not changed and not gone:
            return
        for name in gone:
            if _is_manifest(name):  # first: a folder that changes is not complete
                (self.place / name).unlink(missing_ok=True)
        for name in changed:
            if not _is_manifest(name):
                self._upload(name)
        last = [name for name in changed if _is_manifest(name)]
        entries = {name: entry for name, entry in self._listed.items() if name in stamps}
        for name in last:
            entries[name] = _describe_file(self.folder / name)
        self._listed = entries
        write_json(self.place / LISTING, {"files": entries})
        for name in gone:
            (self.place / name).unlink(missing_ok=True)
        for name in last:
            self._upload(name)
        self._stamps = stamps

    def _upload(self, name: str) -> None:
        file, remote = self.folder / name, self.place / name
        assert isinstance(remote, RemotePath)
        remote.upload(file)
        self._listed[name] = _describe_file(file)

    def _files(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yields files with the values that show a change; links are followed."""
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder)
            is_internal = any(
                part.startswith(TEMPORARY_PREFIX) or part == LOCK for part in name.parts
            )
            if path.is_file() and not is_internal and not self._without.intersection(name.parts):
                status = path.stat()
                yield name.as_posix(), (status.st_size, status.st_mtime_ns)


def _is_manifest(name: str) -> bool:
    """Returns whether a file marks its folder as complete: the run's, or that of a run below it."""
    from vlmill.runtime.files.manifest import MANIFEST  # loads pyarrow, which --help does not need

    return Path(name).name == MANIFEST


def _describe_file(file: Path) -> tuple[int, str]:
    size = file.stat().st_size
    return size, _digest(file, size)


def _digest(file: Path, size: int | None = None) -> str:
    """Returns the SHA-256 of a file's first ``size`` bytes."""
    digest = hashlib.sha256()
    left = file.stat().st_size if size is None else size
    with file.open("rb") as stream:
        while left and (part := stream.read(min(left, 1 << 20))):
            digest.update(part)
            left -= len(part)
    return digest.hexdigest()


def _read_listing(listing: Path) -> dict[str, tuple[int, str]]:
    try:
        files: dict[str, Any] = read_json(listing)["files"]
        entries = {name: (int(size), str(digest)) for name, (size, digest) in files.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{listing} is damaged ({error}); delete the run, or give another"
        ) from None
    for name in entries:
        if name.startswith("/") or ".." in Path(name).parts or is_remote(name):
            raise InputError(f"{listing} lists {name!r}, which leads out of the run")
    return entries
