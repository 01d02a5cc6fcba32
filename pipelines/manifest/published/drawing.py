"""Examples drawn on their images: annotated boxes, what an expression names, a question tags."""

import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vlmill.pipelines.manifest.report import first_images, first_rows, spread_shards
from vlmill.runtime.console.drawing import Corners, draw_boxes
from vlmill.runtime.console.report import image_cards, image_uri
from vlmill.schemas.images.decode import Bounds, open_image, upright
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.rejects import Rejected
from vlmill.schemas.tables import BOXES, CHOICES, EXPRESSIONS, Table

MAX_CARDS, SIDE_PX, MAX_LABEL = 12, 480, 40
_BOUNDS = Bounds(max_pixels=178_000_000, max_bytes=None)
Row = Mapping[str, Any]
# Boxes with their labels, the example's text, and small print.
CardContent = tuple[list[tuple[Corners, str]], str, str]
Draw = Callable[[Row], CardContent]


def draw_cards(folder: Path, table: Table) -> Markup | None:
    """Some rows of a table whose boxes are known here, on their images; None if none can be."""
    if table.name not in {*DRAW_FUNCTIONS, BOXES.name}:
        return None
    shards = [first_rows(path) for path in spread_shards(folder, table.name)]
    image_ids = {row["image_id"] for rows in shards for row in rows}
    images = dict(first_images(folder, image_ids))
    annotated = partial(_annotated, names=_names(folder))
    draw = DRAW_FUNCTIONS.get(table.name, annotated)
    cards = [card for rows in shards for card in _cards(draw, rows, images, len(shards))]
    return image_cards(cards[:MAX_CARDS]) if cards else None


def _cards(
    draw: Draw, rows: Sequence[Row], images: Mapping[str, bytes], num_shards: int
) -> list[dict[str, str]]:
    """Cards of a shard's rows: of each image one, and of each shard its share."""
    cards: dict[str, dict[str, str]] = {}
    cards_per_shard = -(-MAX_CARDS // num_shards)
    for row in rows:
        image_id = row["image_id"]
        if len(cards) < cards_per_shard and image_id in images and image_id not in cards:
            boxes, text, about = draw(row)
            uri = _drawing(images[image_id], boxes)
            if uri is not None:
                cards[image_id] = {"uri": uri, "text": text, "about": about}
    return list(cards.values())


def _drawing(content: bytes, boxes: Sequence[tuple[Corners, str]]) -> str | None:
    """Returns the upright image with its boxes as a data: URI; None if it cannot be decoded."""
    try:
        with open_image(content, _BOUNDS) as stored:
            image = upright(stored, _BOUNDS).image.convert("RGB")
    except Rejected:
        return None
    out = io.BytesIO()
    drawing = draw_boxes(image, boxes, size=image.size, max_side_px=SIDE_PX)
    drawing.save(out, "JPEG", quality=85)
    return image_uri(out.getvalue(), "image/jpeg")


def _expression(row: Row) -> CardContent:
    text = row["text"] or "(no words)"
    return [(_corners(row["box"]), text[:MAX_LABEL])], text, _about(row, "expression_id")


def _choice(row: Row) -> CardContent:
    boxes, names = row["boxes"], row["object_names"]
    objects = [
        (_corners(boxes[4 * number : 4 * number + 4]), f"[{number}] {name}"[:MAX_LABEL])
        for number, name in enumerate(names)
    ]
    choices = [
        f"{'✓' if number == row['label'] else '·'} {choice}"
        for number, choice in enumerate(row["choices"])
    ]
    return objects, " ".join([row["question"], *choices]), _about(row, "example_id")


def _annotated(row: Row, names: Sequence[str]) -> CardContent:
    numbers = row["class_ids"]
    labels = [names[n].split(",")[0] if n < len(names) else f"class {n}" for n in numbers]
    boxes = [
        (_corners(box), label[:MAX_LABEL]) for box, label in zip(row["boxes"], labels, strict=True)
    ]
    return boxes, ", ".join(dict.fromkeys(labels)) or "(no object)", _about(row, "image_id")


def _names(folder: Path) -> list[str]:
    """The names of classes beside a table of boxes; none where there are none."""
    path = folder / "classes.json"
    return read_json(path) if path.is_file() else []


def _corners(values: Sequence[float]) -> Corners:
    return values[0], values[1], values[2], values[3]


def _about(row: Row, name: str) -> str:
    return " ".join(filter(None, (row[name][:100], row["split"])))


DRAW_FUNCTIONS: dict[str, Draw] = {EXPRESSIONS.name: _expression, CHOICES.name: _choice}
