"""Builds the sections of reports that all tasks share: figures, worst cases, regions' weights.

Pure functions from rows to HTML; images come as data: URIs.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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
