"""Finds images that a data set shares with others, such as test splits, by id and by hash.

Each list that a user gives is compared with every image's id and aliases; a match is counted, and
excludes the rows that name the image unless the list is only compared.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from vlmill.pipelines.manifest.entries import Entry, ListedImage
from vlmill.pipelines.manifest.published.images import LIMITS, MAX_PIXELS
from vlmill.pipelines.web.pages.images import open_examiner
from vlmill.runtime.files.paths import readable
from vlmill.runtime.files.reading import find_shards, iter_batches
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import key64
from vlmill.schemas.images.hashes import Neighbours
from vlmill.schemas.rejects import Reason
from vlmill.schemas.splits import find_use
from vlmill.schemas.tables import ALIASES, IMAGES

MAX_LIST_LINE = 4_096


@dataclass(frozen=True, kw_only=True)
class IdList:
    """Holds images by any of their names, as 64-bit keys; ``excludes`` drops rows."""

    name: str
    keys: frozenset[int]
    excludes: bool


@dataclass(frozen=True, kw_only=True)
class HashList:
    """Holds images by SHA-256 and by perceptual hash, within ``distance`` bits."""

    name: str
    sha256: frozenset[str]
    hashes: Neighbours | None
    excludes: bool
    distance: int


@dataclass(kw_only=True)
class Overlaps:
    """Holds the lists, and how many images (and ``rows``) of the data set match each.

    ``train_only``: rows of splits that are not for training are kept, even if a list has their
    image.
    """

    ids: tuple[IdList, ...] = ()
    hashes: tuple[HashList, ...] = ()
    train_only: bool = False
    match_counts: Counter[tuple[str, str]] = field(
        default_factory=Counter
    )  # (list, kind) -> number of images
    _counted: set[int] = field(default_factory=set)

    @property
    def has_lists(self) -> bool:
        """Returns whether the run has lists to compare with."""
        return bool(self.ids or self.hashes)

    @property
    def by_hash(self) -> bool:
        """Returns whether images are compared by their content."""
        return bool(self.hashes)

    def judge(self, entry: Entry) -> Drop | None:
        """Returns why a name of an entry's images excludes the entry, or None."""
        drops = [drop for image in entry.images if (drop := self.judge_image(image))]
        return drops[0] if drops and not self.stays(entry) else None

    def judge_image(self, image: ListedImage) -> Drop | None:
        """Returns a Drop with the list that excludes an image by one of its names, or None."""
        matches = [*self._matches(image)]  # all of them are counted
        drops = (
            Drop(Reason.EXCLUDED, f"{name}, in {image_list.name}")
            for image_list, name in matches
            if image_list.excludes
        )
        return next(drops, None)

    def stays(self, entry: Entry) -> bool:
        """Returns whether an entry's rows are kept even if a list has their images."""
        return self.train_only and _held_out(entry)

    def _matches(self, image: ListedImage) -> Iterator[tuple[IdList, str]]:
        names = (image.image_id, *image.aliases)
        keys = [key64(name) for name in names]
        for image_list in self.ids:
            for name, key in zip(names, keys, strict=True):
                if key in image_list.keys:
                    self._count(image_list.name, f"id {name.split('/')[0]}/", keys[0])
                    yield image_list, name
                    break

    def skip(self, image: ListedImage) -> None:
        """Does not count an image again that is counted elsewhere."""
        key = key64(image.image_id)
        names = [image_list.name for image_list in self.ids]
        names += [image_list.name for image_list in self.hashes]
        self._counted.update(hash((name, key)) for name in names)

    def _count(self, name: str, kind: str, image: int) -> None:
        mark = hash((name, image))
        if mark not in self._counted:
            self._counted.add(mark)
            self.match_counts[name, kind] += 1

    def judge_hash(self, image_id: str, phash: int, row: dict[str, Any]) -> Drop | None:
        """Returns a Drop with the list that excludes an image by its content, or None."""
        for image_list in self.hashes:
            same = row["sha256"] in image_list.sha256
            near = image_list.hashes is not None and image_list.hashes.near(phash)
            if same or near:
                self._count(image_list.name, "bytes" if same else "hash", key64(image_id))
                if image_list.excludes:
                    similarity = "the same bytes" if same else f"within {image_list.distance} bits"
                    return Drop(Reason.EXCLUDED, f"{similarity}, in {image_list.name}")
        return None


def _held_out(entry: Entry) -> bool:
    rows = () if isinstance(entry.rows, Drop) else entry.rows
    return any(find_use(row.get("split")) != "train" for _, row in rows)


def id_list(path: Path, *, flag: str, excludes: bool) -> IdList:
    """Reads a list of images: text with one id per line, vlmill's tables, or Parquet with image_id.

    A folder's table of aliases adds the other names of its images. Raises InputError.
    """
    keys = frozenset(map(key64, _read_ids(path, flag)))
    return IdList(name=f"{path.name or path}", keys=keys, excludes=excludes)


def _read_ids(path: Path, flag: str) -> Iterator[str]:
    if path.is_dir():
        for batch in iter_batches(path, IMAGES, columns=["image_id"], flag=flag):
            yield from batch.column(0).to_pylist()
        if any(path.glob(f"{ALIASES.name}-*.parquet")):
            for batch in iter_batches(path, ALIASES, columns=["alias"], flag=flag):
                yield from batch.column(0).to_pylist()
    elif not path.is_file():
        raise InputError(f"{flag} {path}: no such file; give ids one per line, or a Parquet file")
    elif path.suffix == ".parquet":
        yield from _read_parquet_ids(path, flag)
    else:
        yield from _read_text_ids(path, flag)


def _read_parquet_ids(path: Path, flag: str) -> Iterator[str]:
    try:
        with pq.ParquetFile(readable(path)) as file:
            names = file.schema_arrow.names
            if "image_id" not in names:
                raise InputError(
                    f"{flag} {path} has no column image_id; its own are {', '.join(names)[:200]}"
                )
            for batch in file.iter_batches(65_536, columns=["image_id"]):
                yield from (str(name) for name in batch.column(0).to_pylist() if name is not None)
    except OSError as error:
        raise InputError(
            f"{flag} {path} is not a readable Parquet file ({error}); give a Parquet table"
        ) from None


def _read_text_ids(path: Path, flag: str) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        for number, line in enumerate(file, 1):
            name = line.strip()
            if len(name) > MAX_LIST_LINE or not name.isprintable():
                raise InputError(
                    f"{flag} {path}: line {number} is not an image_id; expected one per line"
                )
            if name:
                yield name


def hash_list(path: Path, *, flag: str, excludes: bool, distance: int) -> HashList:
    """Decodes the images of a table and returns them by their content. Raises InputError."""
    digests, hashes = set[str](), list[int]()
    with open_examiner(
        limits=LIMITS, min_side_px=0, max_pixels=MAX_PIXELS, hashed=True
    ) as examiner:
        for batch in iter_batches(path, IMAGES, columns=["bytes"], batch_rows=64, flag=flag):
            contents = (content for content in batch.column(0).to_pylist() if content is not None)
            for wait in [examiner.submit(content) for content in contents]:
                facts = wait()
                if isinstance(facts, Drop):
                    continue  # an undecodable image has no perceptual hash
                assert facts.phash is not None
                digests.add(facts.image_id)
                hashes.append(facts.phash)
    near = Neighbours(np.array(hashes, dtype=np.uint64), distance) if hashes else None
    return HashList(
        name=path.name, sha256=frozenset(digests), hashes=near, excludes=excludes, distance=distance
    )


def overlap_rows(overlaps: Overlaps) -> list[tuple[str, str, int, str]]:
    """Returns the matches for the report: list, type, images, and the effect on their rows."""
    excluding = {image_list.name: image_list.excludes for image_list in overlaps.ids}
    excluding |= {image_list.name: image_list.excludes for image_list in overlaps.hashes}
    rows: list[tuple[str, str, int, str]] = []
    for name, excludes in excluding.items():
        done = "excluded" if excludes else "kept"
        by_kind = {
            kind: n
            for (list_name, kind), n in sorted(overlaps.match_counts.items())
            if list_name == name
        }
        rows += [(name, kind, count, done) for kind, count in by_kind.items()]
        rows += [] if by_kind else [(name, "id and hash", 0, done)]
    return rows


def list_digests(paths: Iterable[Path]) -> Sequence[Mapping[str, Any]]:
    """Returns the names and sizes of lists, for a run's settings."""
    return [
        {"name": str(p), "bytes": sum(f.stat().st_size for f in _files(p))} for p in sorted(paths)
    ]


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else find_shards(path, IMAGES)
