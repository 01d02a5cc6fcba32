"""Formats the figures of runs as lines of JSON, and their means over seeds as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev
from typing import Any

from proof.arms import BARS, BASE, MARGINS
from proof.tables import Oracles
from shell import result_line

DIRECTIONS = ("image_retrieval", "text_retrieval")
Figures = Mapping[str, Any]


def retrieval_lines(figures: Figures, oracles: Oracles) -> list[dict[str, Any]]:
    """R@1 of a run in either direction beside the oracles'.

    ``peer_value`` is what a matcher that sees colours alone is sure of; ``expected`` what it gets
    where it breaks ties by chance, which a trained model that saw colours alone would do, too.
    """
    return [_retrieval_line(figures, oracles, direction) for direction in DIRECTIONS]


def _retrieval_line(figures: Figures, oracles: Oracles, direction: str) -> dict[str, Any]:
    r1, recipe = figures[f"{direction}/r1"], figures["recipe"]
    sure = {name: metrics[f"{direction}/r1"] for name, metrics in oracles.items()}
    by_chance = oracles["colours"][f"{direction}/r1_expected"]
    margin = r1 - sure["colours"]
    wanted = BARS[recipe] - sure["colours"] if recipe in BARS else MARGINS[recipe]
    settings = ("pairs", "held_out", "steps", "seed", "minutes", "cpu_minutes", "device")
    return result_line(
        f"learning/{figures['name']}/{direction}/r1",
        r1,
        "share",
        peer="a matcher that sees colours alone",
        peer_value=sure["colours"],
        ratio=r1 / sure["colours"] if sure["colours"] else None,
        margin=margin,
        margin_wanted=wanted,
        learned=margin >= wanted,
        peer_expected=by_chance,
        margin_to_expected=r1 - by_chance,
        shapes=sure["shapes"],
        bag_of_things=sure["things"],
        limit=sure["everything"],
        fraction_of_limit=r1 / sure["everything"] if sure["everything"] else None,
        **{name: figures[name] for name in settings},
    )


def probe_lines(figures: Figures) -> list[dict[str, Any]]:
    """A line for each group of masked words, and one for masked things."""
    lines = []
    for name, asked in figures.items():
        if not name.endswith("/asked"):
            continue
        probe = name.removesuffix("/asked")
        of_words = f"{probe}/own_picture" in figures
        own, other = "own_caption", "no_caption"
        if of_words:
            own, other = "own_picture", "other_picture"
        beside, alone = figures[f"{probe}/{own}"], figures[f"{probe}/{other}"]
        line = result_line(
            f"learning/{figures['name']}/{probe}",
            beside,
            "share",
            peer=other.replace("_", " "),
            peer_value=alone,
            ratio=beside / alone if alone else None,
            difference=beside - alone,
        )
        if not of_words:
            line["other_caption"] = figures[f"{probe}/other_caption"]
        lines.append(line | {"asked": asked, "seed": figures["seed"]})
    return lines


def other_lines(figures: Figures) -> list[dict[str, Any]]:
    """R@1 of VLMo by its matching head, and without its experts."""
    return [
        result_line(f"learning/{figures['name']}/{name}", value, "share")
        for name, value in figures.items()
        if name.endswith("/r1") and name.count("/") > 1
    ]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The mean of ``count`` seeds and their standard deviation; None of a single one."""

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        return cls(
            mean=mean(values),
            deviation=stdev(values) if len(values) > 1 else None,
            count=len(values),
        )

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {self.deviation:.3f}"
        return f"{self.mean:.3f}{spread}"


def difference(one: Spread, other: Spread) -> Spread:
    """Of two means of independent seeds; ``deviation`` is the difference's standard error."""
    error = None
    if one.deviation is not None and other.deviation is not None:
        error = sqrt(one.deviation**2 / one.count + other.deviation**2 / other.count)
    count = min(one.count, other.count)
    return Spread(mean=one.mean - other.mean, deviation=error, count=count)


COLUMNS = {
    "image R@1": "image_retrieval/r1",
    "text R@1": "text_retrieval/r1",
    "image R@1, matching": "matching/image_retrieval/r1",
    "text R@1, matching": "matching/text_retrieval/r1",
    "colour seen": "words/colour/seen",
    "shape seen": "words/shape/seen",
    "relation seen": "words/relation/seen",
    "class, own caption": "regions/class/own_caption",
    "class, no caption": "regions/class/no_caption",
}


def spreads(results: Sequence[Figures]) -> dict[tuple[str, str], dict[str, Spread]]:
    """Each arm's figures over its seeds, by (recipe, arm), in the order of first appearance."""
    arms: dict[tuple[str, str], list[Figures]] = {}
    for figures in results:
        arms.setdefault((figures["recipe"], figures["arm"]), []).append(figures)
    return {
        key: {
            column: Spread.of([figures[name] for figures in some])
            for column, name in COLUMNS.items()
            if all(name in figures for figures in some)
        }
        for key, some in arms.items()
    }


def table(results: Sequence[Figures]) -> str:
    """Markdown: an arm a row, mean ± standard deviation over seeds; below the base of its recipe
    the difference from that, ± its standard error, of R@1.
    """
    rows = spreads(results)
    columns = [c for c in COLUMNS if any(c in row for row in rows.values())]
    lines = [f"| run | seeds | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    for (recipe, arm), row in rows.items():
        count = max((spread.count for spread in row.values()), default=0)
        cells = [str(row.get(column, "")) for column in columns]
        lines.append(f"| {recipe}, {arm} | {count} | {' | '.join(cells)} |")
        base = rows.get((recipe, BASE), {})
        if arm != BASE and base:
            changes = [_change(column, row, base) for column in columns]
            lines.append(f"| … from {BASE} | | {' | '.join(changes)} |")
    return "\n".join(lines) + "\n"


def _change(column: str, row: Mapping[str, Spread], base: Mapping[str, Spread]) -> str:
    if "R@1" not in column or column not in row or column not in base:
        return ""
    change = difference(row[column], base[column])
    return f"{'+' if change.mean >= 0 else ''}{change}"
