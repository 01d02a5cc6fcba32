"""Formats the figures of runs as lines of JSON, and their means over seeds as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev
from typing import Any

from proof.arms import BARS, BASE, MARGINS
from proof.box_arms import BOX_TASKS
from proof.class_arms import HEADLINES as CLASS_HEADLINES
from proof.tables import Oracles
from proof.task_arms import BLIND, MARGIN
from proof.task_runs import box_lines
from proof.text_arms import CHANCE, HEADLINES, SHARES
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


Line = dict[str, Any]
ACCURACY, KINDS = "vqa/test/accuracy", "/question_type/"
RECALLS = ("image_retrieval/r1", "text_retrieval/r1")
NOT_SHARES = ("_n", "_stderr")


def lines_of(line: Line, all_lines: Sequence[Line]) -> list[Line]:
    """A run's headline figures, and those of each kind of question.

    ``peer`` is the blind model of the same world, of retrieval and texts chance; ``learned`` says
    of a headline whether the run has beaten it by the margin that is wanted. Without a blind run
    there is no peer.
    """
    if line["settings"]["task"] == "retrieval":
        by_chance = dict.fromkeys(RECALLS, 1 / line["settings"]["held_out"])
        return [figure_line(line, by_chance, name) for name in RECALLS]
    if line["settings"]["task"] == "glue":
        chance = {name: share for name, share in CHANCE.items() if name in line["metrics"]}
        return [figure_line(line, chance, name) for name in chance]
    blind = blind_of(line, all_lines)
    if line["settings"]["task"] in BOX_TASKS:
        return list(box_lines(line, blind))
    return [
        figure_line(line, blind and blind["metrics"], name)
        for name, value in line["metrics"].items()
        if value is not None and is_share(name)
    ]


def is_share(name: str) -> bool:
    """Whether a metric is a share of right answers: of all questions, or of a kind."""
    if name in SHARES or name in CLASS_HEADLINES:
        return True
    if name.startswith(ACCURACY + KINDS):
        return not name.endswith(NOT_SHARES)
    return name == ACCURACY


def blind_of(line: Line, all_lines: Sequence[Line]) -> Line | None:
    """The blind run of the same task and world: of the same seed, else of the first."""
    same = ("task", "world", "pairs", "held_out")
    wanted = [line["settings"][name] for name in same]
    blind = [
        other
        for other in all_lines
        if other["settings"]["name"] == BLIND
        and [other["settings"][name] for name in same] == wanted
    ]
    seed = line["settings"]["seed"]
    of_seed = [other for other in blind if other["settings"]["seed"] == seed]
    return next(iter(of_seed or blind), None)


def figure_line(line: Line, blind: Line | None, name: str) -> Line:
    """A metric of a run as every benchmark prints it, beside the ``blind`` ones."""
    value, settings = line["metrics"][name], line["settings"]
    told = name.removeprefix(ACCURACY + KINDS)
    tasks = ("vqa", "nlvr2", "glue", "classification", "entailment")
    for prefix in (f"{task}/test/" for task in tasks):
        told = told.removeprefix(prefix)
    told = f"learning_tasks/{line['name']}/{told}"
    headline = name in (ACCURACY, *RECALLS, *HEADLINES, *CLASS_HEADLINES)
    more: Line = {"questions": line["metrics"].get(f"{name}_n")}
    if headline:
        more |= {key: settings[key] for key in ("seed", "steps", "pairs", "held_out")}
        more |= {key: line[key] for key in ("cpu_minutes", "device")}
    if blind is None or settings["name"] == BLIND:
        return result_line(told, value, "share", **more)
    alone = blind[name]
    if headline:
        more |= {"margin_wanted": MARGIN, "learned": value - alone >= MARGIN}
    return result_line(
        told,
        value,
        "share",
        peer="chance" if name in CHANCE else "a model that sees no image",
        peer_value=alone,
        ratio=value / alone if alone else None,
        margin=value - alone,
        limit=1.0,
        fraction_of_limit=value,
        **more,
    )
