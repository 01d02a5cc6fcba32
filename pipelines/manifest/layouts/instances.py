"""Reads annotated objects of COCO's images from RefCOCO's ``instances.json``."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmill.pipelines.manifest.cleaning import came_earlier, whole_number
from vlmill.pipelines.manifest.entries import Entry, ListedImage
from vlmill.pipelines.manifest.layouts.boxes import (
    Box,
    Frame,
    clip_box,
    edges,
    read_frame,
    size_notes,
)
from vlmill.pipelines.manifest.reading.sources import Folder, Source
from vlmill.pipelines.manifest.reading.streams import JsonLists
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import BOXES

FOLDER = "train2014"
MAX_CATEGORY = 1 << 15
KNOWN = {
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
REMEMBERED = 100_000  # cached frames of images, some 200 bytes each
Frames = Callable[[int], Frame]
"""The size of an image by its number, and how it is turned."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Instance:
    """Holds an object of ``instances.json``; ``bbox`` is the published x, y, width, height."""

    image_id: int
    category_id: int
    bbox: list[Any]
    is_crowd: bool


def parse_size(record: Any) -> tuple[int, tuple[int, int]] | Drop:
    """Reads an entry of ``images``: an image's number, and its width and height in pixels."""
    try:
        image_id, width, height = record["id"], record["width"], record["height"]
    except (KeyError, TypeError) as error:
        return Drop(Reason.BAD_ROW, f"an image without {error}")
    numbers = [whole_number(value) for value in (image_id, width, height)]
    if not all(numbers):  # refuses 0, too
        return Drop(Reason.BAD_ROW, f"image {image_id!r} of {width!r} x {height!r}"[:200])
    return image_id, (width, height)


def parse_instance(
    record: Any, sizes: Mapping[int, tuple[int, int]]
) -> tuple[int, Instance] | Drop:
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
        return Drop(Reason.BAD_REFERENCE, f"annotation {ann_id}: image {image_id} is not listed")
    box = edges(bbox) if isinstance(bbox, list) else Drop(Reason.BAD_ROW, "no bbox")
    if isinstance(box, Drop):
        return Drop(box.reason, f"annotation {ann_id}: {box.detail}")
    return ann_id, Instance(
        image_id=image_id, category_id=category_id, bbox=bbox, is_crowd=bool(record.get("iscrowd"))
    )


def read_instances(
    source: Source, sizes: dict[int, tuple[int, int]], instances: dict[int, Instance]
) -> Iterator[Entry]:
    """Adds the content of ``instances.json`` to both dicts; yields invalid entries."""
    file = JsonLists(source=source, known=KNOWN)
    for index, record in enumerate(file.elements("images")):
        size = parse_size(record)
        if not isinstance(size, Drop) and size[0] in sizes:
            size = came_earlier(f"image {size[0]}", same=sizes[size[0]] == size[1])
        if isinstance(size, Drop):
            yield Entry(key=f"{source.name}:images:{index}", group="", rows=size)
        else:
            sizes[size[0]] = size[1]
    for index, record in enumerate(file.elements("annotations")):
        instance = parse_instance(record, sizes)
        if not isinstance(instance, Drop) and instance[0] in instances:
            same = instances[instance[0]] == instance[1]
            instance = came_earlier(f"annotation {instance[0]}", same=same)
        if isinstance(instance, Drop):
            yield Entry(key=f"{source.name}:annotations:{index}", group="", rows=instance)
        else:
            instances[instance[0]] = instance[1]


def clip_bbox(bbox: Sequence[object], frame: Frame) -> tuple[Box, bool] | Drop:
    """Clips x, y, width, height to the upright image; returns corners, and if it was cut."""
    box = edges(bbox)
    return box if isinstance(box, Drop) else clip_box(box, frame)


def box_entries(
    instances: Iterable[Instance], sizes: Mapping[int, tuple[int, int]], get_frame: Frames
) -> Iterator[Entry]:
    """Yields a row of ``boxes`` for each image: all annotated objects, which are the candidates
    without detection.

    Objects without area in their image are omitted and recorded in the notes.
    """
    instances_by_image: dict[int, list[Instance]] = {image_id: [] for image_id in sizes}
    for instance in instances:
        instances_by_image[instance.image_id].append(instance)
    for image_id, objects in instances_by_image.items():
        placed = [
            (clip_bbox(annotation.bbox, get_frame(image_id)), annotation) for annotation in objects
        ]
        inside = [(box[0], annotation) for box, annotation in placed if not isinstance(box, Drop)]
        width, height = get_frame(image_id).upright_size
        row = {
            "image_id": f"coco/{image_id:012d}",
            "width": width,
            "height": height,
            "boxes": [list(box) for box, _ in inside],
            "class_ids": [annotation.category_id for _, annotation in inside],
            "is_crowd": [annotation.is_crowd for _, annotation in inside],
            "source": "coco",
        }
        notes = ("object_without_area",) * (len(objects) - len(inside))
        notes += size_notes(get_frame(image_id), [edges(annotation.bbox) for annotation in objects])
        yield Entry(key=f"boxes:{image_id}", group="", rows=((BOXES, row),), notes=notes)


def frames(folder: Folder, sizes: Mapping[int, tuple[int, int]]) -> Frames:
    """Returns the frames of images by number; existing files give the orientation."""
    if not folder.has_images((FOLDER,)):
        return lambda image_id: Frame(*sizes[image_id])

    @functools.lru_cache(REMEMBERED)
    def get_frame(image_id: int) -> Frame:
        return read_frame(folder, make_listed_image(image_id, sizes[image_id])) or Frame(
            *sizes[image_id]
        )

    return get_frame


def make_listed_image(image_id: int, size: tuple[int, int]) -> ListedImage:
    """Returns an image of train2014 by its number; a ref's ``file_name`` is not a file."""
    name = f"COCO_train2014_{image_id:012d}.jpg"
    return ListedImage(
        image_id=f"coco/{image_id:012d}", paths=(f"{FOLDER}/{name}",), width=size[0], height=size[1]
    )
