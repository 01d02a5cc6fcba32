"""Builds one-file HTML reports with inline images and charts, without scripts or network access.

Every text goes through jinja2's autoescape, because it comes from the web. Charts are SVG with
fixed ids and no date, so the same data give the same bytes.
"""

import atexit
import base64
import importlib
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import pyarrow as pa
import pyarrow.compute as pc
from markupsafe import Markup

from vlmill.runtime.extras import missing_line
from vlmill.runtime.files.atomic import write_text
from vlmill.runtime.files.reading import iter_batches
from vlmill.runtime.files.shards import SOFTWARE
from vlmill.schemas.rejects import Rejected
from vlmill.schemas.tables import IMAGES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vlmill.runtime.bounded_calls import BoundedPool

MOST_UNFOLDED = 20  # settings: a screen's height
MOST_PIXELS_SHOWN = 1 << 28  # training has the same limit
MOST_MARKED = 12  # points of a curve
CHART_INK, CHART_FILL, CHART_SECOND = "#33475b", "#4a7fb5", "#d9822b"


@dataclass(frozen=True)
class Section:
    """Holds a part of a page: a heading, an optional sentence under it, and safe HTML."""

    title: str
    body: Markup
    intro: str = ""


_ENVIRONMENT = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)


def template(source: str) -> jinja2.Template:
    """Returns a jinja2 template with autoescape; an undefined name is an error."""
    return _ENVIRONMENT.from_string(source)


_PAGE = template((Path(__file__).parent / "report.html").read_text(encoding="utf-8"))
_STYLE = Markup((Path(__file__).parent / "base.css").read_text(encoding="utf-8"))
_TABLE = template(
    "<table><thead><tr>{% for h in header %}<th{% if numeric[loop.index0] %} class='number'"
    "{% endif %}>{{ h }}</th>{% endfor %}</tr></thead><tbody>{% for row in rows %}<tr>"
    "{% for cell in row %}<td class='{{ 'number' if numeric[loop.index0] else style(cell) }}'>"
    "{{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody></table>"
)
_CARDS = template(
    "<div class='cards'>{% for card in cards %}<div class='card'>"
    "{% if card.get('second') %}<div class='beside'><img src='{{ card.uri }}' alt=''>"
    "<img src='{{ card.second }}' alt=''></div>"
    "{% elif card.uri %}<img src='{{ card.uri }}' alt=''>{% endif %}<p>{{ card.text }}</p>"
    "<small>{{ card.about }}</small></div>{% endfor %}</div>"
)
_FIGURE = re.compile(r"[-±+]?\s?[\d.,]+(\s?±\s?[\d.,]+)?\s?%?|–|")
_SHORT = 24  # lines of up to this many characters are not broken
_FUNNEL = template(
    "<table class='funnel'><thead><tr><th>stage</th><th class='number'>in</th>"
    "<th class='number'>out</th><th></th>"
    "<th>dropped, by reason</th></tr></thead><tbody>{% for s in funnel %}<tr>"
    "<td>{{ s.stage }}{% if s.unit %} <small>{{ s.unit }}</small>{% endif %}</td>"
    "<td class='number'>{{ '{:,}'.format(s.in) }}</td>"
    "<td class='number'>{{ '{:,}'.format(s.out) }}</td>"
    "<td><div class='bar' style='width:{{ (120 * s.out / (s.in or 1)) | round(1) }}px'></div></td>"
    "<td>{% for r, n in s.rejects | dictsort(by='value', reverse=true) %}"
    "<span class='tag'>{{ r }} <b>{{ '{:,}'.format(n) }}</b></span> {% endfor %}</td></tr>"
    "{% endfor %}</tbody></table>"
)


def page(title: str, sections: Sequence[Section], *, subtitle: str = "", notice: str = "") -> str:
    """Returns a complete HTML page; ``notice`` is shown in a box at the top."""
    return _PAGE.render(
        title=title,
        subtitle=subtitle,
        notice=notice,
        sections=sections,
        software=SOFTWARE,
        base_style=_STYLE,
    )


def write_page(path: str | Path, title: str, sections: Sequence[Section], **about: str) -> None:
    """Writes :func:`page` atomically."""
    write_text(path, page(title, sections, **about))


def html_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Markup:
    """Returns a table; columns of numbers are right-aligned, and Markup cells are not escaped."""
    numeric = [all(map(_is_number, column)) for column in zip(*rows, strict=True)]
    numeric += [False] * (len(header) - len(numeric))  # without a row
    return Markup(_TABLE.render(header=header, rows=rows, numeric=numeric, style=_style))


def _is_number(cell: Any) -> bool:
    """Returns whether a cell is a number with its error, or has no value."""
    return _FIGURE.fullmatch(_plain_text(cell)) is not None


def _style(cell: Any) -> str:
    """Returns the class of a short line, which is not broken, or no class."""
    return "short" if len(_plain_text(cell)) <= _SHORT else ""


def _plain_text(cell: Any) -> str:
    return str(cell.striptags()) if isinstance(cell, Markup) else str(cell)


def settings_table(settings: Mapping[str, Any]) -> Markup:
    """Returns a table of names and values, folded if there are many."""
    table = html_table(["setting", "value"], [(k, str(v)) for k, v in settings.items()])
    if len(settings) <= MOST_UNFOLDED:
        return table
    return Markup("<details><summary>{} settings</summary>{}</details>").format(
        len(settings), table
    )


def funnel_table(funnel: Sequence[Mapping[str, Any]]) -> Markup:
    """Draws a funnel (stage, in, out, rejects by reason, optional unit) as a table with bars."""
    return Markup(_FUNNEL.render(funnel=[{"unit": "", **stage} for stage in funnel]))


def image_uri(data: bytes, media_type: str) -> str:
    """Returns the bytes of an image as a data: URI."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"


def thumbnail(data: bytes, *, side: int = 240) -> bytes:
    """Returns an image as a JPEG of at most ``side`` pixels.

    It is decoded in a process that can be killed. Raises Rejected for an image that is broken or
    exceeds the limits.
    """
    return _thumbnail_pool().call((data, side))


@cache
def _thumbnail_pool() -> "BoundedPool[tuple[bytes, int], bytes]":
    from vlmill.runtime.bounded_calls import BoundedPool  # multiprocessing takes its time

    pool = BoundedPool[tuple[bytes, int], bytes](1, start_thumbnails)
    atexit.register(pool.close)
    return pool


def start_thumbnails() -> Callable[[tuple[bytes, int]], bytes]:
    """Returns the function with which a process creates thumbnails."""
    return _make_thumbnail


def _make_thumbnail(task: tuple[bytes, int]) -> bytes:
    data, side = task
    # Imported here so that stages that show no images do not need pillow's start-up time.
    from vlmill.schemas.images.decode import Bounds, open_image, upright

    bounds = Bounds(max_pixels=MOST_PIXELS_SHOWN, max_bytes=None)
    with open_image(data, bounds) as image:
        image.draft("RGB", (side, side))  # lets JPEG decode at a fraction of the size
        small = upright(image, bounds).image
    small.thumbnail((side, side))
    out = io.BytesIO()
    small.save(out, "JPEG", quality=80)
    return out.getvalue()


def thumbnail_uri(data: bytes, *, side: int = 240) -> str:
    """Returns :func:`thumbnail` as a data: URI."""
    return image_uri(thumbnail(data, side=side), "image/jpeg")


def thumbnails(images: str | Path | None, image_ids: set[str]) -> dict[str, str]:
    """Returns thumbnails as data: URIs of all decodable images in the images table."""
    if images is None:
        return {}
    uris: dict[str, str] = {}
    ids = pa.array(sorted(image_ids), pa.string())
    for batch in iter_batches(
        images, IMAGES, columns=["image_id", "bytes"], batch_rows=64, flag="--images"
    ):
        matching_rows = batch.filter(pc.is_in(batch.column("image_id"), value_set=ids))
        for row in matching_rows.to_pylist():
            try:
                if row["bytes"] is not None:
                    uris[row["image_id"]] = thumbnail_uri(row["bytes"])
            except Rejected:
                continue  # shown by its id: an image that cannot be decoded has none to show
    return uris


def image_cards(cards: Sequence[Mapping[str, str]]) -> Markup:
    """Returns a grid of images; a card has a ``uri`` (or ""), a ``text`` and small print ``about``.
    A ``second`` image is shown to the right of the first.
    """
    return Markup(_CARDS.render(cards=cards))


def _can_draw() -> bool:
    """Returns whether matplotlib is installed, checked only when a chart is drawn."""
    try:
        importlib.import_module("matplotlib")
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        return False
    return True


def _figure(width: float = 5.6, height: float = 2.8) -> "tuple[Figure, Any]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, colors=CHART_INK)
    return figure, axes


def _svg(figure: "Figure") -> Markup:
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "vlmill", "svg.fonttype": "none"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return Markup(f"<div class='chart'>{text[text.index('<svg') :]}</div>")


def _label(axes: Any, title: str, x_label: str, y_label: str) -> None:
    axes.set_title(title, fontsize=10, loc="left", color=CHART_INK)
    axes.set_xlabel(x_label, fontsize=8, color=CHART_INK)
    axes.set_ylabel(y_label, fontsize=8, color=CHART_INK)


def line_chart(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log: bool = False,
) -> Markup:
    """Draws curves by name, each (x values, y values)."""
    if not _can_draw():
        return Markup("<p>{}: no chart; {}</p>").format(title, missing_line("matplotlib"))
    figure, axes = _figure(width=7.6, height=3.2)
    for name, (x, y) in curves.items():
        marker = "o" if len(x) < MOST_MARKED else ""  # one point alone would not be visible
        axes.plot(x, y, label=name, linewidth=1.3, marker=marker, markersize=3)
    if all(isinstance(value, int) for x, _ in curves.values() for value in x):
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(integer=True))  # no half a step
    if log and any(value > 0 for _, y in curves.values() for value in y):
        from matplotlib.ticker import LogLocator, NullLocator

        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
    if curves:  # next to the curves: inside the axes it would cover some
        axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    _label(axes, title, x_label, y_label)
    return _svg(figure)
