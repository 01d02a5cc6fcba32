"""RefCOCO, RefCOCO+ and RefCOCOg: texts that name one object of a picture of COCO's train2014."""

import argparse
import functools
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmill.models.convert.plain_pickle import BadPickle, load
from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.manifest.boxes import Box, Frame, clipped, edges, frame_of, size_notes
from vlmill.pipelines.manifest.cleaning import Claims, came_earlier, clean_text, whole_number
from vlmill.pipelines.manifest.detections import DETECTIONS, detection_entries
from vlmill.pipelines.manifest.entries import DataSet, Entry, Expected, Picture, Reading
from vlmill.pipelines.manifest.sources import Folder, Source
from vlmill.pipelines.manifest.streams import JsonLists
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import BOXES, EXPRESSIONS, REGIONS

EMPTY_STAYS = ("val", "test", "testA", "testB")  # a text without words is scored as published


@dataclass(frozen=True, kw_only=True, slots=True)
class Instance:
    """An annotated object of ``instances.json``; ``bbox`` as published, x, y, width, height."""

    image_id: int
    category_id: int
    bbox: list[Any]
    is_crowd: bool


Frames = Callable[[int], Frame]
"""The size of a picture by its number, and how it is turned."""


def size_of(record: Any) -> tuple[int, tuple[int, int]] | Drop:
    """Reads an entry of ``images``: a picture's number, and its width and height in pixels."""
    try:
        image_id, width, height = record["id"], record["width"], record["height"]
    except (KeyError, TypeError) as error:
        return Drop(Reason.BAD_ROW, f"a picture without {error}")
    numbers = [whole_number(value) for value in (image_id, width, height)]
    if not all(numbers):  # none of them is 0 either
        return Drop(Reason.BAD_ROW, f"picture {image_id!r} of {width!r} x {height!r}"[:200])
    return image_id, (width, height)


def instance_of(record: Any, sizes: Mapping[int, tuple[int, int]]) -> tuple[int, Instance] | Drop:
    """Reads an entry of ``annotations``."""
    try:
        ann_id, image_id = record["id"], record["image_id"]
        category_id, bbox = record["category_id"], record["bbox"]
    except (KeyError, TypeError) as error:
        return Drop(Reason.BAD_ROW, f"an annotation without {error}")
    if any(whole_number(value) is None for value in (ann_id, image_id, category_id)):
        return Drop(Reason.BAD_ROW, f"annotation {ann_id!r:.40}: ids must be whole numbers")
    if not 0 <= category_id < MAX_CATEGORY:
        return Drop(Reason.LABEL_UNKNOWN, f"annotation {ann_id}: category {category_id}")
    if image_id not in sizes:
        return Drop(Reason.BAD_REFERENCE, f"annotation {ann_id}: picture {image_id} is not listed")
    box = edges(bbox) if isinstance(bbox, list) else Drop(Reason.BAD_ROW, "no bbox")
    if isinstance(box, Drop):
        return Drop(box.reason, f"annotation {ann_id}: {box.detail}")
    return ann_id, Instance(
        image_id=image_id,
        category_id=category_id,
        bbox=bbox,
        is_crowd=bool(record.get("iscrowd")),
    )


def corners_of(bbox: Sequence[object], frame: Frame) -> tuple[Box, bool] | Drop:
    """Returns the corners of x, y, width, height inside the upright picture, and if cut."""
    box = edges(bbox)
    return box if isinstance(box, Drop) else clipped(box, frame)


def expression_rows(
    ref: Any, instances: Mapping[int, Instance], frame_of: Frames, *, source: str, split_by: str
) -> Iterator[tuple[str, dict[str, Any] | Drop, tuple[str, ...]]]:
    """Reads an entry of ``refs(...).p`` as rows of ``expressions``, one for each of its texts.

    Yields the key of each, its row and what was mended in it.
    """
    ref = named(ref)
    try:
        ref_id, ann_id, image_id = ref["ref_id"], ref["ann_id"], ref["image_id"]
        split, sentences = plain_text(ref["split"]), ref["sentences"]
    except (KeyError, TypeError) as error:
        yield "?", Drop(Reason.BAD_ROW, f"a ref without {error}"), ()
        return
    if whole_number(ref_id) is None or not isinstance(sentences, list) or not split:
        fault = Drop(Reason.BAD_ROW, "want ref_id, split and sentences")
        yield f"{source}/ref/{ref_id!s:.40}", fault, ()
        return
    instance = instances.get(ann_id) if type(ann_id) is int else None
    placed: tuple[Box, bool] | Drop
    if instance is None or instance.image_id != image_id:
        detail = f"annotation {ann_id!s:.40} of picture {image_id!s:.40} is not there"
        placed = Drop(Reason.BAD_REFERENCE, detail)
    else:
        placed = corners_of(instance.bbox, frame_of(image_id))
    for sentence in map(named, sentences):
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
    """Returns a sentence's text; without words it stays where it is scored."""
    if not isinstance(sentence, dict) or whole_number(sentence.get("sent_id")) is None:
        return Drop(Reason.BAD_ROW, "a sentence without sent_id")
    text = expression_of(sentence)
    if not text and split not in EMPTY_STAYS:
        return Drop(Reason.EMPTY_TEXT)
    return text


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

FOLDER = "train2014"
MAX_CATEGORY = 1 << 15
KNOWN = {  # of instances.json
    "": frozenset(("info", "images", "licenses", "annotations", "categories", "type")),
    "images": frozenset(
        (
            *("id", "file_name", "height", "width", "license"),
            *("coco_url", "flickr_url", "date_captured"),
        )
    ),
    "annotations": frozenset(
        ("id", "image_id", "category_id", "bbox", "segmentation", "iscrowd", "area")
    ),
}
REF_KEYS = frozenset(
    (
        *("ref_id", "ann_id", "image_id", "category_id", "split"),
        *("file_name", "sent_ids", "sentences"),
    )
)
MAX_PICKLE = 256 << 20
REMEMBERED = 100_000  # frames of pictures, some 200 bytes each
SPLITS_BY = ("unc", "umd", "google")
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
        entries=lambda: refcoco_entries(folder, files),
        expected={
            split: Expected(rows=count, source="second hand", verified=False)
            for split, count in counts.items()
        },
        picture_folders=(FOLDER,),
        tables=(EXPRESSIONS, BOXES, *((REGIONS,) if files.detections else ())),
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


def refcoco_entries(folder: Folder, files: Files) -> Iterator[Entry]:
    """Yields the expressions in the order of the pickle, then the detections by picture.

    Memory: the annotations and the detections of the set's pictures, some 500 bytes for each.
    """
    sizes: dict[int, tuple[int, int]] = {}
    instances: dict[int, Instance] = {}
    yield from read_instances(files.instances, sizes, instances)
    frame = frames(folder, sizes)
    claims = Claims()
    for ref in read_refs(files.refs):
        if isinstance(ref, dict):
            files.refs.remarks.check(named(ref), REF_KEYS)
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
                pictures=(picture_of(image_id, sizes[image_id]),),
                notes=notes,
            )
    yield from box_entries(instances.values(), sizes, frame)
    if files.detections is not None:
        yield from detection_entries(files.detections, sizes, frame)


def box_entries(
    instances: Iterable[Instance], sizes: Mapping[int, tuple[int, int]], frame_of: Frames
) -> Iterator[Entry]:
    """Yields a row of ``boxes`` for each picture: all annotated objects, which are the candidates
    of who does not detect. Those without area in their picture are left out and noted.
    """
    of_pictures: dict[int, list[Instance]] = {image_id: [] for image_id in sizes}
    for instance in instances:
        of_pictures[instance.image_id].append(instance)
    for image_id, objects in of_pictures.items():
        placed = [(corners_of(one.bbox, frame_of(image_id)), one) for one in objects]
        inside = [(box[0], one) for box, one in placed if not isinstance(box, Drop)]
        width, height = frame_of(image_id).upright_size
        row = {
            "image_id": f"coco/{image_id:012d}",
            "width": width,
            "height": height,
            "boxes": [list(box) for box, _ in inside],
            "class_ids": [one.category_id for _, one in inside],
            "is_crowd": [one.is_crowd for _, one in inside],
            "source": "coco",
        }
        notes = ("object_without_area",) * (len(objects) - len(inside))
        notes += size_notes(frame_of(image_id), [edges(one.bbox) for one in objects])
        yield Entry(key=f"boxes:{image_id}", group="", rows=((BOXES, row),), notes=notes)


def frames(folder: Folder, sizes: Mapping[int, tuple[int, int]]) -> Frames:
    """Returns the frames of pictures by their numbers; files that are there say how to turn."""
    if not folder.has_pictures((FOLDER,)):
        return lambda image_id: Frame(*sizes[image_id])

    @functools.lru_cache(REMEMBERED)
    def of(image_id: int) -> Frame:
        return frame_of(folder, picture_of(image_id, sizes[image_id])) or Frame(*sizes[image_id])

    return of


def picture_of(image_id: int, size: tuple[int, int]) -> Picture:
    """Names a picture: all are of train2014, and ``file_name`` of a ref is no file."""
    name = f"COCO_train2014_{image_id:012d}.jpg"
    return Picture(
        image_id=f"coco/{image_id:012d}", paths=(f"{FOLDER}/{name}",), width=size[0], height=size[1]
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
    source: Source, sizes: dict[int, tuple[int, int]], instances: dict[int, Instance]
) -> Iterator[Entry]:
    """Puts what ``instances.json`` has into both dicts; yields what is no entry."""
    file = JsonLists(source=source, known=KNOWN)
    for place, record in enumerate(file.elements("images")):
        size = size_of(record)
        if not isinstance(size, Drop) and size[0] in sizes:
            size = came_earlier(f"picture {size[0]}", same=sizes[size[0]] == size[1])
        if isinstance(size, Drop):
            yield Entry(key=f"{source.name}:images:{place}", group="", rows=size)
        else:
            sizes[size[0]] = size[1]
    for place, record in enumerate(file.elements("annotations")):
        instance = instance_of(record, sizes)
        if not isinstance(instance, Drop) and instance[0] in instances:
            same = instances[instance[0]] == instance[1]
            instance = came_earlier(f"annotation {instance[0]}", same=same)
        if isinstance(instance, Drop):
            yield Entry(key=f"{source.name}:annotations:{place}", group="", rows=instance)
        else:
            instances[instance[0]] = instance[1]


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
            "Rows of `expressions`, one for each text, and of `boxes`, all annotated objects of "
            "each picture: the candidates of the annotated track. Boxes are corners, cut to the "
            "picture; of a picture that is there and lies on its side they are turned with it. "
            "extract-rois run --boxes takes either."
        ),
        tables=(EXPRESSIONS, BOXES, REGIONS),
        open=functools.partial(open_refcoco, source),
        add_arguments=add_split_by,
        options=("split_by",),
    )


REFCOCO = _data_set("refcoco", "RefCOCO")
REFCOCO_PLUS = _data_set("refcoco+", "RefCOCO+")
REFCOCOG = _data_set("refcocog", "RefCOCOg")
