"""Reads the table of pairs for training: its rows, its splits and its digest."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from vlmill.runtime.files.reading import iter_batches
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import IMAGES, PAIRS, Table
from vlmill.train.loading.store.files import ROWS

COLUMNS = ("pair_id", "image_id", "text", "source", "split")


@dataclass(frozen=True)
class ImagesAlone:
    """Holds a table of images that replaces a table of pairs: each row is an image with no text."""

    images: str


NO_COLUMNS = pa.schema([])
SECOND = pa.schema([("second_image_id", pa.string()), ("second_row", pa.int64())])


FaultFinder = Callable[[Mapping[str, Any]], Reason | None]


def no_fault(row: Mapping[str, Any]) -> Reason | None:
    """Accepts any row."""
    return None


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Describes a task's table of examples, whose rows are read as pairs.

    ``as_pairs`` returns the ``COLUMNS`` of the rows of a batch, and the ``labels`` columns. A task
    that ``takes_empty`` also has examples without a word and images without a box, one that
    ``takes_wordless`` only the former. Where examples
    have ``two_images``, the labels include the columns in `SECOND`: the second image's id, and its
    row, which is filled in. ``find_fault`` returns the reason why a row is invalid, or None.
    """

    path: str
    table: Table
    as_pairs: Callable[[pa.RecordBatch], pa.RecordBatch]
    labels: pa.Schema = field(default_factory=lambda: NO_COLUMNS)
    takes_empty: bool = False
    takes_wordless: bool = False
    two_images: bool = False
    find_fault: FaultFinder = no_fault


PairTable = str | ImagesAlone | Examples


def get_flag(pairs: PairTable) -> str:
    """Returns the option that names the table."""
    if isinstance(pairs, Examples):
        return "--examples"
    return "--images" if isinstance(pairs, ImagesAlone) else "--pairs"


def label_columns(pairs: PairTable) -> pa.Schema:
    """Returns the columns that a task's examples have in addition to a pair's."""
    return pairs.labels if isinstance(pairs, Examples) else NO_COLUMNS


def pair_batches(pairs: PairTable, columns: Sequence[str] = COLUMNS) -> Iterator[pa.RecordBatch]:
    """Yields the columns of the pairs table that training reads, batch by batch."""
    if isinstance(pairs, Examples):
        batches = iter_batches(pairs.path, pairs.table, batch_rows=ROWS, flag="--examples")
        return (pairs.as_pairs(batch).select(list(columns)) for batch in batches)
    if isinstance(pairs, ImagesAlone):
        batches = iter_batches(
            pairs.images, IMAGES, columns=["image_id"], batch_rows=ROWS, flag="--images"
        )
        return (_as_pairs(batch.column(0), columns) for batch in batches)
    return iter_batches(pairs, PAIRS, columns=columns, batch_rows=ROWS, flag="--pairs")


def _as_pairs(image_ids: pa.Array, columns: Sequence[str]) -> pa.RecordBatch:
    """Makes pairs of images: an image's id is also the id of its pair."""
    count = len(image_ids)
    values = {"pair_id": image_ids, "image_id": image_ids, "text": pa.array([""] * count)}
    missing = pa.nulls(count, pa.string())
    return pa.RecordBatch.from_pydict({name: values.get(name, missing) for name in columns})


def pair_rows(pairs: PairTable) -> Iterator[list[dict[str, Any]]]:
    """Yields the pairs table in batches of rows."""
    return (batch.to_pylist() for batch in pair_batches(pairs))


class PairsDigest:
    """Computes a SHA-256 of the ids and texts that training reads, in their order, and their
    number.

    The digest does not depend on how the table is split into shards, row groups and batches.
    """

    def __init__(self) -> None:
        # Lengths and characters separately, so that batches of another size give the same bytes.
        self._digests = {name: (hashlib.sha256(), hashlib.sha256()) for name in COLUMNS}
        self.count = 0

    def update(self, batch: pa.RecordBatch) -> None:
        """Adds a batch of :func:`pair_batches`."""
        self.count += batch.num_rows
        for name, (length_digest, text_digest) in self._digests.items():
            column = batch.column(name).cast(pa.large_string())
            _, offsets, data = column.buffers()
            ends = np.frombuffer(offsets, np.int64)[column.offset :][: len(column) + 1]
            lengths = np.where(column.is_valid().to_numpy(zero_copy_only=False), np.diff(ends), -1)
            length_digest.update(lengths.astype("<i8").tobytes())
            text_digest.update(b"" if data is None else memoryview(data)[ends[0] : ends[-1]])

    def hexdigest(self) -> str:
        """Returns the digest of all batches so far, in hexadecimal."""
        parts = (digest.digest() for both in self._digests.values() for digest in both)
        return hashlib.sha256(b"".join(parts)).hexdigest()


@dataclass(frozen=True, kw_only=True)
class PairsSummary:
    """Holds the results of one scan of a table of pairs: its digest and its splits."""

    count: int
    digest: str
    splits: Counter[str | None]  # the number of pairs of each, by its name as written


def summarise_pairs(pairs: PairTable) -> PairsSummary:
    """Reads the table once."""
    digest, splits = PairsDigest(), Counter[str | None]()
    for batch in pair_batches(pairs):
        digest.update(batch)
        for entry in batch.column("split").value_counts().to_pylist():
            splits[entry["values"]] += entry["counts"]
    return PairsSummary(count=digest.count, digest=digest.hexdigest(), splits=splits)
