"""Fits a model, and reports its quality on the terminal and as a page next to the model."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from vlmill.pipelines.filters.fitting import FOLDS, LabelledRows, Labels, Validation, grow, validate
from vlmill.pipelines.filters.model_file import Model, write_model
from vlmill.runtime.console.bars import bar_chart, histogram
from vlmill.runtime.console.command import print_status
from vlmill.runtime.console.report import Section, html_table, settings_table, write_page

MOST_IMPORTANT = 15
MOST_DRAWN = 30
WARN_AUC = 0.7


def fit_model(
    args: argparse.Namespace,
    rows: LabelledRows,
    *,
    kind: str,
    title: str,
    settings: Mapping[str, Any],
    arrays: Mapping[str, npt.NDArray[Any]],
) -> int:
    """Fits a model, prints the report, and writes the model with its report page."""
    validation = validate(rows, seed=args.seed)
    model = Model(
        kind=kind,
        features=rows.names,
        threshold=args.threshold,
        trees=grow(rows.features, rows.labels, seed=args.seed),
        arrays=arrays,
        about={
            "labels": len(rows.labels),
            "positives": validation.positives,
            "auc": validation.auc,
        },
    )
    print("\n".join(report_lines(validation, rows.labels)))
    write_model(Path(args.output), model)
    report = Path(f"{args.output}.html")
    write_fit_report(report, title, validation, rows.labels, settings)
    print_status(f"{args.output} and {report.name} written")
    return 0


def report_lines(validation: Validation, labels: Labels) -> list[str]:
    """Returns the report as plain lines."""
    v = validation
    lines = [
        f"{v.rows} labels, {v.positives} of them 1; {FOLDS} folds, each scored by a "
        "model of the others",
        f"AUC {v.auc:.3f} (folds {min(v.auc_of_folds):.3f} to {max(v.auc_of_folds):.3f}), average "
        f"precision {v.average_precision:.3f}, AUC with shuffled labels {v.auc_of_shuffled:.3f}",
        "threshold  share above  precision  recall",
        *(f"{t:>9.1f}  {s:>11.3f}  {p:>9.3f}  {r:>6.3f}" for t, s, p, r in v.table(labels)),
        "features           AUC alone  AUC of all others",
        *(
            f"{name:<17}  {v.alone[name]:>9.3f}  "
            + (f"{v.without[name]:>17.3f}" if name in v.without else "")
            for name in v.alone
        ),
        "AUC lost where a feature is permuted:",
        *(f"{lost:>9.4f}  {name}" for name, lost in list(v.importances.items())[:MOST_IMPORTANT]),
    ]
    if v.auc < WARN_AUC:
        lines.append(f"warning: AUC {v.auc:.3f} is little better than guessing (0.5); label more")
    return [line.rstrip() for line in lines]


def write_fit_report(
    path: Path, title: str, validation: Validation, labels: Labels, settings: Mapping[str, Any]
) -> None:
    """Writes the report as one page of HTML."""
    v = validation
    table = [(f"{t:.1f}", f"{s:.3f}", f"{p:.3f}", f"{r:.3f}") for t, s, p, r in v.table(labels)]
    groups = [
        (name, f"{v.alone[name]:.3f}", f"{v.without.get(name, v.auc):.3f}") for name in v.alone
    ]
    important = dict(list(v.importances.items())[:MOST_DRAWN])
    by_label = {
        f"label {int(label)}": v.probabilities[labels == label].tolist() for label in (True, False)
    }
    sections = [
        Section(
            "Cross-validation",
            html_table(["threshold", "share above", "precision", "recall"], table),
            f"{v.rows} labels, {v.positives} of them 1. AUC {v.auc:.3f}, average precision "
            f"{v.average_precision:.3f}; with shuffled labels AUC {v.auc_of_shuffled:.3f}.",
        ),
        Section(
            "Groups of features",
            html_table(["features", "AUC alone", "AUC of all others"], groups),
            "What each gives alone, and what all others give without it.",
        ),
        Section(
            "Features",
            bar_chart(important, title="AUC lost, the most important"),
            "AUC that is lost where the values of one are permuted, mean of the folds.",
        ),
        *(
            Section(
                f"Probabilities, {name}",
                histogram(values, title=name, label="held-out probability"),
            )
            for name, values in by_label.items()
        ),
        Section("Settings", settings_table(settings)),
    ]
    write_page(path, title, sections)
