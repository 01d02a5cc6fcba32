"""Reads VCR's tagged objects from the file of boxes and polygons of each image."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vlmill.pipelines.manifest.entries import ListedImage
from vlmill.pipelines.manifest.layouts.boxes import Box, Frame, clip_box, read_frame, size_notes
from vlmill.pipelines.manifest.reading.json_text import parse_json
from vlmill.pipelines.manifest.reading.sources import Folder, Remarks
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.images.orientation import LYING, UPRIGHT, turn_boxes
from vlmill.schemas.rejects import Reason

IMAGES_FOLDER = "vcr1images"


@dataclass(frozen=True, kw_only=True)
class Objects:
    """Holds an image's annotated objects, from its metadata file. ``boxes`` are x1, y1, x2, y2, and
    ``notes`` the repairs.
    """

    boxes: tuple[Box, ...]
    scores: tuple[float | None, ...]
    segms: Any  # the polygons [[x, y], ...] of each object, or None
    width: int
    height: int
    notes: tuple[str, ...] = ()


def parse_objects(metadata: Any) -> Objects | Drop:
    """Reads an image's metadata file."""
    try:
        width, height = int(metadata["width"]), int(metadata["height"])
        boxes = [[float(value) for value in box] for box in metadata["boxes"]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        return Drop(Reason.BAD_ROW, f"metadata: {error!r}")
    if width < 1 or height < 1:
        return Drop(Reason.BAD_ROW, f"metadata: an image of {width} x {height}")
    for box in boxes:
        if not 4 <= len(box) <= 5 or not all(map(math.isfinite, box)):
            return Drop(Reason.BAD_ROW, f"metadata: a box of {box}, expected x1, y1, x2, y2, score")
        if box[2] <= box[0] or box[3] <= box[1]:
            return Drop(Reason.EMPTY_BOX, f"metadata: the box {box[:4]} has no area")
    segms = metadata.get("segms")
    if segms is not None and not is_polygons(segms, len(boxes)):
        return Drop(Reason.BAD_ROW, "metadata: segms must be polygons [[x, y], ...] of each object")
    return Objects(
        boxes=tuple((box[0], box[1], box[2], box[3]) for box in boxes),
        scores=tuple(box[4] if len(box) == 5 else None for box in boxes),
        segms=segms,
        width=width,
        height=height,
    )


def is_polygons(segms: Any, num_objects: int) -> bool:
    """Returns whether ``segms`` has a list of polygons for each object, with at least one point
    each; an object may have no polygon.
    """
    try:
        return len(segms) == num_objects and all(
            len(polygon) > 0 and all(math.isfinite(x) and math.isfinite(y) for x, y in polygon)
            for polygons in segms
            for polygon in polygons
        )
    except (TypeError, ValueError):
        return False


def clip_objects(objects: Objects, frame: Frame) -> Objects | Drop:
    """Returns the objects with boxes clipped to the stored image; a Drop if one is outside."""
    boxes = [clip_box(box, Frame(frame.width, frame.height)) for box in objects.boxes]
    clipped_boxes = [box for box in boxes if not isinstance(box, Drop)]
    if beyond := [box for box in boxes if isinstance(box, Drop)]:
        return Drop(Reason.EMPTY_BOX, f"metadata: {beyond[0].detail}")
    notes = size_notes(frame, objects.boxes) + ("box_clipped",) * any(
        cut for _, cut in clipped_boxes
    )
    return replace(objects, boxes=tuple(box for box, _ in clipped_boxes), notes=notes)


def turn_objects(objects: Objects, frame: Frame) -> Objects:
    """Returns an image's objects with boxes and polygons of the upright image."""
    if frame.orientation == UPRIGHT:
        return objects
    size = (frame.width, frame.height)
    turned_size = size[::-1] if frame.orientation in LYING else size

    def turn_corners(boxes: Sequence[Sequence[float]]) -> list[list[float]]:
        corners = np.array(boxes, dtype=np.float32).reshape(-1, 4)
        upright_corners: list[list[float]] = turn_boxes(
            corners, frame.orientation, *turned_size
        ).tolist()
        return upright_corners

    segms = objects.segms
    if segms is not None:  # a point is rotated as a box without size
        segms = [
            [
                [corner[:2] for corner in turn_corners([[x, y, x, y] for x, y in p])]
                for p in polygons
            ]
            for polygons in segms
        ]
    boxes = tuple((box[0], box[1], box[2], box[3]) for box in turn_corners(objects.boxes))
    return replace(objects, boxes=boxes, segms=segms, width=turned_size[0], height=turned_size[1])


def read_objects(folder: Folder, file: str, image: str) -> Objects | Drop:
    """Reads a metadata file below the folder of images, and rotates its boxes with the image."""
    content = folder.image((f"{IMAGES_FOLDER}/{file}",))
    if isinstance(content, Drop):
        return content
    try:
        objects = parse_objects(parse_json(content, Remarks()))
    except ValueError as error:
        return Drop(Reason.BAD_ROW, f"{file}: no JSON ({error})")
    if isinstance(objects, Drop):
        return objects
    frame = read_frame(folder, image_named("", image, objects))
    if frame is None:
        return objects
    cut = clip_objects(objects, frame)
    return cut if isinstance(cut, Drop) else turn_objects(cut, frame)


def image_named(image_id: str, file: str, objects: Objects) -> ListedImage:
    """Returns an image by its file below the folder of images."""
    return ListedImage(
        image_id=image_id,
        paths=(f"{IMAGES_FOLDER}/{file}",),
        width=objects.width,
        height=objects.height,
        uri=file,
    )
