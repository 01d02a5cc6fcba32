"""Writes one part of an import: a shard of regions and one of rejects."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmill.extract.formats.records import InvalidRecord, Record
from vlmill.extract.formats.rows import STAGE, RowSorter, encode_each
from vlmill.runtime.files.shards import ShardWriter
from vlmill.runtime.readers.region_rows import RegionRow, RowGroup, encode_regions, region_arrays
from vlmill.runtime.units.unit import Job, Result, Unit, work_folder, write_record
from vlmill.schemas.rejects import reject
from vlmill.schemas.tables import REGIONS, REJECTS

REJECTS_PER_GROUP = 1000


@dataclass(frozen=True, kw_only=True)
class Part:
    """Describes a part: its output folder, its dtype, and its maximum number of ``rows``."""

    folder: Path
    number: int
    producer: Mapping[str, Any]
    dtype: str
    compression: str
    rows: int


class PartWriter:
    """Writes records until the part is full; leaving the ``with`` block closes both shards.

    ``advance`` is called with the number of written rows and with the rejects.
    """

    def __init__(
        self,
        part: Part,
        sorter: RowSorter,
        advance: Callable[[int, Sequence[InvalidRecord]], None],
    ) -> None:
        self._part, self._sorter, self._advance = part, sorter, advance
        self._group = RowGroup(part.compression)
        self._rejects: list[dict[str, object]] = []
        self._written, self._open = 0, ExitStack()
        arrays = region_arrays(
            dtype=part.dtype,
            feature_dim=sorter.widths.features,
            class_probs_dim=sorter.widths.class_probs,
            background=sorter.numbering.stored_background,
        )
        self._regions = ShardWriter(
            part.folder,
            REGIONS,
            part.number,
            None,
            producer=part.producer,
            arrays=arrays,
            compression=part.compression,
        )
        self._rejected = ShardWriter(
            part.folder, REJECTS, part.number, None, producer=part.producer
        )

    def __enter__(self) -> "PartWriter":
        self._open.enter_context(self._regions)
        self._open.enter_context(self._rejected)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self._flush()
            self._rejected.write(self._rejects)
        self._open.__exit__(kind, error, trace)

    def add(self, record: Record) -> bool:
        """Adds a record as a row or a reject; returns whether the part is full."""
        row = self._sorter.sort(record)
        if isinstance(row, InvalidRecord):
            self._reject([row])
            return False
        if self._group.add(row) or len(self._group.rows) == self._part.rows - self._written:
            self._flush()
        return self._written == self._part.rows

    def _flush(self) -> None:
        rows = self._group.take()
        try:
            table = self._encode(rows)
        except ValueError:
            self._reject(encode_each(rows, self._encode, self._sorter))
            table = self._encode(rows)
        self._regions.write(table)
        self._written += len(rows)
        self._advance(len(rows), ())

    def _encode(self, rows: list[RegionRow]) -> Any:
        # A record's float32 numbers were checked when it was read.
        return encode_regions(rows, dtype=self._part.dtype, checked=self._part.dtype == "float32")

    def _reject(self, invalid: Sequence[InvalidRecord]) -> None:
        self._rejects += [reject(STAGE, bad.key, bad.reason, bad.detail) for bad in invalid]
        self._advance(0, invalid)
        if len(self._rejects) >= REJECTS_PER_GROUP:
            self._rejected.write(self._rejects)
            self._rejects = []

    def record(self, job: Job, unit: Unit, metrics: dict[str, Any]) -> Result:
        """Records the part as finished; returns its shards."""
        shards = [writer.shard for writer in (self._regions, self._rejected) if writer.shard]
        result = Result(shards=shards, metrics=metrics)
        write_record(job, work_folder(job), unit, result, ())
        return result
