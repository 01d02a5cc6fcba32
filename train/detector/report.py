"""Writes the page of a trained detector: numbers, the best and the worst classes, images."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from vlmill.extract.config import InputLimits
from vlmill.extract.images.decode import decode
from vlmill.runtime.console import report
from vlmill.runtime.console.drawing import Corners, draw_boxes
from vlmill.runtime.readers.images import ImageReader
from vlmill.train.detector.evaluation import Evaluation
from vlmill.train.detector.examples import get_class_name

SHOWN_CLASSES, SHOWN_IMAGES, SHOWN_BOXES = 20, 12, 8
SIDE_PX, GAP_PX = 360, 8
COUNTS = ("pictures", "boxes")  # the measures that are not shares


def write_report(
    path: Path,
    evaluation: Evaluation,
    images: ImageReader,
    classes: Sequence[str],
    settings: dict[str, object],
    *,
    title: str,
) -> None:
    """Writes one file with its images inside."""
    rows = [
        [name, f"{value:.0f}" if name in COUNTS else f"{value:.4f}"]
        for name, value in evaluation.metrics.items()
    ]
    sections = [
        report.Section(title="Held-out images", body=report.html_table(["measure", "value"], rows)),
        *class_sections(evaluation, classes),
        report.Section(title="Images", body=report.image_cards(cards(evaluation, images, classes))),
        report.Section(title="Settings", body=report.settings_table(settings)),
    ]
    report.write_page(path, title, sections)


def class_sections(evaluation: Evaluation, classes: Sequence[str]) -> list[report.Section]:
    """Lists the best and the worst of the classes that have a true box."""
    scores = evaluation.classes
    there = np.flatnonzero(scores.counts)
    order = there[np.argsort(-scores.average_precision[there], kind="stable")]
    sections = []
    for title, ranking in (("Best classes", order), ("Worst classes", order[::-1])):
        rows = [
            [
                get_class_name(classes, class_number),
                f"{scores.average_precision[class_number]:.4f}",
                int(scores.counts[class_number]),
            ]
            for class_number in ranking[:SHOWN_CLASSES].tolist()
        ]
        body = report.html_table(["class", "average precision", "boxes"], rows)
        sections.append(report.Section(title=title, body=body))
    return sections


def cards(
    evaluation: Evaluation, images: ImageReader, classes: Sequence[str]
) -> list[dict[str, str]]:
    """Shows the first images twice: with their true boxes, and with the most certain detections."""
    findings, drawn = evaluation.findings, []
    for example, rows in list(zip(findings.examples, findings.coco, strict=True))[:SHOWN_IMAGES]:
        data = images.read_bytes(example.row)
        assert data is not None  # it was looked at
        pixels = decode(data, InputLimits())
        image = Image.fromarray(np.ascontiguousarray(pixels[:, :, ::-1]))
        true = [
            (corners(box), get_class_name(classes, number))
            for box, number in zip(example.boxes, example.classes.tolist(), strict=True)
        ]
        detected = [
            (corners(row[2:6]), f"{get_class_name(classes, int(row[1]))} {row[6]:.2f}")
            for row in rows[:SHOWN_BOXES]
        ]
        size, enlarged = image.size, max(1.0, SIDE_PX / max(image.size))
        image = image.resize((round(size[0] * enlarged), round(size[1] * enlarged)))
        sides = [
            draw_boxes(image, boxes, size=size, max_side_px=SIDE_PX) for boxes in (true, detected)
        ]
        canvas = Image.new("RGB", (2 * sides[0].width + GAP_PX, sides[0].height), "white")
        for index, side in enumerate(sides):
            canvas.paste(side, (index * (side.width + GAP_PX), 0))
        out = io.BytesIO()
        canvas.save(out, "JPEG", quality=85)
        drawn.append(
            {
                "uri": report.image_uri(out.getvalue(), "image/jpeg"),
                "text": example.image_id,
                "about": f"left: {len(true)} true boxes; right: {len(detected)} of {len(rows)} "
                "detections",
            }
        )
    return drawn


def corners(box: npt.NDArray[np.floating]) -> Corners:
    """Returns a box's corners as numbers."""
    x1, y1, x2, y2 = box.tolist()
    return x1, y1, x2, y2
