"""Reads labels that people have set: a file of ids with yes or no, and the labelled rows."""

import argparse
import csv
from collections.abc import Mapping
from pathlib import Path

from vlmill.runtime.files.paths import require_local
from vlmill.schemas.errors import InputError

YES, NO = ("1", "yes", "true", "y"), ("0", "no", "false", "n")
FEWEST_OF_A_CLASS = 10  # with fewer, five folds have less than two each
MAX_LABELS = 10_000_000
REMEDY = "one line for each: an id, a tab or a comma, and 1 or 0"


def read_labels(path: str | Path, *, flag: str = "--labels") -> dict[str, bool]:
    """Reads tab- or comma-separated ids and labels; further columns and a header are ignored.

    Raises InputError for a file that cannot be read, an invalid label, an id with both labels, and
    if one of the two classes has fewer than FEWEST_OF_A_CLASS.
    """
    labels: dict[str, bool] = {}
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            delimiter = "\t" if "\t" in file.readline() else ","
            file.seek(0)
            for number, cells in enumerate(csv.reader(file, delimiter=delimiter), start=1):
                _add(labels, cells, number, f"{flag} {path}")
    except InputError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{flag} {path}: {error}; give a text file, {REMEDY}") from None
    _check_classes(labels, f"{flag} {path}")
    return labels


def _add(labels: dict[str, bool], cells: list[str], number: int, argument: str) -> None:
    if not any(cell.strip() for cell in cells):
        return
    word = cells[1].strip().lower() if len(cells) > 1 else ""
    if word not in YES + NO:
        if number == 1 and word:
            return  # the header
        raise InputError(f"{argument}: line {number} has the label {word!r}; give {REMEDY}")
    name, label = cells[0].strip(), word in YES
    if labels.setdefault(name, label) != label:
        raise InputError(
            f"{argument}: {name} is both 1 and 0 (line {number}); remove one of the lines"
        )
    if len(labels) > MAX_LABELS:
        raise InputError(f"{argument}: more than {MAX_LABELS} labels; give a sample of them")


def _check_classes(labels: Mapping[str, bool], argument: str) -> None:
    yes = sum(labels.values())
    for label, count in ((1, yes), (0, len(labels) - yes)):
        if count < FEWEST_OF_A_CLASS:
            raise InputError(
                f"{argument}: {count} of {len(labels)} ids have the label {label}, at least "
                f"{FEWEST_OF_A_CLASS} of each are needed; label more"
            )


def require_rows(labels: Mapping[str, bool], rows: Mapping[str, object], argument: str) -> None:
    """Raises InputError if a labelled id has no row; ``argument`` names the searched table.

    Nothing is fitted on the remaining rows: unmatched ids mostly come from another table.
    """
    if absent := [name for name in labels if name not in rows]:
        raise InputError(
            f"--labels: {len(absent)} of {len(labels)} ids have no row in {argument} "
            f"({', '.join(absent[:3])}); give the table that was labelled"
        )


def add_fit_flags(p: argparse.ArgumentParser, counted: str) -> None:
    """Adds the flags of the jobs that fit a model on labels; ``counted`` describes its values."""
    p.add_argument("--labels", required=True, metavar="FILE", help="file with ids and labels")
    p.add_argument("--output", required=True, metavar="FILE", help="model file to write")
    p.add_argument("--threshold", type=float, default=0.5, help=f"lowest {counted} (default: 0.5)")
    p.add_argument(
        "--seed", type=int, default=0, help="seed of folds and permutations (default: 0)"
    )


def require_fit_flags(args: argparse.Namespace) -> None:
    """Raises InputError for a threshold that is no probability, and for a remote model file."""
    require_local("--output", args.output)
    if not 0 <= args.threshold <= 1:
        raise InputError(f"--threshold {args.threshold}: must be in 0..1")
