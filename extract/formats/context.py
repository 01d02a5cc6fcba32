"""Defines the inputs of a reader besides the file: image sizes, and numbers of class names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlmill.extract.formats.records import MAX_ID, BadRecord, Record
from vlmill.extract.formats.sizes import ENDING, Sizes, read_sizes
from vlmill.runtime.readers.class_names import read_lines
from vlmill.schemas.errors import InputError
from vlmill.schemas.rejects import Reason

# A function that reads a record, so that records imported by an earlier run are skipped.
Item = Callable[[], Record]


class Vocabulary:
    """Numbers names by the user's list, else in the order of their appearance."""

    def __init__(self, names: Sequence[str] = (), *, flag: str) -> None:
        self.names, self._flag, self._is_closed = list(names), flag, bool(names)
        self._numbers = {name: number for number, name in enumerate(self.names)}

    def number(self, name: str) -> int:
        """Returns a name's number from 0. Raises BadRecord for a name without a number."""
        number = self._numbers.get(name)
        if number is not None:
            return number
        if self._is_closed or len(self.names) > MAX_ID:
            what = f"is not in {self._flag}" if self._is_closed else f"is one of over {MAX_ID:,}"
            raise BadRecord(f"the name {name[:80]!r} {what}", Reason.LABEL_UNKNOWN)
        self._numbers[name] = len(self.names)
        self.names.append(name)
        return len(self.names) - 1

    @property
    def is_closed(self) -> bool:
        """Returns whether the user gave the list."""
        return self._is_closed


@dataclass
class Context:
    """Holds the shared state of the readers of one import.

    ``sizes`` are the user's. A reader sets ``done`` to the fraction of its source that it has read.
    ``states_sizes``: a record of the source has stated its size.
    """

    sizes: Sizes | None = None
    classes: Vocabulary = field(default_factory=lambda: Vocabulary(flag="--classes"))
    attributes: Vocabulary = field(default_factory=lambda: Vocabulary(flag="--attributes"))
    done: float = 0.0
    states_sizes: bool = False

    def use_names_near(self, path: Path) -> None:
        """Uses the names of classes and attributes that an export has written next to ``path``.

        Names from the user or from an earlier source take precedence.
        """
        for what in ("classes", "attributes"):
            file = path.with_name(f"{what}.json")
            if file.is_file() and not getattr(self, what).is_closed:
                setattr(self, what, Vocabulary(read_lines(file, "FILE"), flag=str(file)))

    def sizes_near(self, path: Path) -> Sizes | None:
        """Returns the user's sizes, else the sizes that an export has written next to ``path``."""
        if self.sizes is not None:
            return self.sizes
        path = path.absolute()  # "." has no name
        file = path.with_name(f"{path.name}{ENDING}")
        return read_sizes(str(file)) if file.is_file() else None

    def require_size(
        self, fields: dict[str, Any], sizes: Sizes | None, file: Path, layout: str
    ) -> None:
        """Sets the size of an image whose record does not state it, as :meth:`add_size`.

        Raises BadRecord, not InputError, if earlier records of the source state theirs.
        """
        if {"image_w", "image_h"} <= fields.keys():
            self.states_sizes = True
        elif sizes is None and self.states_sizes:
            raise BadRecord("no width and height; give --sizes for such images")
        else:
            self.add_size(fields, sizes, file, layout)

    def add_size(
        self, fields: dict[str, Any], sizes: Sizes | None, file: Path, layout: str
    ) -> None:
        """Sets the size of an image whose file does not state it.

        Raises InputError without sizes, and BadRecord if they lack this image.
        """
        if sizes is None:
            raise InputError(
                f"FILE {file}: {layout}, without the sizes of the images; give --sizes FILE (a "
                "table of images, COCO's JSON, or lines of id, width and height), or --sizes "
                "WIDTHxHEIGHT for all"
            )
        size = sizes.find(str(fields["image_id"]))
        if size is None:
            detail = f"no size of this image in --sizes, whose ids are like {sizes.example[:100]}"
            raise BadRecord(detail, Reason.NO_IMAGE)
        fields["image_w"], fields["image_h"] = size
