"""Reads untrusted pickles as plain data: containers, text, bytes, numbers and arrays.

A pickle is a program that may call anything it names. This reader refuses every name except those
of numpy's arrays and of ordered dicts, and resolves these to small classes of vlmill. numpy never
reads the file's dtypes, because a forged dtype can make it read wild pointers. Nothing reserves
more memory than the file has bytes, and the number of instructions is limited: an instruction of a
single byte in the file can cost some 200 in memory.
"""

import io
import pickle
import re
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

MAX_RECORD = 64 * 2**20  # of one image; a checkpoint may be as large as its file
MAX_INSTRUCTIONS = 20_000_000  # of one pickle; one of 142,000 expressions (RefCOCO) has 5 million
NO_MEMORY = "it needs more memory than the limit"
_NUMBER = re.compile(r"[<>|=]?([biu][1248]|f[248])")
_TEXT = re.compile(r"[<>|=]?[SU][0-9]{1,6}")


class BadPickle(ValueError):
    """Raised if a pickle is damaged or needs more than plain data."""


@lru_cache(maxsize=64)
def _parse_kind(text: str) -> np.dtype[Any] | None:
    """Returns the type of numbers or texts; None for objects. Raises BadPickle for other types."""
    if text in ("O", "O8", "|O"):
        return None
    if _NUMBER.fullmatch(text) or _TEXT.fullmatch(text):
        return np.dtype(text)
    raise BadPickle(f"an array of type {text[:40]}")


def view_array(
    data: bytes | memoryview, kind: np.dtype[Any], shape: tuple[Any, ...], order: Literal["C", "F"]
) -> npt.NDArray[Any]:
    """Returns bytes as an array, without a copy. Raises BadPickle unless they fill ``shape``."""
    try:
        array = np.ndarray(shape, kind, data, order=order)
    except (TypeError, ValueError):  # sides that are no numbers, or more of them than bytes
        array = None
    # numpy takes -1 for the number of elements that there are
    if array is None or array.shape != shape or array.nbytes != len(data):
        raise BadPickle(f"{len(data)} bytes for an array of shape {str(shape)[:100]}")
    return array


class Kind:
    """Specifies the type of an array's elements: numbers, text or objects."""

    def __init__(self, text: object, align: object = False, copy: object = False) -> None:
        if not isinstance(text, str):
            raise BadPickle(f"an array of type {str(text)[:40]}")
        self.kind = _parse_kind(text)

    def __setstate__(self, state: Any) -> None:
        order, parts, names = state[1:4]
        if parts is not None or names is not None:
            raise BadPickle("an array of records")
        if self.kind is not None and order in ("<", ">"):
            self.kind = self.kind.newbyteorder(order)

    def array(self, data: Any, shape: Any, order: str) -> npt.NDArray[Any]:
        """Reads bytes as an array of this type."""
        if isinstance(data, str):  # Python 2 stored bytes as text
            data = data.encode("latin-1")
        if not isinstance(data, (bytes, memoryview)) or self.kind is None:
            raise BadPickle("an array's numbers are not bytes")
        if not isinstance(shape, tuple):
            raise BadPickle("the shape of an array is not a tuple")
        return view_array(data, self.kind, shape, "F" if order == "F" else "C")


class Pickled:
    """Holds an array: ``value`` is a numpy array, or a list of its objects."""

    value: Any = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, data = state
        if not isinstance(kind, Kind):
            raise BadPickle("an array without a type")
        if kind.kind is None:
            if not isinstance(data, list):
                raise BadPickle("an array of objects without a list of them")
            self.value = data
        else:
            self.value = kind.array(data, shape, "F" if fortran else "C")


class PickledDict(dict[Any, Any]):
    """Holds an ordered dict; ``_metadata`` is the metadata of modules in torch's state dicts."""

    __slots__ = ("_metadata",)

    def __init__(self, items: object = ()) -> None:
        super().__init__()
        if not isinstance(items, list | tuple):
            raise BadPickle("a dict whose items are not pairs")
        put(self, [part for pair in items for part in _pair(pair)])

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict) or state.keys() - {"_metadata"}:
            raise BadPickle("a dict with attributes")
        self._metadata = state.get("_metadata")


def _pair(pair: object) -> list[Any] | tuple[Any, ...]:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise BadPickle("a dict whose items are not pairs")
    return pair


def put(target: object, items: list[Any]) -> None:
    """Puts alternating keys and values into a dict.

    Containers as keys are refused: hashing one that holds twice the same that holds twice the same
    ... takes practically forever.
    """
    if not isinstance(target, dict) or len(items) % 2:
        raise BadPickle("items for an object that is not a dict")
    for key, value in zip(items[::2], items[1::2], strict=True):
        # A class is one of ours: names never resolve to classes of the file.
        if key is not None and not isinstance(key, (str, bytes, int, float, np.integer, type)):
            raise BadPickle(f"a dict with a key of type {type(key).__name__}")
        target[key] = value


def _reconstruct(*_: object) -> Pickled:
    return Pickled()


def _from_buffer(data: Any, kind: Kind, shape: Any, order: str) -> Pickled:
    array = Pickled()
    array.value = kind.array(data, shape, order)
    return array


def _scalar(kind: Kind, data: Any) -> Any:
    return kind.array(data, (1,), "C")[0]


def _encode(text: str, encoding: str = "latin1") -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise BadPickle(f"text in {str(encoding)[:40]}")
    return text.encode("latin-1")


class Name:
    """Resolves a name in a pickle; it can be called, but not changed."""

    __slots__ = ("_build",)

    def __init__(self, build: Any) -> None:
        self._build = build

    def __call__(self, *arguments: Any) -> Any:
        return self._build(*arguments)

    def __setstate__(self, state: object) -> None:
        raise BadPickle("a function or class whose state is set")


_ARRAYS = {
    "_reconstruct": Name(_reconstruct),
    "scalar": Name(_scalar),
    "_frombuffer": Name(_from_buffer),
}
NAMES = {
    ("numpy", "ndarray"): Name(_reconstruct),
    ("numpy", "dtype"): Name(Kind),
    ("_codecs", "encode"): Name(_encode),
    ("collections", "OrderedDict"): Name(PickledDict),
    # Old protocols write empty bytes like this. With an argument it would reserve memory.
    ("builtins", "bytes"): Name(lambda: b""),
    ("__builtin__", "bytes"): Name(lambda: b""),
    **{
        (f"numpy.{core}.{module}", name): build
        for core in ("core", "_core")
        for module in ("multiarray", "numeric")
        for name, build in _ARRAYS.items()
    },
}


class _Bounded:
    """Reads a file and never requests more bytes than it has, regardless of the pickle."""

    def __init__(self, file: io.BufferedIOBase, size: int) -> None:
        self.file, self.size, self.readline = file, size, file.readline

    def read(self, count: int) -> bytes:
        return self.file.read(min(count, self.size))


# The Python version: the C version allocates any number of slots that a memo's index requests.
class PlainUnpickler(pickle._Unpickler):
    """Resolves only the names of arrays and ordered dicts."""

    append: Any
    stack: Any
    pop_mark: Any

    dispatch: ClassVar[dict[int, Any]] = {**pickle._Unpickler.dispatch}

    def __init__(self, file: Any, *, encoding: str) -> None:
        super().__init__(file, encoding=encoding)
        self.read, self.readline = file.read, file.readline

    def load(self) -> Any:
        """Returns the value of the first pickle; runs at most MAX_INSTRUCTIONS.

        Frames only help to read ahead and are ignored, which halves the time of an array.
        """
        self.metastack: list[Any] = []
        self.stack = []
        self.append, self.proto = self.stack.append, 0
        read, functions = self.read, self.dispatch
        try:
            for _ in range(MAX_INSTRUCTIONS):
                code = read(1)
                if not code:
                    raise EOFError("it is cut")
                functions[code[0]](self)
        except pickle._Stop as end:  # type: ignore[attr-defined]
            return end.value
        raise BadPickle(f"more than {MAX_INSTRUCTIONS} instructions")

    def load_frame(self) -> None:
        """Skips the size of a frame."""
        self.read(8)

    def load_bytearray8(self) -> None:
        """Reads bytes; the original reserves the length stated in the file before it has read
        any.
        """
        (size,) = struct.unpack("<Q", self.read(8))
        data = self.read(size)
        if len(data) < size:
            raise BadPickle(f"{size} bytes, and {len(data)} are there")
        self.append(data)

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        put(self.stack[-1], [key, value])

    def load_setitems(self) -> None:
        items = self.pop_mark()
        put(self.stack[-1], items)

    def load_dict(self) -> None:
        items: dict[Any, Any] = {}
        put(items, self.pop_mark())
        self.append(items)

    def refuse(self) -> None:
        """Refuses sets, which hash their elements, and names by a number that other code
        assigned.
        """
        raise BadPickle("a set or an extension's object")

    dispatch[pickle.FRAME[0]] = load_frame
    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.DICT[0]] = load_dict
    for _opcode in (
        *(pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET),
        *(pickle.EXT1, pickle.EXT2, pickle.EXT4),
    ):
        dispatch[_opcode[0]] = refuse

    def find_class(self, module: str, name: str) -> Any:
        """Returns one of NAMES."""
        return find_name(module, name)


def find_name(module: str, name: str) -> Any:
    """Returns one of NAMES. Raises BadPickle for any other name."""
    try:
        return NAMES[module, name]
    except (KeyError, TypeError):
        raise BadPickle(f"the pickle asks for {module}.{name}"[:100]) from None


def loads(data: bytes | memoryview) -> Any:
    """Reads plain data of one record; arrays are :class:`Pickled`. Raises BadPickle."""
    if len(data) > MAX_RECORD:
        raise BadPickle(f"{len(data)} bytes, limit {MAX_RECORD}")
    return _load(PlainUnpickler, io.BytesIO(data), "latin1")  # its read() is bounded


def load(
    file: io.BufferedIOBase,
    size: int,
    *,
    encoding: str = "latin1",
    unpickler: Callable[..., PlainUnpickler] = PlainUnpickler,
) -> Any:
    """Reads the first pickle in an open file of ``size`` bytes as plain data.

    ``encoding`` applies to Python 2 texts: "bytes" returns them as bytes. ``unpickler`` defines the
    allowed names.
    """
    return _load(unpickler, _Bounded(file, size), encoding)


def _load(unpickler: Callable[..., PlainUnpickler], file: Any, encoding: str) -> Any:
    try:
        return unpickler(file, encoding=encoding).load()
    except BadPickle:
        raise
    except MemoryError:
        raise BadPickle(NO_MEMORY) from None
    except (EOFError, struct.error):
        raise BadPickle("a damaged pickle: it is cut") from None
    # A damaged pickle can fail in any instruction, with any error that its operands cause.
    except Exception:
        raise BadPickle("a damaged pickle, or none") from None


def plain_value(value: Any) -> Any:
    """Returns text, a number or a numpy array; None for anything else.

    Containers are refused because even printing one can take practically forever: a list of twice
    the same list of twice the same list ...
    """
    plain = value.value if isinstance(value, Pickled) else value
    if isinstance(plain, np.generic):
        plain = plain.item()
    if isinstance(plain, (str, int, float, np.ndarray)):
        return plain
    return str(plain, "utf-8", "replace") if isinstance(plain, (bytes, memoryview)) else None
