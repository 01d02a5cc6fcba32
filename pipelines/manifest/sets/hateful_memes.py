"""Reads the Hateful Memes Challenge: images with a text, hateful or not."""

import argparse
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from vlmill.pipelines.manifest.cleaning import validate_text
from vlmill.pipelines.manifest.entries import DataSet, ListedImage, Reading
from vlmill.pipelines.manifest.layouts.examples import (
    Example,
    example_entries,
    expect_rows,
    find_splits,
)
from vlmill.pipelines.manifest.reading.lines import json_lines
from vlmill.pipelines.manifest.reading.sources import Folder
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.labels import LABELS_FILE
from vlmill.schemas.rejects import Reason
from vlmill.schemas.splits import find_use
from vlmill.schemas.tables import LABELS as LABELS_TABLE

LABELS = ("not_hateful", "hateful")
NUMBERS = {"0": 0, "1": 1}
ROWS = {
    "train": 8_500,
    **{"dev": 500, "dev_seen": 500, "dev_unseen": 540},
    **{"test": 1_000, "test_seen": 1_000, "test_unseen": 2_000},
}
KEYS = frozenset(("id", "img", "label", "text"))


def label_row(record: Any, split: str) -> Example | Drop:
    """Converts a record to a row of ``labels`` and its image; only tests may lack their label."""
    name, identifier = record.get("img"), record.get("id")
    if not isinstance(name, str) or not name or type(identifier) not in (int, str):
        return Drop(Reason.BAD_ROW, f"id {identifier!a:.80}, img {name!a:.80}")
    text = validate_text(record.get("text"))
    if isinstance(text, Drop):
        return text
    label = record.get("label")
    number = NUMBERS.get(str(label))
    if number is None and not (label in (None, -1) and find_use(split) == "test"):
        return Drop(Reason.LABEL_UNKNOWN, f"{identifier}: label {label!a:.80}, expected 0 or 1")
    image_id = f"hateful-memes/{PurePosixPath(name).stem}"
    row = {
        "example_id": f"hateful-memes/{split}/{identifier}",
        "image_ids": [image_id],
        "text": text,
        "labels": None if number is None else [LABELS[number]],
        "label_ids": None if number is None else [number],
        "split": split,
        "source": "hateful-memes",
    }
    return row, (ListedImage(image_id=image_id, paths=(name,)),)


# The data set


def open_hateful_memes(folder: Folder, args: argparse.Namespace) -> Reading:
    """Opens the files. Raises InputError."""
    sources = find_splits(folder, {split: (f"{split}.jsonl",) for split in ROWS})
    read = partial(json_lines, known=KEYS)
    return Reading(
        sources=tuple(sources.values()),
        entries=lambda: example_entries(sources.items(), read, label_row, LABELS_TABLE),
        expected=expect_rows(sources.items(), ROWS, "copies of the data set"),
        image_folders=("img",),
        files={LABELS_FILE: list(LABELS)},
    )


HATEFUL_MEMES = DataSet(
    about="""\
The Hateful Memes Challenge (Kiela et al. 2020) as `labels`: train.jsonl and those of dev.jsonl,
dev_seen.jsonl, dev_unseen.jsonl, test.jsonl, test_seen.jsonl and test_unseen.jsonl that exist, with
the images in img/ or --images. The licence of the data set allows research only. Splits keep the
names of the files. Some memes are in dev_seen and in dev_unseen, so example_id has the split. The
official metric is the AUROC of the class hateful, with accuracy.""",
    tables=(LABELS_TABLE,),
    open=open_hateful_memes,
)
