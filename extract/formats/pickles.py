"""Strangers' pickles as plain data: containers, text, bytes, numbers and arrays; nothing else.

A pickle is a program that may call whatever it names. Here every name but those of numpy's arrays
is refused, and these lead to small classes of ours: numpy itself never sees what the file says
about types, because a forged dtype can make it read wild pointers.
"""

import io
import math
import pickle
import re
import struct
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

MAX_PICKLE = 64 * 2**20
_NUMBER = re.compile(r"[<>|=]?([biu][1248]|f[248])")
_TEXT = re.compile(r"[<>|=]?[SU][0-9]{1,6}")


class BadPickle(ValueError):
    """A pickle that is damaged or asks for more than plain data."""


class Kind:
    """An array's type of numbers or text, or of objects."""

    def __init__(self, text: object, align: object = False, copy: object = False) -> None:
        if text in ("O", "O8", "|O"):
            self.kind: np.dtype[Any] | None = None
        elif isinstance(text, str) and (_NUMBER.fullmatch(text) or _TEXT.fullmatch(text)):
            self.kind = np.dtype(text)
        else:
            raise BadPickle(f"an array of type {str(text)[:40]}")

    def __setstate__(self, state: Any) -> None:
        order, parts, names = state[1:4]
        if parts is not None or names is not None:
            raise BadPickle("an array of records")
        if self.kind is not None and order in ("<", ">"):
            self.kind = self.kind.newbyteorder(order)

    def array(self, data: Any, shape: Any, order: str) -> npt.NDArray[Any]:
        """Bytes as an array of this type."""
        if isinstance(data, str):  # Python 2 kept bytes as text
            data = data.encode("latin-1")
        if self.kind is None or not isinstance(data, bytes):
            raise BadPickle("an array's numbers are not bytes")
        if not isinstance(shape, tuple) or not all(type(side) is int for side in shape):
            raise BadPickle("an array's shape is no tuple of numbers")
        if min(shape, default=0) < 0 or math.prod(shape) * self.kind.itemsize != len(data):
            raise BadPickle(f"{len(data)} bytes for an array of shape {shape}")
        flat = np.frombuffer(data, self.kind)
        return flat.reshape(shape, order="F") if order == "F" else flat.reshape(shape)


class Pickled:
    """An array: ``value`` is a numpy array, or for objects the list of them."""

    value: Any = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, data = state
        if not isinstance(kind, Kind):
            raise BadPickle("an array without a type")
        if kind.kind is None:
            if not isinstance(data, list):
                raise BadPickle("an array of objects that is no list")
            self.value = data
        else:
            self.value = kind.array(data, shape, "F" if fortran else "C")


def _reconstruct(*_: object) -> Pickled:
    return Pickled()


def _from_buffer(data: Any, kind: Kind, shape: Any, order: str) -> Pickled:
    found = Pickled()
    found.value = kind.array(data, shape, order)
    return found


def _scalar(kind: Kind, data: Any) -> Any:
    return kind.array(data, (1,), "C")[0].item()


def _encode(text: str, encoding: str = "latin1") -> bytes:
    return text.encode("latin-1")


class Name:
    """What a name in a pickle leads to; it can be called, and not changed."""

    __slots__ = ("_build",)

    def __init__(self, build: Any) -> None:
        self._build = build

    def __call__(self, *arguments: Any) -> Any:
        return self._build(*arguments)

    def __setstate__(self, state: object) -> None:
        raise BadPickle("a name whose state is set")


_ARRAYS = {
    "_reconstruct": Name(_reconstruct),
    "scalar": Name(_scalar),
    "_frombuffer": Name(_from_buffer),
}
NAMES = {
    ("numpy", "ndarray"): Name(_reconstruct),
    ("numpy", "dtype"): Name(Kind),
    ("_codecs", "encode"): Name(_encode),
    # How old protocols say that there are no bytes. With an argument it would reserve memory.
    ("builtins", "bytes"): Name(lambda: b""),
    ("__builtin__", "bytes"): Name(lambda: b""),
    **{
        (f"numpy.{core}.{module}", name): build
        for core in ("core", "_core")
        for module in ("multiarray", "numeric")
        for name, build in _ARRAYS.items()
    },
}


# The Python version: that in C allocates whatever number of slots a memo's index asks for.
class PlainUnpickler(pickle._Unpickler):
    """Knows no name but those of arrays."""

    read: Any  # set by load(), as append is
    append: Any

    dispatch: ClassVar[dict[int, Any]] = {**pickle._Unpickler.dispatch}

    def load_bytearray8(self) -> None:
        """Bytes; the original reserves as many as the file says before it has read any."""
        (size,) = struct.unpack("<Q", self.read(8))
        if size > MAX_PICKLE:
            raise BadPickle(f"{size} bytes, limit {MAX_PICKLE}")
        self.append(self.read(size))

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8

    def find_class(self, module: str, name: str) -> Any:
        """One of NAMES."""
        try:
            return NAMES[module, name]
        except (KeyError, TypeError):
            raise BadPickle(f"the pickle asks for {module}.{name}"[:100]) from None


def loads(data: bytes) -> Any:
    """Plain data; arrays are :class:`Pickled`. Raises BadPickle."""
    if len(data) > MAX_PICKLE:
        raise BadPickle(f"{len(data)} bytes, limit {MAX_PICKLE}")
    try:
        return PlainUnpickler(io.BytesIO(data), encoding="latin1").load()
    except BadPickle:
        raise
    # A damaged pickle can fail in any instruction, with whatever error its operands give.
    except Exception as error:
        raise BadPickle(f"{type(error).__name__}: {error}"[:200]) from None


def plain_value(value: Any) -> Any:
    """Text, a number or a numpy array; None for anything else.

    Containers are refused because even printing one can take for ever: a list of twice the same
    list of twice the same list ...
    """
    found = value.value if isinstance(value, Pickled) else value
    if isinstance(found, bytes):
        return found.decode("utf-8", "replace")
    return found if isinstance(found, (str, int, float, np.ndarray)) else None
