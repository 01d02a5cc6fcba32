"""Finds files of a published data set: in a folder, compressed, in a zip or a tar.

Nothing is unpacked to disk. Reading is limited by the unpacked bytes, regardless of the size in a
header. Names that lead elsewhere, links, devices and encrypted members are never opened.

An archive lists its plain members by name, and reads each directly.
"""

import io
import os
import re
import threading
import zipfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from vlmill.pipelines.manifest.reading.images import MAX_BYTES as MAX_IMAGE
from vlmill.pipelines.manifest.reading.images import image_content, image_path, is_unsafe
from vlmill.pipelines.manifest.reading.unpacking import (
    DAMAGED,
    MAX_BYTES,
    PACKED_TARS,
    TARS,
    Bounded,
    ends,
    max_unpacked_bytes,
    member_file,
    open_tar,
    open_unpacked,
    open_zip,
    plain_files,
    plain_name,
)
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason

MAX_MEMBERS = 50_000_000


class Archive:
    """Reads a zip or a tar: its plain members by name. Memory: some 200 bytes for each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._zip: zipfile.ZipFile | None = None
        self._infos: dict[str, zipfile.ZipInfo] = {}  # of a zip; zipfile opens the last of a name
        self._lock = threading.Lock()
        self.is_random = not ends(path, PACKED_TARS)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Returns the members' bytes in the archive; for a repeated name the first one's."""
        return {name: size for name, (_, size) in self._index.items()}

    @cached_property
    def _index(self) -> dict[str, tuple[int, int]]:
        """Returns (offset in a tar, bytes) of each member."""
        index: dict[str, tuple[int, int]] = {}
        try:
            for name, offset, size in self._members():
                if not is_unsafe(name) and len(index) < MAX_MEMBERS:
                    index.setdefault(name, (offset, size))
        except InputError:
            raise
        except DAMAGED as error:
            raise InputError(f"{self.path} is not a readable archive ({error})") from None
        return index

    def _members(self) -> Iterator[tuple[str, int, int]]:
        if ends(self.path, (".zip",)):
            self._zip = open_zip(self.path)
            for entry in self._zip.infolist():
                kind = entry.external_attr >> 28  # Unix file type: 8 plain file, 0 not stated
                if not entry.is_dir() and not entry.flag_bits & 1 and kind in (0, 8):
                    self._infos.setdefault(entry.filename, entry)
                    yield entry.filename, 0, entry.compress_size
            return
        with open_tar(self.path) as tar:
            for info in plain_files(tar):
                yield plain_name(info), info.offset_data, info.size

    def find_member(self, name: str) -> str | None:
        """Returns the member with a published name, in any folder."""
        if name in self._index:
            return name
        end = "/" + name
        return next((member for member in self._index if member.endswith(end)), None)

    def is_called(self, name: str) -> bool:
        """Returns whether the archive is a packed folder of this name."""
        return self.path.stem == name.rpartition("/")[2]

    def has_folder(self, name: str) -> bool:
        """Returns whether a member is in the folder."""
        return any(member.startswith(name + "/") for member in self._index)

    def content(self, name: str) -> bytes | Drop | None:
        """Returns a member's bytes, None if it does not exist, or why it is not read."""
        if name not in self._index:
            return None
        offset, size = self._index[name]
        try:
            content = (
                self._read_zip_member(name)
                if self._zip is not None
                else self._read_tar_member(offset, size)
            )
        except DAMAGED as error:
            return Drop(Reason.IMAGE_BROKEN, f"{self.path.name}: {error}")
        if not 0 < len(content) <= MAX_IMAGE:
            reason = Reason.IMAGE_TOO_LARGE if content else Reason.IMAGE_BROKEN
            return Drop(reason, f"{len(content)} bytes or more, at most {MAX_IMAGE}")
        return content

    def _read_zip_member(self, name: str) -> bytes:
        assert self._zip is not None
        with self._lock, self._zip.open(self._infos[name]) as file:
            return file.read(MAX_IMAGE + 1)

    def _read_tar_member(self, offset: int, size: int) -> bytes:
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            return os.pread(descriptor, min(size, MAX_IMAGE + 1), offset)
        finally:
            os.close(descriptor)


class Remarks:
    """Records remarks about a file: unread columns and keys, and repeated keys of an object. Their
    numbers are limited, since a file may contain anything.
    """

    MOST, LENGTH = 20, 60

    def __init__(self) -> None:
        self.unread: dict[str, None] = {}  # in order of appearance
        self.repeated: dict[str, None] = {}

    def check(self, names: Collection[str], known: frozenset[str]) -> None:
        """Records the names that are not known."""
        if not known.issuperset(names):
            self._note(self.unread, (name for name in names if name not in known))

    def repeat(self, names: Sequence[str]) -> None:
        """Records the repeated keys of an object."""
        self._note(self.repeated, (name for name, n in Counter(names).items() if n > 1))

    def _note(self, noted: dict[str, None], names: Iterable[str]) -> None:
        for name in names:
            if len(noted) < self.MOST:
                noted[str(name)[: self.LENGTH]] = None


@dataclass(frozen=True, kw_only=True)
class Source:
    """Describes a file to read: ``path`` on the disk, and its ``member`` if the path is an archive.

    ``name`` is the published name; ``size`` has the bytes on the disk, or the packed bytes of a
    zip's member. ``remarks`` are added while the file is read.
    """

    path: Path
    name: str
    size: int
    member: str | None = None
    remarks: Remarks = field(default_factory=Remarks, compare=False, repr=False)

    @property
    def display_name(self) -> str:
        """Returns the file's name for messages."""
        return str(self.path) if self.member is None else f"{self.member} in {self.path}"

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Opens the file as a stream of unpacked bytes. Raises InputError for damage."""
        with ExitStack() as stack:
            try:
                file = _open_source(self, stack)
            except InputError:
                raise
            except DAMAGED as error:
                raise InputError(
                    f"{self.display_name} cannot be read ({error}); fetch it again"
                ) from None
            yield io.BufferedReader(file, 1 << 20)


def file_source(path: Path, name: str | None = None) -> Source:
    """Returns the source of a file on the disk; its name is the file's unless it is given."""
    return Source(path=path, name=path.name if name is None else name, size=path.stat().st_size)


def _open_source(source: Source, stack: ExitStack) -> Bounded:
    if source.member is None:
        file, is_packed = open_unpacked(source.path, stack)
        max_bytes = max_unpacked_bytes(source.size) if is_packed else MAX_BYTES
        return Bounded(file, max_bytes, source.display_name)
    if ends(source.path, (".zip",)):
        archive = stack.enter_context(open_zip(source.path))
        info = next(info for info in archive.infolist() if info.filename == source.member)
        if info.flag_bits & 1:
            raise ValueError("it is encrypted")
        return Bounded(
            archive.open(info), max_unpacked_bytes(info.compress_size), source.display_name
        )
    tar = stack.enter_context(open_tar(source.path))
    entry = next((e for e in plain_files(tar) if plain_name(e) == source.member), None)
    if entry is None:
        raise ValueError("the archive has changed")
    return Bounded(member_file(tar, entry), MAX_BYTES, source.display_name)


# Names that identify an image only with their folder: row 1000 of SBU is 0001/000.jpg.
_NUMBERED_IN_FOLDER = re.compile(r"(?:.*/)?\d{4}/\d{3}\.jpg", re.ASCII)


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _list_names(paths: Sequence[str]) -> list[str]:
    """Returns the names to search an image by: the paths, then the names without folders."""
    unnumbered = (path for path in paths if _NUMBERED_IN_FOLDER.fullmatch(path) is None)
    return list(dict.fromkeys([*paths, *map(_base, unnumbered)]))


class Folder:
    """Finds files in ``--input`` and its archives, and images there and in each of ``images``.

    If ``--input`` is a file, it represents its folder without other files of entries. Raises
    InputError for a missing folder.
    """

    def __init__(self, root: Path, images: Sequence[Path] = ()) -> None:
        self._only = root if root.is_file() else None
        root = root.parent if self._only else root
        if not root.is_dir():
            raise InputError(f"--input {root}: no such folder; give the data set's")
        for path in images:
            if not path.exists():
                raise InputError(f"--images {path}: no such folder or archive")
        self.root, self.images = root, tuple(images)
        self.is_flat = False

    @cached_property
    def _names(self) -> dict[str, Path]:
        """Returns files of the folder by their name without suffixes that downloads add."""
        names: dict[str, Path] = {}
        for path in sorted(self.root.iterdir()):
            if path.is_file() and not path.name.startswith(".") and self._is_meant(path):
                names.setdefault(path.name.split("?")[0], path)
        return names

    def _is_meant(self, path: Path) -> bool:
        """Returns whether a file may be used: a file that --input names is the only one."""
        return self._only is None or path == self._only

    def find(self, *names: str) -> Source | None:
        """Returns the first existing published file: plain, compressed, or in an archive."""
        for name in names:
            for tried in dict.fromkeys((name, _base(name))):
                for ending in ("", ".gz"):
                    path = self._names.get(tried + ending, self.root / (tried + ending))
                    if path.is_file() and self._is_meant(path):
                        return file_source(path, _base(name))
        for name in names:
            for archive in self._archives:
                if (member := archive.find_member(name)) is not None:
                    return Source(
                        path=archive.path,
                        name=_base(name),
                        size=archive.sizes[member],
                        member=member,
                    )
        return None

    def require(self, *names: str) -> Source:
        """Returns the file of :meth:`find`. Raises InputError with expected and existing files."""
        if (source := self.find(*names)) is not None:
            return source
        raise self.lacks(" or ".join(names))

    def lacks(self, files: str) -> InputError:
        """Returns the error for a folder without a data set."""
        there = sorted(path.name for path in self.root.iterdir() if path.name[0] != ".")
        preview = ", ".join(there[:8]) + (", ..." if len(there) > 8 else "")
        return InputError(
            f"--input {self.root} has no {files} (there is {preview or 'nothing'}); give the "
            "folder of the published files"
        )

    def files(self, *endings: str) -> list[Path]:
        """Returns files directly in the folder with one of these endings, sorted by name."""
        return [p for name, p in sorted(self._names.items()) if name.lower().endswith(endings)]

    @cached_property
    def _archives(self) -> list[Archive]:
        return [Archive(path) for path in self.files(".zip", *TARS, *PACKED_TARS)]

    # Images

    @cached_property
    def _locations(self) -> list[Path | Archive]:
        roots: list[Path | Archive] = [self.root, *(a for a in self._archives if a.is_random)]
        return [*(p if p.is_dir() else Archive(p) for p in self.images), *roots]

    def has_images(self, folders: Sequence[str]) -> bool:
        """Returns whether images exist: ``--images``, a published folder, or the folder if flat."""
        if self.is_flat or self.images or any((self.root / name).is_dir() for name in folders):
            return True
        archives = [a for a in self._archives if a.is_random]
        return any(a.is_called(n) or a.has_folder(n) for a in archives for n in folders)

    def image(self, paths: Sequence[str]) -> bytes | Drop:
        """Returns an image's bytes by the first of its names that exists, or why it is not read."""
        names = _list_names(paths)
        if any(is_unsafe(name) for name in names):
            return Drop(Reason.UNSAFE_PATH, f"{paths[0]} leads out of the folder")
        for location in self._locations:
            for name in names:
                content = (
                    location.content(name)
                    if isinstance(location, Archive)
                    else image_content(location, name)
                )
                if content is not None:
                    return content
        other_names = f", nor by {len(paths) - 1} other names" if len(paths) > 1 else ""
        return Drop(
            Reason.IMAGE_MISSING,
            f"no file {paths[0]}{other_names}" if paths else "no name of a file here",
        )

    def has_any(self, names: Iterable[Sequence[str]]) -> bool:
        """Returns whether an image exists under one of its names."""
        return any(paths and self.image_size(paths) is not None for paths in names)

    def image_size(self, paths: Sequence[str]) -> int | None:
        """Returns the stored size of an image by the first of its names that exists, else None."""
        names = _list_names(paths)
        for location in self._locations:
            for name in names:
                if is_unsafe(name):
                    return None
                if isinstance(location, Archive):
                    size = location.sizes.get(name)
                else:
                    path = image_path(location, name)
                    size = None if isinstance(path, Drop) else path.stat().st_size
                if size is not None:
                    return size
        return None
