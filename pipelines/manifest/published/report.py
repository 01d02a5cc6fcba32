"""Writes report.html of a published data set: counts and published counts, examples, overlaps.

Examples are drawn on their images: annotated boxes, the box of an expression, the tags of a
question.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vlmill.pipelines.manifest.entries import DataSet
from vlmill.pipelines.manifest.flags import TITLES
from vlmill.pipelines.manifest.published.counts import HEADER, Count, counts_table, format_warnings
from vlmill.pipelines.manifest.published.fetch import make_fetch_rows
from vlmill.pipelines.manifest.report import (
    first_images,
    first_rows,
    pair_cards,
    pair_charts,
    sample_rejects,
    spread_shards,
)
from vlmill.runtime.console import report as page
from vlmill.runtime.console.drawing import Corners, draw_boxes
from vlmill.schemas.images.decode import Bounds, open_image, upright
from vlmill.schemas.plain_json import read_json
from vlmill.schemas.rejects import Rejected
from vlmill.schemas.tables import BOXES, CHOICES, EXPRESSIONS, PAIRS, Table

MAX_CARDS, SIDE_PX, MAX_LABEL = 12, 480, 40
_BOUNDS = Bounds(max_pixels=178_000_000, max_bytes=None)
Row = Mapping[str, Any]
# Styles of boxes with their labels, the example's text, and small print.
CardContent = tuple[list[tuple[Corners, str]], str, str]
Draw = Callable[[Row], CardContent]


def draw_cards(folder: Path, table: Table) -> Markup | None:
    """Draws the boxes of some rows on their images; returns None if no row can be drawn."""
    if table.name not in {*DRAW_FUNCTIONS, BOXES.name}:
        return None
    shards = [first_rows(path) for path in spread_shards(folder, table.name)]
    images = dict(first_images(folder, {row["image_id"] for rows in shards for row in rows}))
    draw = DRAW_FUNCTIONS.get(table.name, partial(_annotated, names=_names(folder)))
    cards = [card for rows in shards for card in _cards(draw, rows, images, len(shards))]
    return page.image_cards(cards[:MAX_CARDS]) if cards else None


def _cards(
    draw: Draw, rows: Sequence[Row], images: Mapping[str, bytes], num_shards: int
) -> list[dict[str, str]]:
    """Yields cards of a shard's rows: one per image, and an equal share of each shard."""
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
    return page.image_uri(out.getvalue(), "image/jpeg")


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
    """Returns the class names in the folder of a table of boxes; an empty list without them."""
    path = folder / "classes.json"
    return read_json(path) if path.is_file() else []


def _corners(values: Sequence[float]) -> Corners:
    return values[0], values[1], values[2], values[3]


def _about(row: Row, name: str) -> str:
    return " ".join(filter(None, (row[name][:100], row["split"])))


DRAW_FUNCTIONS: dict[str, Draw] = {EXPRESSIONS.name: _expression, CHOICES.name: _choice}


ROWS_SHOWN, CELL = 20, 200


def write_published_report(
    folder: Path,
    data_set: DataSet,
    funnel: Sequence[Mapping[str, Any]],
    about: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> None:
    """Writes ``folder/report.html`` from its tables and the counts."""
    counts = [Count(*count) for count in about["counts"]]
    rejects = [row for path in spread_shards(folder, "rejects") for row in first_rows(path)]
    page.write_page(
        folder / "report.html",
        TITLES[settings["data_set"]],
        [
            _counts_section(data_set, counts),
            page.Section("Funnel", page.funnel_table(funnel), "in = out + dropped, by stage"),
            *_examples(folder, data_set),
            *_fetch_sections(about),
            _overlaps_section(about["overlaps"]),
            page.Section(
                "Sample rejects",
                sample_rejects(rejects),
                "Key: the file and the row, from 0; of an image its image_id.",
            ),
            page.Section("Settings", page.settings_table(settings)),
        ],
        notice=" ".join(format_warnings(counts)),
    )


def _fetch_sections(about: Mapping[str, Any]) -> Sequence[page.Section]:
    if "fetch" not in about:
        return []
    table = page.html_table(("URLs", "number"), make_fetch_rows(about["fetch"]))
    intro = "Results of the image URLs; failures are also listed under sample rejects."
    return [page.Section("Downloads", table, intro)]


def _counts_section(data_set: DataSet, counts: Sequence[Count]) -> page.Section:
    table = page.html_table(HEADER, counts_table(list(counts)))
    papers = page.html_table(["paper", "what it says"], data_set.papers) if data_set.papers else ""
    return page.Section(
        "Rows compared with the published numbers",
        table + papers,
        "Rows read, before anything was dropped.",
    )


def _overlaps_section(overlaps: Sequence[Sequence[Any]]) -> page.Section:
    header = ["list", "shared by", "images", "their rows"]
    intro = "Images of this data set that are also in these lists."
    if not overlaps:
        intro = "No list was given to compare with (--exclude, --compare, ...)."
    return page.Section("Overlaps", page.html_table(header, overlaps), intro)


def _examples(folder: Path, data_set: DataSet) -> list[page.Section]:
    """Returns pairs with their images, and drawings and the first rows of other tables."""
    other_tables = [table for table in data_set.tables if table is not PAIRS]
    pairs = _pairs(folder) if PAIRS in data_set.tables else []
    return [*pairs, *_first_rows(folder, other_tables)]


def _pairs(folder: Path) -> list[page.Section]:
    sample = [first_rows(path) for path in spread_shards(folder, PAIRS.name)]
    return [
        page.Section("Sample pairs", pair_cards(folder, sample)),
        page.Section("Distributions", pair_charts([row for rows in sample for row in rows])),
    ]


def _first_rows(folder: Path, tables: Sequence[Table]) -> list[page.Section]:
    sections = []
    for table in tables:
        if not any(folder.glob(f"{table.name}-*.parquet")):
            continue  # this run does not write the table
        if (drawn := draw_cards(folder, table)) is not None:
            sections.append(page.Section(f"Examples of {table.name}", drawn))
        rows = [r for path in spread_shards(folder, table.name) for r in first_rows(path)]
        cells = [[str(value)[:CELL] for value in row.values()] for row in rows[:ROWS_SHOWN]]
        body = page.html_table(table.schema.names, cells)
        sections.append(page.Section(f"Sample rows of {table.name}", body))
    return sections
