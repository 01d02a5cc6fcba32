"""Prints the rejects of a job or run: reason, stage, key and detail, one line each."""

from pathlib import Path

from vlmill.runtime.console.command import print_status
from vlmill.runtime.files.reading import iter_batches, reject_counts
from vlmill.schemas.rejects import format_rejects
from vlmill.schemas.tables import REJECTS

COLUMNS = ("reason", "stage", "key", "detail")


def print_rejects(folder: str | Path) -> None:
    """Prints the rejects in ``folder`` separated by tabs, and their counts on standard error.

    Raises InputError for a folder without a table of rejects.
    """
    for batch in iter_batches(folder, REJECTS, columns=COLUMNS, flag="DIR"):
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            print("\t".join(" ".join((value or "").split()) for value in row))
    print_status(f"{folder}: {format_rejects(reject_counts(folder))}")
