"""Reads the pickles of many records, in which the same instructions repeat with other values.

The safe reader (:mod:`~vlmill.models.convert.plain_pickle`) executes each instruction in Python. It
reads the first pickle of a kind. A later pickle with the same instructions, in the same order and
with the same indexes, is as safe: only the contents of its texts, bytes and numbers differ, and
each is checked to end inside the pickle. Python's own unpickler reads it, with the same few names.
The bytes of arrays are not copied: an instruction that requests them by number replaces them.
"""

import io
import pickle
import pickletools
import re
from collections import deque
from typing import Any, NamedTuple

from vlmill.models.convert.plain_pickle import MAX_RECORD, BadPickle, find_name, loads

MAX_KINDS = 8
MAX_LEARNT = (
    64  # kinds: in a file where every pickle is of another kind, the search only costs time
)
MAX_INSTRUCTIONS = 1_000  # of a pickle whose kind is remembered: records have some 300
MAX_FIXED = 4096  # bytes of a step
MAX_VIEWS = 256  # whose numbers fit the instruction
# The bytes of a number, and those that hold the length of a text or of bytes.
NUMBERS = {"BININT1": 1, "BININT2": 2}
TEXTS = {"SHORT_BINUNICODE": 1, "BINUNICODE": 4, "SHORT_BINBYTES": 1}
INDEXES = {"PUT", "BINPUT", "LONG_BINPUT"}
VIEWS = {"BINBYTES": 4, "BINBYTES8": 8, "BYTEARRAY8": 8}
# What every record repeats, such as versions, names of entries, modules and types.
SMALLEST_NUMBER = 4
REPEATED = re.compile(r"[A-Za-z_.<>|=]{1,24}|[a-z][0-9]")
FRAME = "FRAME"  # states the bytes up to the next one, and is not needed
FRAME_BYTES = 8


class Step(NamedTuple):
    """Holds instructions that a pickle must repeat exactly, and the value that follows them.

    ``fixed`` ends with the instruction of the value; ``reduced`` is what remains of it. The value
    has ``number`` bytes, or a length of ``length`` bytes before it.
    """

    fixed: bytes
    reduced: bytes
    number: int = 0
    length: int = 0
    is_view: bool = False


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, views: list[memoryview]) -> None:
        super().__init__(io.BytesIO(data), encoding="latin1")
        self._views = views

    def persistent_load(self, number: int) -> memoryview:
        return self._views[number]

    def find_class(self, module: str, name: str) -> Any:
        return find_name(module, name)


class SimilarPickles:
    """Reads pickles. Remembers the instructions of the last :data:`MAX_KINDS` kinds."""

    def __init__(self) -> None:
        self._kinds: deque[list[Step]] = deque(maxlen=MAX_KINDS)
        self._learnt = 0

    def loads(self, data: bytes | memoryview) -> Any:
        """Reads plain data, as :func:`~vlmill.models.convert.plain_pickle.loads`; arrays are views
        of ``data``. Raises BadPickle.
        """
        view = memoryview(data)
        for steps in tuple(self._kinds) if len(data) <= MAX_RECORD else ():
            if steps and (reduced := _reduce(view, steps)) is not None:
                try:
                    return _Unpickler(*reduced).load()
                except BadPickle:
                    raise
                except Exception:
                    raise BadPickle("a damaged pickle") from None
        value = loads(data)
        if self._learnt < MAX_LEARNT:
            self._learnt += 1
            self._kinds.appendleft(_find_steps(bytes(data)))
        return value


def _find_steps(data: bytes) -> list[Step]:
    """Returns the steps of a valid pickle.

    None if it has too many instructions, long texts of Python 2, or an index for which Python's
    unpickler would reserve memory.
    """
    steps, start, views = list[Step](), 0, 0
    for count, (code, value, position) in enumerate(pickletools.genops(data)):
        assert position is not None
        name, end = code.name, position + 1
        is_large = name in INDEXES and int(value or 0) > MAX_INSTRUCTIONS
        if count > MAX_INSTRUCTIONS or views == MAX_VIEWS or is_large or end - start > MAX_FIXED:
            return []
        fixed = data[start:end]
        if name == FRAME:
            steps.append(Step(fixed, fixed[:-1], number=FRAME_BYTES))
            start = end + FRAME_BYTES
        elif name in NUMBERS and int(value or 0) >= SMALLEST_NUMBER:
            steps.append(Step(fixed, fixed, number=NUMBERS[name]))
            start = end + NUMBERS[name]
        elif length := VIEWS.get(name) or (not is_repeated(value) and TEXTS.get(name)):
            is_view = name in VIEWS
            steps.append(Step(fixed, fixed[:-1] if is_view else fixed, 0, length, is_view))
            views += is_view
            start = end + length + int.from_bytes(data[end : end + length], "little")
        elif name == "STOP":
            steps.append(Step(data[start:end], data[start:end]))
    return steps


def is_repeated(value: object) -> bool:
    """Returns whether all records of a kind are likely to have a text."""
    return isinstance(value, str) and REPEATED.fullmatch(value) is not None


def _reduce(data: memoryview, steps: list[Step]) -> tuple[bytes, list[memoryview]] | None:
    """Returns a pickle without the bytes of its arrays, and these; None unless it has ``steps``."""
    reduced, views = list[bytes | memoryview](), list[memoryview]()
    position = 0
    for fixed, remains, number, length, is_view in steps:
        end = position + len(fixed)
        if data[position:end] != fixed:
            return None
        reduced.append(remains)
        if length:
            size = int.from_bytes(data[end : end + length], "little")
            position = end + length + size
        else:
            position = end + number
        if position > len(data):
            return None
        if is_view:
            reduced.append(b"K%cQ" % len(views))
            views.append(data[end + length : position])
        elif len(remains) == len(fixed):  # not of a frame
            reduced.append(data[end:position])
    return b"".join(reduced), views
