"""``report.html`` of a pretraining run: what went in, how the losses fell, the settings."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from tokenizers import Tokenizer

from vlmill.runtime.console.log import read_log
from vlmill.runtime.console.report import (
    Section,
    funnel_table,
    html_table,
    line_chart,
    settings_table,
    write_page,
)
from vlmill.runtime.settings.plain_fields import flatten, to_plain
from vlmill.schemas.rejects import Reason
from vlmill.train.loading.store.table import SampleTable
from vlmill.train.recipes import RunSettings
from vlmill.train.run.learning import Criterion

NUM_SAMPLES = 8
TITLES = {"pretrain": "Pretraining", "finetune": "Fine-tuning"}


def write_report(
    output: Path,
    recipe: RunSettings,
    table: SampleTable,
    tokenizer: Tokenizer,
    counts: Counter[str],
    criterion: Criterion,
) -> None:
    """Write the report of the run in ``output``, whose best checkpoint is so by ``criterion``."""
    lines = read_log(output / "log.jsonl")
    rejects = {k: n for k, n in counts.items() if k in set(Reason)}
    funnel = {
        "stage": "pairs to train on",
        "in": counts["kept"] + sum(rejects.values()),
        "out": counts["kept"],
        "rejects": rejects,
    }
    texts = [
        (table.pair_id(row), tokenizer.decode(table.tokens(row).tolist()))
        for row in range(min(NUM_SAMPLES, len(table)))
    ]
    sections = [
        Section(title="Pairs", body=funnel_table([funnel]), intro=_cut(counts)),
        *_curves(lines, criterion),
        Section(
            title="Captions as the model reads them", body=html_table(["pair_id", "text"], texts)
        ),
        Section(title="Settings", body=settings_table(flatten(to_plain(recipe)))),
    ]
    subtitle = f"{recipe.name}, {lines[-1]['step'] if lines else 0} steps"
    write_page(output / "report.html", TITLES[recipe.command], sections, subtitle=subtitle)


def _cut(counts: Counter[str]) -> str:
    if not counts["cut"]:
        return ""
    return f"{counts['cut']} captions were longer than the model takes, and cut at their end."


def _curves(lines: list[dict[str, Any]], criterion: Criterion) -> list[Section]:
    if not lines:
        return []
    rates = line_chart(
        {"lr": ([line["step"] for line in lines], [line["lr"] for line in lines])},
        title="Learning rate",
        x_label="step",
        y_label="lr",
    )
    intro = "Unweighted losses by objective, and their weighted sum."
    sections = [Section(title="Losses", body=loss_chart(lines), intro=intro)]
    if measured := [line for line in lines if "validation/loss" in line]:
        sections.append(
            Section(
                title="Validation losses",
                body=Markup("{}{}").format(
                    loss_chart(measured, "validation/", "Validation losses"),
                    validation_table(measured, criterion),
                ),
                intro="Losses of held-out pairs, means over their labels, and their weighted sum; "
                f"the checkpoint of the {'highest' if criterion.highest else 'lowest'} "
                f"{criterion.name} is the best.",
            )
        )
    return [*sections, Section(title="Learning rate", body=rates)]


def loss_chart(
    lines: Sequence[Mapping[str, Any]], prefix: str = "loss", title: str = "Losses"
) -> Markup:
    """The curves of every loss whose name begins with ``prefix`` in the lines of a log."""
    curves = {}
    for name in sorted({name for line in lines for name in line if name.startswith(prefix)}):
        having = [line for line in lines if name in line]  # stages may differ in their objectives
        curves[name] = ([line["step"] for line in having], [line[name] for line in having])
    return line_chart(curves, title=title, x_label="step", y_label="loss", log=True)


def validation_table(lines: Sequence[Mapping[str, Any]], criterion: Criterion) -> Markup:
    """Returns the first, best and last measurement of the held-out pairs."""
    best = min(lines, key=lambda line: (criterion.rank(criterion.get_value(line)), line["step"]))
    rows = [
        [when, line["step"], f"{criterion.get_value(line):.4f}"]
        for when, line in (("first", lines[0]), ("best", best), ("last", lines[-1]))
    ]
    return html_table(["", "step", criterion.name], rows)
