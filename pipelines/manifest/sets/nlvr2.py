"""Reads NLVR2: true or false statements about two images."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from vlmill.pipelines.manifest.cleaning import clean_text
from vlmill.pipelines.manifest.entries import DataSet, Entry, ListedImage, Reading
from vlmill.pipelines.manifest.layouts.examples import expect_rows, find_splits
from vlmill.pipelines.manifest.reading.lines import json_lines
from vlmill.pipelines.manifest.reading.sources import Folder, Source
from vlmill.pipelines.manifest.sets.conceptual_captions import url_aliases
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import STATEMENTS

LABELS = {"False": 0, "True": 1}
SIDES = ("img0", "img1")  # left, right


def statement_row(record: Any, split: str) -> dict[str, Any] | Drop:
    """Converts a line of NLVR2 to a row of ``statements``; labels may have any spelling."""
    try:
        identifier, sentence, label = record["identifier"], record["sentence"], record.get("label")
    except (KeyError, TypeError, AttributeError) as error:
        return Drop(Reason.BAD_ROW, f"a statement without {error}")
    pair = parse_pair(identifier)
    if pair is None or pair.split("-")[0] != split or not isinstance(sentence, str):
        return Drop(
            Reason.BAD_ROW,
            f"identifier {identifier!a}: expected {split}-SET-PAIR-SENTENCE and a text",
        )
    if label is not None and find_label(label) is None:
        return Drop(Reason.LABEL_UNKNOWN, f"{identifier}: label {label!r}, expected True or False")
    label = find_label(label)
    text = clean_text(sentence)
    if not text:
        return Drop(Reason.EMPTY_TEXT, identifier)
    return {
        "example_id": f"nlvr2/{identifier}",
        "image_ids": [f"nlvr2/{pair}-{side}" for side in SIDES],
        "text_a": text,
        "label": label,
        "label_id": -1 if label is None else LABELS[label],
        "split": split,
        "source": "nlvr2",
    }


def find_label(label: Any) -> str | None:
    """Returns the name of a label, of any spelling or a boolean; None for others."""
    name = str(label).strip().capitalize() if isinstance(label, str | bool) else ""
    return name if name in LABELS else None


def parse_pair(identifier: Any) -> str | None:
    """Returns split, set and pair of a valid identifier SPLIT-SET-PAIR-SENTENCE, else None."""
    parts = identifier.split("-") if isinstance(identifier, str) else []
    if len(parts) != 4 or not all(part.isdecimal() and part.isascii() for part in parts[1:]):
        return None
    return "-".join(parts[:3])


# The data set

ROWS = {"train": 86_373, "dev": 6_982, "test1": 6_967, "test2": 6_970}
FOLDERS = ("images/train", "dev", "test1", "test2")
WITH_SUBSETS = ("dev", "test1")  # splits whose parts are scored separately
KEYS = frozenset(
    (
        *("identifier", "sentence", "left_url", "right_url", "label", "writer", "synset"),
        *("query", "validation", "extra_validations", "directory"),
    )
)


def open_nlvr2(folder: Folder, args: argparse.Namespace) -> Reading:
    """Opens NLVR2's files. Raises InputError."""
    names = {split: (f"data/{split}.json", f"nlvr2/data/{split}.json") for split in ROWS}
    sources = find_splits(folder, names)
    return Reading(
        sources=tuple(sources.values()),
        entries=lambda: nlvr2_entries(sources),
        expected=expect_rows(sources.items(), ROWS, "the data set's repository"),
        image_folders=FOLDERS,
    )


def read_subsets(source: Source) -> dict[tuple[str, str], str]:
    """Returns the subset of each pair of URLs with several statements: balanced if some of them are
    true and some false, else unbalanced (filter_data.py of the data set's repository).
    """
    labels: dict[tuple[str, str], list[str]] = {}
    for _, line in json_lines(source, KEYS):
        if not isinstance(line, Drop):
            labels.setdefault(get_urls(line), []).append(str(find_label(line.get("label"))))
    several = {urls: pair_labels for urls, pair_labels in labels.items() if len(pair_labels) > 1}
    return {
        urls: "balanced" if len(set(pair_labels)) > 1 else "unbalanced"
        for urls, pair_labels in several.items()
    }


def get_urls(line: Mapping[str, Any]) -> tuple[str, str]:
    """Returns a statement's images as published: the left one's URL and the right one's."""
    return str(line.get("left_url")), str(line.get("right_url"))


def nlvr2_entries(sources: Mapping[str, Source]) -> Iterator[Entry]:
    """Yields the statements in the order of the files' lines."""
    contents: dict[str, str] = {}
    for split, source in sources.items():
        subsets = read_subsets(source) if split in WITH_SUBSETS else {}
        for line_number, line in json_lines(source, KEYS):
            key = f"{source.name}:{line_number}"
            row = line if isinstance(line, Drop) else statement_row(line, split)
            if isinstance(row, Drop):
                yield Entry(key=key, group=source.name, rows=row)
                continue
            content = f"{row['label']} {row['text_a']}"
            earlier = contents.setdefault(row["example_id"], content)
            if earlier is not content:
                reason = Reason.DUPLICATE if earlier == content else Reason.ID_CONFLICT
                drop = Drop(reason, f"{row['example_id']} came earlier")
                yield Entry(key=key, group=source.name, rows=drop)
                continue
            assert not isinstance(line, Drop)
            row["subset"] = subsets.get(get_urls(line))
            images = tuple(make_listed_image(i, split, line) for i in row["image_ids"])
            yield Entry(key=key, group=source.name, rows=((STATEMENTS, row),), images=images)


def make_listed_image(image_id: str, split: str, record: Mapping[str, Any]) -> ListedImage:
    """Returns a statement's image: training images are in numbered folders."""
    name = image_id.partition("/")[2] + ".png"
    folder = f"images/train/{record.get('directory')}" if split == "train" else split
    side = "left_url" if image_id.endswith(SIDES[0]) else "right_url"
    url = record.get(side)
    return ListedImage(
        image_id=image_id,
        paths=(f"{folder}/{name}", f"images/{folder}/{name}"),
        url=url if isinstance(url, str) else None,
        aliases=url_aliases(url) if isinstance(url, str) else (),
    )


NLVR2 = DataSet(
    about="""\
NLVR2 (Suhr et al. 2019) as `statements`: data/train.json, dev.json, test1.json, test2.json of the
data set's repository (lil-lab/nlvr; sentences and labels CC BY 4.0), and images, available on
request, in images/train/<directory>/, dev/, test1/, test2/ or --images. image_ids has two, the
left one first; test1 is test-P, test2 test-U; `subset` of dev and test1 is that of the
repository's data/balanced/ and data/unbalanced/, null for a pair with one statement. The images
have the extension .png and often other formats; this is accepted. Ids of the same image share an
alias, its URL.""",
    tables=(STATEMENTS,),
    open=open_nlvr2,
)
