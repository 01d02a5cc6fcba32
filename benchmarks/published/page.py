"""The page of the documentation that says how the papers' ablations come out here."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from published.compare import AGREES, DIFFERS, WITHIN, Comparison
from published.row import AblationTable

INTRO = """# Reproduction

This page is written by `make reproduce` from `benchmarks/results/reproduction.jsonl`: do not edit
it.

The papers' ablations on the generated world: a row is a small model with the same thing changed,
pretrained on 3,000 pairs of images and captions, and measured on the row's task with 300 images
of which training shows no combination. The figures themselves are not comparable: the models have
a few million parameters, the world a few words. What is compared is the way a row moves beside the
base of its table. A change is told from none where it is larger than two standard errors, of what
was asked or of the seeds, whichever is larger. The spread of seeds is pooled over a table's rows; a
table with one seed a row does not know it, says so, and may turn round with the next. Published
figures have a spread as well, which the papers do not tell (300 images: 0.03 or less; the papers'
1,000: 1.6 points at most).

Each cell holds the figure here in percent, with its standard deviation where several seeds were
run, and the paper's in parentheses. `make reproduce` takes hours, adds what is missing and goes on
where it was stopped; `python benchmarks/reproduce.py` is its short form; `python
benchmarks/reproduce.py --full --list` says what is missing. What stands under "Why" is read from
the logs of the seeds that were run first.

The steps of some tasks were raised once, for all rows of a table alike, after a first run of seed 0
had been seen, as its logs showed losses that had hardly begun to fall. Questions had 400 steps
before: ViLBERT of 2, 4 and 6 layers then answered 48.2, 49.1 and 40.4 %, the other way round than
in the paper; VL-BERT 54.3 %, and 53.2 % without pretraining. Expressions had 400 (VL-BERT 72.2 %,
80.3 % without pretraining), and entailment (BERT 55.1 %, one stream 74.8 %, InterBERT 77.3 %). No
figure of VLMo's was known then.
"""
IMAGE = """![What changes beside each table's base, here with two standard errors to both
sides, and in the paper](images/reproduction.svg)

Points that a row gains or loses beside the base of its table."""
ONE_SEED = "One seed a row: the errors are of what was asked alone."
ByTable = Mapping[str, Sequence[Comparison]]


def page(tables: Sequence[AblationTable], by_table: ByTable) -> str:
    """The whole page; rows that were not run yet stand there with the paper's figures alone."""
    parts = [INTRO, summary(tables, by_table)]
    parts += [section(table, by_table[table.key]) for table in tables]
    return "\n".join(parts)


def summary(tables: Sequence[AblationTable], by_table: ByTable) -> str:
    """How many changes agree, table by table, and all of them in an image."""
    rows = ["## What agrees\n", "| table | agree | within error | differ | to be measured |"]
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
    head.append(f"| | {' | '.join(f'{label} | as there' for label in labels)} | seeds |")
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
                f"Otherwise than there: {one.row}, {one.figure}: {100 * change.mean:+.1f} points "
                f"here (standard error {100 * (one.error or 0):.1f}), "
                f"{one.published_change:+.1f} there."
            )
