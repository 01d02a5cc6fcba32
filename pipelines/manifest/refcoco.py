"""RefCOCO, RefCOCO+ and RefCOCOg: texts that name one object of a picture of COCO's train2014."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vlmill.pipelines.counting.funnel import Drop
from vlmill.pipelines.manifest.own import clean_text
from vlmill.schemas.rejects import Reason

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
