"""Reads SNLI-VE and e-SNLI-VE: whether an image entails a sentence."""

import argparse
import re
from collections.abc import Iterator, Mapping
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
from vlmill.pipelines.manifest.reading.rows import column_names, read_rows, table_file
from vlmill.pipelines.manifest.reading.sources import Folder, Source
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.labels import LABELS_FILE
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import STATEMENTS

LABELS = ("entailment", "neutral", "contradiction")
IMAGE_KEYS = ("Flikr30kID", "Flickr30kID", "Flickr30K_ID")  # the first as published
TEXT_KEYS = ("sentence2", "hypothesis")  # the second of e-SNLI-VE
FOLDERS = ("flickr30k-images", "flickr30k_images", "images")
_NAME = re.compile(r"(\d{1,18})(?:\.jpg)?", re.ASCII)


def statement_row(record: Any, split: str) -> Example | Drop:
    """Converts a record to a row of ``statements`` and its image."""
    name = _first(record, IMAGE_KEYS)
    match = _NAME.fullmatch(str(name)) if name is not None else None
    pair = record.get("pairID")
    if match is None or not isinstance(pair, str) or not pair.strip():
        return Drop(Reason.BAD_ROW, f"Flikr30kID {name!a:.80}, pairID {pair!a:.80}")
    text = validate_text(_first(record, TEXT_KEYS))
    if isinstance(text, Drop):
        return text
    label = record.get("gold_label")
    if label not in LABELS:  # "-": the annotators did not agree
        return Drop(Reason.LABEL_UNKNOWN, f"{pair}: {label!a:.80} is none of {', '.join(LABELS)}")
    number = match[1]
    row = {
        "example_id": f"snli-ve/{pair.strip()}",
        "image_ids": [f"flickr30k/{number}"],
        "text_a": text,
        "label": label,
        "label_id": LABELS.index(label),
        "split": split,
        "source": "snli-ve",
    }
    paths = tuple(f"{folder}/{number}.jpg" for folder in FOLDERS)
    image_id, alias = f"flickr30k/{number}", f"flickr/{number}"
    return row, (ListedImage(image_id=image_id, paths=paths, aliases=(alias,)),)


def _first(record: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((record[name] for name in names if record.get(name) is not None), None)


# The data set

ROWS = {"train": 529_527, "dev": 17_858, "test": 17_901}
KEYS = frozenset(
    (
        *(*IMAGE_KEYS, *TEXT_KEYS, "gold_label", "pairID", "captionID", "annotator_labels"),
        *("sentence1", "sentence1_binary_parse", "sentence1_parse", "sentence2_binary_parse"),
        *("sentence2_parse", "explanation", "question_id", ""),
    )
)


def open_snli_ve(folder: Folder, args: argparse.Namespace) -> Reading:
    """Opens the files. Raises InputError."""
    names = {split: (f"snli_ve_{split}.jsonl", f"esnlive_{split}.csv") for split in ROWS}
    sources = find_splits(folder, names)
    for source in filter(_is_csv, sources.values()):
        _check_csv(source)
    published = [(split, source) for split, source in sources.items() if not _is_csv(source)]
    return Reading(
        sources=tuple(sources.values()),
        entries=lambda: example_entries(sources.items(), _records, statement_row, STATEMENTS),
        expected=expect_rows(published, ROWS, "the data set's repository"),
        image_folders=FOLDERS,
        files={LABELS_FILE: list(LABELS)},
    )


def _is_csv(source: Source) -> bool:
    return source.name.endswith(".csv")


def _check_csv(source: Source) -> None:
    if source.member is not None or source.path.suffix == ".gz":
        raise InputError(f"{source.display_name}: unpack it, a CSV is read unpacked")
    names = column_names(table_file(source.path))
    if missing := {"pairID", "hypothesis", "gold_label"} - set(names):
        raise InputError(f"{source.display_name} has no column {', '.join(sorted(missing))}")
    source.remarks.check(names, KEYS)


def _records(source: Source) -> Iterator[tuple[int, Any]]:
    if not _is_csv(source):
        yield from json_lines(source, KEYS)
        return
    table = table_file(source.path)
    names = column_names(table)
    for number, fields in read_rows(table, range(len(names))):
        yield number, fields if isinstance(fields, Drop) else dict(zip(names, fields, strict=True))


SNLI_VE = DataSet(
    about="""\
SNLI-VE (Xie et al. 2019) as `statements`: snli_ve_train.jsonl, snli_ve_dev.jsonl and
snli_ve_test.jsonl of the data set's repository (necla-ml/SNLI-VE), or e-SNLI-VE's
esnlive_train.csv, esnlive_dev.csv and esnlive_test.csv (maximek3/e-ViL), whose explanations are not
kept. Images: Flickr30k, in flickr30k-images/ or --images. text_a is the hypothesis, label_id
follows entailment 0, neutral 1, contradiction 2. Rows whose annotators did not agree, label -, are
rejects. image_id is that of `manifest flickr30k`.""",
    tables=(STATEMENTS,),
    open=open_snli_ve,
)
