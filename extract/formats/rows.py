"""Sorts the records of a file into rows that fit together and rejects."""

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from vlmill.extract.formats.classes import IdCheck, Numbering, apply_numbering
from vlmill.extract.formats.records import BadRecord, FileRow, InvalidRecord, Record
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.shards import ShardWriter
from vlmill.runtime.readers.regions import RegionRow, encode_regions
from vlmill.schemas.rejects import Reason, reject

STAGE = "import"
REJECTS_PER_GROUP = 1000
DAMAGE = Reason.BROKEN_ARCHIVE  # of what a damaged file has lost


@dataclass(frozen=True, kw_only=True)
class Widths:
    """Holds the columns that all rows of a table share."""

    features: int
    class_probs: int | None

    def misfit(self, row: RegionRow) -> str | None:
        """Says why a row cannot stand beside the others."""
        if not len(row.boxes):
            return None
        widths = get_widths(row)
        if widths.features != self.features:
            return f"features are {widths.features} wide, those before {self.features}"
        if widths.class_probs != self.class_probs:
            return f"{widths.class_probs} class probabilities, those before have {self.class_probs}"
        return None


def get_widths(row: RegionRow) -> Widths:
    """Returns a row's widths."""
    features, probs = row.features, row.class_probs
    return Widths(
        features=0 if features is None else features.shape[1],
        class_probs=None if probs is None else probs.shape[1],
    )


class RejectSink:
    """Writes rejects in groups."""

    def __init__(self, writer: ShardWriter, progress: Progress) -> None:
        self._writer, self._progress = writer, progress
        self._rows: list[dict[str, object]] = []
        self._damaged: InvalidRecord | None = None

    def add(self, bad: InvalidRecord) -> None:
        """Adds one more reject."""
        self._damaged = bad if bad.reason is DAMAGE else self._damaged
        self._rows.append(reject(STAGE, bad.key, bad.reason, bad.detail))
        self._progress.advance(rejects=1)
        if len(self._rows) == REJECTS_PER_GROUP:
            self.flush()

    def flush(self) -> None:
        """Writes what is held."""
        self._writer.write(self._rows)
        self._rows = []

    def damage(self, name: str) -> str | None:
        """Returns a line about the last reject of a damaged file ``name``; None without one."""
        if self._damaged is None:
            return None
        return f"error: FILE {name} is damaged: {self._damaged.detail}; copy or download it again"


def first_widths(records: Iterator[Record], sink: RejectSink) -> tuple[list[FileRow], Widths]:
    """Returns the widths of the first row that has a box, and the rows up to it."""
    before: list[FileRow] = []
    for record in records:
        if isinstance(record, InvalidRecord):
            sink.add(record)
            continue
        before.append(record)
        if len(record.boxes):
            return before, get_widths(record)
    return before, Widths(features=0, class_probs=None)


def encode_records(
    records: Iterable[Record],
    widths: Widths,
    numbering: Numbering,
    ids: IdCheck,
    sink: RejectSink,
    *,
    id_prefix: str,
    dtype: str,
) -> Iterator[pa.Table]:
    """Yields tables of one row each, for the records that can be one; the others go to ``sink``."""
    written_ids: set[str] = set()
    for record in records:
        if isinstance(record, InvalidRecord):
            sink.add(record)
            continue
        row = dataclasses.replace(record, image_id=id_prefix + record.image_id)
        if row.image_id in written_ids:
            detail = "an earlier row has this id"
            sink.add(InvalidRecord(key=row.image_id, detail=detail, reason=Reason.DUPLICATE))
            continue
        if misfit := widths.misfit(row):
            sink.add(InvalidRecord(key=row.image_id, detail=misfit))
            continue
        ids.look(row)
        try:
            row = apply_numbering(row, numbering)
            if widths.class_probs is None and not len(row.boxes):
                row = dataclasses.replace(row, class_probs=None)  # of no box and no known width
            yield encode_regions([row], dtype=dtype)
        except BadRecord as error:
            sink.add(InvalidRecord(key=row.image_id, detail=str(error), reason=error.reason))
        except ValueError as error:
            sink.add(InvalidRecord(key=row.image_id, detail=str(error), reason=Reason.NOT_FINITE))
        else:
            written_ids.add(row.image_id)
