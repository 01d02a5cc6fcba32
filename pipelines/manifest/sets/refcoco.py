"""RefCOCO, RefCOCO+ and RefCOCOg: texts that name one object of a picture of COCO's train2014."""

import argparse
import functools
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmill.models.convert.plain_pickle import BadPickle, load
from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.manifest.cleaning import Claims, clean_text
from vlmill.pipelines.manifest.entries import DataSet, Entry, Expected, Reading
from vlmill.pipelines.manifest.entries import Picture as Named
from vlmill.pipelines.manifest.sources import Folder, Source
from vlmill.pipelines.manifest.streams import JsonLists
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import EXPRESSIONS, REGIONS

Box = tuple[float, float, float, float]
EMPTY_STAYS = ("val", "test", "testA", "testB")  # a text without words is scored as published


@dataclass(frozen=True, kw_only=True, slots=True)
class Instance:
    """An annotated object of ``instances.json``: x1, y1, x2, y2 inside its picture."""

    image_id: int
    category_id: int
    box: Box
    clipped: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A picture's size in pixels."""

    width: int
    height: int


def picture_of(record: Any) -> tuple[int, Picture] | Drop:
    """Reads an entry of ``images``."""
    try:
        image_id, width, height = record["id"], record["width"], record["height"]
    except (KeyError, TypeError) as error:
        return Drop(Reason.BAD_ROW, f"a picture without {error}")
    if any(type(value) is not int or value < 1 for value in (image_id, width, height)):
        return Drop(Reason.BAD_ROW, f"picture {image_id!r} of {width!r} x {height!r}")
    return image_id, Picture(width=width, height=height)


def instance_of(record: Any, pictures: Mapping[int, Picture]) -> tuple[int, Instance] | Drop:
    """Reads an entry of ``annotations``: x, y, width and height become corners, clipped."""
    try:
        ann_id, image_id = record["id"], record["image_id"]
        category_id, bbox = record["category_id"], record["bbox"]
    except (KeyError, TypeError) as error:
        return Drop(Reason.BAD_ROW, f"an annotation without {error}")
    if any(type(value) is not int for value in (ann_id, image_id, category_id)):
        return Drop(Reason.BAD_ROW, f"annotation {ann_id!r}: ids must be whole numbers")
    if image_id not in pictures:
        return Drop(Reason.BAD_REFERENCE, f"annotation {ann_id}: picture {image_id} is not listed")
    corners = corners_of(bbox, pictures[image_id])
    if isinstance(corners, Drop):
        return Drop(corners.reason, f"annotation {ann_id}: {corners.detail}")
    box, clipped = corners
    return ann_id, Instance(image_id=image_id, category_id=category_id, box=box, clipped=clipped)


def corners_of(bbox: Any, picture: Picture) -> tuple[Box, bool] | Drop:
    """Returns the corners of [x, y, width, height] inside the picture, and if they were cut."""
    if not isinstance(bbox, list) or len(bbox) != 4:
        return Drop(Reason.BAD_ROW, f"box {bbox!r}: want x, y, width, height"[:200])
    if not all(isinstance(v, int | float) and math.isfinite(v) for v in bbox):
        return Drop(Reason.BAD_ROW, f"box {bbox!r}: want four finite numbers"[:200])
    x, y, width, height = map(float, bbox)
    box = (
        min(max(x, 0.0), float(picture.width)),
        min(max(y, 0.0), float(picture.height)),
        min(max(x + width, 0.0), float(picture.width)),
        min(max(y + height, 0.0), float(picture.height)),
    )
    if box[2] <= box[0] or box[3] <= box[1]:
        return Drop(
            Reason.EMPTY_BOX, f"box {bbox} has no area in {picture.width} x {picture.height}"
        )
    return box, box != (x, y, x + width, y + height)


def expression_rows(
    ref: Any, instances: Mapping[int, Instance], *, source: str, split_by: str
) -> Iterator[tuple[str, dict[str, Any] | Drop]]:
    """Reads an entry of ``refs(...).p`` as rows of ``expressions``, one for each of its texts."""
    ref = named(ref)
    try:
        ref_id, ann_id, image_id = ref["ref_id"], ref["ann_id"], ref["image_id"]
        split, sentences = plain_text(ref["split"]), ref["sentences"]
    except (KeyError, TypeError) as error:
        yield "?", Drop(Reason.BAD_ROW, f"a ref without {error}")
        return
    if not isinstance(sentences, list) or not split:
        yield f"{source}/ref/{ref_id!s:.40}", Drop(Reason.BAD_ROW, "want a split and sentences")
        return
    instance = instances.get(ann_id) if type(ann_id) is int else None
    for sentence in map(named, sentences):
        row: dict[str, Any] | Drop
        sent_id = sentence.get("sent_id") if isinstance(sentence, dict) else None
        key = f"{source}/{sent_id!s:.40}"
        if type(sent_id) is not int:
            row = Drop(Reason.BAD_ROW, f"ref {ref_id!s:.40}: a sentence without sent_id")
        elif instance is None or instance.image_id != image_id:
            row = Drop(
                Reason.BAD_REFERENCE, f"annotation {ann_id!s:.40} of picture {image_id!s:.40}"
            )
        elif not (text := expression_of(sentence)) and split not in EMPTY_STAYS:
            row = Drop(Reason.EMPTY_TEXT, f"ref {ref_id}")
        else:
            row = {
                "expression_id": key,
                "ref_id": str(ref_id),
                "ann_id": str(ann_id),
                "image_id": f"coco/{image_id:012d}",
                "text": text,
                "box": list(instance.box),
                "category_id": instance.category_id,
                "split": split,
                "source": source,
                "split_by": split_by,
            }
        yield key, row


def named(record: Any) -> Any:
    """Returns a dict of a Python 2 pickle with text for keys, anything else as it is."""
    if not isinstance(record, dict):
        return record
    return {plain_text(key): value for key, value in record.items()}


def expression_of(sentence: Mapping[str, Any]) -> str:
    """Returns a sentence's cleaned text, the one as typed where cleaning has left nothing."""
    return clean_text(plain_text(sentence.get("sent"))) or clean_text(
        plain_text(sentence.get("raw"))
    )


def plain_text(value: Any) -> str:
    """Returns a text of a Python 2 pickle, whose bytes are UTF-8 or Latin-1; "" for no text."""
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return value.decode("latin-1")
    return value if isinstance(value, str) else ""


# The data sets

MAX_PICKLE = 256 << 20
SPLITS_BY = ("unc", "umd", "google")
DETECTIONS = "res101_coco_minus_refer_notime_dets.json"
ROWS = {  # expressions; second hand, their sums are the totals
    ("refcoco", "unc"): {"train": 120_624, "val": 10_834, "testA": 5_657, "testB": 5_095},
    ("refcoco+", "unc"): {"train": 120_191, "val": 10_758, "testA": 5_726, "testB": 4_889},
    ("refcocog", "umd"): {"train": 80_512, "val": 4_896, "test": 9_602},
}


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files of one data set, and who has cut its splits."""

    source: str
    split_by: str
    refs: Source
    instances: Source
    detections: Source | None


def open_refcoco(source: str, folder: Folder, args: argparse.Namespace) -> Reading:
    """Opens the files of one of the three sets. Raises InputError."""
    files = files_of(source, folder, args.split_by)
    counts = ROWS.get((source, files.split_by), {})
    return Reading(
        sources=tuple(s for s in (files.refs, files.instances, files.detections) if s),
        entries=lambda: refcoco_entries(files),
        expected={
            split: Expected(rows=count, source="second hand", verified=False)
            for split, count in counts.items()
        },
        picture_folders=("train2014",),
        tables=(EXPRESSIONS, REGIONS) if files.detections else (EXPRESSIONS,),
    )


def files_of(source: str, folder: Folder, split_by: str | None) -> Files:
    """Finds the files, by ``split_by`` if there are several. Raises InputError."""
    refs = {by: folder.find(f"refs({by}).p") for by in SPLITS_BY}
    there = [by for by, file in refs.items() if file is not None]
    wanted = there if split_by is None else [split_by]
    if len(wanted) > 1:
        raise InputError(
            f"--input {folder.root} has the splits of {' and '.join(wanted)}; say --split-by"
        )
    if not wanted or (file := refs[wanted[0]]) is None:
        raise folder.lacks(f"refs({split_by or 'unc'}).p")
    by = wanted[0]
    return Files(
        source=source,
        split_by=by,
        refs=file,
        instances=folder.require("instances.json"),
        detections=folder.find(f"detections/{source}_{by}/{DETECTIONS}"),
    )


def refcoco_entries(files: Files) -> Iterator[Entry]:
    """Yields the expressions in the order of the pickle, then the detections by picture.

    Memory: the annotations and the detections of the set's pictures, some 500 bytes for each.
    """
    pictures: dict[int, Picture] = {}
    instances: dict[int, Instance] = {}
    yield from read_instances(files.instances, pictures, instances)
    claims = Claims()
    for ref in read_refs(files.refs):
        for key, row in expression_rows(
            ref, instances, source=files.source, split_by=files.split_by
        ):
            yield expression_entry(key, row, instances, pictures, claims)
    if files.detections is not None:
        yield from detection_entries(files.detections, pictures)


def expression_entry(
    key: str,
    row: dict[str, Any] | Drop,
    instances: Mapping[int, Instance],
    pictures: Mapping[int, Picture],
    claims: Claims,
) -> Entry:
    """Returns the entry of an expression, which a second one with its id is none of."""
    if isinstance(row, Drop):
        return Entry(key=key, group="", rows=row)
    repeated = claims.claim(int(key.rpartition("/")[2]), f"{row['ann_id']} {row['text']}")
    if repeated is not None:
        return Entry(key=key, group=row["split"], rows=repeated)
    instance = instances[int(row["ann_id"])]
    size = pictures[instance.image_id]
    return Entry(
        key=key,
        group=row["split"],
        rows=((EXPRESSIONS, row),),
        pictures=(picture_named(instance.image_id, size),),
        notes=("clipped",) if instance.clipped else (),
    )


def picture_named(image_id: int, size: Picture) -> Named:
    """Names a picture: all are of train2014, whatever ``file_name`` says."""
    name = f"COCO_train2014_{image_id:012d}.jpg"
    return Named(
        image_id=f"coco/{image_id:012d}",
        paths=(f"train2014/{name}",),
        width=size.width,
        height=size.height,
    )


def read_refs(source: Source) -> list[Any]:
    """Reads ``refs(...).p`` as plain data. Raises InputError for a pickle of anything else."""
    with source.open() as file:
        content = file.read(MAX_PICKLE + 1)
    if len(content) > MAX_PICKLE:
        raise InputError(
            f"{source.said}: more than {MAX_PICKLE} bytes, which no published file has"
        )
    try:
        refs = load(io.BytesIO(content), len(content), encoding="bytes")
    except BadPickle as error:
        raise InputError(f"{source.said} is no pickle of plain data ({error})") from None
    if not isinstance(refs, list):
        raise InputError(f"{source.said} holds a {type(refs).__name__}, want a list of refs")
    return refs


def read_instances(
    source: Source, pictures: dict[int, Picture], instances: dict[int, Instance]
) -> Iterator[Entry]:
    """Puts what ``instances.json`` has into both dicts; yields what is no entry."""
    for place, record in enumerate(JsonLists(source=source).elements("images")):
        picture = picture_of(record)
        if isinstance(picture, Drop):
            yield Entry(key=f"{source.name}:images:{place}", group="", rows=picture)
        else:
            pictures[picture[0]] = picture[1]
    for place, record in enumerate(JsonLists(source=source).elements("annotations")):
        instance = instance_of(record, pictures)
        if isinstance(instance, Drop):
            yield Entry(key=f"{source.name}:annotations:{place}", group="", rows=instance)
        else:
            instances[instance[0]] = instance[1]


def detection_entries(source: Source, pictures: Mapping[int, Picture]) -> Iterator[Entry]:
    """Yields a row of ``regions`` for each picture, without features; one may have no boxes."""
    detections: dict[int, list[tuple[Box, int, float]]] = {image_id: [] for image_id in pictures}
    for place, record in enumerate(JsonLists(source=source).elements()):
        detection = detection_of(record, pictures)
        if isinstance(detection, Drop):
            yield Entry(key=f"{source.name}:{place}", group="", rows=detection)
        else:
            detections[detection[0]].append(detection[1])
    for image_id, found in detections.items():
        row = regions_row(image_id, pictures[image_id], found)
        yield Entry(key=row["image_id"], group="", rows=((REGIONS, row),))


def detection_of(
    record: Any, pictures: Mapping[int, Picture]
) -> tuple[int, tuple[Box, int, float]] | Drop:
    """Reads a detection as its picture's id and (corners, category, score)."""
    try:
        image_id, box = record["image_id"], record["box"]
        category_id, score = record["category_id"], record["score"]
    except (KeyError, TypeError) as error:
        return Drop(Reason.BAD_ROW, f"a detection without {error}")
    if type(image_id) is not int or image_id not in pictures:
        return Drop(Reason.BAD_REFERENCE, f"picture {image_id!s:.40} is not listed")
    if type(category_id) is not int or not 0 <= category_id < 1 << 15:
        return Drop(Reason.BAD_ROW, f"category {category_id!s:.40}")
    if not isinstance(score, int | float) or not 0 <= score <= 1:
        return Drop(Reason.BAD_ROW, f"score {score!s:.40}, want 0 to 1")
    corners = corners_of(box, pictures[image_id])
    if isinstance(corners, Drop):
        return corners
    return image_id, (corners[0], category_id, float(score))


def regions_row(
    image_id: int, size: Picture, detections: Sequence[tuple[Box, int, float]]
) -> dict[str, Any]:
    """Returns a picture's detections as a row of ``regions``, in the order of their file."""
    return {
        "image_id": f"coco/{image_id:012d}",
        "width": size.width,
        "height": size.height,
        "num_boxes": len(detections),
        "boxes": [list(box) for box, _, _ in detections],
        "class_ids": [category_id for _, category_id, _ in detections],
        "class_scores": [score for _, _, score in detections],
    }


def add_split_by(parser: argparse.ArgumentParser) -> None:
    """Adds ``--split-by``."""
    parser.add_argument(
        "--split-by",
        choices=SPLITS_BY,
        help="who has cut the splits (default: the one whose refs are there); google's divide "
        "objects, so that a picture may be in training and validation",
    )


def _data_set(source: str, name: str) -> DataSet:
    return DataSet(
        title=f"{name}: texts that name one object of a picture",
        about=(
            "files: refs(unc).p, refs(umd).p or refs(google).p and instances.json, in the folder "
            f"{source} of the refer data (lichengunc/refer); pictures in train2014/ or --images; "
            f"detections/{source}_<split>/{DETECTIONS} of MAttNet, if it is there, is written as "
            "`regions` without features.\n\n"
            "Rows of `expressions`, one for each text. Boxes are corners, of the stored picture as "
            "published, clipped to it. extract-rois run --boxes takes both tables."
        ),
        tables=(EXPRESSIONS, REGIONS),
        open=functools.partial(open_refcoco, source),
        add_arguments=add_split_by,
        options=("split_by",),
    )


REFCOCO = _data_set("refcoco", "RefCOCO")
REFCOCO_PLUS = _data_set("refcoco+", "RefCOCO+")
REFCOCOG = _data_set("refcocog", "RefCOCOg")
