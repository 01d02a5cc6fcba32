"""Writes the page of the documentation on the papers' ablations."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from published.compare import AGREES, DIFFERS, WITHIN, Comparison
from published.omitted import omitted_section
from published.photographs import photographs_section, read_records
from published.row import AblationTable

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
