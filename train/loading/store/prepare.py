"""From tables to training samples: joined, tokenised and checked once, then read at random.

``prepare_samples`` writes a folder that training maps into memory: what lies there is shared by all
processes of a run and left to the system's cache, so that a run's own memory is its batches and the
index of the pictures.
"""

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tokenizers import Tokenizer

from vlmill.schemas.console.progress import Progress
from vlmill.schemas.errors import InputError
from vlmill.schemas.files.reading import iter_batches
from vlmill.schemas.files.shards import ShardWriter
from vlmill.schemas.readers.regions import RegionReader
from vlmill.schemas.readers.row_index import ABSENT, Numbers
from vlmill.schemas.rejects import Reason, reject
from vlmill.schemas.tables import REGIONS
from vlmill.train.loading.arrays import Keys
from vlmill.train.loading.store.files import Columns, prepare_negatives, write_known
from vlmill.train.loading.store.pairs import pair_batches
from vlmill.train.loading.store.splits import FOR_TRAINING, Rows, unit_key


class Pictures(Protocol):
    """A table of regions or of images, as far as pairs are joined with it."""

    def find(self, image_ids: Sequence[str]) -> Numbers:
        """Row numbers, :data:`~vlmill.schemas.readers.row_index.ABSENT` where there is none."""


@dataclass(frozen=True, kw_only=True)
class WhichPairs:
    """Says which pairs of a table a run can use, and with which pictures it joins them."""

    pairs: str  # the table
    rows: Rows = FOR_TRAINING  # which of its rows; the others are held out
    pictures: Pictures | None = None  # what pairs are joined with; None for texts alone
    images: Pictures | None = None  # beside regions in `pictures`: the pictures themselves
    takes_pairs: bool = True
    takes_texts: bool = False  # texts without a picture
    needs_words: bool = True  # for pictures alone a text may be empty
    total: int | None = None  # pairs of the table, for the progress


@dataclass(frozen=True, kw_only=True)
class WhatToPrepare(WhichPairs):
    """Says what a run's samples are made of."""

    tokenizer: Tokenizer
    max_tokens: int  # longer texts are cut before [SEP]
    negatives: str | None = None  # the table of hard negatives


@dataclass(frozen=True, kw_only=True)
class RegionFacts:
    """What one pass over the regions table tells: pictures without a box, and the classes."""

    empty: frozenset[str]
    num_classes: int  # the highest class id plus one; 0 without classes
    num_pictures: int


def region_facts(regions: str) -> RegionFacts:
    """Read the small columns of the regions table."""
    empty: set[str] = set()
    highest, count = -1, 0
    columns = ("image_id", "num_boxes", "class_ids")
    for batch in iter_batches(regions, REGIONS, columns=columns, flag="--regions"):
        count += batch.num_rows
        classes = batch.column("class_ids").flatten()
        if len(classes) > classes.null_count:
            highest = max(highest, int(np.max(classes.drop_null().to_numpy())))
        zero = batch.column("num_boxes").to_numpy() == 0
        empty.update(batch.column("image_id").filter(pa.array(zero)).to_pylist())
    return RegionFacts(empty=frozenset(empty), num_classes=highest + 1, num_pictures=count)


def prepare_samples(
    folder: Path, what: WhatToPrepare, rejects: ShardWriter | None = None
) -> Counter[str]:
    """Writes what :class:`SampleTable` reads; counts ``kept`` and each reason of a reject.

    Pairs are rejected that are held out (all but ``what.rows``), whose picture has no regions (or
    no row of images), and whose text has no word. Texts that are cut are kept, and counted as
    ``cut``.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    counts: Counter[str] = Counter()
    tokenizer = Tokenizer.from_str(what.tokenizer.to_str())  # truncation is state: not the caller's
    tokenizer.enable_truncation(what.max_tokens)
    pair_filter = _PairFilter(what)
    with (
        Columns(folder) as writer,
        Progress(total=what.total, unit="pair", label="prepare") as progress,
    ):
        for batch in pair_batches(what.pairs):
            rows = batch.to_pylist()
            encodings = tokenizer.encode_batch([row["text"] for row in rows])
            places = pair_filter.places(rows)
            accepted, rejected = [], []
            for row, encoding, at in zip(rows, encodings, places, strict=True):
                reason = pair_filter.reject_reason(row, len(encoding.ids), at)
                counts["kept" if reason is None else reason.value] += 1
                if reason is None:
                    accepted.append((row, encoding.ids, at, pair_filter.num_regions(at)))
                    counts["cut"] += bool(encoding.overflowing)
                else:
                    rejected.append(reject("pretrain", row["pair_id"], reason, row["image_id"]))
            if rejects is not None:
                rejects.write(rejected)
            writer.write(accepted)
            progress.advance(len(rows), rejects=len(rejected))
    write_known(folder)
    if what.negatives is not None and counts["kept"]:
        counts["hard_negatives"] = prepare_negatives(folder, what.negatives)
    return +counts


def unit_keys(which: WhichPairs) -> Keys:
    """The :func:`~vlmill.train.loading.store.splits.unit_key` of every row that can be used, as far
    as this shows without its text: uint64 [N].
    """
    pair_filter, keys = _PairFilter(which), [np.empty(0, np.uint64)]
    with Progress(total=which.total, unit="pair", label="hold out") as progress:
        for batch in pair_batches(which.pairs):
            rows = batch.to_pylist()
            usable = (
                unit_key(row)
                for row, at in zip(rows, pair_filter.places(rows), strict=True)
                if pair_filter.reason_without_text(row, at) is None
            )
            keys.append(np.fromiter(usable, np.uint64))
            progress.advance(len(rows))
    return np.concatenate(keys)


def require_pictures(counts: Counter[str], missing: str) -> None:
    """With ``missing`` "error", raise InputError if a pair was rejected for want of its picture."""
    lost = {r: counts[r] for r in (Reason.NO_PICTURE, Reason.NO_REGIONS, Reason.NO_BOXES)}
    if missing == "error" and any(lost.values()):
        said = ", ".join(f"{n} {reason.value}" for reason, n in lost.items() if n)
        raise InputError(
            f"--pairs: {sum(lost.values())} pairs lack their picture ({said}; the rejects table "
            "lists them); extract the regions of all, or drop such pairs with --missing skip"
        )


class _PairFilter:
    """Tells which pairs are kept, and where their pictures are."""

    def __init__(self, which: WhichPairs) -> None:
        self._which = which
        self._counts: npt.NDArray[np.int32] | None = None
        if isinstance(which.pictures, RegionReader):
            self._counts = which.pictures.box_counts()

    def places(self, rows: list[dict[str, Any]]) -> list[int]:
        if self._which.pictures is None:
            return [ABSENT] * len(rows)
        ids = [row["image_id"] or "" for row in rows]
        numbers = self._which.pictures.find(ids)
        if self._which.images is not None:
            numbers = np.where(self._which.images.find(ids) == ABSENT, ABSENT, numbers)
        places: list[int] = numbers.tolist()
        return places

    def num_regions(self, at: int) -> int:
        return 0 if self._counts is None or at == ABSENT else int(self._counts[at])

    def reject_reason(self, row: dict[str, Any], num_tokens: int, at: int) -> Reason | None:
        reason = self.reason_without_text(row, at)
        if reason is None and self._which.needs_words and num_tokens <= 2:  # [CLS] and [SEP] alone
            return Reason.NO_TEXT
        return reason

    def reason_without_text(self, row: dict[str, Any], at: int) -> Reason | None:
        if not self._which.rows.has(row):
            return Reason.HELD_OUT
        if row["image_id"] is None or not self._which.takes_pairs:
            if not self._which.takes_texts:
                return Reason.NO_PICTURE
        elif at == ABSENT:
            return Reason.NO_PICTURE if self._counts is None else Reason.NO_REGIONS
        elif self._counts is not None and not self._counts[at]:
            return Reason.NO_BOXES
        return None
