"""Reads Visual Genome's objects and attributes in the 1600-400-20 vocabularies of bottom-up
attention's detector (Anderson et al. 2018).

The vocabularies were made by hand and cannot be recomputed: they are files of the detector's
repository.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vlmill.pipelines.manifest.cleaning import whole_number
from vlmill.pipelines.manifest.entries import (
    DataSet,
    Entry,
    Expected,
    ListedImage,
    Reading,
    kept_images,
)
from vlmill.pipelines.manifest.layouts.boxes import clip_box, edges, read_frame, size_notes
from vlmill.pipelines.manifest.published.splits import detector_splits
from vlmill.pipelines.manifest.reading.lines import read_lines
from vlmill.pipelines.manifest.reading.sources import Folder, Source
from vlmill.pipelines.manifest.reading.streams import JsonLists
from vlmill.pipelines.manifest.sets.visual_genome import FOLDERS, IMAGES, read_images
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import BOXES

OBJECTS, ATTRIBUTES = "objects_vocab.txt", "attributes_vocab.txt"
ANNOTATIONS = ("attributes.json", "objects.json")
ELEMENT_KEYS = frozenset(("image_id", "id", "image_url", "attributes", "objects"))
OBJECT_KEYS = frozenset(
    (
        *("object_id", "id", "x", "y", "w", "h", "names", "synsets"),
        *("attributes", "merged_object_ids"),
    )
)
MAX_ATTRIBUTES = 16  # of an object
SPLITS = {"train": 98_077, "val": 5_000, "test": 5_000}
# Words before a name that are its attributes; the repository's list (setup_vg.py).
ADJECTIVES = frozenset(
    (
        *("white", "black", "blue", "green", "red", "brown", "yellow", "small", "large", "silver"),
        *("wooden", "orange", "gray", "grey", "metal", "pink", "tall", "long", "dark"),
    )
)


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Maps names to numbers from 0; synonyms share the number of their line."""

    objects: Mapping[str, int]
    attributes: Mapping[str, int]


def read_names(source: Source) -> dict[str, int]:
    """Returns the names in a vocabulary's lines by number; synonyms are separated by commas. Raises
    InputError for a bad line.

    The last line has no newline.
    """
    names: dict[str, int] = {}
    for number, line in read_lines(source):
        words = [] if isinstance(line, Drop) else [word.strip() for word in line.split(",")]
        if not words or not all(words):
            raise InputError(f"{source.display_name}: line {number} has an empty name")
        for word in words:
            names.setdefault(word.lower(), number)
    return names


def lines_by_number(numbers: Mapping[str, int]) -> list[str]:
    """Returns the names of a vocabulary by their numbers, synonyms separated by commas."""
    lines: dict[int, list[str]] = {}
    for name, number in numbers.items():
        lines.setdefault(number, []).append(name)
    return [",".join(lines[number]) for number in sorted(lines)]


def split_name(name: str, objects: Mapping[str, int]) -> tuple[str, list[str]]:
    """Returns an object's name as in the vocabulary, and the attributes before it."""
    name = " ".join(name.lower().split()).removesuffix(".").strip()
    words = name.split(" ")
    if name not in objects and len(words) > 1 and ADJECTIVES.issuperset(words[:-1]):
        return words[-1], words[:-1]
    return name, []


def split_attributes(published: str) -> list[str]:
    """Returns an attribute's words: "tall and green" is two, "black and white" one."""
    text = " ".join(published.lower().split()).removesuffix(".").strip()
    return [text] if text == "black and white" else text.split(" and ")


def _open(folder: Folder, _: argparse.Namespace) -> Reading:
    images, annotations = folder.require(IMAGES), folder.require(*ANNOTATIONS)
    names = [folder.require(name, f"1600-400-20/{name}") for name in (OBJECTS, ATTRIBUTES)]
    lists = [folder.require(f"{split}.txt") for split in SPLITS]
    vocabulary = Vocabulary(objects=read_names(names[0]), attributes=read_names(names[1]))
    note = "note: attributes.json is not there; objects.json has no attributes"
    return Reading(
        sources=(images, annotations, *names, *lists),
        entries=lambda: _entries(folder, images, annotations, vocabulary),
        expected={
            f"{annotations.name} {split}": Expected(rows=rows, source="bottom-up-attention")
            for split, rows in SPLITS.items()
        },
        image_folders=FOLDERS,
        files={
            name: lines_by_number(numbers)
            for name, numbers in (
                ("classes.json", vocabulary.objects),
                ("attributes.json", vocabulary.attributes),
            )
        },
        messages=(note,) if annotations.name == ANNOTATIONS[1] else (),
    )


def _entries(
    folder: Folder, image_source: Source, annotations: Source, vocabulary: Vocabulary
) -> Iterator[Entry]:
    images, member = kept_images(), annotations.name.partition(".")[0]
    yield from read_images(image_source, images)
    splits, used_numbers = dict(detector_splits(folder)), set[int]()
    file = JsonLists(source=annotations, known={"": ELEMENT_KEYS})
    for index, element in enumerate(file.elements()):
        key = f"{annotations.name}:{index}"
        number = (
            whole_number(element.get("image_id", element.get("id")))
            if isinstance(element, dict)
            else None
        )
        records = element.get(member) if isinstance(element, dict) else None
        image = images.get(number) if number is not None else None
        drop = None
        if number is None or not isinstance(records, list):
            drop = Drop(Reason.BAD_ROW, f"an element without image_id or {member}")
        elif image is None:
            drop = Drop(Reason.BAD_ROW, f"its image {number} is not in {IMAGES}")
        elif number in used_numbers:
            drop = Drop(Reason.DUPLICATE, f"image {number} came earlier")
        split = splits.get(number) if number is not None else None
        group = f"{annotations.name} {split or 'of no split'}"
        if drop is not None or image is None or records is None or number is None:
            assert drop is not None
            yield Entry(key=key, group=group, rows=drop)
            continue
        used_numbers.add(number)
        for record in records:
            if isinstance(record, dict):
                annotations.remarks.check(record, OBJECT_KEYS)
        yield _entry(folder, key, group, image, split, records, vocabulary)


def _entry(
    folder: Folder,
    key: str,
    group: str,
    image: ListedImage,
    split: str | None,
    records: list[Any],
    vocabulary: Vocabulary,
) -> Entry:
    frame, left_out = read_frame(folder, image), Counter[str]()
    row: dict[str, Any] = {"boxes": [], "class_ids": [], "attribute_ids": []}
    objects = [_object(record, vocabulary) for record in records]
    for labelled_box in objects:
        box = labelled_box if isinstance(labelled_box, Drop) else clip_box(labelled_box[0], frame)
        if isinstance(labelled_box, Drop) or isinstance(box, Drop):
            left_out[(labelled_box if isinstance(labelled_box, Drop) else box).reason.value] += 1  # type: ignore[union-attr]
            continue
        row["boxes"].append(list(box[0]))
        row["class_ids"].append(labelled_box[1])
        row["attribute_ids"].append(labelled_box[2])
    notes = tuple(f"objects skipped, {reason}" for reason in left_out.elements())
    notes += size_notes(
        frame, [labelled_box[0] for labelled_box in objects if not isinstance(labelled_box, Drop)]
    )
    if not row["boxes"] or frame is None:
        why = "no size" if frame is None else f"none of {len(records)} objects in the vocabulary"
        drop = Drop(Reason.LABEL_UNKNOWN if frame is not None else Reason.BAD_ROW, why)
        return Entry(key=key, group=group, rows=drop, notes=notes)
    width, height = frame.upright_size
    row |= {"image_id": image.image_id, "width": width, "height": height}
    row |= {"split": split, "source": "vg"}
    return Entry(key=key, group=group, rows=((BOXES, row),), images=(image,), notes=notes)


LabelledBox = tuple[tuple[float, float, float, float], int, list[int]]  # box, class, attributes


def _object(item: object, vocabulary: Vocabulary) -> LabelledBox | Drop:
    names = item.get("names") if isinstance(item, dict) else None
    if not isinstance(item, dict) or not isinstance(names, list) or not names:
        return Drop(Reason.BAD_ROW, "an object without names")
    name, in_front = split_name(str(names[0]), vocabulary.objects)
    number = vocabulary.objects.get(name)
    if number is None:
        return Drop(Reason.LABEL_UNKNOWN, name[:200])
    box = edges([item.get(side) for side in ("x", "y", "w", "h")])
    if isinstance(box, Drop):
        return box
    published = item.get("attributes") or []
    words = [*in_front, *(w for a in published if isinstance(a, str) for w in split_attributes(a))]
    known = (vocabulary.attributes.get(word) for word in words)
    attributes = list(dict.fromkeys(item for item in known if item is not None))
    return box, number, attributes[:MAX_ATTRIBUTES]


VG_DETECTOR = DataSet(
    about="""\
Visual Genome's objects (Krishna et al. 2017) as `boxes`, one row per image with the boxes,
classes and attributes for detector training: attributes.json (or objects.json), image_data.json
from visualgenome.org; objects_vocab.txt, attributes_vocab.txt (1600 and 400 names), train.txt,
val.txt and test.txt from data/genome of peteanderson80/bottom-up-attention, which exclude
Karpathy's validation and test images from training. class_ids and attribute_ids are lines of the
vocabularies, from 0.""",
    tables=(BOXES,),
    open=_open,
    papers=(
        ("bottom-up attention", "98,077 / 5,000 / 5,000 images; 1,600 classes, 400 attributes"),
    ),
)
