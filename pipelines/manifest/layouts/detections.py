"""Reads MAttNet's published detections of RefCOCO's images as ``regions`` without features."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from vlmill.pipelines.manifest.entries import Entry
from vlmill.pipelines.manifest.layouts.boxes import Box, Frame, clip_box, edges
from vlmill.pipelines.manifest.reading.sources import Source
from vlmill.pipelines.manifest.reading.streams import JsonLists
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import REGIONS

DETECTIONS = "res101_coco_minus_refer_notime_dets.json"
KEYS = frozenset(("det_id", "image_id", "box", "category_id", "category_name", "score"))
Detection = tuple[Box, int, float]
"""Corners, category as published, score."""


def detection_entries(
    source: Source, sizes: Mapping[int, tuple[int, int]], get_frame: Callable[[int], Frame]
) -> Iterator[Entry]:
    """Yields a row of ``regions`` for each image of ``sizes``; an image may have no boxes."""
    detections: dict[int, list[Detection]] = {image_id: [] for image_id in sizes}
    for index, record in enumerate(JsonLists(source=source, known={"": KEYS}).elements()):
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
