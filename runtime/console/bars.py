"""Draws bar charts as plain SVG, without a drawing library, which takes seconds to load."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from vlmill.runtime.console.report import CHART_FILL, CHART_INK, CHART_SECOND, template

WIDTH, ROW, NAMES, COUNTS = 540, 20, 190, 70  # pixels
COLUMNS_WIDTH, COLUMNS_HEIGHT = 540, 180
NUM_BINS = 20

_ROWS = template(
    "<div class='chart'><svg viewBox='0 0 {{ width }} {{ height }}' width='{{ width }}' "
    "role='img' font-family='sans-serif' font-size='11' fill='{{ ink }}'>"
    "<text x='0' y='14' font-size='13'>{{ title }}</text>"
    "{% for row in rows %}<text x='{{ names - 6 }}' y='{{ row.y + 14 }}' text-anchor='end'>"
    "{{ row.name }}</text>{% for part in row.parts %}"
    "<rect x='{{ part.x }}' y='{{ row.y + 3 }}' width='{{ part.width }}' height='14' "
    "fill='{{ part.fill }}'/>{% endfor %}<text x='{{ row.end + 4 }}' y='{{ row.y + 14 }}'>"
    "{{ row.count }}</text>{% endfor %}</svg></div>"
)
_COLUMNS = template(
    "<div class='chart'><svg viewBox='0 0 {{ width }} {{ height + 50 }}' width='{{ width }}' "
    "role='img' font-family='sans-serif' font-size='11' fill='{{ ink }}'>"
    "<text x='0' y='14' font-size='13'>{{ title }}</text>"
    "{% for bar in bars %}<rect x='{{ bar.x }}' y='{{ 20 + height - bar.height }}' "
    "width='{{ bar.width }}' height='{{ bar.height }}' fill='{{ fill }}'>"
    "<title>{{ bar.about }}</title></rect>{% endfor %}"
    "{% if not bars %}<text x='{{ width / 2 }}' y='{{ height / 2 }}'>no values</text>{% endif %}"
    "<text x='0' y='{{ height + 34 }}'>{{ low }}</text>"
    "<text x='{{ width / 2 }}' y='{{ height + 34 }}' text-anchor='middle'>{{ label }}</text>"
    "<text x='{{ width }}' y='{{ height + 34 }}' text-anchor='end'>{{ high }}</text></svg></div>"
)
MOST_NAME_CHARS = 30


def bar_chart(values: Mapping[str, float], *, title: str) -> Markup:
    """Draws a horizontal bar for each value, the first on top; negative ones have only a number."""
    maximum = max(0, *values.values(), 0) or 1
    bar_width = WIDTH - NAMES - COUNTS
    rows = [
        _row(index, name, _figure(value), [(bar_width * max(value, 0) / maximum, CHART_FILL)])
        for index, (name, value) in enumerate(values.items())
    ]
    return _rows(title, rows)


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


_LEGEND = template(
    "<p class='legend'>{% for name, fill in entries %}<span><svg width='11' height='11'>"
    "<rect width='11' height='11' fill='{{ fill }}'/></svg> {{ name }}</span>{% endfor %}</p>"
)


def legend(entries: Mapping[str, str]) -> Markup:
    """Returns the names of a chart's colours; ``entries`` are fills by name."""
    return Markup(_LEGEND.render(entries=entries.items()))


def funnel_bars(funnel: Sequence[Mapping[str, Any]]) -> Markup:
    """Draws the share of items that each stage of a funnel passed on; units differ by stage."""
    bar_width = WIDTH - NAMES - COUNTS
    rows = []
    for index, stage in enumerate(funnel):
        share = stage["out"] / stage["in"] if stage["in"] else 0.0
        dropped = (1 - share) * bar_width if stage["in"] else 0.0
        parts = [(bar_width * share, CHART_FILL), (dropped, CHART_SECOND)]
        name = f"{stage['stage']}: {stage['out']:,} of {stage['in']:,}"
        rows.append(_row(index, name, f"{share:.1%}" if stage["in"] else "", parts))
    colours = legend({"passed on": CHART_FILL, "dropped": CHART_SECOND})
    return Markup("{}{}").format(_rows("What each stage let through", rows), colours)


def _row(index: int, name: str, count: str, widths: Sequence[tuple[float, str]]) -> dict[str, Any]:
    parts, x = [], float(NAMES)
    for width, fill in widths:
        parts.append({"x": round(x, 1), "width": round(width, 1), "fill": fill})
        x += width
    short = name if len(name) <= MOST_NAME_CHARS else f"{name[: MOST_NAME_CHARS - 1]}…"
    return {
        "name": short,
        "count": count,
        "parts": parts,
        "y": 20 + ROW * index,
        "end": round(x, 1),
    }


def _rows(title: str, rows: Sequence[Mapping[str, Any]]) -> Markup:
    height = 26 + ROW * len(rows)
    return Markup(
        _ROWS.render(title=title, rows=rows, names=NAMES, width=WIDTH, height=height, ink=CHART_INK)
    )


def binned_columns(
    counts: Mapping[int, int], bin_width: float, *, title: str, label: str
) -> Markup:
    """Draws counts by the number of their bin; bins are ``bin_width`` wide and begin at 0."""
    return _columns(counts, lambda number: number * bin_width, title, label)


def histogram(values: Sequence[float], *, title: str, label: str) -> Markup:
    """Draws the number of values in each of 20 bins between their minimum and maximum."""
    minimum, maximum = min(values, default=0.0), max(values, default=0.0)
    width = (maximum - minimum) / NUM_BINS or 1.0
    counts = Counter(min(int((value - minimum) / width), NUM_BINS - 1) for value in values)
    return _columns(counts, lambda number: minimum + number * width, title, label)


def _columns(
    counts: Mapping[int, int], edge: Callable[[int], float], title: str, label: str
) -> Markup:
    """Draws counts by the number of their bin; ``edge`` returns the start of a bin."""
    first, last = min(counts, default=0), max(counts, default=0)
    max_count = max(counts.values(), default=0) or 1
    width = COLUMNS_WIDTH / (last - first + 1)
    bars = [
        {
            "x": round((number - first) * width, 1),
            "width": round(max(width - 1, 0.5), 1),
            "height": round(COLUMNS_HEIGHT * count / max_count, 1),
            "about": f"{edge(number):.6g}: {count:,}",
        }
        for number, count in sorted(counts.items())
    ]
    low, high = (f"{edge(number):.6g}" for number in (first, last + 1))
    return Markup(
        _COLUMNS.render(
            title=title,
            bars=bars,
            label=label,
            low=low,
            high=high,
            width=COLUMNS_WIDTH,
            height=COLUMNS_HEIGHT,
            fill=CHART_FILL,
            ink=CHART_INK,
        )
    )
