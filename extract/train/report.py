"""The page of a trained detector: numbers, the best and the worst classes, pictures."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from vlmill.extract.config import InputLimits
from vlmill.extract.pictures.decode import decode
from vlmill.extract.train.evaluation import Evaluation
from vlmill.extract.train.examples import Example
from vlmill.schemas.console.report import (
    Section,
    html_table,
    picture_cards,
    picture_uri,
    settings_table,
    write_page,
)
from vlmill.schemas.pictures.drawing import draw_boxes
from vlmill.schemas.readers.images import ImageReader

SHOWN_CLASSES, SHOWN_PICTURES, SHOWN_BOXES = 20, 12, 8
SIDE_PX = 360


def write_report(
    path: Path,
    evaluation: Evaluation,
    examples: Sequence[Example],
    images: ImageReader,
    classes: Sequence[str],
    settings: dict[str, object],
    *,
    title: str,
) -> None:
    """Writes one file with its pictures inside."""
    rows = [[name, f"{value:.4f}"] for name, value in evaluation.metrics.items()]
    sections = [
        Section(title="Held-out pictures", body=html_table(["measure", "value"], rows)),
        *class_sections(evaluation, classes),
        Section(title="Pictures", body=picture_cards(cards(evaluation, examples, images, classes))),
        Section(title="Settings", body=settings_table(settings)),
    ]
    write_page(path, title, sections)


def class_sections(evaluation: Evaluation, classes: Sequence[str]) -> list[Section]:
    """Lists the best and the worst of the classes that have a true box."""
    scores = evaluation.classes
    there = np.flatnonzero(scores.counts)
    order = there[np.argsort(-scores.average_precision[there], kind="stable")]
    sections = []
    for title, places in (("Best classes", order), ("Worst classes", order[::-1])):
        rows = [
            [name_of(classes, at), f"{scores.average_precision[at]:.4f}", int(scores.counts[at])]
            for at in places[:SHOWN_CLASSES].tolist()
        ]
        body = html_table(["class", "average precision", "boxes"], rows)
        sections.append(Section(title=title, body=body))
    return sections


def name_of(classes: Sequence[str], number: int) -> str:
    """Returns a class's first name, its number where none is known."""
    return classes[number].split(",")[0] if number < len(classes) else f"class {number}"


def cards(
    evaluation: Evaluation,
    examples: Sequence[Example],
    images: ImageReader,
    classes: Sequence[str],
) -> list[dict[str, str]]:
    """Draws the surest detections on the first pictures."""
    by_picture = evaluation.findings.coco
    drawn = []
    for number, example in enumerate(examples[: min(SHOWN_PICTURES, len(by_picture))]):
        data = images.bytes_of(example.row)
        if data is None or evaluation.findings.unread:
            continue  # numbers of pictures that follow one that was not read are others
        rows = by_picture[number][:SHOWN_BOXES]
        labels = [
            (tuple(row[2:6].tolist()), f"{name_of(classes, int(row[1]))} {row[6]:.2f}")
            for row in rows
        ]
        pixels = decode(data, InputLimits())
        picture = Image.fromarray(np.ascontiguousarray(pixels[:, :, ::-1]))
        size = (example.width, example.height)
        canvas = draw_boxes(picture, labels, size=size, max_side_px=SIDE_PX)
        out = io.BytesIO()
        canvas.save(out, "JPEG", quality=85)
        drawn.append(
            {
                "uri": picture_uri(out.getvalue(), "image/jpeg"),
                "text": example.image_id,
                "about": f"{len(by_picture[number])} detections, {len(example.boxes)} true boxes",
            }
        )
    return drawn
