"""Reads VSR: true or false statements about spatial relations in an image."""

import argparse
import re
from collections.abc import Iterator
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
from vlmill.pipelines.manifest.reading.sources import Folder, Source
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.labels import LABELS_FILE
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import STATEMENTS

LABELS = ("False", "True")
FOLDERS = ("images", "trainval2017", "train2017", "val2017")
_NAME = re.compile(r"(\d{12})\.jpg", re.ASCII)


def statement_row(record: Any, example_id: str, split: str) -> Example | Drop:
    """Converts a record to a row of ``statements`` and its image; ``subset`` is the relation."""
    name, label = record.get("image"), record.get("label")
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        return Drop(Reason.BAD_ROW, f"image {name!a:.80}, expected twelve digits and .jpg")
    text = validate_text(record.get("caption"))
    if isinstance(text, Drop):
        return text
    if str(label) not in ("0", "1", *LABELS):
        return Drop(Reason.LABEL_UNKNOWN, f"label {label!a:.80}, expected 0 or 1")
    number = int(str(label) in ("1", LABELS[1]))
    relation, url = record.get("relation"), record.get("image_link")
    row = {
        "example_id": example_id,
        "image_ids": [f"coco/{match[1]}"],
        "text_a": text,
        "label": LABELS[number],
        "label_id": number,
        "split": split,
        "source": "vsr",
        "subset": relation if isinstance(relation, str) else None,
    }
    image = ListedImage(
        image_id=f"coco/{match[1]}",
        paths=tuple(f"{folder}/{name}" for folder in FOLDERS),
        url=url if isinstance(url, str) and url else None,
    )
    return row, (image,)


# The data set

ROWS = {
    "random": {"train": 7_680, "dev": 1_097, "test": 2_195},
    "zeroshot": {"train": 4_713, "dev": 231, "test": 616},
}
KEYS = frozenset(
    (
        *("image", "image_link", "caption", "label", "relation", "annotator_id"),
        *("vote_true_validator_id", "vote_false_validator_id", "reference_frame"),
    )
)


def _add_arguments(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--variant",
        choices=sorted(ROWS),
        default="random",
        help="how the examples are split: random, or zeroshot, without shared concepts "
        "(default: random)",
    )


def open_vsr(folder: Folder, args: argparse.Namespace) -> Reading:
    """Opens the files. Raises InputError."""
    parents = (f"splits/{args.variant}", f"data/splits/{args.variant}", args.variant)
    names = {
        split: tuple(f"{parent}/{split}.jsonl" for parent in parents)
        for split in ROWS[args.variant]
    }
    sources = find_splits(folder, names)

    def make(numbered: tuple[int, Any], split: str) -> Example | Drop:
        number, record = numbered
        return statement_row(record, f"vsr/{args.variant}/{split}/{number}", split)

    return Reading(
        sources=tuple(sources.values()),
        entries=lambda: example_entries(sources.items(), _numbered, make, STATEMENTS),
        expected=expect_rows(sources.items(), ROWS[args.variant], "the data set's repository"),
        image_folders=FOLDERS,
        files={LABELS_FILE: list(LABELS)},
    )


def _numbered(source: Source) -> Iterator[tuple[int, Any]]:
    for number, record in json_lines(source, KEYS):
        yield number, record if isinstance(record, Drop) else (number, record)


VSR = DataSet(
    about="""\
VSR (Liu, Emerson and Collier 2023, Apache-2.0) as `statements`: train.jsonl, dev.jsonl and
test.jsonl of data/splits/random or data/splits/zeroshot of the data set's repository
(cambridgeltl/visual-spatial-reasoning) or of the hub. Images: COCO 2017, in images/, trainval2017/,
train2017/, val2017/ or --images; --fetch downloads them by their links. `subset` is the relation,
by which the authors report accuracy.""",
    tables=(STATEMENTS,),
    open=open_vsr,
    add_arguments=_add_arguments,
    options=("variant",),
)
