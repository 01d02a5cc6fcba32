"""Excludes the images of test sets: by id, by URL and by perceptual hash."""

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from vlmill.pipelines.web.pages.images import ArchivedImage
from vlmill.runtime.files.reading import find_shards, iter_batches
from vlmill.runtime.files.text_sizes import limit_batch_rows
from vlmill.runtime.net.urls import join_key
from vlmill.schemas.errors import InputError
from vlmill.schemas.images.decode import FORMATS, Bounds, decode
from vlmill.schemas.images.hashes import Neighbours, perceptual_hash
from vlmill.schemas.rejects import Rejected
from vlmill.schemas.tables import IMAGES

MOST_PIXELS = 1 << 28
MOST_BYTES = 64 << 20
COLUMNS = ("image_id", "sha256", "source_url", "image_url")  # of a Parquet file, if it has them


class Exclusions:
    """Holds the images that must not be in the output. Memory: the lists."""

    def __init__(self, names: frozenset[str], neighbours: Neighbours | None, distance: int) -> None:
        self._names, self._neighbours, self._distance = names, neighbours, distance

    @classmethod
    def load(cls, files: Sequence[str], images: Sequence[str], distance: int) -> "Exclusions":
        """Reads the lists of ``--exclude`` and ``--exclude-hash``, once per process."""
        times = tuple(map(_get_mtime, (*files, *images)))
        return _excluded(tuple(files), tuple(images), distance, times)

    def has_url(self, key: bytes) -> bool:
        """Returns whether the URL of this key is on a list."""
        return bool(self._names) and key.hex() in self._names

    def why(self, image: ArchivedImage) -> str | None:
        """Returns the reason if an image is excluded by its id, else None."""
        return "its id" if image.image_id in self._names else None

    def hash_reject_reason(self, image: ArchivedImage) -> str | None:
        """Returns the reason if a decoded image is excluded by its perceptual hash, else None."""
        if (
            self._neighbours is not None
            and image.phash is not None
            and self._neighbours.near(image.phash)
        ):
            return f"within {self._distance} bits of an excluded image"
        return None


def _get_mtime(argument: str) -> int:
    """Returns when a file was last written; 0 for globs and missing files."""
    return os.stat(argument).st_mtime_ns if os.path.exists(argument) else 0


@lru_cache(maxsize=1)
def _excluded(
    files: tuple[str, ...], images: tuple[str, ...], distance: int, _: tuple[int, ...]
) -> Exclusions:
    names = frozenset(name for file in files for name in names_in(file))
    hashes = {phash for argument in images for phash in hashes_in(argument)}
    array = np.array(sorted(hashes), dtype=np.uint64)
    return Exclusions(names, Neighbours(array, distance) if hashes else None, distance)


def names_in(file: str) -> Iterator[str]:
    """Yields ids, digests and keys of URLs: one per line of a text file, or from a Parquet file.

    Raises InputError for a file that cannot be read, or that has none of the columns.
    """
    path = Path(file)
    try:
        if path.suffix == ".parquet" or path.is_dir():
            for name in _names_in_table(path):
                yield _name(name)
            return
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                if line.strip():
                    yield _name(line.strip())
    except (OSError, ValueError) as error:
        raise InputError(f"--exclude {file}: {error}; give ids or URLs, one per line") from None


def _name(text: str) -> str:
    return join_key(text) if "://" in text else text


def _names_in_table(path: Path) -> Iterator[str]:
    files = find_shards(path, IMAGES, "--exclude") if path.is_dir() else [path]
    for file in files:
        with pq.ParquetFile(file) as table:
            names = [name for name in COLUMNS if name in table.schema_arrow.names]
            if not names:
                raise ValueError(f"no column {', '.join(COLUMNS)}")
            for batch in table.iter_batches(limit_batch_rows(file, 65_536), columns=names):
                for column in batch.columns:
                    yield from (value for value in column.to_pylist() if value)


def hashes_in(argument: str) -> Iterator[int]:
    """Yields the perceptual hashes of an images table, or of a folder's images.

    Files that cannot be decoded have none. Raises InputError if there are no images.
    """
    bounds = Bounds(max_pixels=MOST_PIXELS, max_bytes=MOST_BYTES)
    count = 0
    for data in _bytes_in(argument):
        try:
            yield perceptual_hash(decode(data, bounds).image)
        except Rejected:
            continue  # an undecodable file resembles no image of the archives
        count += 1
    if not count:
        raise InputError(f"--exclude-hash {argument}: no image there; give images or a folder")


SUFFIXES = {f".{name.lower()}" for name in FORMATS} | {".jpg", ".tif"}


def _bytes_in(argument: str) -> Iterator[bytes]:
    folder = Path(argument)
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES)
    if folder.is_dir() and files:
        yield from (file.read_bytes() for file in files)
        return
    for batch in iter_batches(
        argument, IMAGES, columns=["bytes"], batch_rows=64, flag="--exclude-hash"
    ):
        yield from (value for value in batch.column(0).to_pylist() if value is not None)
