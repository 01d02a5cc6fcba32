"""Reads the bytes of a plan's images from files, tables and archives."""

import stat
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from vlmill.extract.images.discovery import resolve_spelling
from vlmill.extract.images.plan import HeldImage, InputImage
from vlmill.extract.images.tar import BrokenArchive, read_member
from vlmill.runtime.files.paths import readable, to_path
from vlmill.runtime.files.remote import RemotePath
from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import compute_image_id
from vlmill.schemas.rejects import Reason, Rejected


def duplicate(source: str, what: str, first: str) -> Rejected:
    """Returns the reject of an image whose ``what``, id or bytes, is that of an earlier image."""
    return Rejected(Reason.DUPLICATE, f"{source} has the same {what} as the earlier {first}")


class InputReader:
    """Reads planned images; the last used row group of a table stays in memory."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._place: tuple[str, int] | None = None
        self._group: pa.Table | None = None

    def read(self, image: InputImage) -> tuple[str, bytes]:
        """Reads an image's id and bytes. Raises Rejected."""
        data = self.read_data(image)
        return compute_image_id(data) if image.image_id is None else image.image_id, data

    def read_data(self, image: InputImage) -> bytes:
        """Returns an image's bytes."""
        if isinstance(image, HeldImage):
            return image.data
        match image.kind:
            case "row":
                return self.read_row(image)
            case "member":
                return self.read_member(image)
            case "broken":
                detail = image.detail or "the rest of the archive cannot be read"
                raise Rejected(Reason.BROKEN_ARCHIVE, detail)
            case "missing":
                raise Rejected(Reason.MISSING_IMAGE, f"named in {image.path}")
            case "repeated":
                raise duplicate(image.source, "id", image.detail)
        return self.read_file(to_path(image.path))

    def read_member(self, image: InputImage) -> bytes:
        """Reads a tar member's bytes; one over the limit is not read."""
        if image.row > self._max_bytes:
            raise Rejected(Reason.TOO_LARGE, f"{image.row} bytes, limit {self._max_bytes}")
        try:
            return read_member(to_path(image.path), image.group, image.row)
        except (OSError, BrokenArchive) as error:
            raise Rejected(Reason.BROKEN_ARCHIVE, str(error)) from None

    def read_file(self, path: Path) -> bytes:
        """Reads a file's bytes; a file over the limit is not read."""
        try:
            status = path.stat()
            is_regular = isinstance(path, RemotePath) or stat.S_ISREG(status.st_mode)
            if not is_regular:  # a named pipe would never end
                raise Rejected(Reason.MISSING_IMAGE, f"{path} is not a regular file")
            size = status.st_size
            if size > self._max_bytes:
                raise Rejected(Reason.TOO_LARGE, f"{size} bytes, limit {self._max_bytes}")
            return path.read_bytes()
        except InputError:  # of a store, such as missing credentials: not the image's fault
            raise
        except (OSError, ValueError) as error:
            raise Rejected(Reason.MISSING_IMAGE, str(error)) from None

    def read_row(self, image: InputImage) -> bytes:
        """Reads the bytes of a table's row, or of the local file that its uri names."""
        group = self.row_group(image.path, image.group)
        data = group.column("bytes")[image.row].as_py()
        if data is not None:
            assert isinstance(data, bytes)
            return data
        try:
            uri = group.column("uri")[image.row].as_py()
        except UnicodeDecodeError:
            raise Rejected(Reason.MISSING_IMAGE, "no bytes, and its uri is not UTF-8") from None
        if uri is None or "://" in uri:
            raise Rejected(Reason.MISSING_IMAGE, f"no bytes, and no local file (uri {uri})")
        folder = to_path(image.path).parent
        return self.read_file(folder / resolve_spelling(folder, uri))

    def row_group(self, path: str, group: int) -> pa.Table:
        """Returns a row group's bytes and uris."""
        if self._group is None or self._place != (path, group):
            try:
                with pq.ParquetFile(readable(path)) as file:
                    self._group = file.read_row_group(group, columns=["bytes", "uri"])
            except (OSError, pa.ArrowException) as error:
                raise Rejected(Reason.BROKEN_ARCHIVE, str(error)) from None
            self._place = (path, group)
        return self._group
