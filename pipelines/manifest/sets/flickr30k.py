"""Reads Flickr30k (Young et al. 2014): Karpathy's splits, SCAN's, or captions without splits.

SCAN's files (Lee et al. 2018), ``train_caps.txt``, ``dev_caps.txt`` and ``test_caps.txt``, have
five lines for each image and no ids. ``train_ids.txt``, ... in the same folder name the image, once
per image or once per line: by its index in Karpathy's file (``id_mapping.json`` has the names), or
by its file name.
"""

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmill.pipelines.manifest.cleaning import Claims, note_repairs, validate_text
from vlmill.pipelines.manifest.entries import (
    IMAGE_STAGE,
    DataSet,
    Entry,
    Expected,
    ListedImage,
    Reading,
)
from vlmill.pipelines.manifest.layouts.examples import expect_rows
from vlmill.pipelines.manifest.layouts.karpathy import SplitFile, karpathy_reading
from vlmill.pipelines.manifest.reading.json_text import parse_json
from vlmill.pipelines.manifest.reading.lines import json_lines, read_lines
from vlmill.pipelines.manifest.reading.sources import Folder, Source
from vlmill.pipelines.manifest.reading.streams import MAX_ELEMENT
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import PAIRS

KARPATHY, TOKEN, CSV = "dataset_flickr30k.json", "results_20130124.token", "results.csv"
# ViLBERT's files of lines, by their split.
LINES = {
    "train": "all_data_final_train_2014.jsonline",
    "val": "all_data_final_val_set0_2014.jsonline",
    "test": "all_data_final_test_set0_2014.jsonline",
}
SCAN_SPLITS = {"train": "train", "dev": "val", "test": "test"}  # as Karpathy calls them
LINE_KEYS = frozenset(("img_path", "sentences", "id"))
FOLDERS = ("flickr30k-images", "flickr30k_images", "images")
PUBLISHED = {"train": 145_000, "val": 5_070, "test": 5_000}
LINES_OF_ALL = 158_915
MORE_IN_VAL = "note: the papers report 1,000 validation images, the file has 1,014; all are written"
MOST_CAPTIONS = 64  # of an image; it has five
_NAME = re.compile(r"(\d{1,17})\.jpg", re.ASCII)  # a photo id has up to eleven digits
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)  # of a caption
_LOST_BAR = re.compile(r"\s*(\d{1,9})\s+(.*)", re.DOTALL | re.ASCII)

Captions = Iterator[tuple[int, tuple[str, str, str] | Drop]]  # row -> file name, number, text

MAPPING = "id_mapping.json"
NUM_CAPTIONS = 5  # of an image
NUM_PLACES = 31_014  # images of Karpathy's file; the lowest photo id is above


def _open(folder: Folder, _: argparse.Namespace) -> Reading:
    if (source := folder.find(KARPATHY)) is not None:
        return _open_karpathy(source)  # SCAN's captions are the same ones
    if (source := folder.find(TOKEN)) is not None:
        return _open_plain(source, _token_rows)
    if (source := folder.find(CSV, f"flickr30k_images/{CSV}")) is not None:
        return _open_plain(source, _csv_rows)
    files = {split: s for split, name in LINES.items() if (s := folder.find(name))}
    if not files:
        return _open_scan(folder)
    return Reading(
        sources=tuple(files.values()),
        entries=lambda: _line_entries(files),
        expected=expect_rows(files.items(), PUBLISHED, "Karpathy's splits", verified=False),
        image_folders=FOLDERS,
    )


def _open_karpathy(source: Source) -> Reading:
    file = SplitFile(
        source=source,
        pair_prefix="flickr30k",
        name="flickr30k",
        groups={},
        folds=False,
        image=lambda image: _image(image["filename"]),
    )
    return karpathy_reading(
        file, captions=PUBLISHED, images=31_014, folders=FOLDERS, messages=(MORE_IN_VAL,)
    )


@dataclass(frozen=True, kw_only=True)
class ScanFile:
    """Holds a split's captions, and the file name of each image or why it is missing."""

    split: str
    captions: Source
    ids: Source
    names: Sequence[str | Drop]


def scan_files(folder: Folder) -> tuple[list[ScanFile], Source | None]:
    """Finds the existing splits, and the file of names if it exists.

    Raises InputError for captions without their list of images, or with one of another length.
    """
    captions = {split: folder.find(f"{split}_caps.txt") for split in SCAN_SPLITS}
    there = {split: source for split, source in captions.items() if source is not None}
    mapping = folder.find(MAPPING) if there else None
    names = None if mapping is None else _names_by_position(mapping)
    return [_open_split(folder, split, source, names) for split, source in there.items()], mapping


def _open_split(
    folder: Folder, split: str, captions: Source, names: Mapping[str, str] | None
) -> ScanFile:
    ids = folder.find(f"{split}_ids.txt")
    if ids is None:
        raise InputError(
            f"{captions.display_name} has captions without ids; add {split}_ids.txt to "
            "the same folder, which names the image of every five lines"
        )
    id_lines = [line if isinstance(line, Drop) else line.strip() for _, line in read_lines(ids)]
    count = sum(1 for _ in read_lines(captions))
    if len(id_lines) == count:  # one for each caption
        if any(id_line != id_lines[i - i % NUM_CAPTIONS] for i, id_line in enumerate(id_lines)):
            raise InputError(
                f"{ids.display_name}: the lines of an image must be {NUM_CAPTIONS} in a row"
            )
        id_lines = id_lines[::NUM_CAPTIONS]
    if count != NUM_CAPTIONS * len(id_lines):
        raise InputError(
            f"{captions.display_name} has {count} lines and {ids.display_name} "
            f"{len(id_lines)} images; expected {NUM_CAPTIONS} lines for each: fetch both again"
        )
    image_names = [_name(id_line, names, ids) for id_line in id_lines]
    return ScanFile(split=split, captions=captions, ids=ids, names=image_names)


def _name(line: str | Drop, names: Mapping[str, str] | None, ids: Source) -> str | Drop:
    """Returns the file name of an image that a line of ``ids`` names."""
    if isinstance(line, Drop):
        return line
    if names is not None and line in names:
        return names[line]
    if not (line.isdecimal() and line.isascii()):
        return line
    if len(line) <= len(str(NUM_PLACES)) and int(line) < NUM_PLACES:
        if names is None:
            raise InputError(
                f"{ids.display_name}: {line} is an index into Karpathy's file; add "
                f"{MAPPING}, which has the names, or dataset_flickr30k.json to the folder"
            )
        return Drop(Reason.BAD_REFERENCE, f"image {line} is not in {MAPPING}")
    return f"{line}.jpg"


def _names_by_position(mapping: Source) -> dict[str, str]:
    """Returns the images' file names by their index in Karpathy's file. Raises InputError."""
    with mapping.open() as file:
        content = file.read(MAX_ELEMENT)
    try:
        names = parse_json(content, mapping.remarks)
    except ValueError as error:
        raise InputError(f"{mapping.display_name} is no JSON: {error}") from None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise InputError(f"{mapping.display_name}: expected an object of indices and file names")
    return {position: name.rpartition("/")[2] for position, name in names.items()}


def _open_scan(folder: Folder) -> Reading:
    files, mapping = scan_files(folder)
    if not files:
        raise folder.lacks(f"{KARPATHY} or {TOKEN}")
    return Reading(
        sources=tuple(s for f in files for s in (f.captions, f.ids))
        + ((mapping,) if mapping else ()),
        entries=lambda: _scan_entries(files),
        expected={
            file.captions.name: Expected(
                rows=PUBLISHED[SCAN_SPLITS[file.split]], source="Karpathy's splits"
            )
            for file in files
        },
        image_folders=FOLDERS,
    )


def _scan_entries(files: Sequence[ScanFile]) -> Iterator[Entry]:
    claims = Claims()
    for file in files:
        for row, text in read_lines(file.captions):
            index, number = divmod(row, NUM_CAPTIONS)
            name = file.names[index]
            image = name if isinstance(name, Drop) else _image(name)
            key = f"{file.captions.name}:{row}"
            yield _entry(key, file.captions.name, image, number, text, file.split, claims)


def _open_plain(source: Source, rows: Callable[[Source], Captions]) -> Reading:
    return Reading(
        sources=(source,),
        entries=lambda: _plain_entries(source, rows(source)),
        expected={
            source.name: Expected(rows=LINES_OF_ALL, source="Young et al. 2014"),
            IMAGE_STAGE: Expected(rows=31_783, source="Young et al. 2014"),
        },
        image_folders=FOLDERS,
    )


def _image(name: object) -> ListedImage | Drop:
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        return Drop(Reason.BAD_ROW, f"{name!a} is not <photo id>.jpg"[:200])
    return ListedImage(
        image_id=f"flickr30k/{match[1]}",
        paths=tuple(f"{folder}/{name}" for folder in FOLDERS),
        aliases=(f"flickr/{match[1]}",),
    )


def _token_rows(source: Source) -> Captions:
    for number, line in read_lines(source):
        if isinstance(line, Drop):
            yield number, line
            continue
        caption_id, tab, text = line.partition("\t")
        name, hash_sign, k = caption_id.partition("#")
        fits = tab and hash_sign and _NUMBER.fullmatch(k)
        yield number, (name, k, text) if fits else Drop(Reason.BAD_ROW, "no <name>#<k>, tab, text")


def _csv_rows(source: Source) -> Captions:
    """Yields rows of ``name| number| text``; one published row lacks the second bar."""
    first = 0
    for number, line in read_lines(source):
        if isinstance(line, Drop):
            yield number - first, line
            continue
        if number == 0 and line.lstrip().startswith("image_name"):
            first = 1
            continue
        fields = [field.strip() for field in line.split("|", 2)]
        if len(fields) == 2 and (lost := _LOST_BAR.fullmatch(fields[1])):
            fields = [fields[0], lost[1], lost[2]]
        fits = len(fields) == 3 and _NUMBER.fullmatch(fields[1])
        row = (fields[0], fields[1], fields[2]) if fits else None
        yield number - first, row or Drop(Reason.BAD_ROW, "no name| number| text")


def _plain_entries(source: Source, rows: Captions) -> Iterator[Entry]:
    claims = Claims()
    for number, row in rows:
        key = f"{source.name}:{number}"
        if isinstance(row, Drop):
            yield Entry(key=key, group=source.name, rows=row)
            continue
        name, k, published = row
        yield _entry(key, source.name, _image(name), int(k), published, None, claims)


def _line_entries(files: Mapping[str, Source]) -> Iterator[Entry]:
    claims = Claims()  # of all splits: a caption is in one split
    for split, source in files.items():
        yield from _lines(source, split, claims)


def _lines(source: Source, split: str, claims: Claims) -> Iterator[Entry]:
    for number, row in json_lines(source, LINE_KEYS):
        key = f"{source.name}:{number}"
        texts = None if isinstance(row, Drop) else row.get("sentences")
        if isinstance(row, Drop) or not isinstance(texts, list):
            drop = row if isinstance(row, Drop) else Drop(Reason.BAD_ROW, "no list of sentences")
            yield Entry(key=key, group=source.name, rows=drop)
            continue
        image = _image(row.get("img_path"))
        for k, text in enumerate(texts):
            yield _entry(f"{key}.{k}", source.name, image, k, text, split, claims)


def _entry(
    key: str,
    group: str,
    image: ListedImage | Drop,
    k: int,
    published: object,
    split: str | None,
    claims: Claims,
) -> Entry:
    text = published if isinstance(published, Drop) else validate_text(published)
    drop = next((value for value in (image, text) if isinstance(value, Drop)), None)
    if drop is None and k >= MOST_CAPTIONS:
        drop = Drop(Reason.BAD_ROW, f"caption number {k}, expected less than {MOST_CAPTIONS}")
    if isinstance(image, ListedImage) and drop is None:
        photo = int(image.image_id.rpartition("/")[2])
        drop = claims.claim(photo * MOST_CAPTIONS + k, str(text))
    if drop is not None:
        return Entry(key=key, group=group, rows=drop)
    assert isinstance(image, ListedImage) and isinstance(text, str)
    pair: dict[str, Any] = {
        "pair_id": f"{image.image_id}#{k}",
        "image_id": image.image_id,
        "text": text,
        "language": "en",
        "source": "flickr30k",
        "split": split,
        "text_source": "human",
    }
    notes = note_repairs(text, str(published))
    return Entry(key=key, group=group, rows=((PAIRS, pair),), images=(image,), notes=notes)


FLICKR30K = DataSet(
    about="""\
Flickr30k (Young et al. 2014) as pairs: dataset_flickr30k.json of caption_datasets.zip (Karpathy's
splits), or results_20130124.token, results.csv (no splits), or ViLBERT's
all_data_final_*.jsonline, or SCAN's {train,dev,test}_caps.txt with *_ids.txt, the lists of their
images, and id_mapping.json of their names; images in flickr30k-images/, on request from
shannon.cs.illinois.edu/DenotationGraph (research only, Flickr's terms). image_id is
flickr30k/<photo id of Flickr>. 21 captions are known not to belong to their image; they are kept,
as in published scores.""",
    tables=(PAIRS,),
    open=_open,
    papers=(("InterBERT, ViLBERT", "29,000 / 1,000 / 1,000 images, five captions each"),),
)
