"""Decides how a file numbers classes: the column of the background, and the first class's number.

Tables number classes and attributes from 0 without the background. For files of other projects a
flag decides, then the statement of the file or its format, then a number of columns or an id that
fits only one convention (:func:`choose_numbering`, :class:`IdCheck`).
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vlmill.extract.formats.records import NO_CLASS, Array, BadRecord, FileRow
from vlmill.schemas.errors import InputError

# Visual Genome's detectors have 1,600 classes. Caffe's and ViLBERT's files have the background
# before them; the files of MMF and of MILVLG's Detectron2 port omit it.
KNOWN_COLUMNS = {1600: "none", 1601: "first"}
# Numbers of classes and attributes of the detectors of MILVLG's port.
PORT_NUMBERS = {"class_ids": 1600, "attribute_ids": 400}


@dataclass(frozen=True, kw_only=True)
class Numbering:
    """Records how a file numbers classes.

    ``background`` is None if nothing states it; ``classes_from`` is None if 0 is assumed.
    """

    background: str | None = None
    classes_from: int | None = None
    is_stated: bool = False  # by the file, not a flag: rows with another background are invalid

    @property
    def stored_background(self) -> str | None:
        """Returns the background's column in a table: a last column becomes the first one."""
        return "first" if self.background == "last" else self.background


class CountedFromOne(Exception):
    """Raised, with the id, if an id shows that a file numbers classes from 1."""


def choose_numbering(
    row: FileRow | None, flags: Numbering, name: str, note: Callable[[str], None]
) -> Numbering:
    """Returns how a file numbers classes, from ``row``, its first row with a box.

    ``name`` is the file's name in messages; ``note`` is called with each assumption. Raises
    InputError if class ids depend on an unstated convention.
    """
    if row is None:
        return flags
    classes_from = row.classes_from if flags.classes_from is None else flags.classes_from
    background = flags.background or row.background
    if row.class_probs is not None and background is None:
        columns = row.class_probs.shape[1]
        background = KNOWN_COLUMNS.get(columns)
        if background is not None:
            note(
                f"note: FILE {name}: nothing states where the background is; {columns:,} columns "
                f"of cls_prob are read as --background {background}"
            )
        elif row.class_ids is None:
            raise InputError(
                f"FILE {name}: cls_prob has {columns} columns, and nothing states which of them is "
                "the background; give --background first, last or none"
            )
        else:
            note(
                f"note: FILE {name}: nothing states which of the {columns} columns of cls_prob is "
                "the background; class ids are the file's own, distributions are kept as they are "
                "(--background first, last or none)"
            )
    return Numbering(
        background=background, classes_from=classes_from, is_stated=flags.background is None
    )


def apply_numbering(row: FileRow, numbering: Numbering) -> FileRow:
    """Returns the row with classes and attributes from 0 and the background first or omitted.

    Classes are the file's own ids, else the most likely ones of the distribution without
    background. Raises BadRecord.
    """
    background = numbering.background
    if numbering.is_stated and len(row.boxes) and row.background not in (None, background):
        raise BadRecord(f"background is {row.background}, of those before {background}")
    changes: dict[str, Any] = {}
    if numbering.classes_from == 1:
        for name in ("class_ids", "attribute_ids"):
            if (ids := getattr(row, name)) is not None:
                changes[name] = np.maximum(ids - 1, NO_CLASS).astype(np.int16)
    probs = row.class_probs
    if probs is not None and background == "last":
        probs = changes["class_probs"] = np.roll(probs, 1, axis=1)
    if probs is not None and row.class_ids is None:
        if background is None and len(probs):
            raise BadRecord("no objects_id, and the background of cls_prob is unknown")
        changes |= find_most_likely(probs if background == "none" else probs[:, 1:])
    return dataclasses.replace(row, **changes) if changes else row


def find_most_likely(foreground: Array) -> dict[str, Array]:
    """Returns the most likely classes and their scores from distributions without background."""
    if not foreground.size:
        count = len(foreground)
        return {
            "class_ids": np.full(count, NO_CLASS, np.int16),
            "class_scores": np.zeros(count, "<f4"),
        }
    return {
        "class_ids": foreground.argmax(axis=1).astype(np.int16),
        "class_scores": foreground.max(axis=1),
    }


def are_columns(ids: Array, probs: Array) -> bool:
    """Returns whether ids [n] are the largest columns of distributions [n, K], with the background
    in the first, and not the largest of the other columns.
    """
    if not (ids == probs.argmax(axis=1)).all():
        return False
    return bool((ids != probs[:, 1:].argmax(axis=1)).any())


class IdCheck:
    """Checks the ids of a file's rows for one that shows the number of the first class.

    An id that equals the number of classes shows that ids start at 1. The number of classes is that
    of the distribution's columns, or in files like those of MILVLG's port (``port``) that of its
    detectors. Ids that are the largest columns of a distribution with the background first show it,
    too: vilbert-multi-task and MMF write these with ``--background``. ``recognised``: an earlier
    pass over the file has found such an id.
    """

    def __init__(self, numbering: Numbering, *, port: bool, recognised: bool, name: str) -> None:
        self._background, self._name = numbering.background, name
        self._port, self._recognised = port, recognised
        self._is_open = recognised or numbering.classes_from is None
        self._has_port_ids = False
        self._compares_columns = self._is_open and self._background == "first"

    def look(self, row: FileRow) -> None:
        """Checks one row in the form of its file.

        Raises CountedFromOne for an id that shows it, and InputError for ids that contradict each
        other.
        """
        if not self._is_open:
            return
        highest = {
            name: int(ids.max())
            for name in PORT_NUMBERS
            if (ids := getattr(row, name)) is not None and len(ids)
        }
        if not highest:
            return
        self._has_port_ids |= self._port
        if self._port and any(highest[name] > PORT_NUMBERS[name] for name in highest):
            if self._recognised:
                raise InputError(
                    f"FILE {self._name}: some ids count classes from 1, but "
                    f"{row.image_id} has an id above the last of Visual Genome's "
                    "detectors; give --classes-from 0 or 1"
                )
            self._port = False
        if self._recognised:
            return
        if self._compares_columns and row.class_probs is not None and row.class_ids is not None:
            self._compares_columns = not len(row.class_ids)  # the first row with boxes shows it
            if are_columns(row.class_ids, row.class_probs):
                what = (
                    f"the distribution of {row.image_id}, whose largest columns are its class ids,"
                )
                raise CountedFromOne(what)
        for name, limit in self._limits(row).items():
            if highest.get(name) == limit:
                what = name.replace("_ids", " id")
                raise CountedFromOne(f"{what} {limit} of {row.image_id}")

    def state(self) -> list[bool]:
        """Returns the state after the rows so far, for an import that continues."""
        return [self._port, self._has_port_ids]

    def restore(self, state: Sequence[bool]) -> None:
        """Restores the state that :meth:`state` returned."""
        self._port, self._has_port_ids = state

    def _limits(self, row: FileRow) -> dict[str, int]:
        limits = dict(PORT_NUMBERS) if self._port else {}
        if row.class_probs is not None and self._background is not None:
            limits["class_ids"] = row.class_probs.shape[1] - (self._background != "none")
        return limits

    def assumption(self) -> str | None:
        """Returns the unproven assumption as text; None without one."""
        if not self._has_port_ids or self._recognised:
            return None
        return (
            f"note: FILE {self._name}: no id shows from which number classes are counted; 0 is "
            "assumed. MILVLG's files from before September 2020 count from 1 (--classes-from 1)"
        )
