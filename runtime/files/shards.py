"""Writes shards of a table: Parquet files that appear atomically, with the contract in their
metadata.

File metadata: ``vlmill.table``, ``vlmill.version``, ``vlmill.producer`` (JSON: software, settings
and other identification of the producer), ``vlmill.arrays`` (JSON: dtype and width of each binary
array), ``vlmill.places`` (JSON: the position of each binary value,
:mod:`vlmill.runtime.files.value_offsets`) and, for checked arrays, ``vlmill.finite``.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import vlmill
from vlmill.runtime.files.atomic import atomic_path
from vlmill.runtime.files.growing import GrowingFile
from vlmill.runtime.files.listed import hash_file
from vlmill.runtime.files.paths import readable, to_path
from vlmill.runtime.files.value_offsets import ByteRangesWriter, binary_columns
from vlmill.runtime.files.written import note_digest
from vlmill.schemas.tables import Table, conform, table_of_rows

# Of a table in memory and of a shard of such tables: "true", no number of its arrays is NaN,
# infinite or so large that it overflows (`region_rows.LARGEST`).
FINITE = "vlmill.finite"
BINARY_PAGE_BYTES = 256 * 1024  # of arrays and images: a page is copied while it is in the cache
SOFTWARE = f"vlmill {vlmill.__version__}"


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Describes a finished file of a table, as in the manifest; ``bytes`` is the file's size."""

    table: str
    name: str
    rows: int
    bytes: int
    sha256: str


def shard_name(table: Table, index: int, total: int | None) -> str:
    """Returns the name of a shard, such as ``NAME-00000-of-00016.parquet``;
    ``NAME-0-00000.parquet`` if the number of shards is not known in advance (``total`` None).
    """
    if total is None:
        return f"{table.name}-0-{index:05d}.parquet"
    if not 0 <= index < total:
        raise ValueError(f"shard {index} of {total}: the index must be in 0..{total - 1}")
    return f"{table.name}-{index:05d}-of-{total:05d}.parquet"


def file_metadata(
    spec: Table, producer: Mapping[str, Any], arrays: Mapping[str, Any]
) -> dict[str, str]:
    """Returns the key-value metadata of a shard's file."""
    return {
        "vlmill.table": spec.name,
        "vlmill.version": spec.version,
        "vlmill.producer": json.dumps({"software": SOFTWARE, **producer}, sort_keys=True),
        "vlmill.arrays": json.dumps(arrays, sort_keys=True),
    }


class ShardWriter:
    """Writes one shard row group by row group; it appears when the ``with`` block ends.

    ``producer`` identifies the writer (settings, fingerprints), ``arrays`` the dtype and width of
    binary arrays. Memory is bounded by one ``write``. After the block ``shard`` describes the file.
    On an exception nothing appears. Columns of bytes are PLAIN and without statistics, so each
    row's bytes are contiguous in the file. The metadata records their positions, and whether all
    written tables were marked :data:`FINITE`. ``compression`` is pyarrow's name or "none".
    """

    shard: Shard

    def __init__(
        self,
        folder: str | Path,
        spec: Table,
        index: int,
        total: int | None,
        *,
        producer: Mapping[str, Any] | None = None,
        arrays: Mapping[str, Any] | None = None,
        compression: str = "none",
    ) -> None:
        self.spec, self.path = spec, to_path(folder) / shard_name(spec, index, total)
        self._metadata = file_metadata(spec, producer or {}, arrays or {})
        self._compression = compression
        self._stack = ExitStack()
        self._places: ByteRangesWriter | None = None
        self._rows, self._finite = 0, True

    def __enter__(self) -> "ShardWriter":
        self._temporary = self._stack.enter_context(atomic_path(self.path))
        self._file = GrowingFile(self._temporary)
        self._stack.push(self._describe)
        self._sink = self._stack.enter_context(pa.OSFile(str(self._temporary), "wb"))
        binary = binary_columns(self.spec)
        plain = [name for name in self.spec.schema.names if name not in binary]
        self._writer = self._stack.enter_context(
            pq.ParquetWriter(
                self._sink,
                self.spec.schema.with_metadata(self._metadata),
                compression=self._compression,
                use_dictionary=[name for name in plain if name != "boxes"],
                data_page_size=BINARY_PAGE_BYTES if binary else None,
                write_statistics=plain,
            )
        )
        if self._compression == "none":
            self._places = ByteRangesWriter(self.spec)
        self._stack.push(self._keep_facts)
        return self

    def _describe(self, kind: type[BaseException] | None, *_: object) -> None:
        """Describes the file before it appears: from a store it would have to be downloaded."""
        if kind is None:
            size = self._temporary.stat().st_size
            self._file.extend(size)
            self._described = Shard(
                table=self.spec.name,
                name=self.path.name,
                rows=self._rows,
                bytes=size,
                sha256=self._file.sha256(),
            )
            note_digest(self._temporary, self._described.sha256)

    def _keep_facts(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            return
        if self._places is not None:
            self._writer.add_key_value_metadata(self._places.metadata())
        if self._rows and self._finite:
            self._writer.add_key_value_metadata({FINITE: "true"})

    def write(self, rows: pa.Table | Sequence[dict[str, Any]]) -> None:
        """Appends rows as one row group. Raises ValueError for rows that break the contract."""
        if isinstance(rows, pa.Table):
            table = conform(rows, self.spec)
        else:
            table = table_of_rows(list(rows), self.spec)
        if table.num_rows:
            self._file.extend(self._sink.tell())  # the row group's own bytes follow
            self._writer.write_table(table, row_group_size=table.num_rows)
            written = self._file.extend(self._sink.tell())
            if self._places is not None and written is not None:
                self._places.add(table, written)
            self._rows += table.num_rows
            self._finite &= isinstance(rows, pa.Table) and is_marked_finite(rows.schema.metadata)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._stack.__exit__(kind, error, trace)
        if error is None:
            self.shard = self._described


def is_marked_finite(metadata: Mapping[bytes, bytes] | None) -> bool:
    """Returns whether a table's or a shard's metadata states :data:`FINITE`."""
    return (metadata or {}).get(FINITE.encode()) == b"true"


def write_shard(
    folder: str | Path,
    spec: Table,
    rows: pa.Table | Sequence[dict[str, Any]],
    index: int = 0,
    total: int = 1,
    *,
    producer: Mapping[str, Any] | None = None,
    arrays: Mapping[str, Any] | None = None,
    compression: str = "none",
) -> Shard:
    """Writes a complete shard from memory (:class:`ShardWriter` writes it in parts)."""
    writer = ShardWriter(
        folder, spec, index, total, producer=producer, arrays=arrays, compression=compression
    )
    with writer:
        writer.write(rows)
    return writer.shard


def stream_shard(
    folder: str | Path,
    spec: Table,
    rows: Iterable[dict[str, Any]],
    index: int,
    total: int,
    *,
    producer: Mapping[str, Any],
    group_rows: int,
    group_bytes: int = 1 << 30,
) -> Shard:
    """Writes a shard of any number of rows, in their order.

    Memory: a row group, of ``group_rows`` rows or of ``group_bytes`` bytes of images.
    """
    with ShardWriter(folder, spec, index, total, producer=producer) as writer:
        group, size = list[dict[str, Any]](), 0
        for row in rows:
            group.append(row)
            size += len(row.get("bytes") or b"")
            if size > group_bytes or len(group) == group_rows:
                writer.write(group)
                group, size = [], 0
        writer.write(group)
    return writer.shard


def describe_finished(files: Iterable[tuple[Table, Path]]) -> list[Shard]:
    """Describes the shards of a part that an earlier run has finished; the last one appeared last.

    Empty if one is missing or damaged, so that the part is written again.
    """
    entries = list(files)
    try:
        if entries and not entries[-1][1].exists():
            return []
        return [describe_shard(path, table.name) for table, path in entries]
    except (OSError, pa.ArrowException):
        return []


def describe_shard(path: Path, table: str) -> Shard:
    """Returns size, checksum and row count (from the footer) of a finished shard."""
    digest = hash_file(path)
    rows = pq.read_metadata(readable(path)).num_rows
    return Shard(table=table, name=path.name, rows=rows, bytes=path.stat().st_size, sha256=digest)
