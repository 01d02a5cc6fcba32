"""Provides a path in an object store with the methods of ``Path`` that tables need.

An object store has no folders, no rename and no files that grow: a folder exists while an object is
below it, and a file appears with one completed upload (:mod:`.atomic`). Code that needs a local
file (mapping, native readers) gets a local copy by :func:`os.fspath` (:mod:`.copies`). Local paths
stay ``pathlib.Path``.
"""

import fnmatch
import io
import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import total_ordering
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from vlmill.runtime.files.copies import local_copy
from vlmill.runtime.files.seekable import PositionedFile
from vlmill.runtime.files.stores import (
    bucket_missing_error,
    filesystem,
    parse_scheme,
    retry_request,
    retry_write,
)
from vlmill.schemas.errors import InputError, StoreFailed

# For type checkers it is a Path, since both are used the same way; at run time the other methods
# are missing.
if TYPE_CHECKING:
    from pathlib import Path as _Base
else:
    _Base = object

# Functions that are called with the path of each upload and may refuse it (`remote_lock`).
BEFORE_UPLOADS: list[Callable[[str], None]] = []
BUFFER_BYTES = 1 << 20  # read ahead of a stream


class Ranges(PositionedFile):
    """Reads an object of ``size`` bytes as a file: each read requests its range."""

    def __init__(self, url: str, size: int) -> None:
        super().__init__()
        self._url, self._size = url, size

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise OSError(22, "a place before the file", self._url)
        self._position = start + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        end = min(self._position + len(buffer), self._size)
        if end <= self._position:
            return 0
        content = retry_request(self._url, lambda: self._range(end))
        buffer[: len(content)] = content
        self._position = end
        return len(content)

    def _range(self, end: int) -> bytes:
        content: bytes = filesystem(self._url).cat_file(self._url, start=self._position, end=end)
        if len(content) != end - self._position:
            raise ConnectionError(f"{len(content)} of {end - self._position} bytes have arrived")
        return content


@dataclass(frozen=True, kw_only=True)
class Status:
    """Holds the status of an object in a store; ``version`` changes with its content."""

    st_size: int
    st_mtime: float
    version: str

    @property
    def st_mtime_ns(self) -> int:
        """Returns the time of the last write; most stores have a resolution of one second."""
        return int(self.st_mtime * 1e9)


def is_remote(path: object) -> bool:
    """Returns whether a path is a URL."""
    return "://" in str(path)


@total_ordering
class RemotePath(_Base):
    """Represents ``scheme://bucket/key``, with the methods of :mod:`pathlib`.

    Equal paths are equal, they sort by their text and can be pickled. Methods raise the errors of
    :func:`~vlmill.runtime.files.stores.asked`.
    """

    __slots__ = ("url",)
    url: str

    def __init__(self, url: str) -> None:
        scheme = parse_scheme(url)
        location = url.partition("://")[2].strip("/")
        self.url = f"{scheme}://{location}"

    @property
    def _key(self) -> PurePosixPath:
        """Returns the bucket and key, or for HDFS the host and the path on it."""
        return PurePosixPath(self.url.partition("://")[2])

    def _with_key(self, key: object) -> "RemotePath":
        return RemotePath(f"{self.url.partition('://')[0]}://{key}")

    def _from_listed_name(self, name: str) -> "RemotePath":
        """Returns the path of a name in the store's listing: HDFS omits the host."""
        return self._with_key(f"{self._key.parts[0]}/{name}" if name.startswith("/") else name)

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"RemotePath({self.url!r})"

    def __reduce__(self) -> Any:
        return RemotePath, (self.url,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __lt__(self, other: object) -> bool:
        return str(self) < str(other)

    def __truediv__(self, name: Any) -> "RemotePath":
        return RemotePath(str(name)) if is_remote(name) else self._with_key(self._key / str(name))

    def __fspath__(self) -> str:
        """Returns the path of a local copy, to be read and never written."""
        status: Status = self.stat()
        return str(local_copy(self.url, status.st_size, status.version, self.download))

    @property
    def name(self) -> str:
        return self._key.name

    @property
    def stem(self) -> str:
        return self._key.stem

    @property
    def suffix(self) -> str:
        return self._key.suffix

    @property
    def parent(self) -> "RemotePath":
        return self._with_key(self._key.parent) if len(self._key.parts) > 1 else self

    def resolve(self, strict: bool = False) -> "RemotePath":
        """Returns the path itself, since there are no links. NumPy calls this before it maps."""
        return self

    def with_name(self, name: str) -> "RemotePath":
        """Returns a sibling path. Raises InputError for a bucket, which has no parent folder."""
        if len(self._key.parts) < 2:
            raise InputError(f"{self.url} is a bucket; give a folder in it")
        return self._with_key(self._key.with_name(name))

    def with_suffix(self, suffix: str) -> "RemotePath":
        return self._with_key(self._key.with_suffix(suffix))

    def ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a method of the store's fsspec file system with the key as first argument."""

        def request() -> Any:
            store = filesystem(self.url)
            return getattr(store, method)(self.url.partition("://")[2], *args, **kwargs)

        return retry_request(self.url, request)

    def _info(self) -> dict[str, Any] | None:
        try:
            info: dict[str, Any] = self.ask("info")
        except FileNotFoundError:
            return None
        return info

    def stat(self, *, follow_symlinks: bool = True) -> Any:
        info = self._info()
        if info is None or info["type"] != "file":
            raise FileNotFoundError(2, "no such file", self.url)
        return _status(info)

    def exists(self) -> bool:
        return self._info() is not None

    def is_file(self) -> bool:
        info = self._info()
        return info is not None and info["type"] == "file"

    def is_dir(self) -> bool:
        return bool(self._list_entries())

    def _list_entries(self) -> list[dict[str, Any]]:
        """Yields the entries directly below, without the folder marks of consoles."""
        try:
            entries = self.ask("ls", detail=True)
        except FileNotFoundError:
            return []
        return [
            entry for entry in entries if self._from_listed_name(entry["name"].rstrip("/")) != self
        ]

    def iterdir(self) -> Generator["RemotePath", None, None]:
        for entry in self._list_entries():
            yield self / PurePosixPath(entry["name"]).name

    def entries(self) -> Iterator[tuple["RemotePath", Status]]:
        """Returns the objects directly below, with their status."""
        for entry in self._list_entries():
            if entry["type"] == "file":
                yield self._from_listed_name(entry["name"]), _status(entry)

    def glob(self, pattern: str) -> Iterator["RemotePath"]:  # type: ignore[override]
        assert "/" not in pattern and "**" not in pattern, "one level of a folder"
        return (path for path in self.iterdir() if fnmatch.fnmatchcase(path.name, pattern))

    def below(self) -> list[tuple["RemotePath", Status]]:
        """Returns all objects below, sorted, with their status."""
        try:
            objects = self.ask("find", detail=True)
        except FileNotFoundError:
            return []
        return [
            (self._from_listed_name(name), _status(info))
            for name, info in sorted(objects.items())
            if not name.endswith("/")
        ]

    def matches(self) -> list[Path]:
        """Returns the objects that match the path as a glob. Raises InputError without a bucket."""
        try:
            names = self.ask("glob", detail=True)
        except FileNotFoundError:  # from Cloud Storage
            names = {}
        if not names and not self._with_key(self._key.parts[0]).exists():
            raise bucket_missing_error(self.url)
        return sorted(
            self._from_listed_name(name) for name, info in names.items() if info["type"] == "file"
        )

    def open(self, mode: str = "r", *_: Any, **kwargs: Any) -> Any:
        """Opens a stream for reading in ranges."""
        assert mode in ("r", "rb"), "places in a store are written by `atomic`"
        binary = io.BufferedReader(Ranges(self.url, self.stat().st_size), BUFFER_BYTES)
        return binary if mode == "rb" else io.TextIOWrapper(binary, **kwargs)

    def read_bytes(self) -> bytes:
        content: bytes = self.ask("cat_file")
        return content

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def upload(self, file: Path) -> Status:
        """Uploads a local file; the object appears after the last byte has arrived.

        Raises StoreFailed if the stored length differs.
        """
        for check in BEFORE_UPLOADS:
            check(self.url)
        size = file.stat().st_size
        retry_write(self.url, lambda: filesystem(self.url).put_file(str(file), self.url))
        status: Status = self.stat()
        if status.st_size != size:
            raise StoreFailed(
                f"{self.url}: {status.st_size} of {size} bytes have arrived; try again"
            )
        return status

    def download(self, file: Path) -> None:
        """Downloads the object to a local file.

        Raises StoreFailed if its length differs from that of the store.
        """
        size = self.stat().st_size

        def request() -> None:
            filesystem(self.url).get_file(self.url, str(file))
            if (arrived := file.stat().st_size) != size:
                raise ConnectionError(f"{arrived} of {size} bytes have arrived")

        retry_request(self.url, request)

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self.ask("rm_file")
        except FileNotFoundError:
            if not missing_ok:
                raise

    def remove_all(self) -> None:
        """Deletes all objects below, if there are any."""
        for path, _ in self.below():
            path.unlink(missing_ok=True)

    def abort_uploads(self) -> list[Path]:
        """Aborts unfinished multipart uploads below, which a kill left: S3 keeps and bills their
        parts.

        Cloud Storage deletes them after a week.
        """
        if parse_scheme(self.url) != "s3":
            return []
        bucket, _, key = str(self._key).partition("/")

        def ask(method: str, **about: str) -> Any:
            return retry_request(
                self.url, lambda: filesystem(self.url).call_s3(method, Bucket=bucket, **about)
            )

        uploads = ask("list_multipart_uploads", Prefix=f"{key}/").get("Uploads", [])
        for upload in uploads:
            ask("abort_multipart_upload", Key=upload["Key"], UploadId=upload["UploadId"])
        return [self._with_key(f"{bucket}/{upload['Key']}") for upload in uploads]

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing: a folder exists as soon as an object is below it."""


def _status(info: dict[str, Any]) -> Status:
    written = info.get("LastModified") or info.get("mtime") or info.get("updated")
    if isinstance(written, str):
        written = datetime.fromisoformat(written)
    stamp = written.timestamp() if isinstance(written, datetime) else float(written or 0)
    size = int(info["size"] or 0)
    version = info.get("ETag") or info.get("generation") or info.get("etag") or f"{stamp}"
    return Status(st_size=size, st_mtime=stamp, version=f"{version} {size}")
