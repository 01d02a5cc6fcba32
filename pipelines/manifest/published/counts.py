"""Compares the number of rows with the published numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vlmill.pipelines.manifest.entries import IMAGE_STAGE, Expected, Reading
from vlmill.pipelines.manifest.layouts.boxes import OTHER_SIZE, SWAPPED
from vlmill.runtime.files.reading import iter_batches
from vlmill.schemas.tables import REJECTS


class Count(NamedTuple):
    """Holds a group's number of rows: read, and published (None if unknown)."""

    group: str
    rows: int
    published: int | None
    verified: bool
    source: str


def compare_counts(groups: Mapping[str, int], expected: Mapping[str, Expected]) -> list[Count]:
    """Returns each group that was read or is expected, in the order of the published files."""
    order = [*expected, *(group for group in groups if group not in expected)]
    counts = [_count(group, groups.get(group, 0), expected.get(group)) for group in order if group]
    return [count for count in counts if count.rows or count.published]


def _count(group: str, rows: int, expected: Expected | None) -> Count:
    if expected is None:
        return Count(group, rows, None, True, "")
    return Count(group, rows, expected.rows, expected.verified, expected.source)


def format_warnings(counts: list[Count]) -> list[str]:
    """Returns a line for each group whose number of rows differs from the published one."""
    return [_warning(c) for c in counts if c.published is not None and c.rows != c.published]


def _warning(count: Count) -> str:
    if not count.verified:
        return (
            f"note: {count.group} has {count.rows} rows; the published figure "
            f"{count.published} is from a secondary source ({count.source})"
        )
    if count.group == IMAGE_STAGE:
        return f"warning: {count.rows} images are named, the published set has {count.published}"
    return f"warning: {count.group} has {count.rows} rows, the published file {count.published}"


def format_no_image_warning(counts: list[Count], output: Path) -> str:
    """Returns a warning that none of the named images is in the table, with the first reject."""
    num_images = sum(count.rows for count in counts if count.group == IMAGE_STAGE)
    batches = iter_batches(output, REJECTS, columns=["stage", "reason", "detail"])
    rows = (row for batch in batches for row in batch.to_pylist())
    first = next((row for row in rows if row["stage"] != "rows"), None)
    parts = filter(None, (first["reason"], first["detail"])) if first else ()
    why = f" ({': '.join(parts)})" if first else ""
    return (
        f"warning: the table of images is empty: none of the {num_images} named images could be "
        "read"
        f"{why}; name the folder that holds them, --images DIR"
    )


def counts_table(counts: list[Count]) -> list[list[str]]:
    """Returns the counts as cells: group, read, published, missing, and the figure's source."""
    return [
        [c.group, f"{c.rows:,}", _format_number(c.published), _missing(c), _source(c)]
        for c in counts
    ]


# Notes that are warnings, because the rows may be wrong.
WARNED = {
    SWAPPED: "the published width and height are swapped, or the boxes only fit if they are",
    OTHER_SIZE: "the stored image has a different size from the published one, to which "
    "the boxes refer; use the published files, unscaled",
}


def format_note(note: str, number: int) -> str:
    """Returns a line about a note and its number of rows."""
    if note in WARNED:
        return f"warning: {note} of {number} rows: {WARNED[note]}"
    return f"noted: {note} of {number} rows"


HEADER = ("rows of", "read", "published", "missing", "figure")


def format_counts(counts: list[Count]) -> list[str]:
    """Returns the table for a terminal."""
    rows = [list(HEADER), *counts_table(counts)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    return [
        "  ".join(
            [row[0].ljust(widths[0])] + [row[i].rjust(widths[i]) for i in (1, 2, 3)] + [row[4]]
        ).rstrip()
        for row in rows
    ]


def _format_number(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _missing(count: Count) -> str:
    if count.published is None:
        return ""
    return f"{count.published - count.rows:,}"


def _source(count: Count) -> str:
    return count.source if count.verified else f"{count.source} (second hand)"


Unread = tuple[str, list[str], list[str]]
"""A file, its columns and keys that nothing reads, and its repeated keys of an object."""


def list_unread(reading: Reading) -> list[Unread]:
    """Returns the unread and repeated keys of each file that has some."""
    remarks = [(source.name, source.remarks) for source in reading.sources]
    return [
        (name, list(file_remarks.unread), list(file_remarks.repeated))
        for name, file_remarks in remarks
        if file_remarks.unread or file_remarks.repeated
    ]


def format_unread(file: Sequence[Any]) -> str:
    """Returns a line about one file's keys."""
    name, unread, repeated = file
    parts = [f"not read are {', '.join(unread)}"] if unread else []
    if repeated:
        parts.append(
            f"keys that occur twice in one object (the last one is used): {', '.join(repeated)}"
        )
    return f"warning: of {name} {'; '.join(parts)}"
