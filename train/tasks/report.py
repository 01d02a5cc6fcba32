"""Builds the sections of reports that all tasks share: figures, worst cases, regions' weights.

Pure functions from rows to HTML; images come as data: URIs.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from vlmill.runtime.console.report import Section, html_table, image_cards, template, thumbnail_uri
from vlmill.runtime.readers.images import ImageReader
from vlmill.schemas.rejects import Rejected
from vlmill.train.tasks.scores import Figures, percent

NONE = Markup("<p>None.</p>")
CARD_PX = 240  # the longest side of an image on a card

_WEIGHED = template(
    "<figure class='weighted'><svg viewBox='0 0 {{ width }} {{ height }}' role='img' width='640' "
    "style='max-width:100%;height:auto'><title>{{ alt }}</title>"
    "{% if uri %}<image href='{{ uri }}' width='{{ width }}' height='{{ height }}'/>{% endif %}"
    "{% for box in boxes %}<rect x='{{ box.x }}' y='{{ box.y }}' width='{{ box.width }}' "
    "height='{{ box.height }}' fill='{{ box.colour }}' fill-opacity='{{ box.fill }}' "
    "stroke='{{ box.colour }}' stroke-opacity='{{ box.line }}' stroke-width='{{ stroke }}'>"
    "<title>{{ box.weight }}</title></rect>{% endfor %}</svg>"
    "<figcaption>{{ caption }}</figcaption></figure>"
)
_FOR, _AGAINST = "#d9822b", "#4a7fb5"
WEIGHED_PX = 640  # the longest side of an image under its regions
_FILL, _FAINTEST = 0.45, 0.1  # opacity of the heaviest box's area, and of the lightest one's line


def figures_table(figures: Figures, names: Mapping[str, str], *, decimals: int = 1) -> Markup:
    """Draws fractions as percent with their standard errors and counts, a row for each of ``names``
    (of a figure: its title). An undefined figure is a dash.
    """
    rows = []
    for name, title in names.items():
        value, error = figures.get(name), figures.get(f"{name}_stderr")
        rows.append(
            [
                title,
                "–" if value is None else Markup("<b>{}</b> %").format(percent(value, decimals)),
                "" if error is None else f"± {percent(error, decimals)}",
                "" if (n := figures.get(f"{name}_n")) is None else int(n),
            ]
        )
    return html_table(["figure", "reached", "standard error", "examples"], rows)


@dataclass(frozen=True, kw_only=True)
class DrawnBox:
    """Holds a box [4] over a case's image, in its pixels: ``right``, ``chosen``, or another one."""

    box: NDArray[np.floating]
    label: str
    kind: Literal["right", "chosen", "other"] = "other"


@dataclass(frozen=True, kw_only=True)
class Case:
    """Holds an example as a report shows it: its score, its question, prediction and right answer.

    A case with ``boxes`` is drawn; ``size`` is the image's size in the boxes' pixels. ``choices``
    are listed. ``second_id`` is the image to the right of ``image_id``'s, for examples with two
    images.
    """

    example_id: str
    image_id: str
    score: float
    text: str
    prediction: str
    right: str
    boxes: tuple[DrawnBox, ...] = ()
    size: tuple[int, int] = (0, 0)
    choices: tuple[str, ...] = ()
    second_id: str = ""

    @property
    def image_ids(self) -> tuple[str, ...]:
        """Returns its images; empty for a text alone."""
        return tuple(name for name in (self.image_id, self.second_id) if name)


def worst_cases(cases: Sequence[Case], count: int) -> list[Case]:
    """Returns the ``count`` cases with the lowest scores, the same ones on every run."""
    return sorted(cases, key=lambda case: (case.score, case.example_id))[:count]


def cases_section(
    title: str, intro: str, cases: Sequence[Case], uris: Mapping[str, str]
) -> Section:
    """Shows cases with their images; ``uris`` by image_id, which is printed without an image."""
    return Section(
        title=title,
        intro=intro,
        body=image_cards([_card(case, uris) for case in cases]) if cases else NONE,
    )


def _card(case: Case, uris: Mapping[str, str]) -> dict[str, str]:
    case_uris = [uris[name] for name in case.image_ids if name in uris]
    is_whole = len(case_uris) == len(case.image_ids)  # half of two images would be read as both
    about = [f"said: {case.prediction}", f"right: {case.right}", f"score {case.score:.2f}"]
    about += [case.example_id]
    if not is_whole:
        about += [f"image {name}" for name in case.image_ids]
    first, second, *_ = [*(case_uris if is_whole else []), "", ""]
    return {"uri": first, "second": second, "text": case.text, "about": "; ".join(about)}


def read_thumbnails(
    images: str | Path | None, image_ids: Set[str], *, side: int = CARD_PX
) -> dict[str, str]:
    """Reads thumbnails, as data: URIs, of the images that the table has, under their ids or by one
    name, and that can be decoded; ``side`` is the longest in pixels.
    """
    if images is None:
        return {}
    reader, uris = ImageReader(images), dict[str, str]()
    for image_id in sorted(image_ids):
        names = [image_id] if image_id in reader else list(reader.index.find_matches(image_id))
        content = reader[names[0]] if len(names) == 1 else None
        try:
            if content is not None:
                uris[image_id] = thumbnail_uri(content, side=side)
        except Rejected:
            continue  # shown by its id: an image that cannot be decoded has no thumbnail
    return uris


@dataclass(frozen=True, kw_only=True)
class WeightedImage:
    """Holds an image's regions and their weights for a score: boxes [R, 4] in pixels, weights [R].

    ``width`` and ``height`` are the size of the image that the boxes refer to.
    """

    image_id: str
    width: int
    height: int
    boxes: NDArray[np.floating]
    weights: NDArray[np.floating]
    caption: str


def weights_section(weighted: Sequence[WeightedImage], images: str | Path | None = None) -> Section:
    """Draws images with their regions; heavier regions are more opaque."""
    uris = read_thumbnails(images, {image.image_id for image in weighted}, side=WEIGHED_PX)
    drawn = [draw_weights(image, uris.get(image.image_id, "")) for image in weighted]
    return Section(
        title="Regions that the answer depends on",
        intro="The opacity of a region is its weight: how much the score falls (orange) "
        "or rises (blue) without it.",
        body=Markup("").join(drawn) if drawn else NONE,
    )


def draw_weights(image: WeightedImage, uri: str) -> Markup:
    """Draws one image, with the lightest region first, so that the heaviest are on top."""
    largest = float(np.abs(image.weights).max(initial=0.0)) or 1.0
    boxes = []
    for region in np.argsort(np.abs(image.weights), kind="stable"):
        x1, y1, x2, y2 = (round(float(corner), 1) for corner in image.boxes[region])
        weight = float(image.weights[region])
        share = abs(weight) / largest
        boxes.append(
            {
                "x": x1,
                "y": y1,
                "width": round(max(x2 - x1, 0.0), 1),
                "height": round(max(y2 - y1, 0.0), 1),
                "colour": _FOR if weight >= 0 else _AGAINST,
                "fill": round(_FILL * share, 3),
                "line": round(_FAINTEST + (1 - _FAINTEST) * share, 3),
                "weight": f"{weight:.3g}",
            }
        )
    return Markup(
        _WEIGHED.render(
            width=image.width,
            height=image.height,
            uri=uri,
            alt=f"Regions of {image.image_id}",
            boxes=boxes,
            stroke=max(1, round(max(image.width, image.height) / 320)),
            caption=image.caption,
        )
    )


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
