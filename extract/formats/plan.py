"""Defines the information that a writer needs before its first row."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from vlmill.extract.formats.sizes import ENDING
from vlmill.extract.formats.unfinished import Unfinished
from vlmill.runtime.readers.regions import RegionRow

Rows = Iterator[RegionRow]


@dataclass(frozen=True, kw_only=True)
class ExportPlan:
    """Describes the rows of one export.

    ``payloads`` are the fields of :data:`~vlmill.extract.formats.records.KINDS` that are written in
    addition to boxes and features; ``stated`` is how classes are numbered; ``made_by`` is the
    record of the detector and the selection. ``count`` rows have ``num_boxes`` boxes in total;
    ``every`` is the number of boxes per row if it is constant, else None. Features are ``width``
    wide. ``classes`` and ``attributes`` are names, for the formats that have names. ``image_ids``
    are those of all rows, in their order.
    """

    name: str
    payloads: tuple[str, ...]
    stated: Mapping[str, Any]
    made_by: Mapping[str, Any]
    count: int
    num_boxes: int
    every: int | None
    width: int
    probs_width: int = 0
    classes: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    image_ids: Sequence[str] = field(default=(), repr=False)

    @cached_property
    def made_by_text(self) -> str:
        """Returns ``made_by`` as JSON."""
        return json.dumps(self.made_by, sort_keys=True)


def size_lines(files: Unfinished) -> Callable[[RegionRow], None]:
    """Returns a function that writes a row's id and size to ``PATH_sizes.tsv``."""
    file = files.open_file(files.path.with_name(f"{files.path.name}{ENDING}"))

    def write(row: RegionRow) -> None:
        file.write(f"{row.image_id}\t{row.width}\t{row.height}\n".encode())

    return write
