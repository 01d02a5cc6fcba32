"""Archives of images and files: plain members by name, each read where it lies."""

import os
import threading
import zipfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from vlmill.pipelines.manifest.reading.images import MAX_BYTES as MAX_IMAGE
from vlmill.pipelines.manifest.reading.images import is_unsafe
from vlmill.pipelines.manifest.reading.unpacking import (
    DAMAGED,
    PACKED_TARS,
    ends,
    open_tar,
    open_zip,
    plain_files,
    plain_name,
)
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason

MAX_MEMBERS = 50_000_000


class Archive:
    """A zip or a tar: its plain members by name. Memory: some 200 bytes for each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._zip: zipfile.ZipFile | None = None
        self._infos: dict[str, zipfile.ZipInfo] = {}  # of a zip; it would open the last of a name
        self._lock = threading.Lock()
        self.is_random = not ends(path, PACKED_TARS)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The members' bytes in the archive; of a name that comes again the first."""
        return {name: size for name, (_, size) in self._index.items()}

    @cached_property
    def _index(self) -> dict[str, tuple[int, int]]:
        """(offset in a tar, bytes) of each member."""
        index: dict[str, tuple[int, int]] = {}
        try:
            for name, offset, size in self._members():
                if not is_unsafe(name) and len(index) < MAX_MEMBERS:
                    index.setdefault(name, (offset, size))
        except InputError:
            raise
        except DAMAGED as error:
            raise InputError(f"{self.path} is no readable archive ({error})") from None
        return index

    def _members(self) -> Iterator[tuple[str, int, int]]:
        if ends(self.path, (".zip",)):
            self._zip = open_zip(self.path)
            for entry in self._zip.infolist():
                kind = entry.external_attr >> 28  # of Unix: 8 is a plain file, 0 not said
                if not entry.is_dir() and not entry.flag_bits & 1 and kind in (0, 8):
                    self._infos.setdefault(entry.filename, entry)
                    yield entry.filename, 0, entry.compress_size
            return
        with open_tar(self.path) as tar:
            for info in plain_files(tar):
                yield plain_name(info), info.offset_data, info.size

    def find_member(self, name: str) -> str | None:
        """The member with a published name, whatever folders it lies in."""
        if name in self._index:
            return name
        end = "/" + name
        return next((member for member in self._index if member.endswith(end)), None)

    def is_called(self, name: str) -> bool:
        """Whether the archive is a packed folder of this name."""
        return self.path.stem == name.rpartition("/")[2]

    def has_folder(self, name: str) -> bool:
        """Whether a member lies in the folder."""
        return any(member.startswith(name + "/") for member in self._index)

    def content(self, name: str) -> bytes | Drop | None:
        """A member's bytes; None if there is none, or why it is not read."""
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
