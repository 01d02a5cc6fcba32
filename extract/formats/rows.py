"""Sorts the records of a file into consistent rows and rejects."""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from vlmill.extract.formats.classes import IdCheck, Numbering, apply_numbering
from vlmill.extract.formats.records import BadRecord, InvalidRecord, Record
from vlmill.runtime.readers.regions import RegionRow
from vlmill.schemas.rejects import Reason

STAGE = "import"
DAMAGE = Reason.BROKEN_ARCHIVE  # for records that a damaged file has lost


@dataclass(frozen=True, kw_only=True)
class Widths:
    """Holds the columns that all rows of a table share."""

    features: int
    class_probs: int | None

    def find_mismatch(self, row: RegionRow) -> str | None:
        """Returns why a row does not match the others; None if it does."""
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


class RowSorter:
    """Decides which records become rows. ``ids`` are the ids of existing rows."""

    def __init__(
        self, widths: Widths, numbering: Numbering, check: IdCheck, ids: Iterable[str], prefix: str
    ) -> None:
        self.widths, self.numbering, self.check = widths, numbering, check
        self.ids, self._prefix = set(ids), prefix
        self.num_clipped = 0  # rows with boxes in the padding of their detector

    def sort(self, record: Record) -> RegionRow | InvalidRecord:
        """Returns the row of a record, or an InvalidRecord with the reason.

        Raises CountedFromOne and InputError (:class:`~vlmill.extract.formats.classes.IdCheck`).
        """
        if isinstance(record, InvalidRecord):
            return record
        row = record
        if self._prefix:
            row = dataclasses.replace(record, image_id=self._prefix + record.image_id)
        if row.image_id in self.ids:
            detail = "an earlier row has this id"
            return InvalidRecord(key=row.image_id, detail=detail, reason=Reason.DUPLICATE)
        if mismatch := self.widths.find_mismatch(row):
            return InvalidRecord(key=row.image_id, detail=mismatch)
        self.check.look(row)
        try:
            row = apply_numbering(row, self.numbering)
        except BadRecord as error:
            return InvalidRecord(key=row.image_id, detail=str(error), reason=error.reason)
        if self.widths.class_probs is None and not len(row.boxes):
            row = dataclasses.replace(row, class_probs=None)  # without boxes its width is unknown
        self.ids.add(row.image_id)
        self.num_clipped += record.is_clipped
        return row


def encode_each(
    rows: list[RegionRow], encode: Callable[[list[RegionRow]], Any], sorter: RowSorter
) -> list[InvalidRecord]:
    """Removes rows that the table's dtypes cannot hold from ``rows``; returns them as rejects."""
    invalid = []
    for row in list(rows):
        try:
            encode([row])
        except ValueError as error:
            rows.remove(row)
            sorter.ids.discard(row.image_id)
            reason = Reason.NOT_FINITE
            invalid.append(InvalidRecord(key=row.image_id, detail=str(error), reason=reason))
    return invalid
