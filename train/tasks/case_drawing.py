"""Draws examples about boxes: the image with them, and below it the question and the prediction."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from vlmill.runtime.console.report import Section, template
from vlmill.train.tasks.report import NONE, Case, DrawnBox

GLYPH_WIDTH = 0.6  # about, in font sizes
DRAWN_PX = 480  # the longest side of an image under its boxes
COLOURS = {"right": "#2e8540", "chosen": "#d9822b", "other": "#4a7fb5"}

_CASES = template(
    "{% for case in cases %}<figure class='weighted'><svg viewBox='0 0 {{ case.width }} "
    "{{ case.height }}' role='img' width='480' style='max-width:100%;height:auto'>"
    "<title>{{ case.id }}</title>"
    "{% if case.uri %}<image href='{{ case.uri }}' width='{{ case.width }}' "
    "height='{{ case.height }}'/>{% endif %}"
    "<rect width='{{ case.width }}' height='{{ case.height }}' fill='none' stroke='#c8d0d8' "
    "stroke-width='{{ case.stroke }}'/>"
    "{% for box in case.boxes %}<rect x='{{ box.x }}' y='{{ box.y }}' width='{{ box.width }}' "
    "height='{{ box.height }}' fill='none' stroke='{{ box.colour }}' "
    "stroke-width='{{ case.stroke }}'><title>{{ box.label }}</title></rect>"
    "<text x='{{ box.text_x }}' y='{{ box.text_y }}' text-anchor='{{ box.anchor }}' "
    "fill='{{ box.colour }}' font-size='{{ case.text }}' stroke='white' stroke-linejoin='round' "
    "stroke-width='{{ case.text / 4 }}' paint-order='stroke'>{{ box.label }}</text>{% endfor %}"
    "</svg>"
    "<figcaption><p>{{ case.asked }} <b>{{ case.said }}</b></p>"
    "{% if case.choices %}<ol start='0'>{% for choice in case.choices %}<li>{{ choice }}</li>"
    "{% endfor %}</ol>{% endif %}<small>{{ case.about }}</small></figcaption></figure>{% endfor %}"
)


def drawn_section(
    title: str, intro: str, cases: Sequence[Case], uris: Mapping[str, str]
) -> Section:
    """Shows cases with their boxes over images; ``uris`` by image_id, without it a frame."""
    drawn = [_drawn(case, uris.get(case.image_id, "")) for case in cases]
    return Section(title=title, intro=intro, body=Markup(_CASES.render(cases=drawn)) or NONE)


def _drawn(case: Case, uri: str) -> dict[str, Any]:
    width, height = case.size
    longest = max(width, height, 1)
    text_px = round(longest / 30, 1)  # a small image is enlarged, and its letters with it
    return {
        "id": case.example_id,
        "uri": uri,
        "width": width,
        "height": height,
        "stroke": round(longest / 240, 2),
        "text": text_px,
        "asked": case.text,
        "said": case.prediction,
        "choices": case.choices,
        "about": f"right: {case.right}; score {case.score:.2f}; {case.example_id}"
        + ("" if uri else f"; image {case.image_id}"),
        "boxes": [_drawn_box(box, width, text_px) for box in case.boxes],
    }


def _drawn_box(box: DrawnBox, width: int, text_px: float) -> dict[str, Any]:
    x1, y1, x2, y2 = (float(corner) for corner in box.box)
    # A label that began at the box's left would leave the image.
    ends = x1 + GLYPH_WIDTH * text_px * len(box.label) > width
    # At the foot of the right box: the chosen one, which has its own on top, may be the same.
    text_y = y2 - 0.2 * text_px if box.kind == "right" else y1 + text_px
    return {
        "x": round(x1, 1),
        "y": round(y1, 1),
        "width": round(max(x2 - x1, 0.0), 1),
        "height": round(max(y2 - y1, 0.0), 1),
        "text_x": round(x2 if ends else x1, 1),
        "text_y": round(text_y, 1),
        "anchor": "end" if ends else "start",
        "colour": COLOURS[box.kind],
        "label": box.label,
    }
