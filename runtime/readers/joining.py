"""Matches ids of two tables: equal ids, else ids that name the same image."""

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

import numpy as np

from vlmill.runtime.readers.row_index import ABSENT, IdIndex, Numbers
from vlmill.schemas.errors import InputError
from vlmill.schemas.names import Difference

SAMPLES = 3


class Indexed(Protocol):
    """Defines a table whose rows are found by image_id."""

    @property
    def index(self) -> IdIndex:
        """Returns the index of the ids."""
        ...


class Join:
    """Finds rows of ``holding`` (a flag: --regions) by the ids of ``asking`` (--pairs).

    Equal ids match, at the cost of the index. A missing id matches the id whose name for an image
    differs least (:mod:`vlmill.schemas.names`). Raises InputError if several ids differ equally,
    and if two ids would match the same row: neither is guessed. Memory: one byte per row, and about
    300 bytes for each row that was matched by name.
    """

    def __init__(self, index: IdIndex, *, asking: str, holding: str) -> None:
        self._index, self._asking, self._holding = index, asking, holding
        self._equal = np.zeros(len(index), dtype=np.bool_)
        self._by_name: dict[str, int] = {}
        self._askers: dict[int, str] = {}
        self._counts: Counter[Difference] = Counter()
        self._samples: dict[Difference, tuple[str, str]] = {}

    def find(self, image_ids: Sequence[str]) -> Numbers:
        """Returns row numbers, ABSENT for images without a row. Raises InputError."""
        numbers = self._index.find(image_ids)
        equal = numbers[numbers != ABSENT]
        self._equal[equal] = True
        for row in equal.tolist() if self._askers else ():
            if row in self._askers:
                raise self._conflict(self._askers[row], self._index.get_id(row), row)
        for index in np.flatnonzero(numbers == ABSENT).tolist():
            numbers[index] = self._row_by_name(image_ids[index])
        return numbers

    def _row_by_name(self, image_id: str) -> int:
        if image_id in self._by_name:
            return self._by_name[image_id]
        matches = self._index.find_matches(image_id) if image_id else {}
        if not matches:
            return ABSENT
        name, *further_names = matches
        if further_names:
            raise InputError(
                f"{self._asking}: {image_id} may be {name} or {further_names[0]} of "
                f"{self._holding}; call "
                "images by the same ids in both"
            )
        row = self._index.number(name)
        if row in self._askers or self._equal[row]:
            raise self._conflict(image_id, self._askers.get(row, name), row)
        kind = matches[name]
        self._by_name[image_id], self._askers[row] = row, image_id
        self._counts[kind] += 1
        self._samples.setdefault(kind, (image_id, name))
        return row

    def _conflict(self, image_id: str, other: str, row: int) -> InputError:
        return InputError(
            f"{self._asking}: {image_id} and {other} would both be {self._index.get_id(row)} of "
            f"{self._holding}; call images by the same ids in both"
        )

    def summary(self) -> str:
        """Returns a sentence about matches by name; empty if all ids were equal or missing."""
        if not self._counts:
            return ""
        parts = []
        for kind, count in sorted(self._counts.items()):
            image_id, other = self._samples[kind]
            parts.append(f"{count} but for {kind} ({image_id} is {other})")
        return (
            f"{self._asking} and {self._holding} call {len(self._by_name)} images by different "
            f"ids; they met: {', '.join(parts)}"
        )

    def samples(self, image_ids: Sequence[str]) -> str:
        """Returns a few ids of both sides, for an error."""
        samples = range(min(len(self._index), SAMPLES))
        held = _join_ids([self._index.get_id(row) for row in samples])
        return f"{self._asking} has {_join_ids(image_ids)}, {self._holding} has {held}"


def _join_ids(image_ids: Sequence[str]) -> str:
    ids = list(islice((image_id for image_id in image_ids if image_id), SAMPLES))
    return " ".join(ids) if ids else "no ids"
