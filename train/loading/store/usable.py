"""Selects the pairs of a table that a run can use, and records why the others are excluded.

Excluded are held-out rows, repeated ids, empty texts, and images that are missing or have no
region.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from vlmill.runtime.console.progress import Progress
from vlmill.runtime.readers.joining import Indexed, Join
from vlmill.runtime.readers.regions import RegionReader
from vlmill.runtime.readers.row_index import ABSENT
from vlmill.schemas.errors import InputError
from vlmill.schemas.ids import key64
from vlmill.schemas.rejects import Reason
from vlmill.train.loading.arrays import Keys
from vlmill.train.loading.store.pairs import (
    COLUMNS,
    Examples,
    FaultFinder,
    PairTable,
    get_flag,
    label_columns,
    no_fault,
    pair_batches,
    pair_rows,
)
from vlmill.train.loading.store.splits import FOR_TRAINING, Rows, unit_key


@dataclass(frozen=True, kw_only=True)
class PairSelection:
    """Specifies which pairs of a table a run can use, and with which images it joins them."""

    pairs: PairTable
    rows: Rows = FOR_TRAINING  # rows of the table to use; the others are held out
    images: Indexed | None = None  # the table that pairs are joined with; None: texts only
    # In addition to regions in `images`: the images themselves, and annotated regions.
    other_tables: tuple[Indexed, ...] = ()
    takes_pairs: bool = True
    takes_texts: bool = False  # texts without an image
    needs_words: bool = True  # for images without texts a text may be empty
    total: int | None = None  # number of pairs in the table, for the progress


def unit_keys(which: PairSelection) -> Keys:
    """Returns the :func:`~vlmill.train.loading.store.splits.unit_key` of every row that can be
    used, judged without its text: uint64 [N].
    """
    pair_filter, keys = PairFilter(which), [np.empty(0, np.uint64)]
    columns = [*COLUMNS, *label_columns(which.pairs).names]
    with Progress(total=which.total, unit="pair", label="hold out") as progress:
        for batch in pair_batches(which.pairs, columns):
            rows = batch.to_pylist()
            usable = (
                unit_key(row)
                for row, image_rows in zip(rows, pair_filter.find_image_rows(rows), strict=True)
                if pair_filter.fault_without_text(row, image_rows) is None
            )
            keys.append(np.fromiter(usable, np.uint64))
            progress.advance(len(rows))
    return np.concatenate(keys)


def require_images(counts: Counter[str], missing: str, flag: str = "--pairs") -> None:
    """Raises InputError if a pair was rejected because its image is missing and ``missing`` is
    "error".
    """
    lost = {r: counts[r] for r in (Reason.NO_IMAGE, Reason.NO_REGIONS, Reason.NO_BOXES)}
    if missing == "error" and any(lost.values()):
        lost_counts = ", ".join(f"{n} {reason.value}" for reason, n in lost.items() if n)
        raise InputError(
            f"{flag}: {sum(lost.values())} {flag[2:]} lack their image ({lost_counts}; the rejects "
            f"table lists them); extract the regions of all, or drop such {flag[2:]} with "
            "--missing skip"
        )


def sample_ids(which: PairSelection) -> str:
    """Describes how the pairs and the table that they are joined with name images, for an error;
    empty without such a table.
    """
    if which.images is None:
        return ""
    first = next(pair_rows(which.pairs), [])
    asking = get_flag(which.pairs)
    join = Join(which.images.index, asking=asking, holding=images_flag(which.images))
    return join.samples([row["image_id"] for row in first])


def images_flag(images: Indexed) -> str:
    """Returns the flag of the table that pairs are joined with."""
    return images.flag if isinstance(images, RegionReader) else "--images"


def _repeated_keys(pairs: PairTable) -> frozenset[int]:
    """Returns the keys of pair_ids that more than one pair may have. Memory: 8 bytes per pair."""
    batches = pair_batches(pairs, columns=["pair_id"])
    ids = (pair_id for batch in batches for pair_id in batch.column(0).to_pylist())
    keys = np.sort(np.fromiter(map(key64, ids), dtype=np.uint64))
    return frozenset(keys[1:][keys[1:] == keys[:-1]].tolist())


ImageRows = tuple[int, ...]  # the row of each of a pair's images; ABSENT if a table has none


@dataclass(frozen=True)
class Fault:
    """Records why a pair is excluded, and for which of its images, if the reason is an image."""

    reason: Reason
    image_id: str | None


class PairFilter:
    """Decides which pairs are kept, and locates their images."""

    def __init__(self, which: PairSelection) -> None:
        self._which = which
        self._counts: npt.NDArray[np.int32] | None = None
        if isinstance(which.images, RegionReader):
            self._counts = which.images.box_counts()
        tables = [] if which.images is None else [which.images, *which.other_tables]
        examples = which.pairs if isinstance(which.pairs, Examples) else None
        self._takes_empty = examples is not None and examples.takes_empty
        self._takes_wordless = examples is not None and examples.takes_wordless
        self._two_images = examples is not None and examples.two_images
        self._fault_of_row: FaultFinder = no_fault if examples is None else examples.find_fault
        self._joins = [
            Join(table.index, asking=get_flag(which.pairs), holding=images_flag(table))
            for table in tables
        ]
        self._came: set[str] = set()

    def find_image_rows(self, rows: list[dict[str, Any]]) -> list[ImageRows]:
        """Returns the rows of each pair's images: one or two per pair."""
        firsts = self._find_image_rows([row["image_id"] for row in rows])
        if not self._two_images:
            return [(image_row,) for image_row in firsts]
        seconds = self._find_image_rows([row["second_image_id"] for row in rows])
        return list(zip(firsts, seconds, strict=True))

    def _find_image_rows(self, image_ids: list[str | None]) -> list[int]:
        if not self._joins:
            return [ABSENT] * len(image_ids)
        ids = [image_id or "" for image_id in image_ids]
        numbers, *other_numbers = (join.find(ids) for join in self._joins)
        for other in other_numbers:
            numbers = np.where(other == ABSENT, ABSENT, numbers)
        image_rows: list[int] = numbers.tolist()
        return image_rows

    def summaries(self) -> list[str]:
        """Returns a summary of images that matched by name, a line for each table."""
        return [summary for join in self._joins if (summary := join.summary())]

    @cached_property
    def _repeated(self) -> frozenset[int]:
        """Reads all ids once, where reject reasons are needed: `unit_keys` needs none."""
        return _repeated_keys(self._which.pairs)

    def _came_before(self, pair_id: str) -> bool:
        if not self._repeated or key64(pair_id) not in self._repeated:
            return False
        before = pair_id in self._came
        self._came.add(pair_id)
        return before

    def num_regions(self, image_row: int) -> int:
        return 0 if self._counts is None or image_row == ABSENT else int(self._counts[image_row])

    def find_fault(
        self, row: dict[str, Any], num_tokens: int, image_rows: ImageRows
    ) -> Fault | None:
        """Returns why a pair is excluded; call it once for each pair, in their order."""
        if self._came_before(row["pair_id"]):
            return Fault(Reason.DUPLICATE, row["image_id"])
        fault = self.fault_without_text(row, image_rows)
        needs_words = self._which.needs_words and not self._takes_empty
        needs_words = needs_words and not self._takes_wordless
        if fault is None and needs_words and num_tokens <= 2:  # only [CLS] and [SEP]
            return Fault(Reason.NO_TEXT, row["image_id"])
        return fault

    def fault_without_text(self, row: dict[str, Any], image_rows: ImageRows) -> Fault | None:
        """Returns why a pair is excluded, regardless of its text and of repeated ids."""
        if not self._which.rows.has(row):
            return Fault(Reason.HELD_OUT, row["image_id"])
        if (reason := self._fault_of_row(row)) is not None:
            return Fault(reason, row["image_id"])
        if row["image_id"] is None or not self._which.takes_pairs:
            if self._which.takes_texts:
                return None
            return Fault(Reason.NO_IMAGE, row["image_id"])
        names = ("image_id", "second_image_id")
        for name, image_row in zip(names, image_rows, strict=False):
            if (reason := self._find_image_fault(image_row)) is not None:
                return Fault(reason, row[name])
        return None

    def _find_image_fault(self, image_row: int) -> Reason | None:
        if image_row == ABSENT:
            return Reason.NO_IMAGE if self._counts is None else Reason.NO_REGIONS
        if self._counts is not None and not self._counts[image_row] and not self._takes_empty:
            return Reason.NO_BOXES
        if isinstance(self._which.images, RegionReader):
            return None if self._which.images.is_finite(image_row) else Reason.NOT_FINITE
        return None
