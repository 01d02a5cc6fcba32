"""Writes the page of the documentation on the papers' ablations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from published.compare import AGREES, DIFFERS, SURE, WITHIN, Comparison
from published.photographs import photographs_section, read_records
from published.row import AblationTable


@dataclass(frozen=True, kw_only=True)
class Omitted:
    """Columns of a table: ``rows`` are a label with the paper's figures in percent; None: not
    published, or not known here.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[float | None, ...]], ...]
    reason: str


VCR = ("VCR, Q to A", "VCR, QA to R", "VCR, Q to AR")
REFCOCO = ("RefCOCO+, val", "RefCOCO+, testA", "RefCOCO+, testB")

OMITTED = (
    Omitted(
        title="ViLBERT (tables 1, 2 and 4): VCR, test, and RefCOCO+",
        columns=(*VCR, *REFCOCO),
        rows=(
            ("one stream, from BERT", (68.15, 68.89, 47.27, 65.64, 72.02, 56.04)),
            ("one stream", (71.09, 73.93, 52.73, 69.21, 75.32, 61.02)),
            ("two streams, from BERT", (69.26, 71.01, 49.48, 68.61, 75.97, 58.44)),
            ("two streams, 6 layers", (72.42, 74.47, 54.04, 72.34, 78.52, 62.61)),
            ("2 layers", (72.44, 74.80, 54.40, 71.74, 78.61, 62.28)),
            ("4 layers", (72.45, 74.00, 53.82, 72.07, 78.53, 63.14)),
            ("8 layers", (72.33, 74.15, 53.79, 71.66, 78.29, 62.43)),
            ("25 %", (71.61, 73.00, 52.66, 69.90, 76.83, 60.99)),
            ("50 %", (71.88, 73.60, 53.03, 71.16, 77.35, 61.57)),
        ),
        reason="The depths differ by at most 0.8 points in VCR and 1.1 in RefCOCO+, which the "
        "world's 300 images cannot show; in VCR its choices are answered in 98 of 100 cases by "
        "VL-BERT with and without pretraining. Both columns would add two fine-tunings to each row "
        "and seed.",
    ),
    Omitted(
        title="VL-BERT (tables 1 and 3): RefCOCO+ on annotated regions, and VCR's rationales, val",
        columns=("RefCOCO+, annotated, val", "testA", "testB", "VCR, QA to R", "VCR, Q to AR"),
        rows=(
            ("without pretraining", (73.96, 76.65, 67.64, None, None)),
            ("with pretraining", (78.44, 81.30, 71.18, 74.5, 55.0)),
        ),
        reason="The generated world's detector finds every object, and its tight box is among the "
        "detected ones, so annotated boxes would repeat the detected column. VL-BERT trains a "
        "separate model for rationales, another fine-tuning of each row and seed, and the "
        "choices of Q to A are already answered in 98 of 100 cases in both rows.",
    ),
    Omitted(
        title="InterBERT (tables 3 and 4): VCR",
        columns=VCR,
        rows=(
            ("InterBERT", (73.1, 74.8, 54.9)),
            ("without pretraining", (63.6, 63.1, 40.3)),
            ("words and regions masked separately, val", (72.3, 74.3, 54.0)),
            ("from random weights, val", (65.3, 64.4, None)),
        ),
        reason="The tables above have these columns; they are empty as long as they have not been "
        "run. Masked groups change VCR by 0.8 points in the paper, less than the error of 300 "
        "images.",
    ),
)


def omitted_section() -> str:
    """Returns the section of the page: each table, and why it is not repeated."""
    parts = ["## Columns that are not repeated\n"]
    parts.append("The papers' figures in percent, and the reason.\n")
    for one in OMITTED:
        parts += [f"### {one.title}\n", *_table(one), f"\n**Why not.** {one.reason}\n"]
    return "\n".join(parts)


def _table(one: Omitted) -> Iterator[str]:
    yield f"| | {' | '.join(one.columns)} |"
    yield "|---" * (len(one.columns) + 1) + "|"
    for label, figures in one.rows:
        cells = ["" if figure is None else f"{figure:g}" for figure in figures]
        yield f"| {label} | {' | '.join(cells)} |"


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


INTRO = """# Reproduction

`make reproduce` generates this page from `benchmarks/results/reproduction.jsonl`: do not edit it.

The page repeats the papers' ablations on a generated world. A row is a small model with the same
change, pretrained on 3,000 image-caption pairs, and measured on the row's task with 300 images
whose combinations do not occur in training. The figures themselves are not comparable: the models
have a few million parameters, and the world has few words. The page compares how a row changes
relative to the base of its table. A change counts if it is larger than two standard errors, of the
examples or of the seeds, whichever error is larger. The spread of seeds is pooled over the rows of
a table. A table with one seed per row has no such estimate, as its note states, and its results
may change with another seed. The papers do not report the spread of their figures. The error of the
examples is at most 0.03 for 300 images, and at most 1.6 points for the papers' 1,000.

Each cell has the figure in percent, with its standard deviation if several seeds were run, and the
paper's figure in parentheses. `make reproduce` runs the missing rows, which takes hours,
and continues after an interruption. `python benchmarks/reproduce.py` runs a short version, and
`python benchmarks/reproduce.py --full --list` prints the missing rows. The paragraphs "Why" are
based on the logs of the first seeds.

The number of steps of some tasks was raised once, for all rows of a table, after a first run of
seed 0, because its losses had hardly begun to fall. With 400 steps for questions, ViLBERT with 2, 4
and 6 layers answered 48.2, 49.1 and 40.4 % correctly, the reverse of the paper's order; VL-BERT
answered 54.3 %, and 53.2 % without pretraining. Expressions also had 400 steps (VL-BERT 72.2 %,
80.3 % without pretraining), and so had entailment (BERT 55.1 %, one stream 74.8 %, InterBERT
77.3 %). VLMo had not been run when the steps were raised.
"""
IMAGE = """![Changes relative to each table's base: here, with two standard errors on both
sides, and in the paper](images/reproduction.svg)

The chart shows how many points each row gains or loses relative to the base of its table."""
ONE_SEED = "One seed per row: the errors are those of the examples only."
ByTable = Mapping[str, Sequence[Comparison]]


def page(tables: Sequence[AblationTable], by_table: ByTable) -> str:
    """The whole page; rows that were not run yet stand there with the paper's figures alone."""
    parts = [INTRO, summary(tables, by_table)]
    parts += [section(table, by_table[table.key]) for table in tables]
    parts += [omitted_section(), photographs_section(read_records())]
    return "\n".join(parts)


def summary(tables: Sequence[AblationTable], by_table: ByTable) -> str:
    """How many changes agree, table by table, and all of them in an image."""
    rows = [
        "## Agreement with the papers\n",
        "| table | agree | within error | differ | to be measured |",
    ]
    rows.append("|---|---|---|---|---|")
    for table in tables:
        wanted = [one for one in by_table[table.key] if one.published_change]
        counts = [
            sum(one.verdict == verdict for one in wanted)
            for verdict in (AGREES, WITHIN, DIFFERS, None)
        ]
        rows.append(f"| {table.title} | {' | '.join(map(str, counts))} |")
    rows.append(f"\n{IMAGE}")
    return "\n".join(rows) + "\n"


def section(table: AblationTable, rows: Sequence[Comparison]) -> str:
    """A table with its figures, what stands for what, and which rows moved otherwise."""
    labels = [figure.label for figure in table.figures]
    head = [f"## {table.title}\n", f"{table.about}\n"]
    head.append(f"| | {' | '.join(f'{label} | agreement' for label in labels)} | seeds |")
    head.append("|---" * (2 * len(labels) + 2) + "|")
    by_row: dict[str, list[Comparison]] = {}
    for one in rows:
        by_row.setdefault(one.row, []).append(one)
    body = [_row(table, label, cells) for label, cells in by_row.items()]
    notes = [f"\nCannot run: {row.label}, as {row.missing}." for row in table.rows if row.missing]
    notes += [f"\n{text}" for text in otherwise(rows)]
    if {one.ours.count for one in rows if one.ours is not None} == {1}:
        notes.append(f"\n{ONE_SEED}")
    if table.reading:
        notes.append(f"\n**Why.** {table.reading}")
    return "\n".join([*head, *body, *notes, ""])


def _row(table: AblationTable, label: str, cells: Sequence[Comparison]) -> str:
    name = f"**{label}**" if label == table.base else label
    counts = [one.ours.count for one in cells if one.ours is not None]
    seeds = " to ".join(map(str, sorted({min(counts), max(counts)}))) if counts else ""
    told = [part for one in cells for part in (_figure(one), one.verdict or "")]
    return f"| {name} | {' | '.join(told)} | {seeds} |"


def _figure(one: Comparison) -> str:
    ours = ""
    if one.ours is not None:
        ours = f"{100 * one.ours.mean:.1f}"
        if one.ours.deviation is not None:
            ours += f" ± {100 * one.ours.deviation:.1f}"
    theirs = "" if one.published is None else f"({one.published:g})"
    return " ".join(part for part in (ours, theirs) if part)


def otherwise(rows: Sequence[Comparison]) -> Iterator[str]:
    """A sentence for each figure that moved the other way."""
    for one in rows:
        if one.verdict == DIFFERS:
            change: Any = one.change
            yield (
                f"Unlike the paper: {one.row}, {one.figure}: {100 * change.mean:+.1f} points "
                f"here (standard error {100 * (one.error or 0):.1f}), "
                f"{one.published_change:+.1f} there."
            )
