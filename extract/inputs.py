"""Where pictures come from: files, folders, globs, lists of paths and ``images`` tables.

The arguments are resolved once into a plan, a list of pictures in a fixed order; bytes are read
when a picture's turn comes. A plan takes about 300 bytes a picture.
"""

import glob
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from vlmill.extract.preprocess import Rejected
from vlmill.schemas.commands import InputError
from vlmill.schemas.ids import image_id_of
from vlmill.schemas.reading import find_shards
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import IMAGES

SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff")


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A planned picture: a file, or a row of a table."""

    path: str
    image_id: str | None = None  # None: the SHA-256 of the bytes, known when they have been read
    group: int = 0
    row: int = 0

    @property
    def key(self) -> str:
        """How rejects name it."""
        return self.path if self.image_id is None else self.image_id


def plan_pictures(arguments: Sequence[str]) -> list[Picture]:
    """All pictures, in the arguments' order and sorted within each. Raises InputError."""
    plan: list[Picture] = []
    for argument in arguments:
        found = list(pictures_of(argument))
        if not found:
            raise InputError(
                f"INPUT {argument}: no pictures there; give picture files, a folder or a glob of "
                "them, a .txt list of paths, or a table of images"
            )
        plan += found
    return plan


def pictures_of(argument: str) -> Iterator[Picture]:
    """The pictures of one argument."""
    path = Path(argument)
    if path.is_dir():
        if any(path.glob("images-*.parquet")):
            yield from rows_of(find_shards(path, IMAGES, "INPUT"))
        else:
            yield from (Picture(path=p) for p in walk(path))
        return
    for name in [argument] if path.is_file() else sorted(glob.glob(argument, recursive=True)):
        if name.endswith(".parquet"):
            yield from rows_of(find_shards(name, IMAGES, "INPUT"))
        elif name.endswith(".txt"):
            yield from listed(Path(name))
        elif Path(name).is_file():
            yield Picture(path=name)


def walk(folder: Path) -> Iterator[str]:
    """Files below a folder with a picture's suffix, sorted; links to folders are not followed."""
    for base, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                yield os.path.join(base, name)


def listed(path: Path) -> Iterator[Picture]:
    """The paths of a list, one a line, relative to the list's folder."""
    for line in path.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        if line.strip():
            yield Picture(path=str(path.parent / line.strip()))


def rows_of(shards: Sequence[Path]) -> Iterator[Picture]:
    """The rows of images tables."""
    for shard in shards:
        with pq.ParquetFile(shard) as file:
            for group in range(file.num_row_groups):
                ids = file.read_row_group(group, columns=["image_id"]).column(0).to_pylist()
                for row, image_id in enumerate(ids):
                    yield Picture(path=str(shard), image_id=image_id, group=group, row=row)


def plan_digest(plan: Sequence[Picture]) -> str:
    """Identifies a plan: which pictures, in which order, and how large the files are.

    A killed run continues only on the same plan.
    """
    digest = hashlib.sha256()
    sizes: dict[str, int] = {}
    for picture in plan:
        if picture.path not in sizes:
            exists = os.path.isfile(picture.path)
            sizes[picture.path] = os.path.getsize(picture.path) if exists else -1
        line = (picture.path, picture.image_id, picture.group, picture.row, sizes[picture.path])
        digest.update(f"{line!r}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:32]


class PictureReader:
    """Reads planned pictures; of a table, the row group last used stays in memory."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._place: tuple[str, int] | None = None
        self._group: pa.Table | None = None

    def read(self, picture: Picture) -> tuple[str, bytes]:
        """A picture's id and bytes. Raises Rejected."""
        if picture.image_id is None:
            data = self.read_file(Path(picture.path))
            return image_id_of(data), data
        return picture.image_id, self.read_row(picture)

    def read_file(self, path: Path) -> bytes:
        """A file's bytes; a file over the limit is not read."""
        try:
            size = path.stat().st_size
            if size > self._max_bytes:
                raise Rejected(Reason.TOO_LARGE, f"{size} bytes, limit {self._max_bytes}")
            return path.read_bytes()
        except (OSError, ValueError) as error:
            raise Rejected(Reason.MISSING_IMAGE, str(error)) from None

    def read_row(self, picture: Picture) -> bytes:
        """The bytes of a table's row, or of the local file that its uri names."""
        group = self.row_group(picture.path, picture.group)
        data = group.column("bytes")[picture.row].as_py()
        if data is not None:
            assert isinstance(data, bytes)
            return data
        uri = group.column("uri")[picture.row].as_py()
        if uri is None or "://" in uri:
            raise Rejected(Reason.MISSING_IMAGE, f"no bytes, and no local file (uri {uri})")
        return self.read_file(Path(picture.path).parent / uri)

    def row_group(self, path: str, group: int) -> pa.Table:
        """A row group's bytes and uris."""
        if self._group is None or self._place != (path, group):
            try:
                with pq.ParquetFile(path) as file:
                    self._group = file.read_row_group(group, columns=["bytes", "uri"])
            except (OSError, pa.ArrowException) as error:
                raise Rejected(Reason.BROKEN_ARCHIVE, str(error)) from None
            self._place = (path, group)
        return self._group
