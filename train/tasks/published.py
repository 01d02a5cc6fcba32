"""Reads the figures that the papers report, and shows them next to our figures in a report.

``published.toml`` is the single source of these numbers, in percent as printed.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vlmill.runtime.console.report import Section, html_table
from vlmill.train.tasks.scores import percent

NOT_REPORTED = "-"
FILE = Path(__file__).parent / "published.toml"
PAPERS_TITLE = "Comparison with the papers"


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """Holds a model's row of a paper's table: ``figures`` in percent as printed, by our metric
    names.

    ``paper`` is the one whose table has the row; for a reference system, the paper that quotes it.
    ``setting``: the data, or the candidate boxes.
    """

    task: str
    paper: str
    model: str
    setting: str
    figures: Mapping[str, str]


@cache
def _file() -> dict[str, Any]:
    with FILE.open("rb") as file:
        return tomllib.load(file)


def published_rows(task: str, metrics: Iterable[str] | None = None) -> list[PublishedRow]:
    """Returns the rows of a task that report one of ``metrics`` (None: any), in the papers' order.

    A task that is in no paper has no rows.
    """
    metric_names = None if metrics is None else set(metrics)
    rows = []
    for table in _file()["table"]:
        if table["task"] != task:
            continue
        for paper, model, setting, printed in table["rows"]:
            values = zip(table["metrics"], printed.split(), strict=True)
            figures = {name: value for name, value in values if value != NOT_REPORTED}
            if metric_names is None or metric_names & figures.keys():
                rows.append(
                    PublishedRow(
                        task=task, paper=paper, model=model, setting=setting, figures=figures
                    )
                )
    return rows


def cautions(task: str) -> list[str]:
    """Returns the caveats about a task's published figures."""
    return [caution["text"] for caution in _file()["caution"] if caution["task"] == task]


def published_section(
    task: str, figures: Mapping[str, float | None], metrics: Sequence[str], *, model: str
) -> Section:
    """Returns the part of a report that has our figures and, below, every published row.

    ``metrics`` are the columns: names of ``figures`` (fractions; with ``_stderr`` where available)
    and of the published file. A value that one side lacks is a dash.
    """
    rows = published_rows(task, metrics)
    run_cells = [
        Markup("<b>{}</b>").format(_cell(figures, name, _decimals(rows, name))) for name in metrics
    ]
    table = html_table(
        ["paper", "model", "data", *(_title(name, task) for name in metrics)],
        [
            [Markup("<b>this run</b>"), model, "", *run_cells],
            *(
                [row.paper, row.model, row.setting, *(row.figures.get(m, "–") for m in metrics)]
                for row in rows
            ),
        ],
    )
    notes = [Markup("<p><small>{}</small></p>").format(text) for text in cautions(task)]
    return Section(
        title=PAPERS_TITLE,
        intro="In percent, with this run's standard error. The papers' figures are as "
        "printed, on the data named in their row; compare only figures on the same data.",
        body=Markup("").join([table, *notes]),
    )


def _decimals(rows: Sequence[PublishedRow], metric: str) -> int:
    """Returns how many decimals the papers print of this metric, one at least."""
    printed = [row.figures[metric] for row in rows if metric in row.figures]
    return max((len(value.partition(".")[2]) for value in printed), default=1)


def _cell(figures: Mapping[str, float | None], name: str, decimals: int) -> str:
    value, error = figures.get(name), figures.get(f"{name}_stderr")
    if value is None:
        return "–"
    text = percent(value, decimals)
    return text if error is None else f"{text} ± {percent(error, decimals)}"


def _title(name: str, task: str) -> str:
    return name.removeprefix(f"{task}/").replace("_", " ").replace("/", " ")
