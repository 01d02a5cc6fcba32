"""Reads a table of vectors into one matrix, with their checkpoint.

N vectors, P their width.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vlmill.runtime.files.listed import CHECKS
from vlmill.runtime.files.reading import (
    find_shards,
    iter_batches,
    read_array_formats,
    read_producer,
    require_listed,
)
from vlmill.schemas.errors import InputError
from vlmill.schemas.tables import VECTORS

IMAGE, TEXT, PAIR = "image", "text", "pair"  # kinds of vectors: the values of that column
Matrix = NDArray[np.float32]
NAMED = ("checkpoint", "weights_sha256", "variant", "way")  # of a shard's producer
MAX_WIDTH = 1 << 20  # of a vector; models have some hundreds
ABOUT = ("kind", "image_id", "pair_id", "text")


@dataclass(frozen=True, kw_only=True)
class Vectors:
    """Holds ``matrix`` float32 [N, P], the rows' ``about`` (kind, ids, text), and the shards'
    record of the checkpoint.
    """

    matrix: Matrix
    about: pa.Table
    origin: Mapping[str, Any]


def count_kinds(argument: str, flag: str) -> dict[str, int]:
    """Counts the rows of each kind."""
    counts: dict[str, int] = {}
    for batch in iter_batches(argument, VECTORS, columns=["kind"], batch_rows=65_536, flag=flag):
        for entry in pc.value_counts(batch.column(0)).to_pylist():
            counts[entry["values"]] = counts.get(entry["values"], 0) + entry["counts"]
    return counts


def read_vectors(argument: str, kind: str, count: int, flag: str) -> Vectors:
    """Reads the ``count`` rows of a kind: 4 P bytes each, their ids, and one batch.

    The shards are compared with the SHA-256 of their manifest, unless the command has --trust.
    Raises InputError for shards that have changed or come from several checkpoints, vectors whose
    width differs from the record, and vectors that are not finite.
    """
    paths = find_shards(argument, VECTORS, flag)
    require_listed(paths, f"{flag} {argument}", hashes=not CHECKS.trust)
    origin, width = read_origin(paths, flag)
    matrix = np.empty((count, width), dtype=np.float32)
    about, end = [], 0
    for path in paths:
        for batch in iter_batches(path, VECTORS, batch_rows=8_192, flag=flag):
            rows = batch.filter(pc.equal(batch.column("kind"), kind))
            start, end = end, end + rows.num_rows
            matrix[start:end] = _matrix(rows, width, path)
            about.append(rows.select(list(ABOUT)))
    schema = pa.schema([VECTORS.schema.field(name) for name in ABOUT])
    tables = pa.Table.from_batches([batch.cast(schema) for batch in about], schema=schema)
    return Vectors(matrix=matrix[:end], about=tables.combine_chunks(), origin=origin)


def read_origin(paths: list[Path], flag: str) -> tuple[dict[str, Any], int]:
    """Returns the checkpoint and the vector width that all shards record."""
    first: tuple[dict[str, Any], int] | None = None
    for path in paths:
        producer = read_producer(path)
        shard_origin = {name: producer.get(name) for name in NAMED}
        width = read_array_formats(path).get("vector", {}).get("dim")
        if not isinstance(width, int) or not 1 <= width <= MAX_WIDTH:
            raise InputError(
                f"{path}: the metadata has {width!r} as the vectors' width, expected 1 to "
                f"{MAX_WIDTH}; "
                "embed again"
            )
        if first is None:
            first = (shard_origin, width)
        hashes = (first[0]["weights_sha256"], shard_origin["weights_sha256"])
        if hashes[0] != hashes[1] or first[1] != width:
            raise InputError(
                f"{flag}: {paths[0]} and {path} are of different checkpoints or widths; give "
                "vectors of one"
            )
    assert first is not None
    return first


def _matrix(rows: pa.RecordBatch, width: int, path: Path) -> Matrix:
    column = rows.column("vector")
    lengths = pc.binary_length(column)
    if rows.num_rows and pc.any(pc.not_equal(lengths, 4 * width)).as_py():
        raise InputError(f"{path}: a vector has not {width} numbers of 4 bytes; embed again")
    if not rows.num_rows:
        return np.empty((0, width), dtype=np.float32)
    begin = np.frombuffer(column.buffers()[1], np.int64, 1, offset=8 * column.offset)[0]
    count = rows.num_rows * width
    stored = np.frombuffer(column.buffers()[2], "<f4", count, offset=int(begin))
    matrix: Matrix = stored.reshape(rows.num_rows, width)
    finite = np.isfinite(matrix).all(axis=1)
    if not finite.all():
        row = rows.slice(int(np.flatnonzero(~finite)[0]), 1).to_pylist()[0]
        raise InputError(
            f"{path}: {int((~finite).sum())} vectors are not finite, the first of "
            f"{' '.join(get_row_key(row))}; embed again, or remove them"
        )
    return matrix


def get_row_key(row: Mapping[str, str | None]) -> tuple[str, str]:
    """Returns the key of a row of the table: its kind and the image's or the pair's id."""
    name = row["image_id"] if row["kind"] == IMAGE else row["pair_id"]
    return str(row["kind"]), str(name)
