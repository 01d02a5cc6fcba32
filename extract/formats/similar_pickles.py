"""Reads the pickles of many records, in which the same instructions repeat with other values.

The safe reader (:mod:`~vlmill.models.convert.plain_pickle`) executes each instruction in Python. It
reads the first pickle of a kind twice. The second time each text, number and array of bytes that
may differ is replaced by a :class:`Hole`, so the result shows the structure. A later pickle with
the same instructions, in the same order and with the same indexes, has the same structure: its
values are cut out and put into the holes. Nothing executes it, and the bytes of arrays are not
copied.
"""

import io
import pickletools
import re
import struct
from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from vlmill.models.convert.plain_pickle import (
    MAX_RECORD,
    BadPickle,
    Kind,
    Name,
    PlainUnpickler,
    find_name,
    loads,
)

MAX_KINDS = 8
MAX_LEARNT = 64  # kinds: where every pickle is of another kind, the search only costs time
MAX_INSTRUCTIONS = 1_000  # of a pickle whose kind is remembered: records have some 300
MAX_FIXED = 4096  # bytes of the instructions between two values
MAX_HOLES = 256  # whose numbers fit the instruction
# The struct codes of numbers, and of the lengths of texts and bytes.
NUMBERS = {"BININT1": "B", "BININT2": "H"}
TEXTS = {"SHORT_BINUNICODE": "B", "BINUNICODE": "I"}
SHORT_BYTES = {"SHORT_BINBYTES": "B"}
VIEWS = {"BINBYTES": "I", "BINBYTES8": "Q", "BYTEARRAY8": "Q"}
INDEXES = {"PUT", "BINPUT", "LONG_BINPUT"}
# What every record repeats, such as versions, names of entries, modules and types.
SMALLEST_NUMBER = 4
REPEATED = re.compile(r"[A-Za-z_.<>|=]{1,24}|[A-Za-z][0-9]|[SU][0-9]{1,4}")
NUMPY_BYTES = b"b"  # of each array
STOP, FRAME, FRAME_SIZE = (
    "STOP",
    "FRAME",
    "Q",
)  # states the bytes up to the next one, and is not needed
Fill = Callable[[list[Any]], Any]


class Segment(NamedTuple):
    """Holds the instructions up to the end of a pickle, or up to a value of any length.

    ``layout`` gives in turns the bytes that a pickle must repeat, which are ``fixed``, and a number
    that may differ. The last number is the length of the value, which ``read`` makes from its
    bytes; None at the end.
    """

    layout: struct.Struct
    fixed: tuple[bytes, ...]
    read: Callable[[memoryview], Any] | None


class Hole(NamedTuple):
    """Represents a value that differs between the pickles of a kind."""

    number: int


class _Call:
    """Represents the result of a function of values that differ."""

    __slots__ = ("arguments", "function")

    def __init__(self, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
        self.function, self.arguments = function, arguments

    def __setstate__(self, state: Any) -> None:
        """Sets the state of an array, which numpy makes without one."""
        if self.function is not _make_array or self.arguments:
            raise BadPickle("an object whose state is set")
        _, shape, kind, fortran, data = state
        self.arguments = data, kind, shape, "F" if fortran else "C"


def _make_array(data: Any, kind: Kind, shape: Any, order: str) -> Any:
    """Returns an array, or the list of the objects of one."""
    return data if kind.kind is None and isinstance(data, list) else kind.array(data, shape, order)


class _Outliner(PlainUnpickler):
    """Reads a pickle with holes; what depends on one is a :class:`_Call`."""

    def persistent_load(self, number: int) -> Hole:
        return Hole(number)

    def find_class(self, module: str, name: str) -> Any:
        function = find_name(module, name)
        if name in ("_reconstruct", "_frombuffer"):
            return Name(lambda *given: _Call(_make_array, given if name == "_frombuffer" else ()))
        if name == "dtype":
            return function  # a type that differs is refused there
        return Name(
            lambda *given: (
                _Call(function, given)
                if any(isinstance(value, Hole | _Call) for value in given)
                else function(*given)
            )
        )


class SimilarPickles:
    """Reads pickles. Remembers the instructions of the last :data:`MAX_KINDS` kinds."""

    def __init__(self) -> None:
        self._kinds: deque[tuple[list[Segment], Fill]] = deque(maxlen=MAX_KINDS)
        self._learnt = 0

    def loads(self, data: bytes | memoryview) -> Any:
        """Reads plain data, as :func:`~vlmill.models.convert.plain_pickle.loads`; arrays may be
        numpy's or lists instead of :class:`~vlmill.models.convert.plain_pickle.Pickled`, and are
        views of ``data``. Raises BadPickle.
        """
        view = memoryview(data)
        for segments, fill in tuple(self._kinds) if len(data) <= MAX_RECORD else ():
            try:
                if (values := _read_values(view, segments)) is not None:
                    return fill(values)
            except BadPickle:
                raise
            except Exception:
                raise BadPickle("a damaged pickle") from None
        value = loads(data)
        if self._learnt < MAX_LEARNT:
            self._learnt += 1
            kind = _learn(bytes(data))
            self._kinds.extendleft([kind] if kind else [])
        return value


def _learn(data: bytes) -> tuple[list[Segment], Fill] | None:
    """Returns the segments of a valid pickle, and a function that makes its content from its
    values.

    None if it has too many instructions, long texts of Python 2, an index for which a reader would
    reserve memory, or a value that decides its structure.
    """
    segments, outline, start, holes = list[Segment](), list[bytes](), 0, 0
    layout, fixed = "<", list[bytes]()
    for count, (code, value, position) in enumerate(pickletools.genops(data)):
        assert position is not None
        name, end = code.name, position + 1
        is_large = name in INDEXES and int(value or 0) > MAX_INSTRUCTIONS
        if count > MAX_INSTRUCTIONS or holes == MAX_HOLES or is_large or end - start > MAX_FIXED:
            return None
        number, read = _find_hole(name, value)
        if not number and name != STOP:
            continue
        instructions, start = data[start:end], end
        fixed.append(instructions)
        layout += f"{len(instructions)}s{number}"
        if number:
            instructions = instructions[:-1] + (b"" if name == FRAME else b"K%cQ" % holes)
            start += struct.calcsize(f"<{number}")
            holes += 1
        outline.append(instructions)
        if read or name == STOP:
            segments.append(Segment(struct.Struct(layout), tuple(fixed), read))
            start += int.from_bytes(data[end:start], "little")
            layout, fixed = "<", []
    try:
        content = _Outliner(io.BytesIO(b"".join(outline)), encoding="latin1").load()
        fill = _Filling().make(content)
        fill(_read_values(memoryview(data), segments) or [])
        return segments, fill
    except Exception:  # any that a value causes where a hole cannot replace it
        return None


def _find_hole(name: str, value: Any) -> tuple[str, Callable[[memoryview], Any] | None]:
    """Returns the struct code of an instruction's number that may differ; empty for others.

    Also what reads the value whose length the number is.
    """
    if name == FRAME or (name in NUMBERS and value >= SMALLEST_NUMBER):
        return NUMBERS.get(name, FRAME_SIZE), None
    if name in TEXTS and not is_repeated(value):
        return TEXTS[name], _read_text
    if name in SHORT_BYTES and value != NUMPY_BYTES:
        return SHORT_BYTES[name], bytes
    return (VIEWS[name], memoryview) if name in VIEWS else ("", None)


def _read_text(data: memoryview) -> str:
    return str(data, "utf-8", "surrogatepass")


def is_repeated(value: object) -> bool:
    """Returns whether all records of a kind are likely to have a text."""
    return isinstance(value, str) and REPEATED.fullmatch(value) is not None


def _read_values(data: memoryview, segments: list[Segment]) -> list[Any] | None:
    """Returns the values of a pickle that differ; None unless it has ``segments``."""
    values, position = list[Any](), 0
    try:
        for layout, fixed, read in segments:
            found = layout.unpack_from(data, position)
            if found[::2] != fixed:
                return None
            position += layout.size
            values += found[1::2]
            if read is not None:
                start, position = position, position + values[-1]
                values[-1] = read(data[start:position])
    except (struct.error, OverflowError):  # it is shorter
        return None
    return values


class _Filling:
    """Makes functions that return the content of a pickle from its values.

    A list that holds twice the same list that holds twice the same ... would take forever: at most
    :data:`MAX_INSTRUCTIONS` values are looked at.
    """

    def __init__(self) -> None:
        self._left = MAX_INSTRUCTIONS

    def make(self, node: Any) -> Fill:
        """Returns the function for a value with holes. Raises BadPickle for too many values."""
        self._left -= 1
        if self._left < 0:
            raise BadPickle(f"more than {MAX_INSTRUCTIONS} values")
        if isinstance(node, Hole):
            return itemgetter(node.number)
        if isinstance(node, _Call):
            function, arguments = node.function, [self.make(value) for value in node.arguments]
            if function is _make_array and len(arguments) == 4:
                data, _, shape, _ = arguments
                _, kind, _, order = node.arguments
                if isinstance(kind, Kind) and kind.kind is not None and isinstance(order, str):
                    array = kind.array
                    return lambda values: array(data(values), shape(values), order)
            return lambda values: function(*[fill(values) for fill in arguments])
        if isinstance(node, dict):
            entries = [(key, self.make(value)) for key, value in node.items()]
            return lambda values: {key: fill(values) for key, fill in entries}
        if isinstance(node, list | tuple):
            fills = [self.make(value) for value in node]
            if isinstance(node, list):
                return lambda values: [fill(values) for fill in fills]
            if len(node) > 1 and all(isinstance(value, Hole) for value in node):
                return itemgetter(*(value.number for value in node))  # the shape of an array
            return lambda values: tuple([fill(values) for fill in fills])
        return lambda _: node
