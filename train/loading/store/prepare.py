"""Turns tables into training samples: joined, tokenised and checked once, then read at random.

``prepare_samples`` writes a folder that training maps into memory. All processes of a run share it
through the system's cache, so that a run's own memory is its batches and the index of the images.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.progress import Progress
from vlmill.runtime.files.reading import iter_batches
from vlmill.runtime.files.shards import ShardWriter
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import reject
from vlmill.schemas.tables import REGIONS
from vlmill.train.loading.store.files import Columns, prepare_negatives, write_known
from vlmill.train.loading.store.near import keep_neighbours
from vlmill.train.loading.store.pairs import COLUMNS, label_columns, pair_batches
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.loading.store.usable import PairFilter, PairSelection, images_flag

# Share of the rows of a table of negatives: a warning is printed if fewer are of pairs to train on.
FEW_NEGATIVES = 0.5


@dataclass(frozen=True, kw_only=True)
class TextForm:
    """Describes how a task changes a text's tokens after truncation, and how many it adds."""

    apply: Callable[[list[int]], list[int]]
    adds: int = 0


AS_IT_IS = TextForm(apply=list)


@dataclass(frozen=True, kw_only=True)
class PreparationInputs(PairSelection):
    """Holds the inputs and limits for a run's samples."""

    tokenizer: Tokenizer
    max_tokens: int  # longer texts are cut before [SEP]
    # For texts without an image, which other texts may follow in their row; null: as for all texts.
    max_tokens_alone: int | None = None
    negatives: str | None = None  # the table of hard negatives
    neighbours: str | None = None  # the table of nearest images
    form: TextForm = AS_IT_IS
    stage: str = "pretrain"  # in the table of rejects

    def longest(self, row: Mapping[str, Any]) -> int:
        """Returns the maximum number of tokens of a pair's text."""
        if row["image_id"] is None and self.max_tokens_alone is not None:
            return self.max_tokens_alone
        return self.max_tokens


@dataclass(frozen=True, kw_only=True)
class RegionFacts:
    """Holds the results of one scan of the regions table: images without a box, and the classes."""

    empty: frozenset[str]
    num_classes: int  # the highest class id plus one; 0 without classes
    num_images: int


def region_facts(regions: str) -> RegionFacts:
    """Reads the small columns of the regions table."""
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
    return RegionFacts(empty=frozenset(empty), num_classes=highest + 1, num_images=count)


def prepare_samples(
    folder: Path,
    what: PreparationInputs,
    rejects: ShardWriter | None = None,
    *,
    label: str = "prepare",
) -> Counter[str]:
    """Writes the files of :class:`SampleTable`; counts ``kept`` and each reject reason.

    A pair is rejected if it is held out (all but ``what.rows``), if it repeats a pair_id, if its
    image has no regions (or no row of images) or regions that are not finite, or if its text has no
    word. Texts that are cut are kept, and counted as ``cut``. With ``rejects``, also reports images
    that the tables give different ids.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    counts: Counter[str] = Counter()
    tokenizer = Tokenizer.from_str(what.tokenizer.to_str())  # the caller's truncation stays
    tokenizer.enable_truncation(max(what.max_tokens, what.max_tokens_alone or 0))
    pair_filter, labels = PairFilter(what), label_columns(what.pairs)
    with (
        Columns(folder, labels) as writer,
        Progress(total=what.total, unit="pair", label=label) as progress,
    ):
        for batch in pair_batches(what.pairs, [*COLUMNS, *labels.names]):
            rows = batch.to_pylist()
            encodings = tokenizer.encode_batch([row["text"] for row in rows])
            rows_by_pair = pair_filter.find_image_rows(rows)
            accepted, rejected = [], []
            for row, encoding, image_rows in zip(rows, encodings, rows_by_pair, strict=True):
                fault = pair_filter.find_fault(row, len(encoding.ids), image_rows)
                counts["kept" if fault is None else fault.reason.value] += 1
                if fault is None:
                    tokens = cut_ids(encoding.ids, what.longest(row) - what.form.adds)
                    row["second_row"] = image_rows[-1]
                    num_regions = sum(map(pair_filter.num_regions, image_rows))
                    accepted.append((row, what.form.apply(tokens), image_rows[0], num_regions))
                    counts["cut"] += bool(encoding.overflowing) or len(tokens) < len(encoding.ids)
                else:
                    rejected.append(
                        reject(what.stage, row["pair_id"], fault.reason, fault.image_id)
                    )
            if rejects is not None:
                rejects.write(rejected)
            writer.write(accepted)
            progress.advance(len(rows), rejects=len(rejected))
    write_known(folder)
    if rejects is not None:  # held-out pairs come from the same tables
        for summary in pair_filter.summaries():
            print_status(f"note: {summary}")
    if what.negatives is not None and counts["kept"]:
        counts["hard_negatives"] = _negatives(folder, what.negatives)
    if what.neighbours is not None and what.images is not None and counts["kept"]:
        keep_neighbours(folder, what.neighbours, what.images, images_flag(what.images))
    return +counts


def cut_ids(tokens: list[int], longest: int) -> list[int]:
    """Returns at most ``longest`` tokens, including the last one, the [SEP]."""
    return tokens if len(tokens) <= longest else [*tokens[: longest - 1], tokens[-1]]


def _negatives(folder: Path, negatives: str) -> int:
    """Returns the number of hard negatives. Raises InputError if they are of other pairs."""
    joined = prepare_negatives(folder, negatives)
    counts_text = f"{joined.num_met} of the {joined.num_rows} pair_ids of --negatives {negatives}"
    if joined.num_rows and not joined.num_met:
        raise InputError(
            f"{counts_text} are among the pairs to train on (it has {joined.sample}, --pairs has "
            f"{SampleTable.open(folder).pair_id(0)}); mine them from these --pairs"
        )
    if joined.num_met < FEW_NEGATIVES * joined.num_rows:
        print_status(f"warning: only {counts_text} are among the pairs to train on")
    return joined.num_negatives
