"""Reads RefCOCO, RefCOCO+ and RefCOCOg: texts that refer to an object in a COCO train2014 image.

MAttNet's published detections of the images become ``regions`` without features.
"""

import argparse
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmill.models.convert.plain_pickle import BadPickle
from vlmill.models.convert.unpickling import MAX_PICKLE, read_pickled_list
from vlmill.pipelines.manifest.cleaning import Claims, clean_text, whole_number
from vlmill.pipelines.manifest.entries import DataSet, Entry, Expected, Reading
from vlmill.pipelines.manifest.layouts.boxes import Box, Frame, clip_box, edges
from vlmill.pipelines.manifest.layouts.instances import (
    FOLDER,
    Frames,
    Instance,
    box_entries,
    clip_bbox,
    frames,
    make_listed_image,
    read_instances,
)
from vlmill.pipelines.manifest.reading.sources import Folder, Source
from vlmill.pipelines.manifest.reading.streams import JsonLists
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import BOXES, EXPRESSIONS, REGIONS

EMPTY_STAYS = ("val", "test", "testA", "testB")  # a text without words is scored, as published

DETECTIONS = "res101_coco_minus_refer_notime_dets.json"
DETECTION_KEYS = frozenset(("det_id", "image_id", "box", "category_id", "category_name", "score"))
Detection = tuple[Box, int, float]
"""Corners, category as published, score."""


def expression_rows(
    ref: Any, instances: Mapping[int, Instance], get_frame: Frames, *, source: str, split_by: str
) -> Iterator[tuple[str, dict[str, Any] | Drop, tuple[str, ...]]]:
    """Yields an entry of ``refs(...).p`` as rows of ``expressions``, one for each of its texts.

    Each item has the key, the row and its repairs.
    """
    ref = decode_keys(ref)
    try:
        ref_id, ann_id, image_id = ref["ref_id"], ref["ann_id"], ref["image_id"]
        split, sentences = plain_text(ref["split"]), ref["sentences"]
    except (KeyError, TypeError) as error:
        yield "?", Drop(Reason.BAD_ROW, f"a ref without {error}"), ()
        return
    if whole_number(ref_id) is None or not isinstance(sentences, list) or not split:
        fault = Drop(Reason.BAD_ROW, "expected ref_id, split and sentences")
        yield f"{source}/ref/{ref_id!s:.40}", fault, ()
        return
    instance = instances.get(ann_id) if type(ann_id) is int else None
    placed: tuple[Box, bool] | Drop
    if instance is None or instance.image_id != image_id:
        detail = f"annotation {ann_id!s:.40} of image {image_id!s:.40} is missing"
        placed = Drop(Reason.BAD_REFERENCE, detail)
    else:
        placed = clip_bbox(instance.bbox, get_frame(image_id))
    for sentence in map(decode_keys, sentences):
        text = text_of_sentence(sentence, split)
        sent_id = sentence.get("sent_id") if isinstance(sentence, dict) else None
        key = f"{source}/{sent_id!s:.40}"
        if isinstance(text, Drop) or isinstance(placed, Drop) or instance is None:
            drop = text if isinstance(text, Drop) else placed
            assert isinstance(drop, Drop)
            yield key, drop, ()
            continue
        row = {
            "expression_id": key,
            "ref_id": str(ref_id),
            "ann_id": str(ann_id),
            "image_id": f"coco/{image_id:012d}",
            "text": text,
            "box": list(placed[0]),
            "category_id": instance.category_id,
            "split": split,
            "source": source,
            "split_by": split_by,
        }
        yield key, row, ("box_clipped",) if placed[1] else ()


def text_of_sentence(sentence: Any, split: str) -> str | Drop:
    """Returns a sentence's text; a text without words is kept in splits that are scored."""
    if not isinstance(sentence, dict) or whole_number(sentence.get("sent_id")) is None:
        return Drop(Reason.BAD_ROW, "a sentence without sent_id")
    text = clean_expression(sentence)
    if not text and split not in EMPTY_STAYS:
        return Drop(Reason.EMPTY_TEXT)
    return text


def decode_keys(record: Any) -> Any:
    """Returns a dict of a Python 2 pickle with strings as keys; other values are unchanged."""
    if not isinstance(record, dict):
        return record
    return {plain_text(key): value for key, value in record.items()}


def clean_expression(sentence: Mapping[str, Any]) -> str:
    """Returns a sentence's cleaned text, or the text as typed if cleaning leaves nothing."""
    return clean_text(plain_text(sentence.get("sent"))) or clean_text(
        plain_text(sentence.get("raw"))
    )


def plain_text(value: Any) -> str:
    """Returns a text of a Python 2 pickle, whose bytes are UTF-8 or Latin-1, else ""."""
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return value.decode("latin-1")
    return value if isinstance(value, str) else ""


# The data sets

REF_KEYS = frozenset(
    (
        *("ref_id", "ann_id", "image_id", "category_id", "split"),
        *("file_name", "sent_ids", "sentences"),
    )
)
SPLITS_BY = ("unc", "umd", "google")
ROWS = {  # expressions; second-hand, they sum up to the totals
    ("refcoco", "unc"): {"train": 120_624, "val": 10_834, "testA": 5_657, "testB": 5_095},
    ("refcoco+", "unc"): {"train": 120_191, "val": 10_758, "testA": 5_726, "testB": 4_889},
    ("refcocog", "umd"): {"train": 80_512, "val": 4_896, "test": 9_602},
}


@dataclass(frozen=True, kw_only=True)
class Files:
    """Holds the files of one data set, and the author of its splits."""

    source: str
    split_by: str
    refs: Source
    instances: Source
    detections: Source | None


def open_refcoco(source: str, folder: Folder, args: argparse.Namespace) -> Reading:
    """Opens the files of one of the three sets. Raises InputError."""
    files = find_files(source, folder, args.split_by)
    counts = ROWS.get((source, files.split_by), {})
    return Reading(
        sources=tuple(s for s in (files.refs, files.instances, files.detections) if s),
        entries=lambda: refcoco_entries(folder, files),
        expected={
            split: Expected(rows=count, source="second hand", verified=False)
            for split, count in counts.items()
        },
        image_folders=(FOLDER,),
        tables=(EXPRESSIONS, BOXES, *((REGIONS,) if files.detections else ())),
    )


def find_files(source: str, folder: Folder, split_by: str | None) -> Files:
    """Finds the files, by ``split_by`` if there are several. Raises InputError."""
    refs = {by: folder.find(f"refs({by}).p") for by in SPLITS_BY}
    there = [by for by, file in refs.items() if file is not None]
    choices = there if split_by is None else [split_by]
    if len(choices) > 1:
        raise InputError(
            f"--input {folder.root} has the splits of {' and '.join(choices)}; choose "
            "one with --split-by"
        )
    if not choices or (file := refs[choices[0]]) is None:
        raise folder.lacks(f"refs({split_by or 'unc'}).p")
    by = choices[0]
    return Files(
        source=source,
        split_by=by,
        refs=file,
        instances=folder.require("instances.json"),
        detections=folder.find(f"detections/{source}_{by}/{DETECTIONS}"),
    )


def refcoco_entries(folder: Folder, files: Files) -> Iterator[Entry]:
    """Yields the expressions in the order of the pickle, then the detections by image.

    Memory: some 500 bytes for each annotation and detection of the set's images.
    """
    sizes: dict[int, tuple[int, int]] = {}
    instances: dict[int, Instance] = {}
    yield from read_instances(files.instances, sizes, instances)
    frame = frames(folder, sizes)
    claims = Claims()
    for ref in read_refs(files.refs):
        if isinstance(ref, dict):
            files.refs.remarks.check(decode_keys(ref), REF_KEYS)
        rows = expression_rows(ref, instances, frame, source=files.source, split_by=files.split_by)
        for key, row, notes in rows:
            if isinstance(row, Drop):
                yield Entry(key=key, group="", rows=row)
                continue
            sent_id, image_id = int(key.rpartition("/")[2]), int(row["image_id"][5:])
            repeated = claims.claim(sent_id, f"{row['ann_id']} {row['text']}")
            yield Entry(
                key=key,
                group=row["split"],
                rows=repeated or ((EXPRESSIONS, row),),
                images=(make_listed_image(image_id, sizes[image_id]),),
                notes=notes,
            )
    yield from box_entries(instances.values(), sizes, frame)
    if files.detections is not None:
        yield from detection_entries(files.detections, sizes, frame)


def detection_entries(
    source: Source, sizes: Mapping[int, tuple[int, int]], get_frame: Callable[[int], Frame]
) -> Iterator[Entry]:
    """Yields a row of ``regions`` for each image of ``sizes``; an image may have no boxes."""
    detections: dict[int, list[Detection]] = {image_id: [] for image_id in sizes}
    for index, record in enumerate(JsonLists(source=source, known={"": DETECTION_KEYS}).elements()):
        detection = parse_detection(record, sizes, get_frame)
        if isinstance(detection, Drop):
            yield Entry(key=f"{source.name}:{index}", group="", rows=detection)
        else:
            detections[detection[0]].append(detection[1])
    for image_id, boxes in detections.items():
        row = regions_row(image_id, get_frame(image_id), boxes)
        yield Entry(key=row["image_id"], group="", rows=((REGIONS, row),))


def parse_detection(
    record: Any, sizes: Mapping[int, tuple[int, int]], get_frame: Callable[[int], Frame]
) -> tuple[int, Detection] | Drop:
    """Reads a detection into its image's number and the detected object."""
    try:
        image_id, bbox = record["image_id"], record["box"]
        category_id, score = record["category_id"], record["score"]
    except (KeyError, TypeError) as error:
        return Drop(Reason.BAD_ROW, f"a detection without {error}")
    if type(image_id) is not int or image_id not in sizes:
        return Drop(Reason.BAD_REFERENCE, f"image {image_id!s:.40} is not listed")
    if type(category_id) is not int or not 0 <= category_id < 1 << 15:
        return Drop(Reason.BAD_ROW, f"category {category_id!s:.40}")
    if not isinstance(score, int | float) or not 0 <= score <= 1:
        return Drop(Reason.BAD_ROW, f"score {score!s:.40}, expected 0 to 1")
    box = edges(bbox) if isinstance(bbox, list) else Drop(Reason.BAD_ROW, "no box")
    inside = box if isinstance(box, Drop) else clip_box(box, get_frame(image_id))
    if isinstance(inside, Drop):
        return inside
    return image_id, (inside[0], category_id, float(score))


def regions_row(image_id: int, frame: Frame, detections: Sequence[Detection]) -> dict[str, Any]:
    """Returns an image's detections as a row of ``regions``, in the order of their file."""
    width, height = frame.upright_size
    return {
        "image_id": f"coco/{image_id:012d}",
        "width": width,
        "height": height,
        "num_boxes": len(detections),
        "boxes": [list(box) for box, _, _ in detections],
        "class_ids": [category_id for _, category_id, _ in detections],
        "class_scores": [score for _, _, score in detections],
    }


def read_refs(source: Source) -> Iterator[Any]:
    """Yields the refs of ``refs(...).p`` as plain data, read in a separate process.

    Raises InputError for a pickle of anything else, or one beyond the limits.
    """
    with source.open() as file:
        content = file.read(MAX_PICKLE + 1)
    if len(content) > MAX_PICKLE:
        raise InputError(
            f"{source.display_name}: more than {MAX_PICKLE} bytes, which no published file has"
        )
    try:
        yield from read_pickled_list(content, encoding="bytes")
    except BadPickle as error:
        raise InputError(f"{source.display_name} is not a pickle of plain data ({error})") from None


def add_split_by(parser: argparse.ArgumentParser) -> None:
    """Adds ``--split-by``."""
    parser.add_argument(
        "--split-by",
        choices=SPLITS_BY,
        help="author of the splits (default: the one whose refs are in DIR); google "
        "splits by object, so one image can be in training and validation",
    )


def _data_set(source: str) -> DataSet:
    return DataSet(
        about=(
            "files: refs(unc).p, refs(umd).p or refs(google).p and instances.json, in the folder "
            f"{source} of the refer data (lichengunc/refer); images in train2014/ or --images; "
            f"detections/{source}_<split>/{DETECTIONS} of MAttNet, if it exists, is written as "
            "`regions` without features.\n\n"
            "Rows of `expressions`, one for each text, and of `boxes`, all annotated objects of "
            "each image: the candidates of the annotated track. Boxes are corners, cut to the "
            "image and rotated with it if its file is. "
            "extract-rois run --boxes accepts either table."
        ),
        tables=(EXPRESSIONS, BOXES, REGIONS),
        open=functools.partial(open_refcoco, source),
        add_arguments=add_split_by,
        options=("split_by",),
    )


REFCOCO = _data_set("refcoco")
REFCOCO_PLUS = _data_set("refcoco+")
REFCOCOG = _data_set("refcocog")
