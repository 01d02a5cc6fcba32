"""Draws the change of each row relative to the base of its table, here and in the paper."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from published.compare import AGREES, DIFFERS, SURE, WITHIN, Comparison
from published.row import AblationTable

COLOURS = {AGREES: "#2e7d32", WITHIN: "#757575", DIFFERS: "#c62828"}
TOLD = {AGREES: "as in the paper", WITHIN: "within two standard errors", DIFFERS: "otherwise"}
WIDTH, LEFT, RIGHT, LINE, TOP = 820, 400, 20, 18, 58
MOST = 35.0  # points at either end of the axis; what is beyond stands at the end


def image(tables: Sequence[AblationTable], by_table: Mapping[str, Sequence[Comparison]]) -> str:
    """An SVG with a line for each change that the paper has too, of the tables that have any."""
    parts, y = list[str](), TOP
    for table in tables:
        changes = [one for one in by_table[table.key] if one.verdict is not None]
        if not changes:
            continue
        parts.append(_text(8, y + 13, table.title, "bold"))
        y += LINE
        for one in changes:
            parts += _change(one, y)
            y += LINE
        y += LINE // 3
    height = y + 8
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        *_legend(),
        *_axis(height),
    ]
    return "\n".join([*head, *parts, "</svg>", ""])


def _x(points: float) -> float:
    """Where a change of so many points stands."""
    clipped = max(-MOST, min(MOST, points))
    return LEFT + (clipped + MOST) / (2 * MOST) * (WIDTH - LEFT - RIGHT)


def _text(x: float, y: float, text: str, weight: str = "normal", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


def _legend() -> Iterator[str]:
    x = 8.0
    for verdict, colour in COLOURS.items():
        yield f'<circle cx="{x + 5}" cy="14" r="4" fill="{colour}"/>'
        yield _text(x + 14, 18, TOLD[verdict])
        x += 36 + 6.2 * len(TOLD[verdict])
    yield _published(x + 5, 14)
    yield _text(x + 16, 18, "the paper")


def _axis(height: float) -> Iterator[str]:
    """A line each ten points, the one of no change the strongest."""
    for points in range(-30, 31, 10):
        x, colour = _x(points), "#dddddd" if points else "#555555"
        yield f'<path d="M{x:.1f} {TOP - 12}V{height - 8}" stroke="{colour}"/>'
        yield _text(x, TOP - 18, f"{points:+d}" if points else "0", anchor="middle")


def _published(x: float, y: float) -> str:
    return (
        f'<path d="M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z" fill="none" stroke="black" '
        'stroke-width="1.3"/>'
    )


def _change(one: Comparison, y: float) -> Iterator[str]:
    """A row's change with two standard errors to both sides, and the paper's."""
    assert one.change is not None and one.verdict is not None
    assert one.error is not None and one.published_change is not None
    colour, middle = COLOURS[one.verdict], y + LINE / 2
    points, wide = 100 * one.change.mean, 100 * SURE * one.error
    yield _text(20, y + 13, f"{one.row}: {one.figure}")
    yield (
        f'<path d="M{_x(points - wide):.1f} {middle}H{_x(points + wide):.1f}" '
        f'stroke="{colour}" stroke-width="2"/>'
    )
    yield f'<circle cx="{_x(points):.1f}" cy="{middle}" r="4" fill="{colour}"/>'
    yield _published(_x(one.published_change), middle)
