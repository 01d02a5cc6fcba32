"""Reads VCR: questions about tagged people and things, four answers and four rationales each.

A text names an object by its number; the token is ``[0]``, or ``[0,1]`` for several. The trainer
inserts names for it, which are random in some papers. Wrong choices are right answers to other
questions of the same fold, so a new split must not divide a fold. Boxes and polygons of the objects
are in a file for each image.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from vlmill.pipelines.manifest.cleaning import NamedClaims, clean_text
from vlmill.pipelines.manifest.entries import DataSet, Entry, ListedImage, Reading
from vlmill.pipelines.manifest.layouts.boxes import Box, Frame, clip_box, read_frame, size_notes
from vlmill.pipelines.manifest.layouts.examples import expect_rows, find_splits
from vlmill.pipelines.manifest.reading.json_text import parse_json
from vlmill.pipelines.manifest.reading.lines import json_lines
from vlmill.pipelines.manifest.reading.sources import Folder, Remarks, Source
from vlmill.runtime.units.funnel import Drop
from vlmill.schemas.images.orientation import LYING, UPRIGHT, turn_boxes
from vlmill.schemas.rejects import Reason
from vlmill.schemas.tables import CHOICES

NUM_CHOICES = 4
NO_TAG = -1
MARK = "[MARK]"  # between a question and the answer that a rationale is for
SPLITS = ("train", "val", "test")

IMAGES_FOLDER = "vcr1images"


@dataclass(frozen=True, kw_only=True)
class Text:
    """Holds words with the objects that each names, [-1] for a plain word."""

    words: tuple[str, ...]
    tags: tuple[tuple[int, ...], ...]

    def __add__(self, other: "Text") -> "Text":
        return Text(words=self.words + other.words, tags=self.tags + other.tags)

    def __str__(self) -> str:
        return " ".join(self.words)


class BadRow(ValueError):
    """Raised for a row that is not as published, with the reason."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


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
    """Returns whether ``segms`` has a list of polygons, each with points, for each object."""
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


def choice_rows(record: Any, objects: Objects) -> list[dict[str, Any]] | Drop:
    """Converts a line of VCR to rows of ``choices``.

    One row asks for the answer (q2a), and one, given the right answer, for its rationale (qa2r). If
    labels are not public, the line gives four qa2r rows, one for each answer.
    """
    try:
        return _rows(record, objects)
    except BadRow as error:
        return Drop(error.reason, error.detail)
    except (KeyError, TypeError) as error:
        return Drop(Reason.BAD_ROW, f"a question without {error}")


def _rows(record: Any, objects: Objects) -> list[dict[str, Any]]:
    names = record["objects"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadRow(Reason.BAD_ROW, "objects must be a list of names")
    if len(names) != len(objects.boxes):
        raise BadRow(Reason.BAD_ROW, f"{len(names)} objects and {len(objects.boxes)} boxes")
    question = parse_text(record["question"], len(names))
    answers = _choices(record, "answer_choices", len(names))
    rationales = _choices(record, "rationale_choices", len(names))
    answer, rationale = _label(record, "answer_label"), _label(record, "rationale_label")
    if (answer < 0) != (rationale < 0):
        raise BadRow(Reason.BAD_ROW, "one of answer_label and rationale_label is missing")
    annot_id, img_id = record["annot_id"], record["img_id"]
    if not isinstance(annot_id, str) or not isinstance(img_id, str):
        raise BadRow(Reason.BAD_ROW, "annot_id and img_id must be text")
    shared = {
        "image_id": f"vcr/{img_id}",
        "object_names": names,
        "boxes": [value for box in objects.boxes for value in box],
        "box_scores": list(objects.scores),
        "segms": None if objects.segms is None else json.dumps(objects.segms),
        "split": annot_id.partition("-")[0],
        "source": "vcr",
    }
    if None in objects.scores:
        shared["box_scores"] = None
    rows = [_row(f"vcr/{annot_id}/q2a", "q2a", question, answers, answer) | shared]
    mark = Text(words=(MARK,), tags=((NO_TAG,),))
    if answer >= 0:
        with_answer = question + mark + answers[answer]
        rows.append(
            _row(f"vcr/{annot_id}/qa2r", "qa2r", with_answer, rationales, rationale) | shared
        )
        return rows
    for number, text in enumerate(answers):
        example_id = f"vcr/{annot_id}/qa2r/{number}"
        rows.append(_row(example_id, "qa2r", question + mark + text, rationales, -1) | shared)
    return rows


def _row(
    example_id: str, task: str, question: Text, choices: Sequence[Text], label: int
) -> dict[str, Any]:
    return {
        "example_id": example_id,
        "task": task,
        "question": str(question),
        "choices": [str(choice) for choice in choices],
        "label": label,
        "question_tags": [list(tags) for tags in question.tags],
        "choice_tags": [[list(tags) for tags in choice.tags] for choice in choices],
    }


def parse_text(tokens: Any, num_objects: int) -> Text:
    """Reads a list of words and lists of object numbers. Raises BadRow."""
    if not isinstance(tokens, list) or not tokens:
        raise BadRow(Reason.EMPTY_TEXT, "a text must be a list of words and object numbers")
    words: list[str] = []
    tags: list[tuple[int, ...]] = []
    for token in tokens:
        if isinstance(token, str):
            parts = clean_text(token).split()
            words += parts
            tags += [(NO_TAG,)] * len(parts)
            continue
        if not isinstance(token, list) or not token or any(type(t) is not int for t in token):
            raise BadRow(Reason.BAD_ROW, f"{token!r} is neither a word nor object numbers"[:200])
        if beyond := [number for number in token if not 0 <= number < num_objects]:
            detail = f"object {beyond[0]} of {num_objects}"
            raise BadRow(Reason.BAD_REFERENCE, detail)
        words.append(f"[{','.join(map(str, token))}]")
        tags.append(tuple(token))
    if not words:
        raise BadRow(Reason.EMPTY_TEXT, "a text without words")
    return Text(words=tuple(words), tags=tuple(tags))


def _choices(record: Any, key: str, num_objects: int) -> list[Text]:
    choices = record[key]
    if not isinstance(choices, list) or len(choices) != NUM_CHOICES:
        count = len(choices) if isinstance(choices, list) else "no"
        raise BadRow(Reason.BAD_ROW, f"{count} {key}, expected {NUM_CHOICES}")
    return [parse_text(choice, num_objects) for choice in choices]


def _label(record: Any, key: str) -> int:
    label = record.get(key, NO_TAG)
    if type(label) is not int or not -1 <= label < NUM_CHOICES:
        raise BadRow(Reason.LABEL_UNKNOWN, f"{key} is {label!r}, expected 0 to {NUM_CHOICES - 1}")
    return label


# The data set

ROWS = {"train": 212_923, "val": 26_534, "test": 25_263}
LINE_KEYS = frozenset(
    (
        *("annot_id", "img_id", "movie", "img_fn", "metadata_fn", "objects", "question"),
        *("answer_choices", "rationale_choices", "answer_label", "rationale_label"),
        *("question_orig", "answer_orig", "rationale_orig", "match_fold", "match_index"),
        *("answer_sources", "rationale_sources", "answer_match_iter", "rationale_match_iter"),
        *("interesting_scores", "answer_likelihood", "question_number"),
    )
)
REMEMBERED = 64  # number of cached metadata files: the questions of an image are adjacent


def open_vcr(folder: Folder, args: argparse.Namespace) -> Reading:
    """Opens VCR's files. Raises InputError."""
    sources = find_splits(folder, {split: (f"{split}.jsonl",) for split in SPLITS})
    if not folder.has_images((IMAGES_FOLDER,)):
        raise folder.lacks(f"{IMAGES_FOLDER}/, whose .json files have the boxes")
    return Reading(
        sources=tuple(sources.values()),
        entries=lambda: vcr_entries(folder, sources),
        expected=expect_rows(sources.items(), ROWS, "second hand", verified=False),
        image_folders=(IMAGES_FOLDER,),
    )


def vcr_entries(folder: Folder, sources: Mapping[str, Source]) -> Iterator[Entry]:
    """Yields a line's rows, in the order of the files' lines."""
    read = lru_cache(REMEMBERED)(partial(read_objects, folder))
    claims = NamedClaims()
    for split, source in sources.items():
        for line_number, line in json_lines(source, LINE_KEYS):
            key = f"{source.name}:{line_number}"
            if isinstance(line, Drop):
                yield Entry(key=key, group=source.name, rows=line)
                continue
            objects = line_objects(line, split, read)
            rows = objects if isinstance(objects, Drop) else choice_rows(line, objects)
            if isinstance(objects, Drop) or isinstance(rows, Drop):
                assert isinstance(rows, Drop)
                yield Entry(key=key, group=source.name, rows=rows)
                continue
            image = image_named(rows[0]["image_id"], line["img_fn"], objects)
            drop = claims.claim(rows[0]["example_id"], repr(rows))
            table_rows = tuple((CHOICES, row) for row in rows)
            yield Entry(
                key=key,
                group=source.name,
                rows=drop or table_rows,
                images=(image,),
                notes=objects.notes,
            )


def line_objects(
    line: Mapping[str, Any], split: str, read: Callable[[str, str], Objects | Drop]
) -> Objects | Drop:
    """Returns the objects of a line of ``split``; ``read`` reads them from its two files."""
    file, image, annot_id = (line.get(key) for key in ("metadata_fn", "img_fn", "annot_id"))
    if not isinstance(file, str) or not isinstance(image, str):
        return Drop(Reason.BAD_ROW, "metadata_fn and img_fn must be names of files")
    if not isinstance(annot_id, str) or annot_id.partition("-")[0] != split:
        return Drop(Reason.BAD_ROW, f"annot_id {annot_id!a:.80} is not one of {split}")
    return read(file, image)


VCR = DataSet(
    about=(
        "files: train.jsonl, val.jsonl, test.jsonl (or vcr1annots.zip) and vcr1images/ (or its "
        "zip) with a .jpg and a .json for each image. From visualcommonsense.com, after signing "
        "its "
        "form: research only.\n\n"
        "Two rows of `choices` for each question, one that asks for the answer (task q2a) and one "
        "for its rationale (qa2r); five for test, whose labels are not public."
    ),
    tables=(CHOICES,),
    open=open_vcr,
)
