"""Writes pickles of dicts with arrays, without copying the arrays.

The bytes are those of Python's pickler, protocol 3, which every Python 3 reads. The numbers
of an array are not copied, which the pickler does two or three times.
"""

import pickle
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from vlmill.extract.formats.unfinished import Part

PROTOCOL = 3  # without frames, which would hold the sizes of the arrays
START, STOP = b"\x80\x03", b"."
OPEN_DICT, CLOSE_DICT = b"}(", b"u"
NUMBERS = b"B"  # the instruction of bytes with a length of four bytes
MARK = "object of the array"
CACHED = 4096  # shapes of arrays
SMALL = 4096  # bytes of an array that is copied rather than kept as a part


def dict_parts(item: Mapping[str, Any]) -> list[Part]:
    """Returns the pickle of a dict in parts; its arrays must be contiguous."""
    return [START, *_value_parts(item), STOP]


def object_array_parts(item: Mapping[str, Any]) -> list[Part]:
    """Returns the pickle of ``np.array(item, dtype=object)`` in parts."""
    before, after = _object_array()
    return [START, before, *_value_parts(item), after, STOP]


def _value_parts(item: Mapping[str, Any]) -> list[Part]:
    """Returns the instructions that make a dict.

    Each key and value is pickled separately, so none refers to an object of another.
    """
    parts, plain = list[Part](), [OPEN_DICT]
    for name, value in item.items():
        plain.append(_constant(name))
        if not isinstance(value, np.ndarray) or not value.size:
            plain.append(_constant(value) if type(value) is int else _dump(value))
            continue
        before, after = _array(value.dtype, value.shape)
        if value.nbytes < SMALL:
            plain += (before, value.tobytes(), after)
        else:
            plain.append(before)
            parts += (b"".join(plain), value.data.cast("B"))
            plain = [after]
    parts.append(b"".join((*plain, CLOSE_DICT)))
    return parts


def _dump(value: Any) -> bytes:
    """Returns the instructions that make a value.

    numpy 1 has not the module that numpy 2 names.
    """
    data = pickle.dumps(value, protocol=PROTOCOL)[len(START) : -len(STOP)]
    return data.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


_constant = lru_cache(maxsize=CACHED)(_dump)  # names and sizes, which repeat


@lru_cache(maxsize=CACHED)
def _array(kind: np.dtype[Any], shape: tuple[int, ...]) -> tuple[bytes, bytes]:
    """Returns the instructions before and after the numbers of an array."""
    zeros = np.zeros(shape, kind)
    numbers = NUMBERS + zeros.nbytes.to_bytes(4, "little")
    if zeros.nbytes < 256:  # the pickler has a shorter instruction for few bytes
        before, after = _dump(zeros).split(b"C" + bytes([zeros.nbytes]) + zeros.tobytes())
    else:
        before, after = _dump(zeros).split(numbers + zeros.tobytes())
    return before + numbers, after


@lru_cache(maxsize=1)
def _object_array() -> tuple[bytes, bytes]:
    """Returns the instructions before and after the only object of an array."""
    pickled = _dump(np.array(MARK, dtype=object))
    length = len(MARK).to_bytes(4, "little")
    before, after = pickled.split(b"X" + length + MARK.encode())
    return before, after
